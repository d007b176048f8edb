"""The payload of txn frames, which latermq does not write or read yet: a step of a transaction.

    begin -> partitions -> ... -> prepare -> commit or abort -> markers -> partitions -> ...

docs/FORMAT.md says what each step means. Lists that a step does not need are empty.
"""

import struct
from dataclasses import dataclass
from typing import Final

from appliance.store.state.payload import pack_name, pack_text

TXN_BEGIN: Final = 1
TXN_PARTITIONS: Final = 2
TXN_PREPARE: Final = 3
TXN_COMMIT: Final = 4
TXN_ABORT: Final = 5
TXN_MARKERS: Final = 6

OUTCOME_NONE: Final = 0
OUTCOME_COMMIT: Final = 1
OUTCOME_ABORT: Final = 2

TXN_HEAD: Final = struct.Struct(">BBhiqqqIII")
"""op, outcome, producer epoch, time-out, producer id, previous producer id, begin time, counts of
partitions, timers and cancellations; then the transactional id as a text, and the three lists."""
TXN_PARTITION: Final = struct.Struct(">iiqq")
"""Topic id, partition, first offset, marker offset."""
TXN_TIMER: Final = struct.Struct(">qi")
"""Timer id: position of the accept frame, index."""
TXN_CANCELLATION: Final = struct.Struct(">qiiiBxxxq")
"""Position of the accept frame, index, topic id, partition, kind, due; then the user's id."""


@dataclass(frozen=True, slots=True)
class TxnPartition:
    """A partition of the transaction; an offset is -1 while there is no such record."""

    topic_id: int
    partition: int
    first_offset: int = -1
    """Offset of its first visible record in this transaction."""
    marker_offset: int = -1
    """Offset of the control record that ends the transaction there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    """A cancel entry that waits for the commit (see `_core.bytes.layout`, CANCEL_BY_*)."""

    accept_pos: int
    index: int
    topic_id: int
    partition: int
    kind: int
    due_ms: int
    user_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnFrame:
    """One step of a transaction, or in a carry frame its whole state."""

    op: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    begin_ms: int = -1
    outcome: int = OUTCOME_NONE
    previous_producer_id: int = -1
    partitions: tuple[TxnPartition, ...] = ()
    timers: tuple[tuple[int, int], ...] = ()
    """Held timers as (position of the accept frame, index), ascending."""
    cancellations: tuple[Cancellation, ...] = ()


def encode_txn(frame: TxnFrame) -> bytes:
    """The payload of a txn frame."""
    head = TXN_HEAD.pack(
        frame.op,
        frame.outcome,
        frame.producer_epoch,
        frame.timeout_ms,
        frame.producer_id,
        frame.previous_producer_id,
        frame.begin_ms,
        len(frame.partitions),
        len(frame.timers),
        len(frame.cancellations),
    )
    parts = [head, pack_text(frame.transactional_id)]
    parts += [
        TXN_PARTITION.pack(each.topic_id, each.partition, each.first_offset, each.marker_offset)
        for each in frame.partitions
    ]
    parts += [TXN_TIMER.pack(*timer) for timer in frame.timers]
    parts += [_encode_cancellation(each) for each in frame.cancellations]
    return b"".join(parts)


def _encode_cancellation(each: Cancellation) -> bytes:
    head = TXN_CANCELLATION.pack(
        each.accept_pos, each.index, each.topic_id, each.partition, each.kind, each.due_ms
    )
    return head + pack_name(each.user_id)
