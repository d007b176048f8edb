"""Frames as dictionaries, for text and JSON output.

A value is a number, a text, bytes, None, or a list or dictionary of these. Fields without
information are left out. Layer 4; does no I/O.
"""

import struct
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final, cast
from uuid import UUID

from _core.bytes.batch import batch_header
from _core.bytes.layout import (
    BATCH_HEADER_SIZE,
    CANCEL_ENTRY_SIZE,
    COMPLETED_ENTRY_SIZE,
    COMPLETION_DUE_FINAL,
    COMPLETION_DUE_SET_ANEW,
    COMPLETION_SET_ANEW,
    FRAME_FLAG_CONTROL,
    FRAME_FLAG_MIXED_TAGS,
    FRAME_FLAG_OPTIONAL,
    FRAME_HEADER_SIZE,
    KIND_ACCEPT,
    KIND_CANCEL,
    KIND_CARRIED_RECORDS,
    KIND_CARRY,
    KIND_DELIVER,
    KIND_EPOCH,
    KIND_GROUP,
    KIND_GROUP_DELTA,
    KIND_HEAD,
    KIND_OFFSET,
    KIND_PRODUCER,
    KIND_STAGES,
    KIND_TOPIC,
    KIND_VERDICT,
    RUN_IDS,
    TIMER_ENTRY_SIZE,
)
from _core.bytes.record_list import records
from _core.log.frames import read_header
from appliance.errors import CorruptionError, RequestError
from appliance.store.keys.frame_parts import FrameParts
from appliance.store.log.frame_kinds import kind_name
from appliance.store.runs.run_files import rows_of
from appliance.store.state.carry_frames import (
    VALUE_IDS,
    VALUE_LEVELS,
    decode_carry,
    decode_ids,
    decode_levels,
)
from appliance.store.state.control_frames import (
    TOPIC_DECLARED,
    TopicFrame,
    decode_epoch,
    decode_head,
    decode_producer,
    decode_stages,
    decode_topic,
    decode_verdict,
)
from appliance.store.state.group_deltas import decode_delta
from appliance.store.state.group_frames import decode_group, decode_offsets
from appliance.store.state.sequences import decode_sequences
from appliance.store.state.snapshot import VALUE_SEQUENCES, Value

Item = dict[str, Any]

RecordRow = tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]
"""A row of `records`."""

Decompress = Callable[[int, memoryview, int], bytes]
"""(codec, record section, maximum size) -> plain bytes; raises RequestError."""

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

_TIMER: Final = struct.Struct(">qiBBBxqqIIIIiiIH2x")
_RULE: Final = struct.Struct(">BBBxq")
_MISSED: Final = {1: "once", 2: "all", 3: "none"}
_CANCEL: Final = struct.Struct(">iBBxxqIxxxx")
_COMPLETED: Final = struct.Struct(">qiBBBxIiq")
_CARRIED_ORIGIN: Final = struct.Struct(">qq")
_CANCELLATIONS: Final = {1: "cancel", 2: "delivered"}

_ATTRIBUTE_CODEC: Final = 7
_ATTRIBUTE_LOG_APPEND_TIME: Final = 8
_ATTRIBUTE_CONTROL: Final = 32
_ATTRIBUTE_TRANSACTIONAL: Final = 16

_UNKNOWN_MIN: Final = -(1 << 63)

_OPTIONAL: Final[dict[str, tuple[str, int]]] = {
    "base_offset": ("base_offset", -1),
    "record_count": ("record_count", 0),
    "timer_count": ("timer_count", 0),
    "cancel_count": ("cancel_count", 0),
    "min_timestamp": ("min_timestamp", _UNKNOWN_MIN),
    "max_timestamp": ("max_timestamp", -1),
    "running_max": ("running_max", -1),
    "min_due_ms": ("min_due", -1),
    "max_due_ms": ("max_due", -1),
    "producer_id": ("producer_id", -1),
    "producer_epoch": ("producer_epoch", -1),
    "first_sequence": ("first_sequence", -1),
    "last_sequence": ("last_sequence", -1),
    "tables_size": ("tables_size", 0),
    "visible_size": ("visible_size", 0),
    "held_size": ("held_size", 0),
}
"""Header field -> its name here, and the value that means "none"."""


class Frame:
    """One whole frame.

    Args:
        pos: its log position.
        data: its bytes.

    Attributes:
        header: the fields of its header.
    """

    __slots__ = ("_held_header", "data", "header", "pos")

    def __init__(self, pos: int, data: memoryview) -> None:
        self.pos = pos
        self.data = data
        self.header = read_header(data)
        self._held_header: dict[str, int] | None = None

    def part(self, at: int, size: int) -> memoryview | bytes:
        """Return a part of it: where it begins, and its size."""
        return self.data[at : at + size]

    @property
    def kind(self) -> int:
        """KIND_*."""
        return self.header["kind"]

    @property
    def topic_id(self) -> int:
        """The topic id; 0 if the frame belongs to no topic."""
        return self.header["topic_id"]

    def item(self, topic_names: Mapping[int, str]) -> Item:
        """Return the fields of the header."""
        header = self.header
        item: Item = {
            "position": self.pos,
            "kind": kind_name(self.kind),
            "size": header["size"],
            "epoch": header["epoch"],
            "flushed": header["flushed"],
            "stored_at": header["store_time_ms"],
        }
        if self.topic_id:
            item["topic"] = topic_names.get(self.topic_id)
            item["topic_id"] = self.topic_id
        if header["partition"] >= 0:
            item["partition"] = header["partition"]
        for field, (name, nothing) in _OPTIONAL.items():
            if header[field] != nothing:
                item[name] = header[field]
        if header["last_delta"] != header["record_count"] - 1:
            item["last_delta"] = header["last_delta"]
        flags = header["flags"]
        if header["tags"]:
            item["tags_mask" if flags & FRAME_FLAG_MIXED_TAGS else "tags_code"] = header["tags"]
        if flags & FRAME_FLAG_OPTIONAL:
            item["optional"] = True
        return item | self.carried_origin()

    # Parts

    def _tables(self) -> memoryview:
        return self.data[FRAME_HEADER_SIZE : FRAME_HEADER_SIZE + self.header["tables_size"]]

    @property
    def timers_held(self) -> int:
        """How many timers it accepted, carried or set anew."""
        if self.kind in (KIND_DELIVER, KIND_CANCEL):
            return self.header["cancel_count"]
        is_control = self.header["flags"] & FRAME_FLAG_CONTROL
        is_of_timers = self.kind == KIND_ACCEPT or (self.kind == KIND_CARRY and not is_control)
        return self.header["timer_count"] if is_of_timers else 0

    def _timers_start(self) -> int:
        if self.kind in (KIND_DELIVER, KIND_CANCEL):
            return FRAME_HEADER_SIZE + self.header["timer_count"] * COMPLETED_ENTRY_SIZE
        return FRAME_HEADER_SIZE

    def carried_origin(self) -> Item:
        """Return where records were held first and when they were carried; {} for other frames."""
        if self.kind != KIND_CARRIED_RECORDS:
            return {}
        original_pos, carried_at = _CARRIED_ORIGIN.unpack_from(self.data, FRAME_HEADER_SIZE)
        return {"original_position": original_pos, "carried_at": carried_at}

    def stored_at(self, item: Item) -> int:
        """Return when a record was stored; of a carried timer its record says so."""
        if self.kind == KIND_CARRY:
            for name, value in item.get("headers", ()):
                if name == b"x-accepted-at" and value is not None and value.isdigit():
                    return int(value)
        return int(self.header["store_time_ms"])

    def payload(self) -> Item | None:
        """Return the decoded payload of a control frame; None for other frames.

        Raises:
            CorruptionError: it cannot be decoded.
        """
        decode = None if self.timers_held else _DECODERS.get(self.kind)
        return None if decode is None else decode(bytes(self._tables()))

    def timers(self, wanted: Collection[int] | None = None) -> list[Item]:
        """Return the timer table of a frame, with the held record of each timer.

        Args:
            wanted: the numbers of those to return; None for all.
        """
        if not self.timers_held:
            return []
        if wanted is not None:
            return [self._timer_of(self._entry(number)) for number in sorted(wanted)]
        held = iter(self._held_records())
        entries = map(self._entry, range(self.timers_held))
        return [self._timer_without_record(entry) | next(held, {}) for entry in entries]

    def timer(self, accept_pos: int, index: int) -> Item | None:
        """Return a timer with its held record; None if the timer table does not have it."""
        count = self.timers_held
        # Where all records of a batch are held, that is their index.
        entry = self._entry(index) if 0 <= index < count else None
        if entry is None or entry[:2] != (accept_pos, index):
            number = bisect_left(range(count), (accept_pos, index), key=self._timer_id)
            entry = self._entry(number) if number < count else None
        return None if entry is None or entry[:2] != (accept_pos, index) else self._timer_of(entry)

    def _timer_id(self, number: int) -> tuple[int, int]:
        accept_pos, index, *_ = self._entry(number)
        return accept_pos, index

    def _entry(self, number: int) -> tuple[int, ...]:
        """Return an entry of the timer table."""
        at = self._timers_start() + number * TIMER_ENTRY_SIZE
        return _TIMER.unpack(self.part(at, TIMER_ENTRY_SIZE))

    def _timer_without_record(self, entry: tuple[int, ...]) -> Item:
        accept_pos, index, level, _, id_size, due, level_offset, _, _, id_pos, *rest = entry
        occurrence, *target, rule_pos, rule_size = rest
        item: Item = {"accept_position": accept_pos, "index": index, "due": due}
        if id_size:
            item["id"] = bytes(self.part(id_pos, id_size))
        if level:
            item["level"] = level
        if level_offset >= 0:
            item["level_offset"] = level_offset
        if target[0]:
            item["target_topic_id"], item["target_partition"] = target
        if rule_size:
            item |= {"occurrence": occurrence} | _rule(bytes(self.part(rule_pos, rule_size)))
        return item

    def cancels(self) -> list[Item]:
        """Return the cancel table of an accept frame."""
        found: list[Item] = []
        if self.kind != KIND_ACCEPT:
            return found
        start = FRAME_HEADER_SIZE + self.header["timer_count"] * TIMER_ENTRY_SIZE
        for n in range(self.header["cancel_count"]):
            at = start + n * CANCEL_ENTRY_SIZE
            index, kind, id_size, due, id_pos = _CANCEL.unpack_from(self.data, at)
            item: Item = {"index": index, "why": _CANCELLATIONS.get(kind, str(kind))}
            item["id"] = bytes(self.data[id_pos : id_pos + id_size])
            if due:
                item["due"] = due
            found.append(item)
        return found

    def _next_due_times(self) -> list[int]:
        """Return the due times of the timers that a deliver or cancel frame sets anew."""
        start, size = self._timers_start(), self.timers_held * TIMER_ENTRY_SIZE
        return [timer[5] for timer in _TIMER.iter_unpack(self.data[start : start + size])]

    def completed(self) -> list[Item]:
        """Return the completed table of a deliver or cancel frame."""
        if self.kind not in (KIND_DELIVER, KIND_CANCEL):
            return []
        count = self.header["timer_count"]
        id_pos = self._timers_start() + self.timers_held * TIMER_ENTRY_SIZE
        following = iter(self._next_due_times())
        found = []
        for n in range(count):
            at = FRAME_HEADER_SIZE + n * COMPLETED_ENTRY_SIZE
            accept_pos, index, id_size, op, level, occurrence, _, due = _COMPLETED.unpack_from(
                self.data, at
            )
            item: Item = {"accept_position": accept_pos, "index": index}
            if op >= COMPLETION_DUE_FINAL:
                item["due"] = due
                if level:
                    item["level"] = level
            if op in (COMPLETION_SET_ANEW, COMPLETION_DUE_SET_ANEW):
                item |= {"occurrence": occurrence, "next_due": next(following)}
            if id_size:
                item["id"] = bytes(self.data[id_pos : id_pos + id_size])
            id_pos += id_size
            found.append(item)
        return found

    def records(
        self,
        decompress: Decompress,
        unpacked_max: int,
        wanted: Collection[int] | None = None,
    ) -> list[Item]:
        """Return the visible records, or one item with `problem` if they cannot be decoded.

        Args:
            decompress, unpacked_max: unpacks the batch, up to so many bytes.
            wanted: the numbers of those to return, from 0 on; None for all.
        """
        start = FRAME_HEADER_SIZE + self.header["tables_size"]
        batch = self.data[start : start + self.header["visible_size"]]
        return _records(batch, decompress, unpacked_max, wanted)

    def _held_start(self) -> int:
        return FRAME_HEADER_SIZE + self.header["tables_size"] + self.header["visible_size"]

    def _held_batch(self) -> memoryview:
        start = self._held_start()
        return self.data[start : start + self.header["held_size"]]

    def _held_records(self) -> list[Item]:
        found = _records(self._held_batch(), _refuse, 0, None)
        for item in found:
            item.pop("offset", None)
        return found

    def _timer_of(self, entry: tuple[int, ...]) -> Item:
        """Return the timer of an entry with its held record, without a look at the others."""
        if self._held_header is None:
            self._held_header = batch_header(self.part(self._held_start(), BATCH_HEADER_SIZE))
        pos, size = entry[7:9]
        timer = self._timer_without_record(entry)
        try:
            (item,) = _record_items(self._held_header, records(self.part(pos, size), 1))
        except ValueError as error:
            return timer | {"problem": str(error)}
        del item["offset"]
        return timer | item


class PartialFrame(Frame):
    """A frame that is not checked, of which only what is asked for is read.

    Only `header` and `timer` can be used. They raise ValueError if the parts do not fit together or
    cannot be read.

    Args:
        pos: its log position.
        parts: reads them.
    """

    __slots__ = ("_parts",)

    def __init__(self, pos: int, parts: FrameParts) -> None:
        super().__init__(pos, memoryview(parts.first))
        self._parts = parts

    def part(self, at: int, size: int) -> bytes:
        """Read a part of it."""
        return self._parts.read(at, size)


def _rule(rule: bytes) -> Item:
    if len(rule) < _RULE.size:
        raise ValueError(f"a rule has at least {_RULE.size} bytes, not {len(rule)}")
    missed, expression_size, zone_size, after = _RULE.unpack_from(rule)
    end = _RULE.size + expression_size
    return {
        "cron": rule[_RULE.size : end].decode("ascii", "replace"),
        "zone": rule[end : end + zone_size].decode("ascii", "replace"),
        "missed": _MISSED.get(missed, str(missed)),
        "after": after,
    }


def _refuse(codec: int, section: memoryview, size_max: int) -> bytes:
    del section, size_max
    raise RequestError(f"held records are never compressed, codec {codec}")


def _records(
    batch: memoryview, decompress: Decompress, unpacked_max: int, wanted: Collection[int] | None
) -> list[Item]:
    if not batch:
        return []
    header = batch_header(batch)
    section: memoryview | bytes = batch[BATCH_HEADER_SIZE:]
    codec = header["attributes"] & _ATTRIBUTE_CODEC
    try:
        if codec:
            section = decompress(codec, batch[BATCH_HEADER_SIZE:], unpacked_max)
        rows = records(section, header["count"], wanted)
    except (RequestError, ValueError) as error:
        return [{"problem": str(error)}]
    return _record_items(header, rows)


def _record_items(header: Mapping[str, int], rows: Sequence[RecordRow]) -> list[Item]:
    is_append_time = header["attributes"] & _ATTRIBUTE_LOG_APPEND_TIME
    found = []
    for timestamp_delta, offset_delta, key, value, headers in rows:
        timestamp = header["base_timestamp"] + timestamp_delta
        item: Item = {
            "offset": header["base_offset"] + offset_delta,
            "timestamp": header["max_timestamp"] if is_append_time else timestamp,
            "key": key,
            "value": value,
        }
        if headers:
            item["headers"] = [[name, text] for name, text in headers]
        found.append(item)
    return found


def batch_item(frame: Frame) -> Item:
    """Return how the visible batch of a frame is encoded."""
    start = FRAME_HEADER_SIZE + frame.header["tables_size"]
    header = batch_header(frame.data[start : start + BATCH_HEADER_SIZE])
    attributes = header["attributes"]
    codec = attributes & _ATTRIBUTE_CODEC
    item: Item = {"codec": CODECS[codec] if codec < len(CODECS) else str(codec)}
    if attributes & _ATTRIBUTE_TRANSACTIONAL:
        item["transactional"] = True
    if attributes & _ATTRIBUTE_CONTROL:
        item["control"] = True
    return item


def _topic(frame: TopicFrame) -> Item:
    item: Item = {
        "op": "declared" if frame.op == TOPIC_DECLARED else "deleted",
        "name": frame.name,
        "uuid": str(frame.uuid),
    }
    if frame.op == TOPIC_DECLARED:
        names = ("start_offset", "next_offset", "running_max")
        item["partitions"] = [dict(zip(names, each, strict=True)) for each in frame.partitions]
        item["settings"] = dict(frame.settings)
    return item


def _carried(value: Value) -> Item:
    """A value of a carry frame: its kind, its topic, and what a frame of its own would hold."""
    if value.kind == VALUE_SEQUENCES:
        partition, producers = decode_sequences(value.payload)
        item: Item = {"kind": "sequences", "partition": partition, "producers": plain(producers)}
    elif value.kind == VALUE_LEVELS:
        item = {"kind": "levels", "next_offsets": decode_levels(value.payload)}
    elif value.kind == VALUE_IDS:
        rows = rows_of(RUN_IDS, decode_ids(value.payload))
        item = {"kind": "ids", "ids": [plain(row) for row in rows]}
    else:
        item = {"kind": kind_name(value.kind), "payload": _DECODERS[value.kind](value.payload)}
    return item | {"topic_id": value.topic_id} if value.topic_id else item


def plain(value: Any) -> Any:
    """Convert a decoded payload to dictionaries, lists and scalars."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value


_DECODERS: Final[dict[int, Callable[[bytes], Item]]] = {
    KIND_TOPIC: lambda data: _topic(decode_topic(data)),
    KIND_OFFSET: lambda data: {"entries": plain(decode_offsets(data))},
    KIND_PRODUCER: lambda data: {"next_producer_id": decode_producer(data)},
    KIND_GROUP: lambda data: cast(Item, plain(decode_group(data))),
    KIND_GROUP_DELTA: lambda data: cast(Item, plain(decode_delta(data))),
    KIND_HEAD: lambda data: cast(Item, plain(decode_head(data))),
    KIND_VERDICT: lambda data: cast(Item, plain(decode_verdict(data))),
    KIND_EPOCH: lambda data: cast(Item, plain(decode_epoch(data))),
    KIND_STAGES: lambda data: cast(Item, plain(decode_stages(data))),
    KIND_CARRY: lambda data: {"values": [_carried(value) for value in decode_carry(data)]},
}


def contents(frame: Frame, decompress: Decompress, unpacked_max: int) -> Item:
    """Return the content of a frame without its header; missing parts are left out."""
    item: Item = {}
    try:
        payload = frame.payload()
    except CorruptionError as error:
        payload = {"problem": f"expected {error.expected}, found {error.found}"}
    if payload is not None:
        item["payload"] = payload
    if frame.header["visible_size"]:
        item["batch"] = batch_item(frame)
        item["records"] = frame.records(decompress, unpacked_max)
    parts = (("timers", frame.timers), ("cancels", frame.cancels), ("completed", frame.completed))
    for name, read in parts:
        if found := read():
            item[name] = found
    return item
