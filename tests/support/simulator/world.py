"""Virtual time for many machines: events in order, all randomness from one seed.

    world = World(seed)
    world.after_ms(5, print, "five ms later")
    world.run_ms(10)

Events of the same instant run in the order in which they were added. Nothing here waits, and no
thread or real clock is used, so a run with the same seed is the same run.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from appliance.units import NS_PER_MS

TRACE_LINES_MAX: Final = 20_000


class Event:
    """Something that will happen; `cancel` it if it shall not."""

    __slots__ = ("args", "callback")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args

    def cancel(self) -> None:
        self.callback = None
        self.args = ()


class World:
    """The order of all events.

    Attributes:
        now_ns: virtual time since the beginning.
        rng: decides what happens; make a `fork` of it for what must not disturb the rest.
        errors: what must not happen and did, in order; the run is worth nothing after the first.
        trace: lines about what happened, if `is_tracing`.
    """

    def __init__(self, seed: int, *, is_tracing: bool = False) -> None:
        self.now_ns = 0
        self.rng = random.Random(seed)
        self.errors: list[BaseException] = []
        self.is_tracing = is_tracing
        self.trace: deque[str] = deque(maxlen=TRACE_LINES_MAX)
        self._events: list[tuple[int, int, Event]] = []
        self._count = 0

    @property
    def now_ms(self) -> int:
        return self.now_ns // NS_PER_MS

    def fork(self) -> random.Random:
        """Return randomness of its own: what it decides later moves nothing else."""
        return random.Random(self.rng.getrandbits(64))

    def note(self, who: str, text: str) -> None:
        """Write a line of the trace; cheap if nobody reads it."""
        if self.is_tracing:
            self.trace.append(f"{self.now_ns / NS_PER_MS:12.3f} {who:8} {text}")

    def at_ns(self, time_ns: int, callback: Callable[..., object], *args: Any) -> Event:
        """Call a function at an instant, or now if that is over."""
        event = Event(callback, args)
        self._count += 1
        heapq.heappush(self._events, (max(time_ns, self.now_ns), self._count, event))
        return event

    def after_ns(self, delay_ns: int, callback: Callable[..., object], *args: Any) -> Event:
        """Call a function in so many ns."""
        return self.at_ns(self.now_ns + delay_ns, callback, *args)

    def after_ms(self, delay_ms: float, callback: Callable[..., object], *args: Any) -> Event:
        """Call a function in so many ms."""
        return self.at_ns(self.now_ns + int(delay_ms * NS_PER_MS), callback, *args)

    def step(self) -> bool:
        """Let the next event happen; return False if there is none."""
        while self._events:
            time_ns, _, event = heapq.heappop(self._events)
            callback = event.callback
            if callback is None:
                continue
            self.now_ns = time_ns
            callback(*event.args)
            return True
        return False

    def run_ms(self, duration_ms: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass, up to `duration_ms` or until a condition holds; return whether it does."""
        end_ns = self.now_ns + int(duration_ms * NS_PER_MS)
        while not (is_so := until()):
            if self.errors or not self._events or self._events[0][0] > end_ns:
                break
            self.step()
        if not is_so and not self.errors:
            self.now_ns = max(self.now_ns, end_ns)
        return is_so
