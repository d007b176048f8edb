"""`latermq import`: what was exported from one broker is in another, with its delays."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from compat.tables.table import Query, open_plan, tasks
from tests.support.harness.appliance_process import ApplianceProcess, running_appliance
from tests.support.harness.command_line import CommandLine

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

LIMIT_S: Final = 60
BROKERS_HEADERS: Final = {"x-accepted-at", "x-due-at", "x-due-id"}


@pytest.fixture
def second(tmp_path: Path) -> Iterator[ApplianceProcess]:
    """The broker to import into."""
    (tmp_path / "second").mkdir()
    with running_appliance(tmp_path / "second") as running:
        yield running


@pytest.fixture
def into(second: ApplianceProcess, monkeypatch: pytest.MonkeyPatch) -> Callable[[], CommandLine]:
    """Makes all commands from then on ask the second broker."""
    return lambda: CommandLine(monkeypatch, second.kafka, second.admin)


def fill(latermq: CommandLine, topic: str) -> None:
    """Plain records, delivered, pending and cancelled ones, with all that a record can have."""
    for partition in (0, 1):
        lines = b"\n".join([b"%d" % number for number in range(300)] + [b"\xff\x00"])
        latermq.ok(f"send {topic} --partition {partition} --key k{partition}", lines)
    latermq.ok(f"send {topic} with-headers --partition 0 --header a=b --header a=c --header e=")
    latermq.ok(f"send {topic} soon --partition 0 --delay 1ms --id soon --header a=b")
    latermq.ok(f"send {topic} later --partition 1 --delay 1h --id later --key k --header a=b")
    latermq.ok(f"send {topic} nameless --partition 1 --delay 2h")
    latermq.ok(f"send {topic} never --partition 0 --delay 1h --id never")
    latermq.ok(f"timers cancel {topic} never")
    for hour in range(20):  # more schedules than a batch may have
        rule = f"--cron '0 {hour} 1 1 *' --id y{hour} {hour % 2 * '--zone Asia/Tokyo --missed all'}"
        latermq.ok(f"send {topic} yearly --partition 1 {rule}")
    latermq.ok(f"tail {topic} --partition 0 --from 302 --follow --count 1")


def rows_of(directory: str, table: str, topic: str) -> list[dict[str, Any]]:
    found = tasks(open_plan(directory), Query(table=table))
    rows = [row for task in found for batch in task.batches() for row in batch.to_pylist()]
    return [row for row in rows if row["topic"] == topic]


def comparable(directory: str, topic: str) -> tuple[list[Any], list[Any]]:
    """What two brokers with the same data share: messages by place, and pending timers."""
    messages, pending = [], []
    for row in rows_of(directory, "messages", topic):
        headers = [each for each in row["headers"] if each["key"] not in BROKERS_HEADERS]
        place = row["partition"], row["offset"]
        messages.append((*place, row["key"], row["value"], row["timestamp"], headers))
    for row in rows_of(directory, "timers", topic):
        if row["delay_state"] == "pending":
            headers = [each for each in row["headers"] if each["key"] not in BROKERS_HEADERS]
            pending.append(
                (
                    *(row["partition"], row["id"], row["due_at"], row["key"], row["value"]),
                    *(headers, row["cron"], row["zone"], row["missed"]),
                )
            )
    return sorted(messages, key=lambda each: each[:2]), pending


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_what_was_exported_is_in_the_other_broker(
    latermq: CommandLine,
    topic: str,
    into: Callable[[], CommandLine],
    tmp_path: Path,
    form: str,
) -> None:
    fill(latermq, topic)
    snapshot = latermq.ok("snapshot create").lines[0]
    names = []
    for table in ("messages", "timers"):
        names.append(tmp_path / f"{table}.{form}")
        latermq.ok(
            f"export {snapshot} --table {table} --topic {topic} --format {form} --out {names[-1]}"
        )
    latermq = into()
    files = " ".join(map(str, names))
    counts = "604 records and 22 delayed records, 1 topic; 2 rows of completed timers left out"
    assert latermq.ok(f"import {files} --dry-run").stderr == f"latermq: would be sent: {counts}\n"
    assert f"there is no topic {topic}" in latermq.fails(f"import {files}", 2)
    sent = latermq.ok(f"import {files} --create-topics")
    assert sent.stderr == f"latermq: sent: {counts}\n"
    copy = latermq.ok("snapshot create").lines[0]
    expected, found = comparable(snapshot, topic), comparable(copy, topic)
    assert len(found[0]) == 604
    assert found == expected
    assert latermq.ok(f"timers show {topic} later").stdout.startswith("later: pending")


def test_topics_get_a_prefix_and_the_input_may_be_standard(
    latermq: CommandLine, topic: str
) -> None:
    lines = [
        {"topic": topic, "partition": 1, "value": "a", "headers": [["h", {"base64": "/w=="}]]},
        {"topic": topic, "partition": 0, "value": None, "key": "gone"},
        {"topic": topic, "value": {"base64": "/wA="}, "timestamp": 1_767_225_600_000},
    ]
    data = "\n".join(map(json.dumps, lines)).encode()
    latermq.ok(f"topics create copy-of-{topic} --partitions 2")
    sent = latermq.ok("import - --topic-prefix copy-of- --json", data).json()
    assert sent == {
        "records": 3,
        "timers": 0,
        "skipped": 0,
        "partitions": {f"copy-of-{topic}": 2},
    }
    found = latermq.ok(f"tail copy-of-{topic} --json").json_lines()
    assert {"base64": "/wA="} in [each["value"] for each in found]
    (first,) = (each for each in found if each["value"] == "a")
    assert (first["partition"], first["headers"]) == (1, [["h", {"base64": "/w=="}]])
    assert latermq.ok(f"tail {topic} --json").stdout == ""


def test_nulls_and_headers_that_ask_for_no_delay_come_back(
    latermq: CommandLine, topic: str, tmp_path: Path
) -> None:
    """A broker has such records: Kafka allows both, and other clients send them."""
    due_ms = int(time.time()) * 1000 + 3_600_000
    headers = [["x-delay", "-1500"], ["X-Delay", "-PT1M"], ["x-delay-level", "0"]]
    rows = [
        {"topic": topic, "partition": 0, "key": None, "value": None},
        {"topic": topic, "partition": 0, "value": "", "headers": headers},
        {"topic": topic, "partition": 1, "value": None, "due_at": due_ms, "id": "later"},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    latermq.ok(f"import {path}")
    found = latermq.ok(f"tail {topic} --json").json_lines()
    assert [(each["key"], each["value"], each["headers"]) for each in found] == [
        (None, None, []),
        (None, "", headers),
    ]
    assert latermq.ok(f"timers show {topic} later --json").json()["state"] == "pending"


@pytest.mark.parametrize(
    ("option", "expected"), [("empty", [["a", ""], ["b", "1"]]), ("drop", [["b", "1"]])]
)
def test_a_header_that_is_null_is_sent_empty_or_dropped_if_asked(
    latermq: CommandLine, topic: str, tmp_path: Path, option: str, expected: list[list[str]]
) -> None:
    path = tmp_path / "rows.jsonl"
    headers = [["a", None], ["b", "1"], ["x-delay", None]]
    path.write_text(json.dumps({"topic": topic, "value": "v", "headers": headers}))
    assert "use --null-headers empty or drop" in latermq.fails(f"import {path}", 2)
    latermq.ok(f"import {path} --null-headers {option}")
    (found,) = latermq.ok(f"tail {topic} --json").json_lines()
    assert found["headers"] == expected


def test_a_frame_of_data_schedules_records(
    latermq: CommandLine, topic: str, tmp_path: Path
) -> None:
    """Any Parquet file with these columns will do."""
    due_ms = int(time.time()) * 1000 + 3_600_000
    table = pa.table(
        {
            "topic": [topic, topic],
            "value": ["remind me", "now"],
            "due_at": pa.array([due_ms * 1_000_000, None], pa.timestamp("ns", tz="UTC")),
            "id": ["order-1", None],
            "price": [1.5, 2.5],
        }
    )
    path = tmp_path / "due.parquet"
    pq.write_table(table, path)
    latermq.ok(f"import {path}")
    shown = latermq.ok(f"timers show {topic} order-1 --json").json()
    assert (shown["state"], shown["due_at"]) == ("pending", due_ms)
    assert latermq.ok(f"tail {topic} --json").json()["value"] == "now"


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"headers": [["x-delay", "1h"]]}, "it has the header x-delay, which the broker would"),
        pytest.param({"headers": [["X-Delay", "1h"]]}, "it has the header X-Delay,", id="upper"),
        ({"headers": [["a", None]]}, "the header a is null"),
        ({"headers": [["a"]]}, "a header is not a pair"),
        ({"headers": "a"}, "the headers are not a list"),
        ({"value": 1}, "value is neither bytes, nor text, nor base64"),
        ({"value": {"base64": "?"}}, "value "),
        pytest.param(
            {"headers": [["x-delay-level", "1"]]}, "it has the header x-delay-level,", id="level"
        ),
        pytest.param({"headers": [["x-delay", "0"]]}, "it has the header x-delay,", id="now"),
        ({"topic": ""}, "the topic is not a text"),
        ({"partition": -1}, "the partition is not a number"),
        ({"timestamp": -1}, "timestamp is not a time after 1970"),
        ({"due_at": "soon"}, "due_at is not a time after 1970"),
        ({"delay_state": "pending"}, "it is pending and has no due_at"),
        ({"delay_state": "odd"}, "the delay_state 'odd' is not known"),
        ({"due_at": 2_000_000_000_000, "id": ""}, "the id has 0 bytes, not 1 to 255"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named_and_nothing_is_sent(
    latermq: CommandLine, topic: str, tmp_path: Path, fields: dict[str, Any], fault: str
) -> None:
    path = tmp_path / "rows.jsonl"
    good = {"topic": topic, "value": "good"}
    path.write_text("\n".join(map(json.dumps, (good, good | fields))))
    said = latermq.fails(f"import {path}", 2)
    assert said.startswith(f"latermq: rows.jsonl, row 2: {fault}")
    assert latermq.ok(f"tail {topic} --json").stdout == ""


def test_files_are_checked(latermq: CommandLine, topic: str, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"topic": "t", "value": "v"}\nnonsense\n')
    (tmp_path / "empty").mkdir()
    (tmp_path / "few.jsonl").write_text('{"topic": "t"}\n')
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nonsense")
    (tmp_path / "place.jsonl").write_text(json.dumps({"topic": topic, "partition": 7, "value": ""}))
    pq.write_table(pa.table({"topic": ["t"], "key": ["k"]}), tmp_path / "few.parquet")
    for names, fault in (
        ("none.jsonl", "there is no file"),
        ("empty", "has no file whose name ends in .parquet"),
        ("bad.jsonl", "bad.jsonl, row 2 is not JSON"),
        ("few.jsonl", "row 1 has no column value"),
        ("bad.parquet", "cannot be read after row 0"),
        ("few.parquet", "has no column value"),
        ("place.jsonl", f"{topic} has 2 partitions, and the rows need 8"),
    ):
        assert fault in latermq.fails(f"import {tmp_path / names}", 2)
    assert "reads the rows twice" in latermq.fails("import - --create-topics", 2)


def test_a_row_that_the_broker_refuses_is_named(
    latermq: CommandLine, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    good = {"topic": topic, "value": "good", "partition": 0}
    rows = [good, good | {"due_at": 17}, good]
    path.write_text("\n".join(map(json.dumps, rows)))
    said = latermq.fails(f"import {path}")
    assert said.startswith("latermq: rows.jsonl, row 2 was refused: ")
    assert "looks like seconds" in said
    assert "0 rows acknowledged" in said


def test_without_a_broker_rows_are_only_checked(
    latermq: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"topic": "t", "value": "v"}))
    monkeypatch.setenv("LATERMQ_BOOTSTRAP", "127.0.0.1:1")
    assert (
        "1 record and 0 delayed records, 1 topic\n" in latermq.ok(f"import {path} --dry-run").stderr
    )
    assert "no broker answers" in latermq.fails(f"import {path}", 69)


def test_a_rate_is_kept(latermq: CommandLine, topic: str) -> None:
    lines = b"\n".join(json.dumps({"topic": topic, "value": "v"}).encode() for _ in range(6))
    began_s = time.monotonic()
    latermq.ok("import - --rate 20", lines)
    assert time.monotonic() - began_s >= 0.25, "five pauses of 50 ms"
    assert len(latermq.ok(f"tail {topic} --json").json_lines()) == 6
