"""What a control file says, one fact at a time, so that two of them can be compared. Layer 4; does
no I/O.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from _core.layout import KIND_EPOCH, KIND_GROUP, KIND_OFFSET, KIND_TOPIC
from appliance.store import control_file
from appliance.store.control_file import (
    HEAD,
    LEVEL_STATE,
    PARTITION,
    TOTAL,
    VALUE_HEAD,
    VALUE_SEQUENCES,
)
from appliance.store.control_frames import decode_epoch, decode_topic
from appliance.store.group_frames import decode_group, decode_offsets
from appliance.store.sequences import decode_sequences

FactKey = tuple[Any, ...]
"""What a fact is about: a word for its sort, then names and numbers."""

_TOTALS: Final = (
    "records accepted",
    "frames accepted",
    "timers accepted",
    "timers cancelled",
    "timers replaced",
    "timers delivered",
)

_HEAD_NAMES: Final = (
    "magic",
    "version",
    "number",
    "start",
    "applied",
    "last position",
    "last CRC",
    "epoch",
    "next producer id",
    "next topic id",
    "generation floor",
    "salt",
    "cluster",
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact.

    Attributes:
        offset: of the value in the file, bytes.
        value: what is said.
    """

    offset: int
    value: Any


def facts_of(data: bytes) -> dict[FactKey, Fact]:
    """Everything that a control file says about what follows from the log.

    Left out: the names of runs, lost ranges and damage, the key of the ids.

    Args:
        data: a file that `control_file.read` took.
    """
    head = zip(_HEAD_NAMES, HEAD.unpack_from(data), strict=True)
    facts = {("head", name): Fact(0, value) for name, value in head}
    at = HEAD.size
    while at < len(data):
        kind, topic_id, size = VALUE_HEAD.unpack_from(data, at)
        start = at + VALUE_HEAD.size
        for key, offset, value in _facts(kind, topic_id, data[start : start + size]):
            facts[key] = Fact(start + offset, value)
        at = start + size
    return facts


def _facts(kind: int, topic_id: int, payload: bytes) -> Iterator[tuple[FactKey, int, Any]]:
    if kind == KIND_TOPIC:
        frame = decode_topic(payload)
        yield ("topic", topic_id), 0, (frame.name, str(frame.uuid), dict(frame.settings))
    elif kind == KIND_GROUP:
        group = decode_group(payload)
        yield ("group", group.group), 0, group
    elif kind == KIND_OFFSET:
        for entry in decode_offsets(payload):
            yield ("offset", entry.group, entry.topic_id, entry.partition), 0, entry
    elif kind == KIND_EPOCH:
        epoch = decode_epoch(payload)
        yield ("epoch", epoch.epoch), 0, (epoch.start_pos, str(epoch.cluster))
    elif kind == VALUE_SEQUENCES:
        partition, producers = decode_sequences(payload)
        for producer in producers:
            yield ("producer", topic_id, partition, producer.producer_id), 0, producer
    elif kind == control_file.VALUE_PARTITIONS:
        for at, (topic, index, *row) in _rows(PARTITION, payload):
            names = ("start offset", "next offset", "highest timestamp", "log bytes")
            for name, value in zip(names, row, strict=True):
                yield ("partition", topic, index, name), at, value
    elif kind == control_file.VALUE_UNIT_RUNS:
        for at, (topic, index, first, *row) in _rows(control_file.UNIT_RUN, payload):
            yield ("run of offsets", topic, index, first), at, tuple(row)
    elif kind == control_file.VALUE_TOTALS:
        for name, (at, (value,)) in zip(_TOTALS, _rows(TOTAL, payload), strict=False):
            yield ("total", name), at, value
    elif kind == control_file.VALUE_LEVEL_STATES:
        for level, (at, level_row) in enumerate(_rows(LEVEL_STATE, payload), 1):
            yield ("level", level), at, level_row


def _rows(layout: struct.Struct, payload: bytes) -> Iterator[tuple[int, tuple[Any, ...]]]:
    for at in range(0, len(payload) - layout.size + 1, layout.size):
        yield at, layout.unpack_from(payload, at)


def describe(key: FactKey, value: Any) -> str:
    """A fact for people."""
    return f"{' '.join(map(str, key))}: {value}"
