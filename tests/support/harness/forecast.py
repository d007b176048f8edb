"""What a due queue says of how many timers are due when, to be compared with the timers."""

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Final

from _core.timers.due_queue import DueQueue

SECOND_MS, MINUTE_MS, DAY_MS = 1_000, 60_000, 86_400_000
WALK: Final = 1 << 20
DAYS: Final = 4_000


class Forecast:
    """The counts of a queue now: by days for ten years, by minutes and seconds from now on.

    Args:
        queue: all that it lost count of is counted first.
        now_ms: epoch ms.
    """

    def __init__(self, queue: DueQueue, now_ms: int) -> None:
        while queue.advance_wheels(now_ms, WALK):
            pass
        from_ms = queue.wheels.minutes.from_ms
        near_ms = max(now_ms - now_ms % MINUTE_MS, from_ms, queue.wheels.seconds.from_ms)
        intervals = [(from_ms, DAY_MS, DAYS), (near_ms, MINUTE_MS, 1_000)]
        if queue.is_loaded:
            intervals.append((near_ms + SECOND_MS, SECOND_MS, 1_000))
        elif queue.tally(array("q", [0]), from_ms, DAY_MS) < 0:
            intervals = []  # what is lost is counted again when all timers are loaded
        self.counts = [
            (begin_ms, step_ms, *self._tally(queue, begin_ms, step_ms, count))
            for begin_ms, step_ms, count in intervals
        ]

    def _tally(
        self, queue: DueQueue, begin_ms: int, step_ms: int, count: int
    ) -> tuple[int, Counter[int]]:
        counts = array("q", bytes(8 * count))
        before = queue.tally(counts, begin_ms, step_ms)
        assert before >= 0
        return before, Counter({slot: number for slot, number in enumerate(counts) if number})

    def check(self, due_times_ms: Sequence[int]) -> None:
        """Compare with the due times of all pending timers."""
        for begin_ms, step_ms, before, counts in self.counts:
            slots = Counter((due_ms - begin_ms) // step_ms for due_ms in due_times_ms)
            assert before == sum(slots[slot] for slot in slots if slot < 0)
            span = DAYS if step_ms == DAY_MS else 1_000
            assert counts == Counter({k: v for k, v in slots.items() if 0 <= k < span})
