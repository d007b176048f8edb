"""Splits a state snapshot into facts, so that two can be compared. Layer 4; does no I/O."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from _core.bytes.layout import KIND_EPOCH, KIND_GROUP, KIND_OFFSET, KIND_TOPIC
from appliance.store.state import snapshot
from appliance.store.state.control_frames import decode_epoch, decode_topic
from appliance.store.state.group_frames import decode_group, decode_offsets
from appliance.store.state.sequences import decode_sequences
from appliance.store.state.snapshot import (
    HEAD,
    LEVEL_OFFSET,
    PARTITION,
    TOTAL,
    VALUE_HEAD,
    VALUE_SEQUENCES,
)

FactKey = tuple[Any, ...]
"""The subject of a fact: its type, then names and numbers."""

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
        value: the value.
    """

    offset: int
    value: Any


def facts_of(data: bytes) -> dict[FactKey, Fact]:
    """Return the facts of a state snapshot that are derived from the log.

    The names of runs, lost ranges, damage and the key of the ids are left out.

    Args:
        data: the content of a file that `snapshot.read` accepted.
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
    elif kind == snapshot.VALUE_PARTITIONS:
        for at, (topic, index, *row) in _rows(PARTITION, payload):
            names = ("start offset", "next offset", "highest timestamp", "log bytes")
            for name, value in zip(names, row, strict=True):
                yield ("partition", topic, index, name), at, value
    elif kind == snapshot.VALUE_PENDING:
        for at, (topic, index, level, count) in _rows(snapshot.PENDING, payload):
            yield ("pending timers", topic, index, level), at, count
    elif kind == snapshot.VALUE_UNIT_RUNS:
        for at, (topic, index, first, *row) in _rows(snapshot.UNIT_RUN, payload):
            yield ("run of offsets", topic, index, first), at, tuple(row)
    elif kind == snapshot.VALUE_TOTALS:
        for name, (at, (value,)) in zip(_TOTALS, _rows(TOTAL, payload), strict=False):
            yield ("total", name), at, value
    elif kind == snapshot.VALUE_LEVEL_OFFSETS:
        for level, (at, level_row) in enumerate(_rows(LEVEL_OFFSET, payload), 1):
            yield ("level", level), at, level_row


def _rows(layout: struct.Struct, payload: bytes) -> Iterator[tuple[int, tuple[Any, ...]]]:
    for at in range(0, len(payload) - layout.size + 1, layout.size):
        yield at, layout.unpack_from(payload, at)


def describe(key: FactKey, value: Any) -> str:
    """Return a fact as text."""
    return f"{' '.join(map(str, key))}: {value}"
