"""The payload of carry frames of control values; docs/FORMAT.md describes it.

Layer 2; does no I/O.
"""

import struct
from collections.abc import Sequence
from typing import Final

from _core.bytes.layout import (
    KIND_EPOCH,
    KIND_GROUP,
    KIND_OFFSET,
    KIND_PRODUCER,
    KIND_TOPIC,
    RUN_ID_SIZE,
    RUN_IDS,
)
from _core.timers.run_merge import RowCheck
from appliance.store.state.payload import COUNT, PayloadReader
from appliance.store.state.snapshot import VALUE_HEAD, VALUE_SEQUENCES, Value

VALUE_LEVELS: Final = 66
VALUE_IDS: Final = 67

LEVEL: Final = struct.Struct(">Bxxxq")
"""Level, next offset of its queue."""

_CARRIED: Final = frozenset(
    (
        *(KIND_TOPIC, KIND_OFFSET, KIND_PRODUCER, KIND_GROUP, KIND_EPOCH),
        *(VALUE_SEQUENCES, VALUE_LEVELS, VALUE_IDS),
    )
)


def encode_carry(values: Sequence[bytes]) -> bytes:
    """Encode the payload of a carry frame from encoded values."""
    return COUNT.pack(len(values)) + b"".join(values)


def decode_carry(payload: bytes) -> list[Value]:
    """Decode the payload of a carry frame.

    Raises:
        CorruptionError: its size does not match its counts, or a kind is not known.
    """
    reader = PayloadReader(payload, "a carry frame")
    values = []
    for _ in range(reader.count(VALUE_HEAD.size)):
        kind, topic_id, size = reader.fields(VALUE_HEAD)
        if kind not in _CARRIED:
            raise reader.error("a value of a known kind", f"kind {kind}")
        values.append(Value(kind, topic_id, reader.take(size)))
    reader.finish()
    return values


def encode_levels(offsets: Sequence[int]) -> bytes:
    """Encode the next level offsets, of levels 1 and up."""
    rows = [LEVEL.pack(level, offset) for level, offset in enumerate(offsets, 1) if offset]
    return COUNT.pack(len(rows)) + b"".join(rows)


def decode_levels(payload: bytes) -> list[int]:
    """Decode the next level offsets: those of levels 1 and up, 0 for one that is not named.

    Raises:
        CorruptionError: its size does not match its count, or there is a level 0.
    """
    reader = PayloadReader(payload, "level offsets")
    found: list[int] = []
    for _ in range(reader.count(LEVEL.size)):
        level, offset = reader.fields(LEVEL)
        if level == 0:
            raise reader.error("a level from 1 on", "level 0")
        found += [0] * (level - len(found))
        found[level - 1] = offset
    reader.finish()
    return found


def encode_ids(rows: bytes) -> bytes:
    """Encode remembered ids from whole rows of an id run, ascending."""
    return COUNT.pack(len(rows) // RUN_ID_SIZE) + rows


def decode_ids(payload: bytes) -> bytes:
    """Check the rows of remembered ids, and return them.

    Raises:
        CorruptionError: a row is not valid, or out of order.
    """
    reader = PayloadReader(payload, "remembered ids")
    rows = reader.take(reader.count(RUN_ID_SIZE) * RUN_ID_SIZE)
    reader.finish()
    if RowCheck(RUN_IDS).find_unsound(rows) >= 0:
        raise reader.error("valid rows of ids in order", "something else")
    return rows
