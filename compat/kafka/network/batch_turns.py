"""Which batch of a Produce request gets the thread that unpacks it, and when.

Connections wait for the thread, and their addresses take turns. Batches of an address that owes too
much (`compat.kafka.network.log_debts`) wait before that, one after the other, while clients that
ask for little are served: so the disk is theirs most of the time. Alone, an address gets
everything. Layer 5.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

from _core.paths.produce import AMPLIFICATION_MAX
from _core.paths.session import Session
from appliance.loop_turns import LoopTurns
from appliance.units import MIB, NS_PER_MS
from appliance.work_thread import Turn, Work
from compat.kafka.network.driven import ServedBroker
from compat.kafka.network.log_debts import PAID_BYTES, LogDebts

LOOK_S: Final = 0.1
"""How often it is looked whether an address still has to wait."""

WAIT_MAX_NS: Final = 10_000 * NS_PER_MS
"""After that a batch is refused, before its client gives the connection up; it sends it again."""

REFUSED_AT_ONCE: Final = 200
"""Batches that are refused at a time: less than a millisecond. Their connections take turns."""

_TOO_LATE: Final = (
    "delayed records are stored unpacked, and batches from this address take more than "
    f"{AMPLIFICATION_MAX} times their size of the log: send the batch again, or uncompressed"
)

_log = logging.getLogger(__name__)


class Producer(Protocol):
    """A connection whose batches need the thread."""

    session: Session

    @property
    def address(self) -> str:
        """The client's IP address."""

    def resume_work(self) -> bool:
        """Go on with its requests; return whether it still needs the thread."""

    def resume_later(self) -> None:
        """Go on with its requests in a later turn of the loop."""

    def fail_work(self, error: Exception) -> None:
        """Note that the thread failed."""


AnyProducer = TypeVar("AnyProducer", bound=Producer)


@dataclass(slots=True)
class _Held(Generic[AnyProducer]):
    """The connections of an address that has to wait."""

    waiting: OrderedDict[AnyProducer, int] = field(default_factory=OrderedDict)
    """Since when, monotonic ns."""

    freed: AnyProducer | None = None
    """Has left for the thread; the next one follows when it is done."""


class BatchTurns(Generic[AnyProducer]):
    """The connections that wait for the thread, or have it.

    Attributes:
        debts: of addresses.
    """

    def __init__(
        self,
        broker: ServedBroker,
        turns: LoopTurns,
        ask: Callable[[Turn], None],
        call_later: Callable[[float, Callable[[], None]], asyncio.TimerHandle],
        is_scarce: Callable[[], bool],
    ) -> None:
        """Begin without connections.

        Args:
            broker: has the clock, the metrics and the log of clients.
            turns: of the loop; they say who was served lately.
            ask: lets a turn wait for the thread.
            call_later: calls a function after so many seconds.
            is_scarce: returns whether memory is scarce: then nobody waits with a batch.
        """
        self._broker = broker
        self._turns = turns
        self._ask = ask
        self._call_later = call_later
        self._is_scarce = is_scarce
        self.debts = LogDebts()
        self._asked: set[AnyProducer] = set()
        self._held: dict[str, _Held[AnyProducer]] = {}
        """By address. Each has either a timer or a freed connection."""

    def has_asked(self, producer: AnyProducer) -> bool:
        """Whether a connection waits for the thread, or has it."""
        return producer in self._asked

    @property
    def held_count(self) -> int:
        """Connections that wait because of what their addresses owe."""
        return sum(len(held.waiting) for held in self._held.values())

    def charge(self, address: str, size: int) -> None:
        """Note by how many bytes batches of an address grew too much in the log."""
        self.debts.charge(address, size, self._broker.clock.monotonic_ns())

    def must_wait(self, address: str, now_ns: int) -> bool:
        """Return whether compressed batches of an address have to wait.

        Args:
            address: of the client.
            now_ns: monotonic ns.
        """
        return self.debts.wait_ns(address, now_ns) > 0 and self._turns.serves_light(now_ns)

    def ask(self, producer: AnyProducer) -> None:
        """Let a connection wait for the thread, unless it does."""
        if producer in self._asked:
            return
        self._asked.add(producer)
        if not self._is_held_back(producer):
            self._ask_thread(producer, self._begin)

    def forget(self, producer: AnyProducer) -> None:
        """Remove a connection that was closed."""
        self._asked.discard(producer)
        held = self._held.get(producer.address)
        if held is not None:
            held.waiting.pop(producer, None)

    def _is_held_back(self, producer: AnyProducer) -> bool:
        """Let a connection wait if its address has to."""
        address = producer.address
        work = producer.session.work
        if work is None or work.is_made or not work.is_packed:
            return False  # it has begun, or reads ids
        now_ns = self._broker.clock.monotonic_ns()
        if address not in self._held:
            if not self.must_wait(address, now_ns):
                return False
            self._held[address] = _Held()
            self._look_later(address)
        self._held[address].waiting[producer] = now_ns
        self._broker.metrics.batches_held_back += 1
        self._broker.client_log.write(
            _log,
            logging.WARNING,
            ("amplification", address),
            "compressed batches from %s wait: delayed records are stored unpacked, and these take "
            "more than %d times their size of the log; beyond that an address gets %d MiB/s",
            address,
            AMPLIFICATION_MAX,
            PAID_BYTES // MIB,
        )
        return True

    def _ask_thread(
        self, producer: AnyProducer, begin: Callable[[AnyProducer], Work | None]
    ) -> None:
        failed = partial(self._fail, producer)
        ended = partial(self._end, producer)
        self._ask(Turn(partial(begin, producer), ended, failed, producer.address, is_append=True))

    def _begin(self, producer: AnyProducer) -> Work | None:
        """Begin the work of a connection, unless its address has to wait meanwhile."""
        if producer in self._asked and self._is_held_back(producer):
            return None
        return self._begin_freed(producer)

    def _begin_freed(self, producer: AnyProducer) -> Work | None:
        work = producer.session.work if producer.resume_work() else None
        if work is not None and work.is_made:
            return work.run
        # The topic was deleted, or the like; then the next batch may need a turn of its own.
        self._asked.discard(producer)
        if work is not None:
            self.ask(producer)
        self._note_done(producer)
        return None

    def _end(self, producer: AnyProducer) -> None:
        self._asked.discard(producer)
        producer.resume_work()
        self._note_done(producer)

    def _fail(self, producer: AnyProducer, error: Exception) -> None:
        # It stays among those that have asked until it is closed: else it would ask again.
        producer.fail_work(error)
        self._note_done(producer)

    def _note_done(self, producer: AnyProducer) -> None:
        held = self._held.get(producer.address)
        if held is not None and held.freed is producer:
            held.freed = None
            self._free_next(producer.address)

    def _look_later(self, address: str) -> None:
        self._call_later(LOOK_S, partial(self._free_next, address))

    def _free_next(self, address: str) -> None:
        """Let the next connection of an address have the thread, as soon as it may."""
        held, now_ns = self._held[address], self._broker.clock.monotonic_ns()
        self._refuse_late(held, now_ns)
        if not held.waiting:
            del self._held[address]
        elif self.must_wait(address, now_ns):
            self._look_later(address)
        else:
            held.freed, _ = held.waiting.popitem(last=False)
            self._ask_thread(held.freed, self._begin_freed)

    def _refuse_late(self, held: _Held[AnyProducer], now_ns: int) -> None:
        """Refuse batches that have waited too long; all of them while memory is scarce."""
        wait_max_ns = 0 if self._is_scarce() else WAIT_MAX_NS
        for producer, since_ns in list(islice(held.waiting.items(), REFUSED_AT_ONCE)):
            if now_ns - since_ns < wait_max_ns:
                break
            del held.waiting[producer]
            self._asked.discard(producer)
            work = producer.session.work
            if work is not None and not work.is_made:
                work.refuse(_TOO_LATE)
                producer.resume_later()
            elif work is not None:  # a round went on with its requests meanwhile
                self.ask(producer)
