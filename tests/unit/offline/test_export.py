"""`latermq export`: the rows of a directory in files, from the command line to what reads them."""

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from appliance.commands import table_files
from appliance.system.files import OsFileSystem
from appliance.units import counted
from compat.tables.batches import NoteGone, Task, ignore
from compat.tables.plan import Plan
from compat.tables.schema import HEADERS, TABLES
from compat.tables.table import Query, open_plan, tasks
from tests.support.harness import offline_scenario as scenario
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.command_line import CommandLine
from tests.support.harness.configs import small_config
from tests.support.values.kafka_records import Record, delay

SEGMENT: Final = 64 * 1024


def rows_of(directory: Path, table: str, **query: Any) -> list[dict[str, Any]]:
    """What the library reads."""
    found = tasks(open_plan(directory), Query(table=table, **query))
    return [row for task in found for batch in task.batches() for row in batch.to_pylist()]


def read(path: Path) -> list[dict[str, Any]]:
    """What Parquet files have, in the order of their names."""
    paths = sorted(path.iterdir()) if path.is_dir() else [path]
    return [row for each in paths for row in pq.read_table(each).to_pylist()]


@pytest.mark.parametrize("table", TABLES)
def test_every_table_becomes_one_file_or_a_directory_of_files(
    directory: Path, command: CommandLine, tmp_path: Path, table: str
) -> None:
    expected = rows_of(directory, table)
    assert expected
    said = f"latermq: {counted(len(expected), 'row')} of {table} written to "
    for name in ("out.parquet", "out"):
        out = tmp_path / name
        outcome = command.ok(f"export {directory} --table {table} --out {out}")
        assert (outcome.stdout, outcome.stderr) == ("", f"{said}{out}\n")
        assert read(out) == expected
    assert [path.name for path in out.iterdir()] == ["part-00000.parquet"]
    schema = pq.read_schema(out / "part-00000.parquet")
    assert schema.equals(TABLES[table], check_metadata=False)


def test_json_lines_have_bytes_as_text_and_instants_in_ms(
    directory: Path, command: CommandLine, tmp_path: Path
) -> None:
    printed = command.ok(f"export {directory} --format jsonl")
    expected = rows_of(directory, "messages")
    found = printed.json_lines()
    assert len(found) == len(expected)
    assert list(found[0]) == list(TABLES["messages"].names)
    for row, wanted in zip(found, expected, strict=True):
        assert row["offset"] == wanted["offset"]
        assert row["timestamp"] == int(wanted["timestamp"].timestamp() * 1000)
        assert row["value"] == wanted["value"].decode()
    (odd,) = (row for row in found if row["key"] == {"base64": "/wA="})
    assert odd["headers"] == [["trace", 'a "b"\n']]
    out = tmp_path / "out.jsonl"
    command.ok(f"export {directory} --format jsonl --out {out}")
    assert out.read_text() == printed.stdout
    (line,) = command.ok(
        f"export {directory} --table timers --columns id,delay_state --format jsonl "
        "--due-between 2026-01-01T01:00:00Z,2026-01-01T01:30:00Z"
    ).json_lines()
    assert line == {"id": "reminder-2", "delay_state": "cancelled"}


@pytest.mark.parametrize(
    ("options", "takes"),
    [
        ("--topic orders", lambda row: row["topic"] == "orders"),
        ("--topic gone --topic none", lambda _: False),
        ("--topic orders --partition 1", lambda row: row["partition"] == 1),
        ("--from 2026-01-01T00:01:00Z", lambda row: row["timestamp"].minute >= 1),
        ("--to 2026-01-01T00:01:00Z", lambda row: row["timestamp"].minute < 1),
    ],
)
def test_filters_leave_out_rows(
    directory: Path, command: CommandLine, options: str, takes: Any
) -> None:
    expected = [row["position"] for row in rows_of(directory, "messages") if takes(row)]
    found = command.ok(f"export {directory} --format jsonl --columns position {options}")
    assert [row["position"] for row in found.json_lines()] == expected


def test_expired_records_are_exported_on_request(command: CommandLine, tmp_path: Path) -> None:
    harness = BrokerHarness()
    harness.create_topic("t")
    for value in (b"gone", b"kept"):
        harness.produce("t", 0, [Record(value)])
    harness.broker.topics.delete_records(harness.topic(), {0: 1})
    harness.flush()
    harness.broker.close()
    directory = scenario.export(harness.disk, tmp_path / "data")
    for option, values in (("", ["kept"]), ("--include-expired", ["gone", "kept"])):
        found = command.ok(f"export {directory} --format jsonl --columns value {option}")
        assert [row["value"] for row in found.json_lines()] == values


@pytest.mark.parametrize("table", ["timers", "deliveries", "queues", "frames"])
def test_other_tables_are_selected_by_the_time_of_storage(
    directory: Path, command: CommandLine, table: str
) -> None:
    def positions(options: str) -> list[int]:
        shown = command.ok(f"export {directory} --format jsonl --table {table} {options}")
        # A blank frame has no time.
        rows = [row for row in shown.json_lines() if row.get("kind") != "blank"]
        return [row["position"] for row in rows]

    every = positions("")
    early = positions("--to 2026-01-01T00:01:00Z")
    late = positions("--from 2026-01-01T00:01:00Z")
    assert early + late == every
    assert late


def test_an_empty_selection_gives_a_file_with_the_columns(
    directory: Path, command: CommandLine, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command.ok(f"export {directory} --topic none --columns topic,value --out {out}")
    (path,) = out.iterdir()
    assert pq.read_table(path).to_pylist() == []
    assert pq.read_schema(path).names == ["topic", "value"]


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        ("", "SNAPPY"),
        ("--compression snappy", "SNAPPY"),
        ("--compression zstd", "ZSTD"),
        ("--compression none", "UNCOMPRESSED"),
    ],
)
def test_files_are_compressed_as_asked(
    directory: Path, command: CommandLine, tmp_path: Path, option: str, wanted: str
) -> None:
    out = tmp_path / "out.parquet"
    command.ok(f"export {directory} {option} --out {out}")
    assert pq.ParquetFile(out).metadata.row_group(0).column(1).compression == wanted


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of several tasks."""
    root = tmp_path_factory.mktemp("large") / "data"
    config = small_config(data_dir=root)
    harness = BrokerHarness(OsFileSystem(), config=config)  # type: ignore[arg-type]
    harness.create_topic("t", 2)
    rng = random.Random(3)
    for number in range(300):
        records = [Record(rng.randbytes(3_000), key=b"%d" % number)]
        records.append(Record(b"later", headers=delay(60_000 + number)))
        harness.produce("t", number % 2, records)
    harness.broker.close()
    return root


def test_threads_share_the_work(
    large: Path, command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = Query.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "split_bytes", 1)
    plan_defaults = Plan.__init__.__kwdefaults__
    assert plan_defaults is not None
    monkeypatch.setitem(plan_defaults, "zone_bytes", 256 * 1024)
    expected = rows_of(large, "messages")
    for workers in (1, 2):
        out = tmp_path / f"out-{workers}"
        command.ok(f"export {large} --out {out} --workers {workers}")
        assert len(list(out.iterdir())) > 3
        assert read(out) == expected
    out = tmp_path / "out.parquet"
    command.ok(f"export {large} --out {out}")
    assert read(out) == expected


def test_large_rows_are_divided_into_row_groups(
    large: Path, command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "ROW_GROUP_BYTES", 1)
    monkeypatch.setattr("compat.tables.batches.BATCH_BYTES", 100_000)
    out = tmp_path / "out.parquet"
    command.ok(f"export {large} --out {out}")
    assert pq.ParquetFile(out).num_row_groups > 5
    assert read(out) == rows_of(large, "messages")


# Targets


def test_nothing_is_replaced_unless_asked(
    directory: Path, command: CommandLine, tmp_path: Path
) -> None:
    for name in ("out", "out.parquet"):
        out = tmp_path / name
        command.ok(f"export {directory} --topic none --out {out}")
        assert "use --force to replace it" in command.fails(f"export {directory} --out {out}", 2)
        assert read(out) == []
        command.ok(f"export {directory} --out {out} --force")
        assert read(out) == rows_of(directory, "messages")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "out", "out.parquet"]


def test_force_replaces_only_what_an_export_may_have_written(
    directory: Path, command: CommandLine, tmp_path: Path
) -> None:
    before = scenario_digest(directory)
    assert "files that no export wrote" in command.fails(
        f"export {directory} --out {directory} --force", 2
    )
    assert scenario_digest(directory) == before
    (tmp_path / "dir.parquet").mkdir()
    for target, said in (
        (tmp_path / "dir.parquet", "is a directory"),
        (tmp_path / "none" / "out", "there is no directory"),
    ):
        assert said in command.fails(f"export {directory} --out {target} --force", 2)


def scenario_digest(directory: Path) -> dict[Path, bytes]:
    """All files of a directory."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_an_export_that_fails_leaves_nothing(
    directory: Path, command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(table_files, "_write", refuse)
    for name in ("out", "out.parquet"):
        said = command.fails(f"export {directory} --out {tmp_path / name}", 2)
        assert "cannot be written: No space left on device" in said
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_arguments_are_checked(directory: Path, command: CommandLine, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for options, said in (
        ("", "--out is missing"),
        (f"--out {out} --table nothing", "there is no table 'nothing'"),
        (f"--out {out} --columns value,nothing", "no column 'nothing'"),
        (f"--out {out} --from yesterday", "--from"),
        (f"--out {out} --due-between 1", "use FROM,TO"),
        (f"--out {out} --due-between 2026-01-01T00:00:00Z,", "use timers or deliveries"),
        (f"--out {out} --table timers --due-between soon,", "--due-between"),
        (f"--out {out} --table groups --to 1", "leave --from and --to out"),
        (f"--out {out} --table frames --topic t", "leave --topic out"),
        ("--format jsonl --compression zstd", "--compression is for Parquet"),
    ):
        assert said in command.fails(f"export {directory} {options}", 2)
    assert "not a latermq data directory" in command.fails(f"export {tmp_path} --out {out}", 2)
    assert not out.exists()


def test_without_pyarrow_the_command_says_what_to_install(
    directory: Path, command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    said = command.fails(f"export {directory} --out {tmp_path / 'out'}", 2)
    assert "pip install latermq[spark]" in said


# Damage


def test_damage_ends_an_export_unless_it_is_accepted(
    directory: Path, command: CommandLine, tmp_path: Path
) -> None:
    expected = rows_of(directory, "messages")
    with (directory / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(scenario.DELIVER_POS + 30)
        file.write(b"\xff")
    out = tmp_path / "out"
    said = command.fails(f"export {directory} --out {out}")
    assert f"cannot be read at position {scenario.DELIVER_POS}" in said
    assert "--accept-data-loss" in said
    assert not out.exists()
    said = command.ok(f"export {directory} --out {out} --accept-data-loss").stderr
    assert f"log position {scenario.DELIVER_POS} to " in said
    kept = [row for row in expected if row["position"] != scenario.DELIVER_POS]
    assert read(out) == kept != expected


def test_a_segment_that_goes_away_meanwhile_is_reported_by_a_thread(
    large: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    (copy / "commitlog").mkdir(parents=True)
    (copy / "checkpoint").write_bytes((large / "checkpoint").read_bytes())
    for path in (large / "commitlog").iterdir():
        (copy / "commitlog" / path.name).write_bytes(path.read_bytes())
    plan = open_plan(copy)
    query = Query(columns=("position",), split_bytes=1)
    strict = tasks(plan, query)
    (whole,) = found = tasks(plan, Query(columns=("position",), fails_on_loss=False))
    kept = [row for each in whole.batches() for row in each.to_pylist()]
    kept = [row for row in kept if row["position"] >= SEGMENT]
    first = copy / "commitlog" / ("0" * 20)
    first.unlink()

    def parts(found: list[Task]) -> list[table_files.Part]:
        return [
            table_files.Part((task,), tmp_path / f"{at}", query.schema, "zstd")
            for at, task in enumerate(found)
        ]

    with pytest.raises(table_files.LossError, match="latermq snapshot create"):
        table_files.write_parts(parts(strict) * 2, 2, lambda _: None)
    written = table_files.write_parts(parts(found), 1, lambda _: None)
    assert written == (len(kept), frozenset([first]))
    assert read(tmp_path / "0") == kept
    with pytest.raises(table_files.LossError, match="latermq snapshot create"):
        list(table_files.json_lines(strict, lambda _: None))
    missed: list[Path] = []
    lines = table_files.json_lines(found, lambda _: None, missed.append)
    assert [json.loads(line) for some in lines for line in some] == kept
    assert missed == [first]


@dataclass(frozen=True)
class Rows:
    """A task that has one batch."""

    batch: pa.RecordBatch

    def batches(self, *, note_gone: NoteGone = ignore) -> Iterator[pa.RecordBatch]:
        """Yield it."""
        yield self.batch


def test_a_header_name_that_is_not_text_is_an_error_in_json_only(tmp_path: Path) -> None:
    names = pa.array([b"\xff"], pa.binary()).view(pa.string())
    pairs = pa.StructArray.from_arrays(
        [names, pa.array([b"v"], pa.binary())], fields=list(HEADERS.value_type)
    )
    headers = pa.Array.from_buffers(
        HEADERS, 1, [None, pa.array([0, 1], pa.int32()).buffers()[1]], 0, 0, [pairs]
    )
    schema = pa.schema([pa.field("headers", HEADERS, nullable=False)])
    task = Rows(pa.RecordBatch.from_arrays([headers], schema=schema))
    with pytest.raises(table_files.ExportError, match="the name of a header is not UTF-8"):
        list(table_files.json_lines([task], lambda _: None))
    part = table_files.Part((task,), tmp_path / "out.parquet", schema, "none")
    assert table_files.write_parts([part], 1, lambda _: None) == (1, frozenset())
