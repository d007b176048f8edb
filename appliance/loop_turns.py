"""The work of the event loop takes turns, so that who asks for little never waits for much.

In each turn of the loop one piece of heavy work runs, or several short ones, whoever asked for it:
a client's connection, a slice of a long answer, a request to the admin server. Between two turns
the loop serves everyone else. Members that took little of the loop lately come first; then
addresses take turns, however many connections each has.

Work is measured, not estimated: a price that is wrong would keep others waiting. What must not
depend on the machine, such as the size of a slice, is bounded by work that is counted
(`compat.kafka.protocol.slices`). Layer 5.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from appliance.fair_queue import FairQueue
from appliance.loop_share import PIECE_NS, AddressShares
from appliance.units import KIB, MIB, NS_PER_MS

TURN_NS: Final = NS_PER_MS
"""Once the work of a turn took this long, what arrives waits for a later turn."""

SHARED_TURN_NS: Final = 3 * NS_PER_MS // 10
"""The same while members that ask for little would wait: they wait for two turns or three."""

WORKED_NS: Final = NS_PER_MS // 2

SHORT_NS: Final = NS_PER_MS // 5
"""Pieces of heavy work share a turn until they took this long: each turn polls all sockets."""

LIGHT_NS: Final = 100 * NS_PER_MS
"""How long after a member that asks for little was served another one may come."""

TURN_WORK_BYTES: Final = 2 * MIB
"""Work of one connection in a turn, in bytes that are copied: about a millisecond or two."""

SHARED_WORK_BYTES: Final = 256 * KIB
"""The same while members that ask for little would wait for it: 30 small requests."""


class _Loop(Protocol):
    def call_soon(self, callback: Callable[[], None], /) -> object: ...


class _Pace(Protocol):
    @property
    def is_light(self) -> bool:
        """Whether a connection took little of the loop lately."""


class LoopTurns:
    """The queue of heavy work.

    Attributes:
        addresses: what each address took of the loop lately.
        turn_count: turns in which queued work ran.
        worked: called in each turn in which queued work runs, for each WORKED_NS of work, and by
            who does work that is not noted.
    """

    def __init__(self, loop: _Loop) -> None:
        """Begin without work.

        Args:
            loop: calls back once in each of its turns.
        """
        self._loop = loop
        self._light: FairQueue[Callable[[], None]] = FairQueue()
        self._heavy: FairQueue[Callable[[], None]] = FairQueue()
        self._spent_ns = 0
        self._turn_ns = TURN_NS
        self._light_ns = 0
        """When a member that asks for little was served last, monotonic."""
        self._is_armed = False
        self.addresses = AddressShares()
        self.turn_count = 0
        self.worked: Callable[[], None] = lambda: None
        self._worked_ns = 0

    @property
    def is_spent(self) -> bool:
        """Whether the work of this turn took so long that more of it must wait."""
        return self._spent_ns >= self._turn_ns

    @property
    def is_contended(self) -> bool:
        """Whether work of several members waits for its turn; one may have asked twice."""
        return len(self._light) + len(self._heavy) > 2

    def serves_light(self, now_ns: int) -> bool:
        """Whether members that ask for little were served lately, as of a monotonic time."""
        return now_ns - self._light_ns < LIGHT_NS

    def work_bytes(self, now_ns: int, pace: _Pace) -> int:
        """Return how much work a connection may do in a turn that begins at a monotonic time.

        Args:
            now_ns: the time.
            pace: of the connection.
        """
        is_shared = self.serves_light(now_ns) and not pace.is_light
        return SHARED_WORK_BYTES if is_shared else TURN_WORK_BYTES

    def note_round(self, began_ns: int, ended_ns: int, pace: _Pace) -> None:
        """Note that requests of a connection were handled between two monotonic times.

        Args:
            began_ns, ended_ns: the times.
            pace: of the connection, which has noted them.
        """
        if pace.is_light:
            self._light_ns = ended_ns
            self._turn_ns = SHARED_TURN_NS
        elif not self.serves_light(ended_ns):
            self._turn_ns = TURN_NS
        self.spend(ended_ns - began_ns)

    def spend(self, took_ns: int) -> None:
        """Note that a piece of work took so many ns of this turn."""
        self._spent_ns += took_ns
        self._worked_ns += took_ns
        if self._worked_ns >= WORKED_NS:
            self._worked_ns = 0
            self.worked()
        # Less than a piece is not worth a callback: it is counted against a later turn.
        if self._spent_ns >= PIECE_NS:
            self._arm()

    def ask(self, step: Callable[[], None], *, is_light: bool = False, address: str = "") -> None:
        """Call a function in a later turn.

        Args:
            step: does a piece of work and notes with `spend` what it took.
            is_light: it comes before all that are not, and several of them may share a turn.
            address: of the client that it is for; "" for the broker's own.
        """
        (self._light if is_light else self._heavy).append(address, step)
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
        """Begin a turn: do what is light, as far as there is time, and one heavy piece or more."""
        self._is_armed = False
        self._spent_ns = 0
        if not self._light and not self._heavy:
            return
        self.turn_count += 1
        self.worked()
        heavy_count = len(self._heavy)  # who asks again waits, also if it is no longer light
        try:
            for _ in range(len(self._light)):
                if self.is_spent:
                    break
                self._light.pop()()
            before_ns = self._spent_ns
            for _ in range(heavy_count):
                self._heavy.pop()()
                # One that noted nothing goes on after this turn, as who `take`s it.
                if self.is_spent or not 0 < self._spent_ns - before_ns < SHORT_NS:
                    break
        finally:  # an error of one member keeps nobody else waiting
            if self._light or self._heavy:
                self._arm()
