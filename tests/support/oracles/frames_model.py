"""The frames of the log in plain Python, as docs/FORMAT.md describes them: an oracle for `_core`.

It shares no code and no constants with what it checks: the layouts are written down again, and
the checksum is computed bit by bit. Nothing here is fast.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

ACCEPT, DELIVER, CANCEL, CARRY, TOPIC, OFFSET, PRODUCER, GROUP, TXN, EPOCH, BLANK = range(1, 12)
HEAD, VERDICT, ACCESS_CONTROL, CREDENTIALS, QUOTAS, SHARED_GROUP, GROUP_DELTA = range(12, 19)
CARRIED_RECORDS, STAGES = 19, 20
TRANSACTIONAL, CONTROL, MIXED_TAGS, OPTIONAL = 1, 2, 4, 0x8000
CANCEL_BY_HEADER, CANCEL_BY_DELIVERY = 1, 2
DUE_FINAL: Final = 2

INT64_MIN: Final = -(2**63)
HEADER_SIZE: Final = 160
BATCH_HEADER_SIZE: Final = 61
BATCH_CRC_START: Final = 21

_HEADER: Final = struct.Struct(">HBBiiiqqqqiiiiiiiqqqqqqiihHiqIxxxxI")
_TIMER: Final = struct.Struct(">qiBBBxqqIIIIiiIHxx")
_CANCEL: Final = struct.Struct(">iBBxxqIxxxx")
_COMPLETED: Final = struct.Struct(">qiBBBxIiq")
_BATCH_START: Final = struct.Struct(">qiibI")
_BATCH_REST: Final = struct.Struct(">hiqqqhii")


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC32C bit by bit, as defined."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def padding(size: int) -> bytes:
    """Zeros that pad `size` bytes to a multiple of 8."""
    return bytes(-size % 8)


def varint(value: int) -> bytes:
    """A zigzag varint."""
    rest = value * 2 if value >= 0 else -value * 2 - 1
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes(out) + bytes([rest])


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record of a batch."""

    timestamp: int
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    attributes: int = 0

    def encode(self, base_timestamp: int, offset_delta: int) -> bytes:
        """The bytes, with the length in front."""
        body = bytes([self.attributes]) + varint(self.timestamp - base_timestamp)
        body += varint(offset_delta) + sized(self.key) + sized(self.value)
        body += varint(len(self.headers))
        body += b"".join(sized(key) + sized(value) for key, value in self.headers)
        return varint(len(body)) + body


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A record batch without compression; fields that are None follow from the records."""

    records: tuple[Record, ...]
    base_offset: int = 0
    leader_epoch: int = 0
    attributes: int = 0
    base_timestamp: int | None = None
    max_timestamp: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    offset_deltas: tuple[int, ...] | None = None
    """None: consecutive from 0."""
    last_delta: int | None = None
    """None: that of the last record."""

    @property
    def first_timestamp(self) -> int:
        return self.records[0].timestamp if self.base_timestamp is None else self.base_timestamp

    def encoded_records(self) -> list[bytes]:
        return [
            record.encode(self.first_timestamp, delta)
            for delta, record in zip(self.relative_offsets, self.records, strict=True)
        ]

    @property
    def relative_offsets(self) -> Sequence[int]:
        """The offset of each record, relative to that of the batch."""
        return range(len(self.records)) if self.offset_deltas is None else self.offset_deltas

    def encode(self) -> bytes:
        return self.encode_even_empty() if self.records else b""

    def encode_even_empty(self) -> bytes:
        """The bytes, with the header even if there are no records."""
        latest = self.max_timestamp
        if latest is None:
            latest = max((record.timestamp for record in self.records), default=-1)
        rest = _BATCH_REST.pack(
            self.attributes,
            self.relative_offsets[-1] if self.last_delta is None else self.last_delta,
            self.first_timestamp,
            latest,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            len(self.records),
        ) + b"".join(self.encoded_records())
        length = 4 + 1 + 4 + len(rest)
        return (
            _BATCH_START.pack(self.base_offset, length, self.leader_epoch, 2, crc32c(rest)) + rest
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame: its header fields, its tables and its batches."""

    kind: int
    position: int = 0
    epoch: int = 0
    topic_id: int = 0
    flushed: int = 0
    store_time: int = 0
    base_offset: int = -1
    partition: int = -1
    record_count: int = 0
    timer_count: int = 0
    cancel_count: int = 0
    min_timestamp: int = INT64_MIN
    max_timestamp: int = -1
    running_max: int = -1
    min_due_time: int = -1
    max_due_time: int = -1
    producer_id: int = -1
    first_sequence: int = -1
    last_sequence: int = -1
    producer_epoch: int = -1
    flags: int = 0
    last_delta: int | None = None
    """None: that of the visible batch, -1 without one."""
    tags: int = 0
    salt: int = 0
    tables: bytes = b""
    visible: bytes = b""
    held: bytes = b""
    blank_size: int = HEADER_SIZE
    """Total size of a blank frame, which has no parts, bytes."""
    version: int = 1

    @property
    def unpadded_size(self) -> int:
        return HEADER_SIZE + len(self.tables) + len(self.visible) + len(self.held)

    @property
    def size(self) -> int:
        if self.kind == BLANK:
            return self.blank_size
        return self.unpadded_size + len(padding(self.unpadded_size))

    def encode(self) -> bytes:
        """The bytes; of a blank frame the header alone."""
        assert len(self.tables) % 8 == 0
        header = self._header(0)[:-4]
        crc = crc32c(header + self.tables + self.visible[:21] + self.held[:21])
        body = self.tables + self.visible + self.held + padding(self.unpadded_size)
        return self._header(crc) + body

    def _last_delta(self) -> int:
        if self.last_delta is not None:
            return self.last_delta
        return int.from_bytes(self.visible[23:27], "big", signed=True) if self.visible else -1

    def _header(self, crc: int) -> bytes:
        return _HEADER.pack(
            0x4C4D,
            self.version,
            self.kind,
            self.size,
            self.epoch,
            self.topic_id,
            self.position,
            self.flushed,
            self.store_time,
            self.base_offset,
            self.partition,
            self.record_count,
            self.timer_count,
            self.cancel_count,
            len(self.tables),
            len(self.visible),
            len(self.held),
            self.min_timestamp,
            self.max_timestamp,
            self.running_max,
            self.min_due_time,
            self.max_due_time,
            self.producer_id,
            self.first_sequence,
            self.last_sequence,
            self.producer_epoch,
            self.flags,
            self._last_delta(),
            self.tags,
            self.salt,
            crc,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A held record, as the timer table describes it."""

    index: int
    due: int
    record: Record
    level: int = 0
    level_offset: int = -1
    due_kind: int = 0
    user_id: bytes = b""
    accept_pos: int | None = None
    """None: the frame's own position."""
    occurrence: int = 0
    target_topic: int = 0
    target_partition: int = -1
    rule: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """An entry of the cancel table."""

    index: int
    kind: int
    user_id: bytes
    due: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """An entry of the table of a deliver or cancel frame."""

    accept_pos: int
    index: int
    user_id: bytes = b""
    op: int = 0
    level: int = 0
    occurrence: int = 0
    origin_topic: int = 0
    due: int = 0


def control_frame(
    kind: int,
    payload: bytes,
    *,
    position: int = 0,
    topic_id: int = 0,
    store_time: int = 0,
    flags: int = 0,
) -> Frame:
    """A frame whose tables are a payload of control state."""
    return Frame(
        kind=kind,
        position=position,
        topic_id=topic_id,
        store_time=store_time,
        flags=flags,
        tables=payload + padding(len(payload)),
    )


def completed_table(timers: Sequence[Completed]) -> bytes:
    """The table of a deliver or cancel frame, padded."""
    table = b"".join(
        _COMPLETED.pack(
            timer.accept_pos,
            timer.index,
            len(timer.user_id),
            timer.op,
            timer.level,
            timer.occurrence,
            timer.origin_topic,
            timer.due,
        )
        for timer in timers
    )
    table += b"".join(timer.user_id for timer in timers)
    return table + padding(len(table))


def with_timers(
    frame: Frame, held: Sequence[Held], batch: Batch, cancels: Sequence[Cancel] = ()
) -> Frame:
    """An accept or carry frame with its visible batch and its held records.

    Args:
        frame: the frame without tables and held batch.
        held: in the order of the table.
        batch: a batch without records: the other fields of the held batch.
        cancels: in the order of the table.
    """
    whole = replace(batch, records=tuple(timer.record for timer in held))
    encoded = whole.encoded_records() if held else []
    entries_size = _TIMER.size * len(held) + _CANCEL.size * len(cancels)
    # The ids stand in the order of the records; carried timers are in that order already.
    named: list[Held | Cancel] = [*held, *cancels]
    if cancels:
        named.sort(key=lambda entry: entry.index)
    ids, id_pos, rule_pos = b"", {}, {}
    for entry in named:
        id_pos[id(entry)] = HEADER_SIZE + entries_size + len(ids) if entry.user_id else 0
        ids += entry.user_id
        rule = entry.rule if isinstance(entry, Held) else b""
        rule_pos[id(entry)] = HEADER_SIZE + entries_size + len(ids) if rule else 0
        ids += rule
    ids += padding(entries_size + len(ids))
    record_pos = HEADER_SIZE + entries_size + len(ids) + len(frame.visible) + BATCH_HEADER_SIZE
    table = bytearray()
    for timer, record in zip(held, encoded, strict=True):
        table += _TIMER.pack(
            frame.position if timer.accept_pos is None else timer.accept_pos,
            timer.index,
            timer.level,
            timer.due_kind,
            len(timer.user_id),
            timer.due,
            timer.level_offset,
            record_pos,
            len(record),
            id_pos[id(timer)],
            timer.occurrence,
            timer.target_topic,
            timer.target_partition,
            rule_pos[id(timer)],
            len(timer.rule),
        )
        record_pos += len(record)
    for cancel in cancels:
        table += _CANCEL.pack(
            cancel.index, cancel.kind, len(cancel.user_id), cancel.due, id_pos[id(cancel)]
        )
    resolved = [timer.due for timer in held if timer.due_kind in (0, 4)]
    return replace(
        frame,
        tables=bytes(table) + ids,
        held=whole.encode(),
        timer_count=len(held),
        cancel_count=len(cancels),
        min_due_time=min(resolved, default=-1),
        max_due_time=max(resolved, default=-1),
    )
