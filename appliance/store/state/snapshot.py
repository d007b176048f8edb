"""The state snapshot: the part of a saved state that is neither timers nor ids nor units.

    head: number and position of the state, the last frame below that position, the epoch
    then values: kind, topic id, size, and a payload

Values and their payloads have the format of those in a carry frame; some kinds occur only here. A
file never changes. The checkpoint has its size and CRC, and the file has those of the runs, so a
state is used only if all of it is intact. docs/FORMAT.md describes it. Layer 2.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Final, NoReturn
from uuid import UUID

from _core.bytes.crc32c import crc32c
from _core.bytes.layout import KIND_EPOCH, KIND_GROUP, KIND_OFFSET, KIND_TOPIC
from appliance.errors import CorruptionError
from appliance.store.checkpoint import NO_CLUSTER, SavedState
from appliance.store.runs.run_files import ENTRY, RunEntry, decode_entry, encode_entry
from appliance.store.state.age_clock import SavedAge
from appliance.store.state.control_frames import (
    NONE_STOPPED,
    StoppedStages,
    decode_stages,
    encode_stages,
)
from appliance.store.state.payload import PayloadReader, pack_text
from appliance.system.files import FileSystem

MAGIC: Final = 0x4C4D4353
"""LMCS."""
VERSION: Final = 3
"""It rises with each frame that an older latermq refuses: else that one would begin after it."""

VERSIONS_READ: Final = (1, 2, VERSION)
"""They have the same fields."""

HEAD: Final = struct.Struct(">IHxxqqqqIiqiiI16sxxxx")
"""Magic, version, _HEAD_FIELDS, cluster."""
_HEAD_FIELDS: Final = (
    *("number", "start", "applied", "last_pos", "last_crc", "epoch"),
    *("next_producer_id", "next_topic_id", "generation_floor", "salt"),
)
_head_fields: Final = attrgetter(*_HEAD_FIELDS)

VALUE_HEAD: Final = struct.Struct(">BxxxiI")
"""Kind, topic id, size; then the payload. The values of a carry frame begin likewise."""

VALUE_SEQUENCES: Final = 65
VALUE_PARTITIONS: Final = 129
VALUE_SETTINGS: Final = 130
VALUE_ID_KEY: Final = 131
VALUE_TOTALS: Final = 132
VALUE_LEVEL_OFFSETS: Final = 133
VALUE_LOST: Final = 134
VALUE_DAMAGE: Final = 135
VALUE_RUNS: Final = 136
VALUE_UNIT_RUNS: Final = 137
VALUE_AGE: Final = 138
VALUE_AGE_MARKS: Final = 139
VALUE_SIZE_MARKS: Final = 140
VALUE_DOUBTFUL_MARKS: Final = 141
VALUE_FORGET_POS: Final = 142
VALUE_KEPT_BYTES: Final = 148
VALUE_CARRIED_PARTS: Final = 149
VALUE_PENDING: Final = 150
VALUE_DUE_MINUTES: Final = 151
VALUE_TIMER_LOG: Final = 152
VALUE_STAGES: Final = 153

PARTITION: Final = struct.Struct(">iiqqqq")
"""Topic id, index, start offset, next offset, highest timestamp, bytes in the log."""
UNIT_RUN: Final = struct.Struct(">iiqqqiq")
"""Topic id, partition, first offset, the one after the last, position, size, tags code."""
KEPT_BYTES: Final = struct.Struct(">iiq")
"""Topic id, partition, bytes of the records that can be fetched."""
CARRIED_PART: Final = struct.Struct(">iiqqq")
"""Topic id, partition, first offset, the one after the last, lowest log position."""
PENDING: Final = struct.Struct(">iiiq")
"""Topic id, partition, level (0: all timers), number of pending timers."""
LEVEL_OFFSET: Final = struct.Struct(">q")
RANGE: Final = struct.Struct(">qq")
"""From, to."""
TOTAL: Final = struct.Struct(">q")
FORGET_POS: Final = struct.Struct(">q")
"""Log position: ids of timers that frames below it completed have expired."""
AGE: Final = struct.Struct(">qq")
"""Age in ms, and the wall clock then."""
AGE_MARK: Final = struct.Struct(">qq")
"""Log position, age in ms."""
SIZE_MARK: Final = struct.Struct(">iiqq")
"""Topic id, partition, offset, bytes of the partition in the log below it."""

_BULK: Final = frozenset((KIND_TOPIC, KIND_OFFSET, KIND_GROUP, VALUE_SEQUENCES, VALUE_SIZE_MARKS))
"""Kinds with any number of values: they are restored one by one, in slices."""


@dataclass(frozen=True, slots=True)
class KnownDamage:
    """A part of the log that was known to be damaged when the state was saved."""

    pos: int
    size: int
    fault: str


@dataclass(frozen=True, slots=True)
class Value:
    """One value: its kind, its topic id (0: none), its payload."""

    kind: int
    topic_id: int
    payload: bytes


@dataclass(slots=True, kw_only=True)
class ControlState:
    """The content of a state snapshot. `values` may be numerous; the rest is small or packed."""

    number: int
    start: int
    """Log position of the first byte of the log."""
    applied: int
    last_pos: int
    """Position of the last frame below `applied`."""
    last_crc: int
    """Its CRC field: a log with a different frame there is a different log."""
    epoch: int
    next_producer_id: int = 0
    next_topic_id: int = 1
    generation_floor: int = 0
    salt: int = 0
    cluster: UUID = NO_CLUSTER
    settings: str = ""
    """The part of the configuration that the state depends on."""
    id_key: bytes = b""
    totals: tuple[int, ...] = ()
    level_offsets: tuple[int, ...] = ()
    lost: tuple[tuple[int, int], ...] = ()
    damage: tuple[KnownDamage, ...] = ()
    runs: tuple[RunEntry, ...] = ()
    epochs: tuple[bytes, ...] = ()
    """Payloads of epoch frames, in order."""
    partitions: bytes = b""
    """PARTITION of each partition, in the order of the index within a topic."""
    unit_runs: tuple[tuple[int, ...], ...] = ()
    """UNIT_RUN of each run of offsets without units, in order within a partition."""
    kept_bytes: bytes | None = None
    """KEPT_BYTES of each partition that has any; None if they were not counted."""
    carried_parts: tuple[tuple[int, ...], ...] = ()
    """CARRIED_PART of each part of carried records, in order within a partition."""
    has_timer_log: bool = False
    """The TimerLog among `runs` has every pending timer."""
    pending: bytes | None = None
    """PENDING of each partition and level that has any; None if the runs have other timers."""
    due_minutes: bytes | None = None
    """The pending timers by minutes of their due times; None if they were not counted."""
    age: SavedAge | None = None
    age_marks: tuple[tuple[int, int], ...] = ()
    doubtful_marks: tuple[tuple[int, int], ...] = ()
    """Age marks that follow `age_marks`, set while a jump of the clock was in doubt."""
    stopped_stages: StoppedStages = NONE_STOPPED
    forget_pos: int = 0
    """Log position: ids of timers that frames below it completed have expired."""
    values: list[Value] = field(default_factory=list)
    """Of kind topic (without partitions), offset, group, sequences and size marks."""

    @property
    def counts_size(self) -> int:
        """Bytes of the counts of pending timers."""
        return len(self.pending or b"") + len(self.due_minutes or b"")


# Writing


def encode_head(state: ControlState) -> bytes:
    """Encode the head of the file."""
    return HEAD.pack(MAGIC, VERSION, *_head_fields(state), state.cluster.bytes)


def encode_value(kind: int, payload: bytes, topic_id: int = 0) -> bytes:
    """Encode one value."""
    return VALUE_HEAD.pack(kind, topic_id, len(payload)) + payload


def encode_small_values(state: ControlState) -> bytes:
    """Encode all values except `values`."""
    parts = [
        encode_value(VALUE_SETTINGS, pack_text(state.settings)),
        encode_value(VALUE_ID_KEY, state.id_key),
        encode_value(VALUE_TOTALS, b"".join(TOTAL.pack(each) for each in state.totals)),
        encode_value(
            VALUE_LEVEL_OFFSETS, b"".join(LEVEL_OFFSET.pack(each) for each in state.level_offsets)
        ),
        encode_value(VALUE_LOST, b"".join(RANGE.pack(*each) for each in state.lost)),
        encode_value(VALUE_RUNS, b"".join(encode_entry(each) for each in state.runs)),
        encode_value(VALUE_PARTITIONS, state.partitions),
        encode_value(VALUE_UNIT_RUNS, b"".join(UNIT_RUN.pack(*each) for each in state.unit_runs)),
    ]
    if state.kept_bytes is not None:
        parts.append(encode_value(VALUE_KEPT_BYTES, state.kept_bytes))
    if state.carried_parts:
        carried = b"".join(CARRIED_PART.pack(*each) for each in state.carried_parts)
        parts.append(encode_value(VALUE_CARRIED_PARTS, carried))
    if state.has_timer_log:
        parts.append(encode_value(VALUE_TIMER_LOG, b""))
    if state.pending is not None:
        parts.append(encode_value(VALUE_PENDING, state.pending))
    if state.due_minutes is not None:
        parts.append(encode_value(VALUE_DUE_MINUTES, state.due_minutes))
    if state.stopped_stages != NONE_STOPPED:
        # An older latermq does not use a state with this value; none is written in vain.
        parts.append(encode_value(VALUE_STAGES, encode_stages(state.stopped_stages)))
    if state.age is not None:
        age = AGE.pack(state.age.age_ms, state.age.wall_ms)
        parts.append(encode_value(VALUE_AGE, age))
    marks = b"".join(AGE_MARK.pack(*each) for each in state.age_marks)
    doubtful = b"".join(AGE_MARK.pack(*each) for each in state.doubtful_marks)
    parts += [
        encode_value(VALUE_AGE_MARKS, marks),
        encode_value(VALUE_DOUBTFUL_MARKS, doubtful),
        encode_value(VALUE_FORGET_POS, FORGET_POS.pack(state.forget_pos)),
    ]
    parts += [encode_value(VALUE_DAMAGE, _encode_damage(each)) for each in state.damage]
    parts += [encode_value(KIND_EPOCH, payload) for payload in state.epochs]
    return b"".join(parts)


def _encode_damage(damage: KnownDamage) -> bytes:
    return RANGE.pack(damage.pos, damage.size) + pack_text(damage.fault)


def write(fs: FileSystem, path: Path, parts: Sequence[bytes]) -> tuple[int, int]:
    """Write a new file, and make it and its name durable; may run on any thread.

    Args:
        fs: files.
        path: of the file; an existing file is overwritten.
        parts: the bytes of the file.

    Returns:
        Its size and CRC32C.

    Raises:
        StorageError: it could not be written or synced; the caller removes the file.
    """
    data = b"".join(parts)
    with closing(fs.open(path, create=True)) as file:
        file.truncate(0)
        file.pwritev([data], 0)
        file.fdatasync()
    fs.sync_dir(path.parent)
    return len(data), crc32c(data)


def encode_size_marks(
    marks: Iterable[tuple[tuple[int, int], Iterable[tuple[int, int]]]],
) -> bytes:
    """Encode a value with the size marks of some partitions, as (topic id, partition) and marks."""
    rows = [SIZE_MARK.pack(*key, *mark) for key, of_key in marks for mark in of_key]
    return encode_value(VALUE_SIZE_MARKS, b"".join(rows))


def decode_size_marks(payload: bytes) -> Iterable[tuple[int, ...]]:
    """Return the rows of a value of kind VALUE_SIZE_MARKS.

    Raises:
        CorruptionError: its size is not one of whole rows.
    """
    return _rows(SIZE_MARK, payload, "size marks")


# Reading


def read(fs: FileSystem, path: Path, saved: SavedState) -> ControlState:
    """Read the state snapshot of a saved state, and check it.

    Raises:
        StorageError: it is missing or cannot be read.
        CorruptionError: it is not the one that the checkpoint names, or has another version.
    """
    with closing(fs.open(path, writable=False)) as file:
        # One byte more, to detect a longer file.
        data = file.pread(saved.size + 1, 0)
    if len(data) != saved.size:
        raise CorruptionError(path, 0, f"{saved.size} bytes", f"{file_size(data, saved)}")
    if crc32c(data) != saved.crc:
        raise CorruptionError(path, 0, f"CRC32C {saved.crc:#010x}", f"{crc32c(data):#010x}")
    state = decode(path, data)
    if (state.number, state.applied) != (saved.number, saved.applied):
        raise CorruptionError(
            path,
            0,
            f"state {saved.number} at {saved.applied}",
            f"state {state.number} at {state.applied}",
        )
    return state


def file_size(data: bytes, saved: SavedState) -> str:
    """Describe a wrong size."""
    return "more" if len(data) > saved.size else f"{len(data)} bytes"


def decode(path: Path, data: bytes) -> ControlState:
    """Decode a state snapshot.

    Raises:
        CorruptionError: it is not a state snapshot, or has another version.
    """
    if len(data) < HEAD.size:
        raise CorruptionError(path, 0, f"{HEAD.size} bytes of a head", f"{len(data)}")
    magic, version, *fields = HEAD.unpack_from(data)
    if magic != MAGIC or version not in VERSIONS_READ:
        raise CorruptionError(
            path,
            0,
            f"a state snapshot of version {VERSION} or below",
            f"version {version}, {magic:#x}",
        )
    *numbers, cluster = fields
    head = dict(zip(_HEAD_FIELDS, numbers, strict=True))
    state = ControlState(**head, cluster=UUID(bytes=cluster))
    for at, value in _walk(path, data):
        if value.kind in _BULK:
            state.values.append(value)
        elif not _take_small(state, value):
            raise CorruptionError(path, at, "a value of a known kind", f"kind {value.kind}")
    return state


def _walk(path: Path, data: bytes) -> Iterator[tuple[int, Value]]:
    at = HEAD.size
    while at < len(data):
        if len(data) - at < VALUE_HEAD.size:
            _refuse_size(path, at, VALUE_HEAD.size, len(data))
        kind, topic_id, size = VALUE_HEAD.unpack_from(data, at)
        start = at + VALUE_HEAD.size
        if len(data) - start < size:
            _refuse_size(path, start, size, len(data))
        yield at, Value(kind, topic_id, data[start : start + size])
        at = start + size


def _refuse_size(path: Path, at: int, size: int, end: int) -> NoReturn:
    raise CorruptionError(path, at, f"{size} bytes of a value", f"{end - at}")


def _rows(layout: struct.Struct, payload: bytes, what: str) -> Iterable[tuple[int, ...]]:
    if len(payload) % layout.size:
        raise PayloadReader(payload, what).error(f"rows of {layout.size} bytes", f"{len(payload)}")
    return layout.iter_unpack(payload)


def _take_small(state: ControlState, value: Value) -> bool:
    payload = value.payload
    reader = PayloadReader(payload, "a state snapshot")
    if value.kind == KIND_EPOCH:
        state.epochs += (payload,)
    elif value.kind == VALUE_SETTINGS:
        state.settings = reader.text()
    elif value.kind == VALUE_ID_KEY:
        state.id_key = payload
    elif value.kind == VALUE_TOTALS:
        state.totals = tuple(each[0] for each in _rows(TOTAL, payload, "totals"))
    elif value.kind == VALUE_LEVEL_OFFSETS:
        rows = _rows(LEVEL_OFFSET, payload, "level offsets")
        state.level_offsets = tuple(each[0] for each in rows)
    elif value.kind == VALUE_LOST:
        state.lost = tuple((a, b) for a, b in _rows(RANGE, payload, "lost ranges"))
    elif value.kind == VALUE_DAMAGE:
        pos, size = reader.fields(RANGE)
        state.damage += (KnownDamage(pos, size, reader.text()),)
    elif value.kind == VALUE_RUNS:
        places = range(0, len(payload) - len(payload) % ENTRY.size, ENTRY.size)
        state.runs = tuple(decode_entry(payload, at) for at in places)
    elif value.kind == VALUE_PARTITIONS:
        _rows(PARTITION, payload, "partitions")
        state.partitions = payload
    elif value.kind == VALUE_UNIT_RUNS:
        state.unit_runs = tuple(_rows(UNIT_RUN, payload, "runs of offsets"))
    elif value.kind == VALUE_KEPT_BYTES:
        _rows(KEPT_BYTES, payload, "kept bytes")
        state.kept_bytes = payload
    elif value.kind == VALUE_CARRIED_PARTS:
        state.carried_parts = tuple(_rows(CARRIED_PART, payload, "carried parts"))
    elif value.kind == VALUE_TIMER_LOG:
        state.has_timer_log = True
    elif value.kind == VALUE_STAGES:
        state.stopped_stages = decode_stages(payload)
    elif value.kind == VALUE_PENDING:
        _rows(PENDING, payload, "pending timers")
        state.pending = payload
    elif value.kind == VALUE_DUE_MINUTES:
        state.due_minutes = payload
    elif value.kind == VALUE_AGE:
        state.age = SavedAge(*reader.fields(AGE))
    elif value.kind == VALUE_AGE_MARKS:
        state.age_marks = tuple((a, b) for a, b in _rows(AGE_MARK, payload, "age marks"))
    elif value.kind == VALUE_DOUBTFUL_MARKS:
        rows = _rows(AGE_MARK, payload, "doubtful age marks")
        state.doubtful_marks = tuple((a, b) for a, b in rows)
    elif value.kind == VALUE_FORGET_POS:
        (state.forget_pos,) = reader.fields(FORGET_POS)
    else:
        return False
    return True
