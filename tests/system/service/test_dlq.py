"""`latermq dlq`, by a real broker: a group's dead letters are listed, replayed and deleted."""

import os
import re
import subprocess
import time
from collections.abc import Sequence
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from appliance.commands import admin_client, dlq_client
from appliance.dead_letters import REMEMBERED_MS
from tests.support.harness.appliance_process import ApplianceProcess, latermq_command
from tests.support.harness.command_line import CommandLine

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

LIMIT_S: Final = 60.0

DEAD: Final = (
    ("x-retry-attempt", b"16"),
    ("x-origin", b"orders/1/42"),
    ("x-retry-reason", b"no such customer"),
    ("x-accepted-at", b"1767225600000"),
    ("x-due-at", b"1767225600100"),
)
"""The headers that the broker gives a dead record, in any order with those of its producer."""

Headers = Sequence[tuple[str, bytes | None]]


@pytest.fixture
def group(request: pytest.FixtureRequest, latermq: CommandLine) -> str:
    """A group whose dead letters have two partitions, named after the test."""
    name = re.sub(r"[^a-z]+", "-", request.node.name.removeprefix("test_"))[:80].strip("-")
    latermq.ok(f"topics create {name}.dlq --partitions 2")
    return name


class Clients:
    """Ordinary clients of the broker."""

    def __init__(self, broker: ApplianceProcess) -> None:
        self._servers = {"bootstrap.servers": broker.kafka}
        self._producer = Producer(self._servers)

    def die(
        self,
        group: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = DEAD,
        *,
        partition: int = 0,
        timestamp: int = 1_767_225_000_000,
    ) -> None:
        """Put a record into the dead letters of a group."""
        self._producer.produce(
            f"{group}.dlq", value, key, partition, timestamp=timestamp, headers=list(headers)
        )
        assert self._producer.flush(LIMIT_S) == 0

    def read(self, topic: str, partition: int) -> list[Any]:
        """Return all records of a partition."""
        part = TopicPartition(topic, partition, 0)
        consumer = Consumer(self._servers | {"group.id": "r", "enable.auto.commit": False})
        try:
            consumer.assign([part])
            _, end = consumer.get_watermark_offsets(part, timeout=LIMIT_S)
            found: list[Any] = []
            while len(found) < end:
                found += consumer.consume(end - len(found), timeout=LIMIT_S)
            return found
        finally:
            consumer.close()

    def values(self, group: str) -> list[list[bytes]]:
        """Return the values that a group gets again, by partition."""
        return [[each.value() for each in self.read(f"{group}.retry", n)] for n in (0, 1)]


@pytest.fixture
def clients(broker: ApplianceProcess) -> Clients:
    return Clients(broker)


def places(latermq: CommandLine, command: str) -> list[str]:
    return [each["place"] for each in latermq.ok(f"{command} --json").json_lines()]


# list and show


def test_dead_records_are_listed_in_order_with_what_their_headers_say(
    latermq: CommandLine, clients: Clients, group: str
) -> None:
    clients.die(group, b"by hand", b"\xff\t", (), partition=1)
    clients.die(group, b"a", b"k")
    clients.die(group, b"b", None, [("X-Retry-Attempt", b"many"), ("x-origin", b"o/0/-1")])
    first, second, third = latermq.ok(f"dlq list {group} --json").json_lines()
    assert first == {
        "place": "0:0",
        "partition": 0,
        "offset": 0,
        "came_at": 1_767_225_600_000,
        "timestamp": 1_767_225_000_000,
        "key": "k",
        "attempts": 16,
        "origin": "orders/1/42",
        "reason": "no such customer",
    }
    assert [second[name] for name in ("attempts", "origin", "reason", "key")] == [
        *(None, "o/0/-1", None, None)
    ]
    assert second["came_at"] == 1_767_225_000_000
    assert third["key"] == {"base64": "/wk="}
    head, *rows = latermq.ok(f"dlq list {group}").lines
    assert head.split() == ["PLACE", "CAME", "KEY", "ATTEMPTS", "ORIGIN", "REASON"]
    assert rows[0].split() == [
        *("0:0", "2026-01-01T00:00:00.000Z", "k", "16", "orders/1/42", "no", "such", "customer")
    ]
    assert r"\xff\t" in rows[2]
    assert places(latermq, f"dlq list {group} --partition 1") == ["1:0"]


def test_a_list_goes_on_where_an_earlier_one_has_ended(
    latermq: CommandLine, clients: Clients, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlq_client, "READ_TOGETHER", 3)
    for number in range(7):
        clients.die(group, b"%d" % number, partition=number % 2)
    found, after = [], ""
    while True:
        outcome = latermq.ok(f"dlq list {group} --json --limit 3 {after}")
        found.append([each["place"] for each in outcome.json_lines()])
        if not outcome.stderr:
            break
        after = outcome.stderr.split("continue with ")[1]
    assert found == [["0:0", "0:1", "0:2"], ["0:3", "1:0", "1:1"], ["1:2"]]
    assert places(latermq, f"dlq list {group} --after 0:2 --partition 0") == ["0:3"]
    ended = latermq.ok(f"dlq list {group} --after 1:2")
    assert (ended.stdout, ended.stderr.count("after 1:2")) == ("", 1)
    assert not latermq.ok(f"dlq list {group} --limit 7").stderr


def test_a_long_table_is_printed_in_parts(
    latermq: CommandLine, clients: Clients, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.commands.dlq.ROWS_TOGETHER", 2)
    for number in range(5):
        clients.die(group, b"%d" % number, b"k" * 100)
    lines = latermq.ok(f"dlq list {group}").lines
    assert [line.startswith("PLACE") for line in lines] == [True, False, False] * 2 + [True, False]
    assert f" {'k' * 57}... " in lines[1]


def test_where_nothing_has_died_a_list_says_so(latermq: CommandLine, group: str) -> None:
    empty = latermq.ok(f"dlq list {group}")
    assert (empty.stdout, empty.stderr) == ("", f"latermq: there is no record in {group}.dlq\n")
    assert "in partition 1" in latermq.ok(f"dlq list {group} --partition 1").stderr
    missing = latermq.ok("dlq list nobody --json")
    assert missing.stdout == ""
    assert missing.stderr == ("latermq: nobody has no dead letters: there is no topic nobody.dlq\n")
    for command in ("show nobody 0:0", "replay nobody --all", "purge nobody --yes"):
        assert "there is no topic nobody.dlq" in latermq.fails(f"dlq {command}")
    assert "nobody.dlq" not in latermq.ok("topics list").stdout


def test_a_dead_record_is_shown_whole(latermq: CommandLine, clients: Clients, group: str) -> None:
    headers = [*DEAD, ("trace", b"\xfe"), ("trace", None)]
    clients.die(group, b"\x00\n\xff", b"k" * 200, headers, partition=1)
    shown = latermq.ok(f"dlq show {group} 1:0 --json").json()
    assert shown["headers"][-2:] == [["trace", {"base64": "/g=="}], ["trace", None]]
    assert (shown["value"], shown["key"]) == ({"base64": "AAr/"}, "k" * 200)
    assert list(shown)[:-2] == list(latermq.ok(f"dlq list {group} --json").json())
    lines = latermq.ok(f"dlq show {group} 1:0").lines
    assert lines[0].split() == ["place", "1:0"]
    assert lines[-1].split() == ["value", r"\x00\n\xff"]
    assert lines[-3:-1] == [r"header     trace=\xfe", "header     trace=-"]
    assert f"key        {'k' * 200}" in lines
    clients.die(group, None, None, ())
    assert latermq.ok(f"dlq show {group} 0:0").lines[-1].split() == ["value", "-"]


def test_places_that_cannot_be_are_refused(
    latermq: CommandLine, clients: Clients, group: str
) -> None:
    clients.die(group, b"a")
    clients.die(group, b"b")
    latermq.ok(f"dlq purge {group} --before 0:1 --yes")
    for place in (
        "0",
        "0:",
        ":1",
        "0:-1",
        "a:1",
        "0:1:2",
        "0:1x",
        "''",
        "0:" + "9" * 19,
        "\u0660:\u0661",
    ):
        for command in (f"show {group}", f"replay {group}", f"list {group} --after"):
            said = latermq.fails(f"dlq {command} {place}", 2)
            assert "use PARTITION:OFFSET, such as 0:17" in said
        assert "--before" in latermq.fails(f"dlq purge {group} --yes --before {place}", 2)
    for command in ("show", "replay"):
        assert "begins at 1" in latermq.fails(f"dlq {command} {group} 0:0")
        assert "ends at 2" in latermq.fails(f"dlq {command} {group} 0:2")
        assert "use 0 to 1" in latermq.fails(f"dlq {command} {group} 2:0")
    assert "ends at 2" in latermq.fails(f"dlq purge {group} --before 0:3 --yes")
    assert "use 0 to 1" in latermq.fails(f"dlq purge {group} --before 7:0 --yes")
    assert "use 0 to 1" in latermq.fails(f"dlq list {group} --after 7:0")
    assert "use 0 to 1" in latermq.fails(f"dlq list {group} --partition 2")
    # What names one record that is missing replays none.
    assert "ends at 2" in latermq.fails(f"dlq replay {group} 0:1 0:2")
    assert latermq.fails(f"tail {group}.retry")
    assert latermq.run(f"dlq show {group} -1:0").status == 2


@pytest.mark.parametrize(
    "command",
    [
        "replay g",
        "replay g 0:1 --all",
        "replay g 0:1 --partition 0",
        "purge g",
        "list g --after 0:1 --partition 1",
        "list ''",
        "show '' 0:0",
        "replay '' --all",
        "purge '' --yes",
        "list g --bootstrap nowhere",
    ],
)
def test_arguments_that_make_no_sense_are_refused_with_status_2(
    latermq: CommandLine, command: str
) -> None:
    latermq.fails(f"dlq {command}", 2)


@pytest.mark.parametrize("name", ["a b", "ü", "../x", "x" * 250])
def test_names_that_no_topic_has_are_refused_without_a_traceback(
    latermq: CommandLine, name: str
) -> None:
    for words in (["list", name], ["show", name, "0:0"], ["replay", name, "--all"]):
        outcome = latermq.run_words(["dlq", *words])
        assert outcome.status == 1, outcome
        assert outcome.stderr.startswith("latermq: "), outcome
        assert outcome.stderr.count("\n") == 1, outcome


# replay


def test_a_replayed_record_starts_again_with_all_else_as_it_was(
    latermq: CommandLine, clients: Clients, group: str
) -> None:
    own: Headers = (("a", b"\xff"), ("X-Delay", b"1h"), ("b", b""))
    clients.die(group, b"\x00v", b"\xffk", (*own[:1], *DEAD, *own[2:]), partition=1)
    clients.die(group, None, b"tombstone", DEAD)
    clients.die(group, None, None, DEAD)
    said = latermq.ok(f"dlq replay {group} 1:0 0:0 0:1 1:0").stdout
    assert said == f"3 records of {group}.dlq replayed to {group}.retry\n"
    assert len(latermq.ok(f"topics describe {group}.retry --json").json()["partitions"]) == 2
    (record,) = clients.read(f"{group}.retry", 1)
    assert (record.key(), record.value()) == (b"\xffk", b"\x00v")
    assert record.timestamp()[1] == 1_767_225_000_000
    kept = ("x-origin", "x-accepted-at", "x-due-at")
    assert record.headers() == [
        ("a", b"\xff"), *(each for each in DEAD if each[0] in kept), ("b", b"")
    ]  # fmt: skip
    assert [(each.key(), each.value()) for each in clients.read(f"{group}.retry", 0)] == [
        (b"tombstone", None),
        (None, None),
    ]
    assert latermq.ok(f"dlq replay {group} 1:0 --json").json() == {"replayed": 1}
    assert len(clients.read(f"{group}.retry", 1)) == 2
    # It stays among the dead.
    assert places(latermq, f"dlq list {group}") == ["0:0", "0:1", "1:0"]


def test_what_asks_for_a_delay_does_not_delay_a_replay(
    latermq: CommandLine, clients: Clients, group: str
) -> None:
    latermq.ok(f"topics alter {group}.dlq --set delay.headers=off")
    clients.die(group, b"v", None, [("X-Delay", b"1h"), ("x-deliver-id", b"i"), ("h", b"1")])
    latermq.ok(f"dlq replay {group} 0:0")
    (record,) = clients.read(f"{group}.retry", 0)
    assert record.headers() == [("h", b"1")]


def test_a_record_goes_to_its_partition_of_the_retry_topic(
    latermq: CommandLine, clients: Clients, group: str
) -> None:
    latermq.ok(f"topics create {group}.retry --partitions 1")
    clients.die(group, b"a", partition=1)
    latermq.ok(f"dlq replay {group} 1:0")
    assert [each.value() for each in clients.read(f"{group}.retry", 0)] == [b"a"]


def test_all_replays_what_was_not_replayed_before(
    latermq: CommandLine, clients: Clients, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlq_client, "READ_TOGETHER", 2)
    for number in range(7):
        clients.die(group, b"%d" % number, partition=number % 2)
    latermq.ok(f"dlq purge {group} --before 0:1 --yes")
    replay = f"dlq replay {group} --all"
    assert latermq.ok(f"{replay} --partition 1 --json").json() == {"replayed": 3}
    assert latermq.ok(f"{replay} --json").json() == {"replayed": 3}
    assert latermq.ok(replay).stdout.startswith("0 records of")
    clients.die(group, b"later", partition=1)
    assert latermq.ok(replay).stdout.startswith("1 record of")
    latermq.ok(f"dlq purge {group} --yes")
    assert latermq.ok(replay).stdout.startswith("0 records of")
    assert clients.values(group) == [[b"2", b"4", b"6"], [b"1", b"3", b"5", b"later"]]
    offsets = latermq.ok(f"groups describe {group}.dlq --json").json()["offsets"]
    assert [(each["offset"], each["lag"]) for each in offsets] == [(4, 0), (4, 0)]


def test_an_end_before_the_commit_repeats_records_and_loses_none(
    latermq: CommandLine, clients: Clients, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlq_client, "READ_TOGETHER", 2)
    for number in range(5):
        clients.die(group, b"%d" % number)
    commit = dlq_client.commit_offsets
    commits: list[Any] = []

    def killed(client: Any, name: str, targets: Any) -> None:
        commits.append(targets)
        if len(commits) == 3:  # the first one is where it begins
            raise KeyboardInterrupt
        commit(client, name, targets)

    with monkeypatch.context() as patch:
        patch.setattr(dlq_client, "commit_offsets", killed)
        outcome = latermq.run(f"dlq replay {group} --all")
    assert (outcome.status, outcome.stderr) == (130, "latermq: stopped: 4 records replayed\n")
    assert latermq.ok(f"dlq replay {group} --all --json").json() == {"replayed": 3}
    assert clients.values(group)[0] == [b"0", b"1", b"2", b"3", b"2", b"3", b"4"]


def test_a_record_that_is_refused_ends_a_replay_after_those_before_it(
    latermq: CommandLine, clients: Clients, group: str, broker: ApplianceProcess
) -> None:
    latermq.ok(f"topics create {group}.retry --partitions 1")
    clients.die(group, b"a")
    clients.die(group, b"b", None, [("null", None)])
    clients.die(group, b"c")
    said = latermq.fails(f"dlq replay {group} --all")
    assert "record 0:1 was refused: it has a header that is null" in said
    assert said.endswith("; 1 before it were replayed\n")
    assert "the admin API" in said
    answer = admin_client.post(
        broker.admin, "groups", group, "dlq", "replay", body={"places": ["0:1"]}
    )
    assert answer == {"replayed": 1, "left": 0}
    assert clients.read(f"{group}.retry", 0)[1].headers() == [("null", None)]
    latermq.ok(f"groups reset-offsets {group}.dlq --topic {group}.dlq --partition 0 --to 2")
    assert latermq.ok(f"dlq replay {group} --all --json").json() == {"replayed": 1}
    latermq.ok(f"topics alter {group}.retry --set max.message.bytes=100")
    clients.die(group, b"d" * 1_000)
    assert "record 0:3 was refused" in latermq.fails(f"dlq replay {group} 0:3")
    assert [each.value() for each in clients.read(f"{group}.retry", 0)] == [b"a", b"b", b"c"]


def test_the_position_of_a_replay_outlives_those_of_other_groups(
    latermq: CommandLine, clients: Clients, group: str, broker: ApplianceProcess
) -> None:
    """Else `--all` would replay everything again after a week."""
    clients.die(group, b"a")
    latermq.ok(f"dlq replay {group} --all")
    kept: list[int] = []
    end_s = time.monotonic() + LIMIT_S
    while len(kept) < 2:  # the broker publishes what is flushed once a second
        assert time.monotonic() < end_s
        dump = latermq.ok(f"dump {broker.data_dir} --live --kind offset --content --json")
        entries = [each for line in dump.json_lines() for each in line["payload"]["entries"]]
        kept = [each["retention_ms"] for each in entries if each["group"] == f"{group}.dlq"]
    assert kept == [REMEMBERED_MS] * 2


def test_who_reads_as_the_group_that_commits_keeps_a_replay_of_all_out(
    latermq: CommandLine, clients: Clients, group: str, broker: ApplianceProcess
) -> None:
    clients.die(group, b"a")
    name = f"{group}.dlq"
    reader = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": name,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        reader.subscribe([name])
        assert reader.consume(1, timeout=LIMIT_S)
        assert f"group {name} has members" in latermq.fails(f"dlq replay {group} --all")
        latermq.ok(f"dlq replay {group} 0:0")
    finally:
        reader.close()
    assert clients.values(group) == [[b"a"], []]


def test_a_command_goes_on_where_the_admin_api_has_ended(
    latermq: CommandLine, clients: Clients, group: str, broker: ApplianceProcess
) -> None:
    path = ("groups", group, "dlq")
    clients.die(group, b"a")
    answer = admin_client.post(broker.admin, *path, "replay", body={"all": True})
    assert answer == {"replayed": 1, "left": 0}
    assert latermq.ok(f"dlq replay {group} --all --json").json() == {"replayed": 0}
    (offset,) = latermq.ok(f"groups describe {group}.dlq --json").json()["offsets"]
    assert (offset["offset"], offset["lag"]) == (1, 0)
    clients.die(group, b"b")
    assert latermq.ok(f"dlq replay {group} --all --json").json() == {"replayed": 1}
    answer = admin_client.post(broker.admin, *path, "replay", body={"all": True})
    assert answer == {"replayed": 0, "left": 0}
    listed = admin_client.get(broker.admin, *path)["records"]
    assert listed == latermq.ok(f"dlq list {group} --json").json_lines()
    shown = admin_client.get(broker.admin, *path, "0:1")
    assert shown == latermq.ok(f"dlq show {group} 0:1 --json").json()


# purge


def test_a_purge_deletes_what_it_names(latermq: CommandLine, clients: Clients, group: str) -> None:
    for number in range(6):
        clients.die(group, b"%d" % number, partition=number % 2)
    assert "--yes" in latermq.fails(f"dlq purge {group}", 2)
    before = latermq.ok(f"dlq purge {group} --before 1:2 --yes")
    assert before.stdout == f"2 records of {group}.dlq deleted\n"
    assert places(latermq, f"dlq list {group}") == ["0:0", "0:1", "0:2", "1:2"]
    assert latermq.ok(f"dlq purge {group} --before 1:1 --yes --json").json() == {"deleted": 0}
    assert latermq.ok(f"dlq purge {group} --yes --json").json() == {"deleted": 4}
    assert latermq.ok(f"dlq purge {group} --yes").stdout.startswith("0 records of")
    assert places(latermq, f"dlq list {group}") == []


@pytest.mark.parametrize(("answer", "left"), [(b"n\n", 2), (b"y\n", 0)])
def test_on_a_terminal_a_purge_asks_first(
    latermq: CommandLine,
    clients: Clients,
    group: str,
    broker: ApplianceProcess,
    *,
    answer: bytes,
    left: int,
) -> None:
    clients.die(group, b"a")
    clients.die(group, b"b", partition=1)
    keyboard, terminal = os.openpty()
    words = [latermq_command(), "dlq", "purge", group, "--bootstrap", broker.kafka]
    try:
        os.write(keyboard, answer)
        done = subprocess.run(
            words, stdin=terminal, capture_output=True, timeout=LIMIT_S, check=False
        )
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert b"Delete 2 records of " in done.stderr
    assert (done.returncode, b"nothing was deleted" in done.stderr) == (bool(left), bool(left))
    assert len(places(latermq, f"dlq list {group}")) == left
