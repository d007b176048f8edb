"""The delay levels, forecasts of all topics, and records without an id, by the commands."""

import json

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


def test_a_record_without_an_id_is_rescheduled_by_its_place(
    latermq: CommandLine, topic: str
) -> None:
    latermq.ok(f"send {topic} value --delay 1h")
    head, row = latermq.ok(f"timers list {topic} --places").lines
    assert head.split()[-1] == "PLACE"
    place = row.split()[-1]
    said = latermq.ok(f"timers reschedule --place {place} --to 2h").stdout
    moved = said.split(":")[0]
    assert f", {topic}, partition " in said
    (line,) = latermq.ok(f"timers list {topic} --json").lines
    assert json.loads(line)["place"] == moved != place
    assert "no pending record is there" in latermq.fails(f"timers deliver-now --place {place}")
    found = latermq.ok(f"timers deliver-now --place {moved} --json").json()
    assert found["topic"] == topic
    (record,) = latermq.ok(f"tail {topic} --json").json_lines()
    assert record["value"] == "value"
    wrong = f"timers reschedule {topic} --to 2h"
    assert "by TOPIC and ID, or else by --place" in latermq.fails(wrong, 2)
    assert "not a place" in latermq.fails("timers deliver-now --place here")
