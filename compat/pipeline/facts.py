"""Tasks that write facts to a stage; Spark runs them on its executors. Layer 5.

A task reads a part of the log, or files of a partition, and writes Parquet itself: that is two to
three times as fast as to hand the rows to Spark. It returns a description of each file. An error
that an operator must act on is returned as well, because Spark would repeat the task.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from appliance.errors import LatermqError
from appliance.system.files import FileSystem
from appliance.units import MIB
from compat.pipeline.layout import DATED_BY, FACTS, Partition, Span
from compat.pipeline.manifest import DataFile
from compat.pipeline.target import write_parquet
from compat.tables.batches import Task

BUFFER_BYTES: Final = 64 * MIB
"""Rows that a task holds before it writes them."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A file of facts in a stage.

    Attributes:
        name: its name in the stage.
        file: what it becomes.
        accept_dates, due_dates: dates of aggregates that its rows change.
    """

    name: str
    file: DataFile
    accept_dates: frozenset[str] = frozenset()
    due_dates: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Failed:
    """A task that ended with an error for the operator."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FactTask:
    """Facts of a part of the log.

    Attributes:
        table: the table of facts.
        source: yields its rows, or those of the table `timers` of the log.
        fs, stage: where to write.
        name: begins the name of each file; no other task of any run has it.
    """

    table: str
    source: Task
    fs: FileSystem
    stage: Path
    name: str

    def run(self) -> Iterator[Staged]:
        """Write the files, and yield what they are."""
        held: dict[Partition, list[pa.Table]] = {}
        size = count = 0
        for batch in self.source.batches():
            for partition, rows in _by_partition(self.table, batch):
                held.setdefault(partition, []).append(rows)
                size += rows.nbytes
            if size >= BUFFER_BYTES:
                yield from self._write(held, count)
                held, size, count = {}, 0, count + len(held)
        yield from self._write(held, count)

    def _write(self, held: dict[Partition, list[pa.Table]], count: int) -> Iterator[Staged]:
        for number, (partition, parts) in enumerate(sorted(held.items()), count):
            name = f"{self.name}-{number:04d}.parquet"
            path = self.stage / f"{self.table}-{name}"
            rows = pa.concat_tables(parts)
            size = write_parquet(self.fs, path, FACTS[self.table], [rows])
            file = DataFile(
                table=self.table, partition=partition, name=name, rows=rows.num_rows, size=size
            )
            yield _with_dates(Staged(path.name, file), rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeTask:
    """Small files of a partition, to become one.

    Attributes:
        root: the output directory.
        files: what to merge.
        fs, stage, name: as of `FactTask`.
    """

    root: Path
    files: tuple[DataFile, ...]
    fs: FileSystem
    stage: Path
    name: str

    def run(self) -> Iterator[Staged]:
        """Write the file, and yield what it is."""
        first = self.files[0]
        name = f"{self.name}-0000.parquet"
        path = self.stage / f"{first.table}-{name}"
        size = write_parquet(self.fs, path, FACTS[first.table], self._row_groups())
        merged = replace(
            first,
            name=name,
            rows=sum(file.rows for file in self.files),
            size=size,
            accepted=Span.around(file.accepted for file in self.files),
            due=Span.around(file.due for file in self.files),
        )
        yield Staged(path.name, merged)

    def _row_groups(self) -> Iterator[pa.Table]:
        """Yield the rows, in tables of BUFFER_BYTES unless one row group has more."""
        schema = FACTS[self.files[0].table]
        held: list[pa.Table] = []
        for file in self.files:
            source = pq.ParquetFile(self.root / file.path)
            for number in range(source.num_row_groups):
                if sum(each.nbytes for each in held) >= BUFFER_BYTES:
                    yield pa.concat_tables(held)
                    held = []
                held.append(source.read_row_group(number).select(schema.names).cast(schema))
        yield pa.concat_tables(held)


def _with_dates(staged: Staged, rows: pa.Table) -> Staged:
    """Return a file of completions with the dates of its timers, any other as it is."""
    if staged.file.table != "completed":
        return staged
    accepted = _dates(rows["accepted_at"])
    due = _dates(rows.filter(pc.is_valid(rows["lateness_ms"]))["due_at"])
    file = replace(staged.file, accepted=Span.of(accepted), due=Span.of(due))
    return Staged(staged.name, file, accepted, due)


def _dates(instants: pa.ChunkedArray) -> frozenset[str]:
    return frozenset(date.isoformat() for date in pc.unique(_days(instants)).to_pylist())


def _days(instants: Any) -> Any:
    return pc.cast(pc.floor_temporal(instants, unit="day"), pa.date32())


def _by_partition(table: str, batch: pa.RecordBatch) -> Iterator[tuple[Partition, pa.Table]]:
    """Divide rows by topic and date, and add the columns that the log does not have."""
    rows = pa.Table.from_batches([batch])
    if table == "completed":
        rows = rows.filter(pc.is_valid(rows["completed_at"]))
    if not rows.num_rows:
        return
    topics = pc.dictionary_encode(rows["topic"]).combine_chunks()
    days = _days(rows[DATED_BY[table]]).combine_chunks()
    facts = _columns(table, rows)
    keys = pa.table({"topic": topics.indices, "day": days.cast(pa.int32())})
    order = pc.sort_indices(keys, sort_keys=[("topic", "ascending"), ("day", "ascending")])
    groups = keys.group_by(["topic", "day"], use_threads=False).aggregate([([], "count_all")])
    if groups.num_rows > 1:
        facts = facts.take(order)
    at = 0
    for group in groups.sort_by([("topic", "ascending"), ("day", "ascending")]).to_pylist():
        topic = topics.dictionary[group["topic"]].as_py()
        date = pa.scalar(group["day"], pa.int32()).cast(pa.date32()).as_py().isoformat()
        yield (topic, date), facts.slice(at, group["count_all"])
        at += group["count_all"]


def _columns(table: str, rows: pa.Table) -> pa.Table:
    schema = FACTS[table]
    if table == "messages":
        sizes = [
            pc.fill_null(pc.binary_length(rows[name]).cast(pa.int64()), 0)
            for name in ("key", "value")
        ]
        rows = rows.append_column("size", pc.add(*sizes))
    elif table == "completed":
        late = pc.divide(
            pc.subtract(rows["completed_at"].cast(pa.int64()), rows["due_at"].cast(pa.int64())),
            1000,
        )
        delivered = pc.equal(rows["delay_state"], "delivered")
        late = pc.if_else(delivered, late, pa.scalar(None, pa.int64()))
        rows = rows.append_column("lateness_ms", late)
    return rows.select(schema.names).cast(schema)


@dataclass(frozen=True, slots=True)
class DueTask:
    """Counts the pending timers of a part of the log."""

    source: Task

    def run(self) -> Iterator[tuple[str, int, int]]:
        """Yield topic, hour in which they are due (since 1970), and number of timers."""
        counts: dict[tuple[str, int], int] = {}
        for batch in self.source.batches():
            rows = pa.Table.from_batches([batch])
            rows = rows.filter(pc.equal(rows["delay_state"], "pending"))
            hours = pc.floor_temporal(rows["due_at"], unit="hour").cast(pa.int64())
            keys = pa.table({"topic": rows["topic"], "hour": hours})
            groups = keys.group_by(["topic", "hour"], use_threads=False)
            for each in groups.aggregate([([], "count_all")]).to_pylist():
                key = each["topic"], each["hour"]
                counts[key] = counts.get(key, 0) + each["count_all"]
        for (topic, hour), count in counts.items():
            yield topic, hour, count


class Work(Protocol):
    """A task of this module."""

    def run(self) -> Iterator[Any]:
        """Do it, on an executor."""


def run_all(works: Iterable[Work]) -> Iterator[Any]:
    """Run tasks, as Spark calls it; yield their results, or `Failed`."""
    try:
        for work in works:
            yield from work.run()
    except LatermqError as error:
        yield Failed(error.message)
