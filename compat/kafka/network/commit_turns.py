"""Commits of an address that write much to the log wait while others are served.

A commit may have 4 KB of metadata for each of thousands of partitions, and a client may send as
many as it likes: one that sent 160 MB of them a second had the disk, and everybody else waited.
What the log takes of commits is a debt of the client's address, as that of batches that grow in it
is (`compat.kafka.network.log_debts`). Alone, an address gets everything. Layer 5.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from appliance.loop_turns import LoopTurns
from appliance.units import MIB, NS_PER_MS
from compat.kafka.network.driven import ServedBroker
from compat.kafka.network.log_debts import PAID_BYTES, LogDebts
from compat.kafka.protocol.slices import Wait

LOOK_S: Final = 0.05
"""How often a step of a commit of an address may go on: a step writes 64 KiB at most."""

WAIT_MAX_NS: Final = 10_000 * NS_PER_MS
"""After that it goes on, and finds that it is too late."""

_log = logging.getLogger(__name__)

_Waiting = dict[object, tuple[int, Callable[[], None]]]
"""Since when steps wait, monotonic ns, and what lets them go on; in their order."""


class CommitTurns:
    """The commits that wait."""

    def __init__(
        self,
        broker: ServedBroker,
        turns: LoopTurns,
        debts: LogDebts,
        ask: Callable[[Callable[[], None], str], None],
        call_later: Callable[[float, Callable[[], None]], asyncio.TimerHandle],
    ) -> None:
        """Begin without commits.

        Args:
            broker: has the clock, the metrics and the log of clients.
            turns: of the loop; they say who was served lately.
            debts: of addresses.
            ask: calls a function of an address in a later turn.
            call_later: calls a function after so many seconds.
        """
        self._broker = broker
        self._turns = turns
        self._debts = debts
        self._ask = ask
        self._call_later = call_later
        self._waiting: dict[str, _Waiting] = {}
        """By address. Each has a timer."""

    @property
    def waiting_count(self) -> int:
        """Steps that wait."""
        return sum(map(len, self._waiting.values()))

    def charge(self, address: str, size: int) -> None:
        """Note how many bytes of the log a commit of an address takes."""
        self._debts.charge(address, size, self._broker.clock.monotonic_ns())

    def must_wait(self, address: str) -> bool:
        """Return whether a commit of an address has to wait, or is too late if it did."""
        now_ns = self._broker.clock.monotonic_ns()
        return self._debts.wait_ns(address, now_ns) > 0 and self._turns.serves_light(now_ns)

    def wait(self, address: str) -> Wait:
        """Return a step that goes on when it is the turn of a commit, or after WAIT_MAX_NS."""
        entry = object()
        return Wait(partial(self._begin, address, entry), partial(self._cancel, address, entry))

    def _begin(self, address: str, entry: object, then: Callable[[], None]) -> None:
        now_ns = self._broker.clock.monotonic_ns()
        if address not in self._waiting:
            self._waiting[address] = {}
            self._call_later(LOOK_S, partial(self._look, address))
        self._waiting[address][entry] = now_ns, then
        self._broker.metrics.commits_held_back += 1
        self._broker.client_log.write(
            _log,
            logging.WARNING,
            ("large commits", address),
            "commits from %s wait: they write more than %d MiB/s to the log while others are "
            "served; commit less often, or with less metadata",
            address,
            PAID_BYTES // MIB,
        )

    def _cancel(self, address: str, entry: object) -> None:
        self._waiting.get(address, {}).pop(entry, None)

    def _look(self, address: str) -> None:
        """Let the first step of an address go on if it may, and those that have waited too long."""
        waiting, now_ns = self._waiting[address], self._broker.clock.monotonic_ns()
        is_free = not self.must_wait(address)
        for entry, (since_ns, then) in list(waiting.items()):
            if not is_free and now_ns - since_ns < WAIT_MAX_NS:
                break
            is_free = False
            del waiting[entry]
            self._ask(then, address)
        if waiting:
            self._call_later(LOOK_S, partial(self._look, address))
        else:
            del self._waiting[address]
