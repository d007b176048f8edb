"""The delay levels and forecasts of all topics, by the commands."""

from tests.support.harness.command_line import CommandLine


def test_levels_are_shown_as_the_queues_of_rocketmq(latermq: CommandLine, topic: str) -> None:
    before = latermq.ok("timers levels --json").json()["levels"][17]
    for user_id in ("a", "b"):
        latermq.ok(f"send {topic} x --level 18 --id {user_id}")
    latermq.ok(f"timers cancel {topic} a")
    head, *rows = latermq.ok("timers levels").lines
    assert head.split() == ["LEVEL", "DELAY", "QUEUE", "OFFSET", "MAX", "OFFSET", "LAG"]
    assert rows[0].split()[:3] == ["1", "1s", "SCHEDULE_TOPIC_XXXX/0"]
    offset, end, lag = (before[name] + 1 for name in ("offset", "max_offset", "lag"))
    assert rows[17].split() == [
        "18",
        "2h",
        "SCHEDULE_TOPIC_XXXX/17",
        *map(str, (offset, end + 1, lag)),
    ]
    latermq.ok(f"send {topic} x --level 18")
    latermq.ok(f"timers purge {topic} --yes")
    shown = latermq.ok("timers levels --json").json()["levels"][17]
    assert (shown["max_offset"], shown["lag"]) == (end + 2, before["lag"])


def test_a_forecast_of_all_topics_begins_with_this_second(latermq: CommandLine, topic: str) -> None:
    latermq.ok(f"send {topic} x --delay 90s --id here")
    near = latermq.ok("timers forecast --step 1s --intervals 120 --json").json()
    assert near["from_at"] % 1_000 == 0
    assert sum(near["counts"][85:95]) >= 1
    days = latermq.ok("timers forecast --step 1d --intervals 365 --json").json()
    assert days["from_at"] % 60_000 == 0
    assert days["counts"][0] >= 1
    latermq.ok(f"timers cancel {topic} here")
