"""The last batches of the idempotent producers of a partition, as stored in a state snapshot.

`_core.queue.partition` writes and reads them; this module decodes them for tools. docs/FORMAT.md
describes them. Layer 2; pure functions of bytes.
"""

import struct
from dataclasses import dataclass
from typing import Final

from appliance.store.state.payload import PayloadReader

SEQUENCES_HEAD: Final = struct.Struct(">iI")
"""Partition, count of producers."""
PRODUCER_STATE: Final = struct.Struct(">qhBxq")
"""Producer id, epoch, count of batches, last position; then the batches."""
SEQUENCE: Final = struct.Struct(">iiqq")
"""First and last sequence number, answer, store time."""


@dataclass(frozen=True, slots=True)
class SequencedBatch:
    """A batch of an idempotent producer, kept so that a retry gets the same answer."""

    first: int
    last: int
    answer: int
    """The base offset in the answer; -1 if the batch was split."""
    store_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """The state of one producer on one partition: its last batches, oldest first."""

    producer_id: int
    epoch: int
    last_pos: int
    """Log position after the frame of its last batch, by which it expires."""
    batches: tuple[SequencedBatch, ...]


def decode_sequences(payload: bytes) -> tuple[int, tuple[ProducerState, ...]]:
    """Decode a value of kind VALUE_SEQUENCES: the partition and its producers.

    Raises:
        CorruptionError: its size does not match its counts.
    """
    reader = PayloadReader(payload, "a list of producers")
    partition, count = reader.fields(SEQUENCES_HEAD)
    reader.check_count(count, PRODUCER_STATE.size)
    producers = []
    for _ in range(count):
        producer_id, epoch, batch_count, last_pos = reader.fields(PRODUCER_STATE)
        batches = [SequencedBatch(*reader.fields(SEQUENCE)) for _ in range(batch_count)]
        producers.append(
            ProducerState(
                producer_id=producer_id, epoch=epoch, last_pos=last_pos, batches=tuple(batches)
            )
        )
    reader.finish()
    return partition, tuple(producers)


def split_sequences(payload: bytes, size_max: int) -> list[bytes]:
    """Divide a value of kind VALUE_SEQUENCES into values of about `size_max` bytes at most.

    Together they say the same: each one leaves the producers as they are that it does not name.
    """
    if len(payload) <= size_max:
        return [payload]
    partition, _ = SEQUENCES_HEAD.unpack_from(payload)
    parts = []
    start = at = SEQUENCES_HEAD.size
    count = 0
    while at < len(payload):
        batches = PRODUCER_STATE.unpack_from(payload, at)[2]
        at += PRODUCER_STATE.size + batches * SEQUENCE.size
        count += 1
        if at - start >= size_max or at == len(payload):
            parts.append(SEQUENCES_HEAD.pack(partition, count) + payload[start:at])
            start, count = at, 0
    return parts
