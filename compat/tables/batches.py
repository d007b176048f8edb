"""Record batches of one part of a table. Layer 4.

A `Task` says all that is needed to read its part, and can be sent to another process or machine
that has the same directory.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from _core.bytes import layout
from _core.tables.frame_rows import FrameRows, QueueRows
from _core.tables.record_rows import DeliveryRows, MessageRows, TimerRows
from _core.tables.row_scan import RowScan
from appliance.errors import LatermqError, RequestError
from appliance.store.log.frame_kinds import kind_name
from appliance.system.files import FileSystem, OsFileSystem
from appliance.units import MIB
from compat.kafka.protocol.codecs import Unpacker
from compat.tables.log_reader import LogReader, SegmentGoneError
from compat.tables.schema import HEADERS, schema_of
from compat.tables.selection import Selection, Topics

BATCH_ROWS: Final = 64 * 1024
BATCH_BYTES: Final = 4 * MIB
UNPACKED_MAX_BYTES: Final = 1 << 30
"""Of one batch of records; the broker accepts much less."""

_SCANS: Final[dict[str, type[RowScan]]] = {
    "messages": MessageRows,
    "timers": TimerRows,
    "deliveries": DeliveryRows,
    "queues": QueueRows,
    "frames": FrameRows,
}
_KINDS: Final = tuple(kind_name(kind).encode() for kind in range(layout.KIND_CARRIED_RECORDS + 1))


class DataLossError(LatermqError):
    """Part of the log cannot be read, and the reader asked to be told.

    Args:
        root: the data directory.
        pos: log position.
        fault: what is wrong there.
    """

    def __init__(self, root: Path, pos: int, fault: str) -> None:
        super().__init__(
            f"{root} has a part that cannot be read, at log position {pos}: {fault}. Set "
            "failOnDataLoss to false to go on without it; latermq check shows what is damaged"
        )
        self.pos = pos
        self.fault = fault


NoteGone = Callable[[Path], None]
"""Called with the path of a segment."""


def ignore(path: Path) -> None:
    """Do nothing about a segment that is gone."""


class Task(Protocol):
    """A part of a table. Any number of processes may read different tasks at once."""

    def batches(self, *, note_gone: NoteGone = ignore) -> Iterator[pa.RecordBatch]:
        """Yield the rows.

        Args:
            note_gone: called for each segment that is passed over because it is gone.
        """


@dataclass(frozen=True, slots=True)
class LiteralTask:
    """Rows that the plan has already, as an Arrow stream."""

    stream: bytes

    def batches(self, *, note_gone: NoteGone = ignore) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        yield from pa.ipc.open_stream(self.stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanTask:
    """Rows of some ranges of the log.

    Attributes:
        root: the data directory, a path on the machine that reads.
        table, columns: which rows, and which of their columns.
        segments: (base position, size) of the segments that the ranges are in.
        ranges: (from, to) in log positions.
        topics: the topics that are selected.
        selection: rows outside it may be left out.
        salt: salt of the frames.
        outcomes: of the timers that frames of each range hold; empty for other tables.
        left_out: positions of frames that have no rows, see `RowScan`.
        verifies: check the CRCs of batches.
        fails_on_loss: raise an error where frames cannot be read or a segment is gone; otherwise
            pass over them.
    """

    root: Path
    table: str
    columns: tuple[str, ...]
    segments: tuple[tuple[int, int], ...]
    ranges: tuple[tuple[int, int], ...]
    topics: Topics
    selection: Selection
    salt: int
    outcomes: tuple[bytes, ...] = ()
    left_out: bytes = b""
    verifies: bool = True
    fails_on_loss: bool = True

    def batches(
        self, fs: FileSystem | None = None, *, note_gone: NoteGone = ignore
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of about BATCH_BYTES.

        Args:
            fs: reads the log; None for the machine's.
            note_gone: called for each segment that is not there any more, if losses are accepted.
                Its rows are missing but for those that were read before.

        Raises:
            DataLossError: a frame of the plan is not whole any more.
            SegmentGoneError: a segment is not there any more, and losses are not accepted.
        """
        with closing(LogReader(fs or OsFileSystem(), self.root)) as reader:
            reader.segments = list(self.segments)
            scan = self._scan(reader)
            schema = schema_of(self.table, self.columns)
            while (columns := self._step(scan, note_gone)) is not None:
                yield record_batch(schema, columns)

    def _step(self, scan: RowScan, note_gone: NoteGone) -> dict[str, tuple[Any, ...]] | None:
        while True:
            try:
                columns = scan.step(BATCH_ROWS, BATCH_BYTES)
            except (ValueError, RequestError) as error:
                # Only CRCs that are not checked let such records pass.
                raise DataLossError(self.root, scan.pos, str(error)) from error
            except SegmentGoneError as error:
                self._check(scan)  # what was wrong before it says more
                if self.fails_on_loss:
                    raise
                note_gone(error.path)
                scan.pass_segment()
            else:
                self._check(scan)
                return columns

    def _check(self, scan: RowScan) -> None:
        for pos, fault in scan.take_faults():
            if self.fails_on_loss:
                raise DataLossError(self.root, pos, fault)

    def _scan(self, reader: LogReader) -> RowScan:
        selection = self.selection
        return _SCANS[self.table](
            read=reader.read_into,
            ranges=[self._with_segment(*each) for each in self.ranges],
            topics=self.topics,
            columns=self.columns,
            decompress=Unpacker(UNPACKED_MAX_BYTES).unpack,
            verifies=self.verifies,
            salt=self.salt,
            timestamps=selection.timestamps,
            stored=selection.stored,
            due=selection.due,
            partition=-1 if selection.partition is None else selection.partition,
            outcomes=self.outcomes,
            kinds=_KINDS,
            takes_others=selection.topics is None,
            left_out=self.left_out,
        )

    def _with_segment(self, start: int, end: int) -> tuple[int, int, int, int]:
        base, size = next(each for each in self.segments if each[0] <= start < sum(each))
        return start, end, base, base + size


def record_batch(schema: pa.Schema, columns: dict[str, tuple[Any, ...]]) -> pa.RecordBatch:
    """Wrap the columns of a scan, without a copy.

    Args:
        schema: the schema of the columns.
        columns: the result of `RowScan.step`.
    """
    arrays = [_array(field.type, columns[field.name]) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(kind: pa.DataType, column: tuple[Any, ...]) -> pa.Array:
    length, null_count, validity, offsets, data, *children = column
    if kind == HEADERS:
        names, values = (
            _array(child, each)
            for child, each in zip((pa.string(), pa.binary()), children, strict=True)
        )
        pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
        return pa.Array.from_buffers(kind, length, [None, pa.py_buffer(offsets)], 0, 0, [pairs])
    buffers = [None if validity is None else pa.py_buffer(validity)]
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        buffers.append(_NO_OFFSETS if offsets is None else pa.py_buffer(offsets))
    return pa.Array.from_buffers(kind, length, [*buffers, pa.py_buffer(data)], null_count)


_NO_OFFSETS: Final = pa.py_buffer(bytes(4))
