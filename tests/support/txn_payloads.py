"""The payload of txn frames, which latermq does not write or read yet: a step of a transaction.

    begin -> partitions -> ... -> prepare -> commit or abort -> markers -> partitions -> ...

docs/FORMAT.md says what each step means. Lists that a step does not need are empty.
"""

import struct
from dataclasses import dataclass
from typing import Final

from _core.layout import WITHDRAW_CANCEL, WITHDRAW_DELIVERED
from appliance.store.payload import SIZE, PayloadReader, pack_name, pack_text

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
partitions, timers and withdrawals; then the transactional id as a text, and the three lists."""
TXN_PARTITION: Final = struct.Struct(">iiqq")
"""Topic id, partition, first offset, marker offset."""
TXN_TIMER: Final = struct.Struct(">qi")
"""Timer id: position of the accept frame, index."""
TXN_WITHDRAWAL: Final = struct.Struct(">qiiiBxxxq")
"""Position of the accept frame, index, topic id, partition, kind, due; then the user's id."""


@dataclass(frozen=True, slots=True)
class TxnPartition:
    """A partition that takes part; offsets are -1 as long as there is no such record."""

    topic_id: int
    partition: int
    first_offset: int = -1
    """Of its first visible record in this transaction."""
    marker_offset: int = -1
    """Of the control record that ends it there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """An entry of a cancel table that waits for the commit (see `_core.layout`, WITHDRAW_*)."""

    accept_pos: int
    index: int
    topic_id: int
    partition: int
    kind: int
    due_ms: int
    user_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnFrame:
    """One step of a transaction, or in a carry frame all that is known of it."""

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
    withdrawals: tuple[Withdrawal, ...] = ()


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
        len(frame.withdrawals),
    )
    parts = [head, pack_text(frame.transactional_id)]
    parts += [
        TXN_PARTITION.pack(each.topic_id, each.partition, each.first_offset, each.marker_offset)
        for each in frame.partitions
    ]
    parts += [TXN_TIMER.pack(*timer) for timer in frame.timers]
    parts += [_encode_withdrawal(each) for each in frame.withdrawals]
    return b"".join(parts)


def _encode_withdrawal(each: Withdrawal) -> bytes:
    head = TXN_WITHDRAWAL.pack(
        each.accept_pos, each.index, each.topic_id, each.partition, each.kind, each.due_ms
    )
    return head + pack_name(each.user_id)


def decode_txn(payload: bytes) -> TxnFrame:
    """Read the payload of a txn frame.

    Raises:
        CorruptionError: it is shorter or longer than its counts say, or no text.
    """
    reader = PayloadReader(payload, "a txn frame")
    (
        op,
        outcome,
        producer_epoch,
        timeout_ms,
        producer_id,
        previous_producer_id,
        begin_ms,
        partition_count,
        timer_count,
        withdrawal_count,
    ) = reader.fields(TXN_HEAD)
    reader.chosen(op, range(TXN_BEGIN, TXN_MARKERS + 1))
    reader.chosen(outcome, range(OUTCOME_NONE, OUTCOME_ABORT + 1))
    transactional_id = reader.text()
    reader.check_count(partition_count, TXN_PARTITION.size)
    partitions = [TxnPartition(*reader.fields(TXN_PARTITION)) for _ in range(partition_count)]
    reader.check_count(timer_count, TXN_TIMER.size)
    timers = [reader.fields(TXN_TIMER) for _ in range(timer_count)]
    reader.check_count(withdrawal_count, TXN_WITHDRAWAL.size + SIZE.size)
    withdrawals = [_decode_withdrawal(reader) for _ in range(withdrawal_count)]
    reader.finish()
    return TxnFrame(
        op=op,
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        begin_ms=begin_ms,
        outcome=outcome,
        previous_producer_id=previous_producer_id,
        partitions=tuple(partitions),
        timers=tuple((pos, index) for pos, index in timers),
        withdrawals=tuple(withdrawals),
    )


def _decode_withdrawal(reader: PayloadReader) -> Withdrawal:
    accept_pos, index, topic_id, partition, kind, due_ms = reader.fields(TXN_WITHDRAWAL)
    return Withdrawal(
        accept_pos=accept_pos,
        index=index,
        topic_id=topic_id,
        partition=partition,
        kind=reader.chosen(kind, range(WITHDRAW_CANCEL, WITHDRAW_DELIVERED + 1)),
        due_ms=due_ms,
        user_id=reader.name(),
    )
