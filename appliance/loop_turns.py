"""The work of the event loop takes turns, so that who asks for little never waits for much.

In each turn of the loop one piece of heavy work runs, whoever asked for it: a client's connection,
a slice of a long answer, a request to the admin server. Between two pieces the loop serves everyone
else. Members that took little of the loop lately come first.

Work is measured, not estimated: a price that is wrong would keep others waiting. What must not
depend on the machine, such as the size of a slice, is bounded by work that is counted
(`compat.kafka.protocol.slices`). Layer 5.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from appliance.loop_share import PIECE_NS
from appliance.units import NS_PER_MS

TURN_NS: Final = NS_PER_MS
"""Once the work of a turn took this long, what arrives waits for a later turn."""


class _Loop(Protocol):
    def call_soon(self, callback: Callable[[], None], /) -> object: ...


class LoopTurns:
    """The queue of heavy work.

    Attributes:
        turn_count: turns in which queued work ran.
    """

    def __init__(self, loop: _Loop) -> None:
        """Begin without work.

        Args:
            loop: calls back once in each of its turns.
        """
        self._loop = loop
        self._light: deque[Callable[[], None]] = deque()
        self._heavy: deque[Callable[[], None]] = deque()
        self._spent_ns = 0
        self._is_armed = False
        self.turn_count = 0

    @property
    def is_spent(self) -> bool:
        """Whether the work of this turn took so long that more of it must wait."""
        return self._spent_ns >= TURN_NS

    @property
    def is_contended(self) -> bool:
        """Whether work of several members waits for its turn; one may have asked twice."""
        return len(self._light) + len(self._heavy) > 2

    def spend(self, took_ns: int) -> None:
        """Note that a piece of work took so many ns of this turn."""
        self._spent_ns += took_ns
        # Less than a piece is not worth a callback: it is counted against a later turn.
        if self._spent_ns >= PIECE_NS:
            self._arm()

    def ask(self, step: Callable[[], None], *, is_light: bool = False) -> None:
        """Call a function in a later turn.

        Args:
            step: does a piece of work and notes with `spend` what it took.
            is_light: it comes before all that are not, and several of them may share a turn.
        """
        (self._light if is_light else self._heavy).append(step)
        self._arm()

    async def take(self) -> None:
        """Wait for a turn; what the caller does next, without waiting, is its piece of work."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ask(lambda: None if future.done() else future.set_result(None))
        await future

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Begin a turn: do what is light, as far as there is time, and one heavy piece."""
        self._is_armed = False
        self._spent_ns = 0
        if not self._light and not self._heavy:
            return
        self.turn_count += 1
        try:
            for _ in range(len(self._light)):
                if self.is_spent:
                    break
                self._light.popleft()()
            if self._heavy:
                self._heavy.popleft()()
        finally:  # an error of one member keeps nobody else waiting
            if self._light or self._heavy:
                self._arm()
