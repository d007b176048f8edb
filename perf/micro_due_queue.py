"""How fast the queue of pending timers and the id index are, and how long a single call takes.

    .venv/bin/python perf/micro_due_queue.py [--timers 1000000]

Prints million operations per second of processor time, bytes per timer, and the slowest single
call, which stalls the broker's event loop. Timers go in and out as packed arrays, so that Python
takes no part in what is measured.
"""

import argparse
import random
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from _core.timers.due_queue import DueQueue
from _core.timers.id_index import IdIndex
from tests.support.compiled import timer_calls as calls

TIMER_BYTES: Final = 24
START_MS: Final = 1_780_000_000_000
POP_LIMIT: Final = 2048
"""Timers that the pump pops at a time."""
CALL_COUNT: Final = 1000
"""Timers of one measured call of push, cancel and put, as in one large batch."""
DAY_MS: Final = 86_400_000


@dataclass
class Meter:
    """Adds up the time of calls."""

    count: int = 0
    seconds: float = 0.0
    slowest_seconds: float = 0.0

    def run(self, count: int, call: Callable[[], object]) -> None:
        """Make one call that does `count` operations."""
        begin = time.thread_time()
        call()
        spent = time.thread_time() - begin
        self.count += count
        self.seconds += spent
        self.slowest_seconds = max(self.slowest_seconds, spent)

    def text(self, what: str) -> str:
        """Rate and slowest call."""
        rate = self.count / self.seconds / 1e6 if self.seconds else 0.0
        return f"{what} {rate:6.1f} M/s, slowest call {self.slowest_seconds * 1e3:5.2f} ms"


def pack_timers(due_ms: list[int]) -> memoryview:
    """Timers in order of arrival."""
    words = array("q", bytes(len(due_ms) * TIMER_BYTES))
    words[0::3] = array("q", due_ms)
    words[1::3] = array("q", range(0, len(due_ms) * 100, 100))
    words[2::3] = array("q", [i % 16 << 32 for i in range(len(due_ms))])
    return memoryview(words).cast("B")


def push_all(queue: DueQueue, timers: memoryview) -> Meter:
    meter = Meter()
    step = CALL_COUNT * TIMER_BYTES
    for begin in range(0, len(timers), step):
        part = timers[begin : begin + step]
        meter.run(len(part) // TIMER_BYTES, partial(calls.push_packed, queue, part))
    return meter


def measure_push_and_pop(what: str, due_ms: list[int]) -> None:
    queue = DueQueue()
    pushed = push_all(queue, pack_timers(due_ms))
    memory_bytes = queue.memory_bytes
    popped = Meter()
    # Pop as time passes: a hundred steps to the last due time.
    first, last = min(due_ms), max(due_ms)
    for step in range(1, 101):
        now_ms = first + (last - first) * step // 100
        while queue.pending:
            before = queue.pending
            popped.run(0, partial(calls.pop_packed, queue, now_ms, POP_LIMIT))
            popped.count += before - queue.pending
            if before == queue.pending:
                break
    assert queue.pending == 0
    print(
        f"{what:12} {pushed.text('push')}; {popped.text('pop')}; "
        f"{memory_bytes / len(due_ms):.1f} bytes each"
    )


def measure_cancel(due_ms: list[int]) -> None:
    queue = DueQueue()
    timers = pack_timers(due_ms)
    push_all(queue, timers)
    step = CALL_COUNT * TIMER_BYTES
    few, swept = Meter(), Meter()
    half = len(timers) // 2 // step * step
    for begin in range(0, len(timers), step):
        part = timers[begin : begin + step]
        meter = few if begin < half else swept
        meter.run(len(part) // TIMER_BYTES, partial(calls.cancel_packed, queue, part))
    print(f"{'one day':12} {few.text('cancel')}; {swept.text('with sweeps')}")


def measure_ids(count: int) -> None:
    index = IdIndex(bytes(16))
    put, overwritten = Meter(), Meter()
    for meter in (put, overwritten):
        for first in range(0, count, CALL_COUNT):
            meter.run(CALL_COUNT, partial(calls.fill_ids, index, 1, first, CALL_COUNT))
    expired = Meter()
    calls.forget_ids(index, 1)
    while index.count:
        expired.run(4096, lambda: index.expire_some(4096))
    print(f"{'ids':12} {put.text('put')}; {overwritten.text('overwrite')}; ", end="")
    print(f"{expired.text('expire')} (slots)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--timers", type=int, default=1_000_000)
    count = parser.parse_args().timers
    rng = random.Random(1)
    for what, spread_ms in (
        ("one ms", 1),
        ("one second", 1_000),
        ("one hour", 3_600_000),
        ("one day", DAY_MS),
        ("ten years", 3_650 * DAY_MS),
    ):
        measure_push_and_pop(what, [START_MS + int(rng.random() * spread_ms) for _ in range(count)])
    measure_cancel([START_MS + int(rng.random() * DAY_MS) for _ in range(count)])
    measure_ids(count)


if __name__ == "__main__":
    main()
