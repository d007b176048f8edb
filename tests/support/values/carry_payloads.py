"""The payload of a carry frame with control values, written a second time to compare.

    count, then for each value: kind, topic id, size, and a payload

A value of kind topic, offset, producer, group, txn or epoch has the payload of such a frame. Three
kinds of value have no frame of their own, because they follow from other frames: the sequences of
idempotent producers, the next offsets of the level queues, and the ids of timers that were
completed a short time ago. docs/FORMAT.md draws them.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Final

from _core.bytes.layout import (
    KIND_EPOCH,
    KIND_GROUP,
    KIND_OFFSET,
    KIND_PRODUCER,
    KIND_TOPIC,
    KIND_TXN,
)
from appliance.store.runs.run_files import ID_ROW, IdRow
from appliance.store.state.payload import COUNT
from appliance.store.state.sequences import (
    PRODUCER_STATE,
    SEQUENCE,
    SEQUENCES_HEAD,
    ProducerState,
)
from appliance.store.state.snapshot import VALUE_HEAD, VALUE_SEQUENCES

VALUE_LEVELS: Final = 66
VALUE_IDS: Final = 67
"""Above all kinds of frames, with room for more of them."""

VALUE_KINDS: Final = frozenset(
    (KIND_TOPIC, KIND_OFFSET, KIND_PRODUCER, KIND_GROUP, KIND_TXN, KIND_EPOCH)
) | {VALUE_SEQUENCES, VALUE_LEVELS, VALUE_IDS}

LEVEL: Final = struct.Struct(">Bxxxq")
"""Level, next offset."""


@dataclass(frozen=True, slots=True)
class CarriedValue:
    """One value: its kind (KIND_* or VALUE_*), the topic it is about (0: none), its payload."""

    kind: int
    topic_id: int
    payload: bytes


def encode_carry(values: Sequence[CarriedValue]) -> bytes:
    """The payload of a carry frame with FRAME_FLAG_CONTROL; values apply in their order."""
    parts = [COUNT.pack(len(values))]
    for value in values:
        parts += [VALUE_HEAD.pack(value.kind, value.topic_id, len(value.payload)), value.payload]
    return b"".join(parts)


def encode_sequences(partition: int, producers: Sequence[ProducerState]) -> bytes:
    """A value of kind VALUE_SEQUENCES: the producers of one partition of the value's topic."""
    parts = [SEQUENCES_HEAD.pack(partition, len(producers))]
    for state in producers:
        parts.append(
            PRODUCER_STATE.pack(state.producer_id, state.epoch, len(state.batches), state.last_pos)
        )
        parts += [
            SEQUENCE.pack(each.first, each.last, each.answer, each.store_ms)
            for each in state.batches
        ]
    return b"".join(parts)


def encode_levels(next_offsets: Mapping[int, int]) -> bytes:
    """A value of kind VALUE_LEVELS: the next offset of each level queue, by level."""
    levels = [LEVEL.pack(level, offset) for level, offset in next_offsets.items()]
    return COUNT.pack(len(levels)) + b"".join(levels)


def encode_ids(ids: Sequence[IdRow]) -> bytes:
    """A value of kind VALUE_IDS: rows of ids, ascending."""
    return COUNT.pack(len(ids)) + b"".join(ID_ROW.pack(*astuple(row)) for row in ids)
