"""The commands that ask a running broker, by a real one in a process of its own."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final

import pytest

from appliance.commands.arguments import Interrupts
from appliance.commands.output import printable
from tests.support.harness.appliance_process import ApplianceProcess, latermq_command
from tests.support.harness.command_line import CommandLine

# Clients that are closed leave the two ends of their wake-up pipes to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


LIMIT_S: Final = 60.0


@contextmanager
def following(topic: str) -> Iterator[tuple["subprocess.Popen[str]", IO[str]]]:
    """`tail --follow` in a process of its own, once it has printed a record; and its output."""
    command = [latermq_command(), "tail", topic, "--follow"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() != ""
            yield process, process.stdout
        finally:
            process.kill()


def shown(latermq: CommandLine, command: str) -> list[tuple[Any, ...]]:
    """Partition, offset and value of what `tail` prints."""
    found = latermq.ok(f"{command} --json").json_lines()
    return sorted((each["partition"], each["offset"], each["value"]) for each in found)


# what is refused


def test_what_the_broker_refuses_is_said_in_its_words(latermq: CommandLine, topic: str) -> None:
    assert "ISO 8601" in latermq.fails(f"send {topic} x --delay soon")
    assert "looks like seconds" in latermq.fails(f"send {topic} x --at 1767225600")
    assert "record 1" in latermq.fails(f"send {topic} x --delay 1s --level 1")
    assert "Topic name is invalid" in latermq.fails("topics create 'a b'")
    assert "cleanup.policy" in latermq.fails("topics create fresh --set cleanup.policy=compact")
    assert "exists" in latermq.fails(f"topics create {topic}")
    assert "no partition 2" in latermq.fails(f"send {topic} x --partition 2")
    assert latermq.ok(f"tail {topic}").stdout == ""


@pytest.mark.parametrize("name", ["", "a b", "ü", "../x", "x" * 250])
def test_names_that_cannot_be_are_refused_without_a_traceback(
    latermq: CommandLine, name: str
) -> None:
    for words in (
        ["send", name, "x"],
        ["tail", name],
        ["topics", "create", name],
        ["topics", "describe", name],
        ["topics", "delete", name, "--yes"],
        ["groups", "describe", name],
        ["timers", "show", name, "x"],
        ["timers", "cancel", "t", name * 2],
    ):
        outcome = latermq.run_words(words)
        assert outcome.status == 1, (words, outcome)
        assert outcome.stderr.startswith("latermq: "), (words, outcome)
        assert outcome.stderr.count("\n") == 1, (words, outcome)


def test_arguments_that_make_no_sense_are_refused_with_status_2(latermq: CommandLine) -> None:
    for command in (
        "send t --cancel a value",
        "send t x --header nothing",
        "tail t --from yesterday",
        "tail t --since yesterday",
        "tail t --group g --since 1h",
        "tail t --group g --from 7",
        "groups reset-offsets g",
        "groups reset-offsets g --to earliest --since 1h",
        "groups reset-offsets g --to first",
        "topics create t --set x",
        "topics delete t",
        "send t x --bootstrap nowhere",
        "status --admin nowhere",
        "tail t --group ''",
        "groups reset-offsets '' --to latest",
        "groups alter g",
        "groups alter '' --retry-max 3",
    ):
        latermq.fails(command, 2)


# tail


def test_tail_begins_where_asked(latermq: CommandLine, topic: str) -> None:
    latermq.ok(f"send {topic} a b c d --partition 0")
    middle_ms = int(time.time() * 1000)
    time.sleep(0.002)
    latermq.ok(f"send {topic} e f --partition 0")
    latermq.ok(f"send {topic} g --partition 1")
    part = f"tail {topic} --partition 0"
    assert [value for *_, value in shown(latermq, part)] == list("abcdef")
    assert [value for *_, value in shown(latermq, f"{part} --from 4")] == list("ef")
    assert [value for *_, value in shown(latermq, f"{part} --from 2 --count 3")] == list("cde")
    assert shown(latermq, f"tail {topic} --from 99") == []
    assert shown(latermq, f"tail {topic} --from latest") == []
    young = [value for *_, value in shown(latermq, f"tail {topic} --since {middle_ms + 1}")]
    assert young == list("efg")
    assert len(shown(latermq, f"tail {topic} --since 1h")) == 7
    assert shown(latermq, f"tail {topic} --since 2099-01-01T00:00:00Z") == []
    assert "no partition 2" in latermq.fails(f"tail {topic} --partition 2")
    assert "topics create" in latermq.fails("tail nowhere")


def test_since_a_time_are_also_records_that_were_created_before_and_delivered_after(
    latermq: CommandLine, topic: str
) -> None:
    latermq.ok(f"send {topic} later --delay 200ms --partition 0")
    since_ms = int(time.time() * 1000)
    latermq.ok(f"tail {topic} --follow --count 1")
    assert shown(latermq, f"tail {topic} --since {since_ms}") == [(0, 0, "later")]
    group = f"{topic}-readers"
    reset = f"groups reset-offsets {group} --topic {topic} --partition 0 --json --since"
    for time_text, offset in (
        (since_ms, 0),
        ("2099-01-01T00:00:00Z", 1),
        (f"{since_ms} --by delivered", 0),
        (f"{since_ms} --by due", 0),
        (f"{since_ms} --by created", 1),
    ):
        (move,) = latermq.ok(f"{reset} {time_text}").json()
        assert move["new_offset"] == offset
    assert "--by created" in latermq.ok(f"{reset.replace('--json ', '')} {since_ms}").stderr


def test_since_a_time_may_be_that_of_creation_or_the_due_time(
    latermq: CommandLine, topic: str
) -> None:
    latermq.ok(f"send {topic} early --delay 100ms --partition 0")
    latermq.ok(f"send {topic} late --delay 600ms --partition 0")
    records = latermq.ok(f"tail {topic} --follow --count 2 --json").json_lines()
    early, late = (each["due_at"] for each in records)
    part = f"tail {topic} --partition 0"
    assert shown(latermq, f"{part} --since {early} --by due") == [(0, 0, "early"), (0, 1, "late")]
    assert shown(latermq, f"{part} --since {early + 1} --by due") == [(0, 1, "late")]
    assert shown(latermq, f"{part} --since {late + 1} --by due") == []
    assert shown(latermq, f"{part} --since {late} --by created") == []
    created = min(each["timestamp"] for each in records)
    assert len(shown(latermq, f"{part} --since {created} --by created")) == 2
    assert "--by created" in latermq.ok(f"{part} --since {early}").stderr
    assert latermq.ok(f"{part} --since {early} --by delivered").stderr == ""
    assert "--since as well" in latermq.fails(f"{part} --by due", 2)


def test_following_ends_when_the_topic_is_deleted_and_does_not_make_it_again(
    latermq: CommandLine, topic: str
) -> None:
    latermq.ok(f"send {topic} x")
    with following(topic) as (tail, _):
        latermq.ok(f"topics delete {topic} --yes")
        assert tail.stderr is not None
        assert tail.stderr.read() == f"latermq: topic {topic} was deleted\n"
        assert tail.wait(LIMIT_S) == 1
    assert topic not in [each["name"] for each in latermq.ok("topics list --json").json()]


def test_following_ends_when_nobody_reads_the_output(latermq: CommandLine, topic: str) -> None:
    latermq.ok(f"send {topic} x")
    with following(topic) as (tail, stdout):
        stdout.close()  # as `head -1` does
        assert tail.wait(LIMIT_S) == 0
        assert tail.stderr is not None
        assert tail.stderr.read() == ""


def test_a_line_shows_place_time_key_value_and_when_it_was_due(
    latermq: CommandLine, topic: str
) -> None:
    latermq.ok(f"send {topic} 'a\tb' --key k --partition 0 --delay 1ms")
    latermq.ok(f"send {topic} 'esc\x1b[31m\\' --partition 0")
    latermq.ok(f"tail {topic} --partition 0 --from 0 --follow --count 2")
    first, second = sorted(latermq.ok(f"tail {topic}").lines)
    instant = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    escaped = r"esc\\x1b\[31m\\\\"
    assert {True} == {
        any(re.fullmatch(pattern, line) for line in (first, second))
        for pattern in (
            rf"{topic}/0@[01]\t{instant}\tk\ta\\tb\tdue {instant}",
            rf"{topic}/0@[01]\t{instant}\t\t{escaped}\t",
        )
    }
    on_terminal = latermq.run(f"tail {topic}", on_terminal=True)
    assert "\x1b[31m" not in on_terminal.stdout
    assert "\x1b[36mk\x1b[0m" in on_terminal.stdout


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("plain Grüße 你好", "plain Grüße 你好"),
        ("a\nb\r\t\\", r"a\nb\r\t" + "\\\\"),
        (b"\xff\xfe ok", r"\xff\xfe ok"),
        ("\x1b]0;title\x07\x9b31m", r"\x1b]0;title\x07\x9b31m"),
        ("\u202eright to left", r"\u202eright to left"),
        ("\udc80", r"\x80"),
        (None, ""),
    ],
)
def test_nothing_in_a_record_can_steer_the_terminal(
    value: str | bytes | None, expected: str
) -> None:
    assert printable(value) == expected


def test_a_group_goes_on_where_it_was_and_can_be_set_back(latermq: CommandLine, topic: str) -> None:
    group = f"{topic}-readers"
    latermq.ok(f"send {topic} a b c --partition 0")
    latermq.ok(f"send {topic} d --partition 1")
    first = shown(latermq, f"tail {topic} --group {group} --count 2")
    second = shown(latermq, f"tail {topic} --group {group}")
    assert sorted(first + second) == [(0, 0, "a"), (0, 1, "b"), (0, 2, "c"), (1, 0, "d")]
    assert {"name": group, "state": "Empty", "protocol_type": "consumer"} in latermq.ok(
        "groups list --json"
    ).json()

    latermq.ok(f"send {topic} e --partition 0")
    described = latermq.ok(f"groups describe {group} --json").json()
    assert described["members"] == []
    at = [(each["partition"], each["offset"], each["lag"]) for each in described["offsets"]]
    assert at == [(0, 3, 1), (1, 1, 0)]
    assert latermq.ok(f"groups describe {group}").lines[-2].split() == [
        *(topic, "0", "3", "4", "1", "-"),
    ]

    moves = latermq.ok(f"groups reset-offsets {group} --to 1 --dry-run --json").json()
    assert [(m["partition"], m["old_offset"], m["new_offset"]) for m in moves] == [
        (0, 3, 1),
        (1, 1, 1),
    ]
    assert latermq.ok(f"groups describe {group} --json").json() == described
    latermq.ok(f"groups reset-offsets {group} --topic {topic} --partition 0 --to 2")
    assert shown(latermq, f"tail {topic} --group {group}") == [(0, 2, "c"), (0, 3, "e")]
    latermq.ok(f"groups reset-offsets {group} --since 1h")
    assert len(shown(latermq, f"tail {topic} --group {group}")) == 5
    assert "no group" in latermq.fails("groups describe nobody")
    assert "--topic" in latermq.fails("groups reset-offsets nobody --to latest")


# topics, status, timers


def test_topics_are_listed_described_and_deleted(latermq: CommandLine, topic: str) -> None:
    latermq.ok(f"send {topic} a b --partition 1")
    made = latermq.ok("topics create other --set delay.headers=off --json").json()
    assert made == {"name": "other", "partitions": 4}
    listed = {each["name"]: each for each in latermq.ok("topics list --json").json()}
    assert "__consumer_offsets" not in listed
    assert listed[topic] == {"name": topic, "partitions": 2, "records": 2}
    assert f"{topic} 2 2".split() in [line.split() for line in latermq.ok("topics list").lines]
    described = latermq.ok(f"topics describe {topic} --json").json()
    assert described["settings"] == {}
    assert described["partitions"] == [
        {"partition": 0, "start_offset": 0, "end_offset": 0},
        {"partition": 1, "start_offset": 0, "end_offset": 2},
    ]
    assert latermq.ok(f"topics describe {topic}").lines[-1].split() == ["1", "0", "2"]
    settings = latermq.ok("topics describe other --json").json()["settings"]
    assert settings == {"delay.headers": "off"}
    everything = latermq.ok("topics describe other --all --json").json()["settings"]
    assert len(everything) > 10
    assert latermq.ok("topics delete other --yes").stdout == "other deleted\n"
    assert "no topic" in latermq.fails("topics delete other --yes")
    assert "no topic" in latermq.fails("topics describe other")


def test_settings_of_a_topic_are_changed_all_or_none(latermq: CommandLine, topic: str) -> None:
    def settings() -> dict[str, str]:
        found: dict[str, str] = latermq.ok(f"topics describe {topic} --json").json()["settings"]
        return found

    changed = latermq.ok(f"topics alter {topic} --set delay.required=true --set retention.ms=5")
    assert changed.stdout == f"{topic} changed: 2 settings\n"
    assert settings() == {"delay.required": "true", "retention.ms": "5"}
    said = latermq.fails(f"topics alter {topic} --set retention.ms=7 --set delay.default=soon")
    assert "delay.default='soon' is invalid: use a number with ms, s, m, h or d" in said
    assert settings() == {"delay.required": "true", "retention.ms": "5"}
    latermq.ok(f"topics alter {topic} --unset delay.required --set retention.ms=6")
    assert settings() == {"retention.ms": "6"}
    assert "nothing to change" in latermq.fails(f"topics alter {topic}", 2)
    both = f"topics alter {topic} --set retention.ms=5 --unset retention.ms"
    assert "both set and unset" in latermq.fails(both, 2)
    assert "did you mean retention.ms?" in latermq.fails(f"topics alter {topic} --set retention=5")
    assert latermq.fails("topics alter nowhere --set retention.ms=5")


def test_status_tells_what_the_broker_is(
    latermq: CommandLine, topic: str, broker: ApplianceProcess
) -> None:
    latermq.ok(f"send {topic} x --delay 1h")
    status = latermq.ok("status --json").json()
    moving = {
        name: status[name] for name in ("uptime_ms", "connections", "disk", "freeing", "key_index")
    }
    assert status == broker.get_json("/api/v1/status")[1] | moving
    fields = {
        name: value.strip()
        for name, _, value in (line.partition(" ") for line in latermq.ok("status").lines)
    }
    assert fields["kafka"] == broker.kafka
    assert fields["flush"].startswith("sync")
    assert fields["waiting"].startswith(f"{status['pending_timers']} delayed records, the next")
    assert re.fullmatch(
        r"(ok|warn): [0-9.]+% used, [0-9]+ of [0-9]+ bytes free(, full in .* at this rate)?",
        fields["disk"],
    )
    assert re.fullmatch(r"about [0-9]+ bytes of the log are needed no longer", fields["freeing"])
    assert fields["damage"] == "none"
    assert "REFUSING" not in fields
    assert "EXPIRING" not in fields
    assert "INSECURE" not in fields


def test_timers_are_shown_and_cancelled(latermq: CommandLine, topic: str) -> None:
    latermq.ok(f"send {topic} x --delay 1h --id 'a/b ü'")
    assert latermq.ok(f"timers show {topic} 'a/b ü' --json").json()["state"] == "pending"
    cancelled = latermq.ok(f"timers cancel {topic} 'a/b ü'")
    assert cancelled.stdout.startswith("a/b ü: cancelled, due ")
    assert latermq.ok(f"timers cancel {topic} 'a/b ü' --json").json()["state"] == "cancelled"
    assert "nothing: unknown" in latermq.fails(f"timers show {topic} nothing")
    unknown = latermq.run(f"timers show {topic} nothing --json")
    assert (unknown.status, unknown.json()["state"]) == (1, "unknown")
    assert "nothing was cancelled" in latermq.fails(f"timers cancel {topic} nothing")
    latermq.ok(f"send {topic} now --delay 0 --id done")
    late = latermq.run(f"timers cancel {topic} done --json")
    assert (late.status, late.json()["state"], late.json()["offset"]) == (1, "delivered", 0)
    assert "no topic" in latermq.fails("timers show nowhere x")


def test_pending_timers_are_listed_and_counted(latermq: CommandLine, topic: str) -> None:
    for minutes in (50, 10, 30):
        latermq.ok(f"send {topic} v{minutes} --delay {minutes}m --key k --id 'a {minutes}'")
    latermq.ok(f"send {topic} unnamed --delay 2h")
    head, *rows = latermq.ok(f"timers list {topic} --to 45m").lines
    assert head.split() == ["DUE", "IN", "TOPIC", "PARTITION", "ID", "KEY"]
    assert [row.split()[-3:] for row in rows] == [["a", "10", "k"], ["a", "30", "k"]]
    assert rows[0].split()[1] == "9m"
    page = latermq.ok(f"timers list {topic} --limit 3 --json --values")
    assert [json.loads(line)["value"] for line in page.lines] == ["v10", "v30", "v50"]
    after = page.stderr.split()[-1]
    (rest,) = latermq.ok(f"timers list {topic} --after {after} --json").lines
    assert json.loads(rest)["key"] is None
    assert "value" not in json.loads(rest)
    (line,) = latermq.ok(f"timers list {topic} --from 1h --values").lines
    assert 'value="unnamed"' in line
    counts = latermq.ok(f"timers forecast {topic} --step 20m --intervals 3 --json").json()
    assert (counts["before"], counts["counts"], counts["after"]) == (0, [1, 1, 1], 1)
    bars = latermq.ok(f"timers forecast {topic} --step 20m --intervals 3").lines
    assert [bar.split()[1] for bar in bars[1:]] == ["0", "1", "1", "1", "1"]
    assert "nothing is pending" in latermq.ok(f"timers list {topic} --to 1m").stderr
    assert "no topic" in latermq.fails("timers list nowhere")
    said = latermq.fails(f"timers list {topic} --to soon", 2)
    assert '--to "soon"' in said
    assert "a duration from now" in said
    assert "--step '1'" in latermq.fails(f"timers forecast {topic} --step 1", 2)


def test_pending_timers_are_purged(latermq: CommandLine, topic: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(2_500))
    latermq.ok(f"send {topic} --delay 1h", lines)
    latermq.ok(f"send {topic} later --delay 3h --id late")
    assert "--yes" in latermq.fails(f"timers purge {topic}", 2)
    purged = latermq.ok(f"timers purge {topic} --to 2h --yes")
    assert purged.stdout == f"2500 delayed records of {topic} cancelled\n"
    assert len(latermq.ok(f"timers list {topic} --limit 9999").lines) == 2
    assert latermq.ok(f"timers purge {topic} --yes --json").json() == {"cancelled": 1, "left": 0}
    assert latermq.ok(f"timers show {topic} late").stdout.startswith("late: cancelled")
    assert "no topic" in latermq.fails("timers purge nowhere --yes")


def test_a_delayed_record_is_rescheduled_and_delivered_now(
    latermq: CommandLine, topic: str
) -> None:
    latermq.ok(f"send {topic} first --delay 1h --id a/b")
    latermq.ok(f"send {topic} second --delay 1h --id 2 --key k")
    moved = latermq.ok(f"timers reschedule {topic} a/b --to 2030-01-01T00:00:00Z --json").json()
    assert moved["state"] == "pending"
    assert moved == latermq.ok(f"timers show {topic} a/b --json").json()
    assert "due 2030-01-01" in latermq.ok(f"timers show {topic} a/b").stdout
    assert latermq.ok(f"timers deliver-now {topic} 2").stdout.startswith("2: delivered")
    assert [value for _, _, value in shown(latermq, f"tail {topic}")] == ["second"]
    assert latermq.ok(f"timers list {topic}").stdout.count("a/b") == 1
    assert latermq.ok(f"timers deliver-now {topic} a/b").stdout.startswith("a/b: delivered")
    assert ", offset" in latermq.ok(f"timers show {topic} a/b").stdout
    assert "no timer with this id" in latermq.fails(f"timers reschedule {topic} c --to 1h")
    assert "no topic" in latermq.fails("timers reschedule nowhere c --to 1h")
    latermq.ok(f"send {topic} third --delay 1h --id c")
    assert "delay.max.ms" in latermq.fails(f"timers reschedule {topic} c --to 9000d")
    assert "--to" in latermq.fails(f"timers reschedule {topic} c --to soon", 2)
    latermq.ok(f"timers cancel {topic} c")
    assert "was cancelled" in latermq.fails(f"timers reschedule {topic} c --to 1h")


def test_a_topic_is_paused_and_goes_on(latermq: CommandLine, topic: str) -> None:
    assert "paused" in latermq.ok(f"timers pause {topic}").stdout
    lines = b"".join(b"%d\n" % number for number in range(300))
    latermq.ok(f"send {topic} --delay 1ms", lines)
    time.sleep(0.01)
    (line,) = [each for each in latermq.ok("status").lines if each.startswith("HELD BACK")]
    assert "300 due records" in line
    assert len(latermq.ok(f"timers list {topic} --limit 999").lines) == 301
    assert latermq.ok(f"tail {topic}").stdout == ""
    latermq.ok(f"timers resume {topic}")
    while latermq.ok("status --json").json()["held_timers"]:
        pass
    found = [(partition, int(value)) for partition, _, value in shown(latermq, f"tail {topic}")]
    assert sorted(value for _, value in found) == list(range(300))
    for partition in range(4):
        values = [value for each, value in found if each == partition]
        assert values == sorted(values)
    assert "host this topic" in latermq.fails("timers pause nowhere")


def test_status_names_no_cancelled_record_as_the_next(
    latermq: CommandLine, topic: str, broker: ApplianceProcess
) -> None:
    now_ms = int(time.time() * 1000)
    for name, due_ms in (("first", now_ms + 60_000), ("second", now_ms + 120_000)):
        latermq.ok(f"send {topic} x --at {due_ms} --id {name}")
    assert latermq.ok("status --json").json()["next_due_at"] == now_ms + 60_000
    latermq.ok(f"timers cancel {topic} first")
    assert latermq.ok("status --json").json()["next_due_at"] == now_ms + 120_000
    latermq.ok(f"timers cancel {topic} second")
    assert latermq.ok("status --json").json()["next_due_at"] != now_ms + 120_000


def test_tables_are_coloured_on_a_terminal_alone(latermq: CommandLine, topic: str) -> None:
    assert "\x1b[" not in latermq.ok("topics list").stdout
    on_terminal = latermq.run("topics list", on_terminal=True).stdout
    assert "\x1b[1m" in on_terminal
    assert topic in on_terminal


# Trouble


@pytest.mark.parametrize(
    "command",
    [
        *("send t x", "tail t", "topics list", "groups list", "status", "timers show t x"),
        *("dlq list g", "dlq replay g --all"),
    ],
)
def test_where_no_broker_answers_it_says_at_once_what_to_do(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    # Nobody can listen on port 1 without being asked to.
    latermq = CommandLine(monkeypatch, "127.0.0.1:1", "127.0.0.1:1")
    said = latermq.fails(command, 69)
    assert "127.0.0.1:1" in said
    assert "latermq serve" in said
    assert ("--admin" if command.startswith(("status", "timers")) else "--bootstrap") in said


def test_addresses_that_were_mixed_up_are_noticed(
    broker: ApplianceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    latermq = CommandLine(monkeypatch, broker.admin, broker.kafka)
    said = latermq.fails("status", 69)
    assert "--admin" in said
    assert "the address for Kafka clients" in said
    for command in ("send t x", "tail t", "topics list", "groups list"):
        said = latermq.fails(command, 69)
        assert "speaks HTTP" in said
        assert "--bootstrap" in said


def test_a_server_of_another_kind_is_noticed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        latermq = CommandLine(monkeypatch, address, address)
        for answer, expected in (
            (b"", "closed the connection"),
            (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak Kafka's protocol"),
        ):
            thread = threading.Thread(target=answer_once, args=(server, answer))
            thread.start()
            assert expected in latermq.fails("topics list", 69)
            thread.join(LIMIT_S)


def answer_once(server: socket.socket, answer: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(64)
        connection.sendall(answer)


def test_help_teaches_with_examples(latermq: CommandLine) -> None:
    for command in ("send", "tail", "topics", "groups", "status", "timers", "dlq"):
        outcome = latermq.ok(f"{command} --help")
        assert f"  latermq {command}" in outcome.stdout, outcome.stdout
        assert "Examples:" in outcome.stdout


def test_help_has_a_short_name_too(latermq: CommandLine) -> None:
    for command in ("", "send ", "timers ", "timers show "):
        assert latermq.ok(f"{command}-h") == latermq.ok(f"{command}--help")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(
    latermq: CommandLine, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    script = latermq.ok(f"completion {shell}").stdout
    assert f"_LATERMQ_COMPLETE={shell}_complete" in script
    monkeypatch.setenv("_LATERMQ_COMPLETE", f"{shell}_complete")
    for typed, index, expected in (
        ("latermq t", 1, {"tail", "topics", "timers"}),
        ("latermq send --del", 2, {"--delay"}),
    ):
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(index) if shell != "fish" else typed.split()[-1])
        answer = subprocess.run([latermq_command()], stdout=subprocess.PIPE, text=True, check=True)
        completed = set(re.split(r"[,\s]+", answer.stdout))
        assert expected <= completed
        assert "cleanup" not in completed


def test_a_command_loads_no_more_than_it_needs() -> None:
    """Help and mistakes are answered at once."""
    code = "import appliance.cli, sys; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    heavy = {"kafka", "rich", "aiohttp", "asyncio", "uvloop", "http", "_core", "compat"}
    assert heavy & set(result.stdout.split()) == set()


def test_an_export_to_parquet_loads_no_functions_of_columns() -> None:
    """They take a tenth of a second, on one of two processors."""
    pytest.importorskip("pyarrow")
    code = "import appliance.commands.table_files, sys; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert "pyarrow.parquet" in result.stdout.split()
    assert "pyarrow.compute" not in result.stdout.split()


def test_ctrl_c_inside_of_the_client_library_is_not_swallowed() -> None:
    """It catches all that is raised within its loop."""
    interrupts = Interrupts()
    steps = []

    def work() -> None:
        with interrupts.held_back():
            signal.raise_signal(signal.SIGINT)
            steps.append("went on")

    with interrupts.heard():
        for _ in range(2):  # a second one does not wait
            with pytest.raises(KeyboardInterrupt):
                work()
    assert steps == ["went on"]


def test_the_retries_of_a_group_are_settings_of_its_topic(latermq: CommandLine, topic: str) -> None:
    """The first change creates the topic."""
    group = f"{topic}-group"

    def settings() -> dict[str, str]:
        found = latermq.ok(f"topics describe {group}.retry --json").json()
        settings: dict[str, str] = found["settings"]
        return settings

    refused = latermq.fails(f"groups alter {group} --retry-schedule soon")
    assert "retry.schedule='soon' is invalid: use 1 to 64 delays" in refused
    assert latermq.fails(f"topics describe {group}.retry")
    both = latermq.ok(f"groups alter {group} --retry-schedule '1s 5m' --retry-max 3")
    assert both.stdout == f"{group}.retry created: 2 settings\n"
    assert settings() == {"retry.schedule": "1s 5m", "retry.max": "3"}
    one = latermq.ok(f"groups alter {group} --retry-max 0")
    assert one.stdout == f"{group}.retry changed: 1 setting\n"
    assert settings() == {"retry.schedule": "1s 5m", "retry.max": "0"}
    assert "use a whole number from 0" in latermq.fails(f"groups alter {group} --retry-max -1")
    assert latermq.fails("groups alter a/b --retry-max 3")
