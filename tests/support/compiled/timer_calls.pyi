from collections.abc import Iterable

from typing_extensions import Buffer

from _core.timers.cancelled_timers import CancelledTimers
from _core.timers.due_charges import DueCharges
from _core.timers.due_queue import DueQueue
from _core.timers.id_index import IdIndex
from _core.timers.memtable import TimerMemtable

def push(
    queue: DueQueue, due_ms: int, position: int, record_index: int, partition: int
) -> None: ...
def pop(queue: DueQueue, now_ms: int, limit: int) -> list[tuple[int, int, int, int]]: ...
def unpop(queue: DueQueue, timers: Iterable[tuple[int, int, int, int]]) -> None: ...
def cancel(
    queue: DueQueue, position: int, record_index: int, partition: int, *, due_ms: int = -1
) -> bool: ...
def load(
    queue: DueQueue, due_ms: int, position: int, record_index: int, partition: int
) -> None: ...
def forget(queue: DueQueue, partition: int) -> None: ...
def sweep(queue: DueQueue, budget: int) -> bool: ...
def push_packed(queue: DueQueue, timers: Buffer) -> None: ...
def cancel_packed(queue: DueQueue, timers: Buffer) -> None: ...
def pop_packed(queue: DueQueue, now_ms: int, limit: int) -> bytes: ...
def note_cancelled(cancelled: CancelledTimers, position: int, record_index: int) -> bool: ...
def note_forgotten(cancelled: CancelledTimers, partition: int, timer_count: int) -> None: ...
def claim(cancelled: CancelledTimers, position: int, record_index: int, partition: int) -> bool: ...
def note_pushed(
    memtable: TimerMemtable,
    due_ms: int,
    position: int,
    record_index: int,
    *,
    topic_id: int,
    partition: int,
    level: int = 0,
    level_offset: int = -1,
) -> None: ...
def note_completed(
    memtable: TimerMemtable, position: int, record_index: int, due_ms: int = -1
) -> None: ...
def note_named(
    memtable: TimerMemtable,
    hash_high: int,
    hash_low: int,
    topic_id: int,
    *,
    position: int,
    partition: int = 0,
    due_ms: int = 0,
    completed_pos: int = 0,
    state: int = 1,
) -> None: ...
def find_id(
    index: IdIndex, topic_id: int, name: bytes
) -> tuple[int, int, int, int, int, int] | None: ...
def put_id(
    index: IdIndex,
    topic_id: int,
    name: bytes,
    timer: tuple[int, int, int, int, int, int],
    *,
    recurs: bool = False,
) -> None: ...
def complete_id(
    index: IdIndex,
    topic_id: int,
    name: bytes,
    *,
    position: int,
    record_index: int,
    state: int,
    completed_pos: int,
    offset: int = -1,
    partition: int = 0,
    due_ms: int = 0,
) -> bool: ...
def forget_ids(index: IdIndex, topic_id: int) -> None: ...
def fill_ids(index: IdIndex, topic_id: int, first: int, count: int) -> None: ...
def siphash_128(key: bytes, message: bytes) -> bytes: ...
def charge(charges: DueCharges, *, now_ms: int, due_ms: int, count: int = 1) -> None: ...
def credit(charges: DueCharges, due_ms: int) -> None: ...
def charged(charges: DueCharges, *, now_ms: int) -> int: ...
