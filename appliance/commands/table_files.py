"""Writes the tasks of a table to files: Parquet, on several threads, or JSON lines. Layer 6.

The scanner and the Parquet writer work without Python's lock, so threads share the work as
processes would. They need no second start of Python with all libraries, and less memory.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from appliance.commands.output import json_line, octets_in_json
from appliance.errors import LatermqError
from appliance.units import MIB
from compat.tables.batches import DataLossError, NoteGone, Task, ignore
from compat.tables.log_reader import SegmentGoneError
from compat.tables.schema import HEADERS

ROW_GROUP_BYTES: Final = 32 * MIB
"""Readers skip whole row groups; the memory of a thread is a few of them."""

US_PER_MS: Final = 1000

Progress = Callable[[int], None]
"""Called with the number of tasks that are done."""


class ExportError(LatermqError):
    """The rows cannot be written."""


class LossError(LatermqError):
    """Part of the log cannot be read, and the command was not told to go on without it."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file to write.

    Attributes:
        tasks: its rows.
        path: the file, which does not exist.
        schema: the schema of the rows.
        compression: as pyarrow calls it.
    """

    tasks: tuple[Task, ...]
    path: Path
    schema: pa.Schema
    compression: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one file.

    Attributes:
        rows: how many it has.
        gone: the segments that were passed over because they were gone.
        loss, error: what ended it, if something did.
    """

    rows: int = 0
    gone: frozenset[Path] = frozenset()
    loss: str | None = None
    error: str | None = None


def as_loss(error: DataLossError | SegmentGoneError) -> LossError:
    """Return what a user of the command is told about a part that cannot be read."""
    if isinstance(error, SegmentGoneError):
        return LossError(
            f"{error.path} is gone: the broker freed it, or its disk is not mounted. Export a "
            "snapshot (`latermq snapshot create`), or use --accept-data-loss to go on without it"
        )
    return LossError(
        f"the log cannot be read at position {error.pos}: {error.fault}. `latermq check` shows "
        "what is damaged; --accept-data-loss goes on without it"
    )


# Parquet


def write_parts(
    parts: Sequence[Part], worker_count: int, progress: Progress
) -> tuple[int, frozenset[Path]]:
    """Write each part; return the number of rows, and the segments that were passed over.

    Args:
        parts: the files; they may be written in any order.
        worker_count: threads.
        progress: called after each file.

    Raises:
        LossError: part of the log cannot be read.
        ExportError: a file cannot be written.
    """
    rows = 0
    gone: frozenset[Path] = frozenset()
    for done, outcome in enumerate(_outcomes(parts, worker_count), start=1):
        if outcome.loss is not None:
            raise LossError(outcome.loss)
        if outcome.error is not None:
            raise ExportError(outcome.error)
        rows += outcome.rows
        gone |= outcome.gone
        progress(done)
    return rows, gone


def _outcomes(parts: Sequence[Part], worker_count: int) -> Iterator[Outcome]:
    if worker_count <= 1 or len(parts) <= 1:
        yield from map(write_part, parts)
        return
    executor = ThreadPoolExecutor(min(worker_count, len(parts)), "export")
    try:
        for future in as_completed([executor.submit(write_part, part) for part in parts]):
            yield future.result()
    finally:
        # After an error or Ctrl-C only the parts that were begun are written to their ends.
        executor.shutdown(cancel_futures=True)


def write_part(part: Part) -> Outcome:
    """Write one part, on any thread."""
    try:
        with _writer(part) as writer:
            gone: set[Path] = set()
            rows = sum(_write(writer, task.batches(note_gone=gone.add)) for task in part.tasks)
            return Outcome(rows, frozenset(gone))
    except (DataLossError, SegmentGoneError) as error:
        return Outcome(loss=as_loss(error).message)
    except LatermqError as error:
        return Outcome(error=error.message)
    except OSError as error:
        return Outcome(error=f"{part.path} cannot be written: {error.strerror or error}")


def _writer(part: Part) -> Any:
    # A dictionary pays for itself where values repeat, and costs a look-up each elsewhere.
    texts = [field.name for field in part.schema if field.type == pa.string()]
    return pq.ParquetWriter(
        str(part.path), part.schema, compression=part.compression, use_dictionary=texts
    )


def _write(writer: Any, batches: Iterator[pa.RecordBatch]) -> int:
    rows = size = 0
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        rows += batch.num_rows
        size += batch.nbytes
        waiting.append(batch)
        if size >= ROW_GROUP_BYTES:
            writer.write_table(pa.Table.from_batches(waiting))
            waiting, size = [], 0
    if rows and waiting:
        writer.write_table(pa.Table.from_batches(waiting))
    return rows


# JSON lines


def json_lines(
    tasks: Sequence[Task], progress: Progress, note_gone: NoteGone = ignore
) -> Iterator[list[str]]:
    """Yield the rows of all tasks in order as JSON objects, some lines at a time.

    Instants are epoch ms, headers pairs, and bytes text if they are UTF-8, else `{"base64": ...}`.

    Args:
        tasks: the rows.
        progress: called after each task.
        note_gone: called for each segment that is passed over because it is gone.

    Raises:
        ExportError: a text of a row is not UTF-8.
        LossError: part of the log cannot be read.
    """
    try:
        for number, task in enumerate(tasks, start=1):
            for batch in task.batches(note_gone=note_gone):
                yield _lines(batch)
            progress(number)
    except UnicodeDecodeError:
        raise ExportError(
            "the name of a header is not UTF-8: use --format parquet, or leave the headers out "
            "with --columns"
        ) from None
    except (DataLossError, SegmentGoneError) as error:
        raise as_loss(error) from None


def _lines(batch: pa.RecordBatch) -> list[str]:
    names = batch.schema.names
    columns = [_values(batch.column(at), field) for at, field in enumerate(batch.schema)]
    return [
        json_line(dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)
    ]


def _values(column: pa.Array, field: pa.Field) -> list[Any]:
    if pa.types.is_timestamp(field.type):
        # Takes a tenth of a second to load, which Parquet does without.
        import pyarrow.compute as pc

        return list(pc.divide(column.cast(pa.int64()), US_PER_MS).to_pylist())
    if field.type == HEADERS:
        return [
            [[each["key"], octets_in_json(each["value"])] for each in headers]
            for headers in column.to_pylist()
        ]
    if pa.types.is_binary(field.type):
        return [octets_in_json(value) for value in column.to_pylist()]
    return list(column.to_pylist())
