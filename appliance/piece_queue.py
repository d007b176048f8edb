"""Small pieces of work that may be many at once, such as waking thousands of consumers.

One record may be what 5,000 consumers wait for, one flush what 5,000 producers wait for, and all
clients of a machine may hang up at the same time. Each of these takes some microseconds, and all
together would keep the loop for a tenth of a second. So they are done for a millisecond in each
turn of the loop, and between two turns everyone else is served. Addresses take turns, so the client
of one address does not wait for thousands of another. Layer 5.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from appliance.fair_queue import FairQueue
from appliance.units import NS_PER_MS

AT_ONCE_NS: Final = NS_PER_MS
"""After this time the rest waits for the next turn of the loop."""

Item = TypeVar("Item")


class _Turns(Protocol):
    def ask(self, step: Callable[[], None], *, is_light: bool = False) -> None: ...

    def spend(self, took_ns: int) -> None: ...


class PieceQueue(Generic[Item]):
    """What is to be done, an item of each address after the other, those of one in their order.

    An item that waits already is not added again. Without many items all is done at once.
    """

    def __init__(
        self,
        turns: _Turns,
        guard: Callable[[Callable[[], None]], None],
        now_ns: Callable[[], int],
        run: Callable[[Item], None],
        address_of: Callable[[Item], str],
        *,
        at_once_ns: int | None = None,
    ) -> None:
        """Begin without items.

        Args:
            turns: of the loop. The pieces come before heavy work, as a light member does.
            guard: runs a step of the loop; an error in it ends the broker.
            now_ns: the monotonic clock.
            run: does the work of one item; it may add others.
            address_of: returns the address of the client that an item is for.
            at_once_ns: after this time the rest waits for the next turn; AT_ONCE_NS if None.
        """
        self._turns = turns
        self._guard = guard
        self._now_ns = now_ns
        self._run = run
        self._at_once_ns = AT_ONCE_NS if at_once_ns is None else at_once_ns
        self._address_of = address_of
        self._items: set[Item] = set()
        self._queue: FairQueue[Item] = FairQueue()
        self._is_asked = self._is_running = False

    def add(self, items: Iterable[Item]) -> None:
        """Do the work of some items, or of those there is time for, and of the others later."""
        for item in items:
            self._append(item)
        if self._items and not self._is_asked and not self._is_running:
            self._go_on()

    def add_later(self, item: Item) -> None:
        """Do the work of an item in a later turn, because many may be added one by one."""
        self._append(item)
        if not self._is_running:
            self._ask()

    def _append(self, item: Item) -> None:
        if item not in self._items:
            self._items.add(item)
            self._queue.append(self._address_of(item), item)

    def _ask(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            self._turns.ask(partial(self._guard, self._go_on), is_light=True)

    def _go_on(self) -> None:
        """Work for as long as a turn has time for; ask for another one if more is left."""
        self._is_asked = False
        self._is_running = True
        began_ns = now_ns = self._now_ns()
        try:
            while self._items and now_ns - began_ns < self._at_once_ns:
                item = self._queue.pop()
                self._items.remove(item)
                self._run(item)
                now_ns = self._now_ns()
        finally:  # an error of one item keeps no other waiting
            self._is_running = False
            self._turns.spend(now_ns - began_ns)
            if self._items:
                self._ask()
