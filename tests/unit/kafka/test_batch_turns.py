"""Which connection gets the thread; `tests/system/service/test_batch_turns.py` has real ones."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from _core.paths.batch_work import BatchWork
from appliance.client_log import ClientLog
from appliance.metrics import Metrics
from appliance.units import MIB
from appliance.work_thread import Turn
from compat.kafka.network.batch_turns import REFUSED_AT_ONCE, WAIT_MAX_NS, BatchTurns
from tests.support.simulator.virtual_clock import VirtualClock

ADDRESS = "192.0.2.1"


class Producer:
    """A connection with a batch.

    Attributes:
        rounds: how often it asked for a turn of the loop.
        error: why the thread failed, if it did.
    """

    address = ADDRESS

    def __init__(self, *, is_packed: bool = True) -> None:
        self.session: Any = SimpleNamespace(work=BatchWork(is_packed))
        self.rounds = 0
        self.error: Exception | None = None

    def resume_work(self) -> bool:
        return False

    def resume_later(self) -> None:
        self.rounds += 1

    def fail_work(self, error: Exception) -> None:
        self.error = error


class Desk:
    """The thread, the timers and the clock of a broker whose address owes far too much."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.metrics = Metrics()
        self.is_scarce = False
        self.turns: list[Turn] = []
        self.timers: list[Callable[[], None]] = []
        broker: Any = SimpleNamespace(
            clock=self.clock, metrics=self.metrics, client_log=ClientLog(self.clock)
        )
        loop: Any = SimpleNamespace(serves_light=lambda now_ns: True)
        self.batches: BatchTurns[Producer] = BatchTurns(
            broker, loop, self.turns.append, self._call_later, lambda: self.is_scarce
        )
        self.batches.charge(ADDRESS, 100 * MIB)

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> Any:
        self.timers.append(call)
        return None

    def look(self) -> None:
        """Let the timers fire."""
        timers, self.timers = self.timers, []
        for call in timers:
            call()


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_connection_that_reads_ids_does_not_wait(desk: Desk) -> None:
    desk.batches.ask(Producer(is_packed=False))
    assert [turn.address for turn in desk.turns] == [ADDRESS]
    assert desk.metrics.batches_held_back == 0


def test_an_address_is_looked_at_once_whoever_else_is_done(desk: Desk) -> None:
    """Else the timers of an address would grow in number."""
    other, producers = Producer(is_packed=False), [Producer() for _ in range(3)]
    for producer in (other, *producers):
        desk.batches.ask(producer)
    desk.turns.pop().then()
    assert len(desk.timers) == 1
    desk.look()
    assert len(desk.timers) == 1
    assert desk.batches.held_count == 3


def test_work_that_was_made_while_it_waited_gets_the_thread_in_the_end(desk: Desk) -> None:
    producer = Producer()
    desk.batches.ask(producer)
    made: Any = SimpleNamespace(is_made=True, is_packed=True)
    producer.session.work = made
    desk.clock.advance_ns(WAIT_MAX_NS)
    desk.look()
    assert len(desk.turns) == 1
    assert desk.batches.has_asked(producer)


def test_a_connection_whose_work_failed_does_not_ask_again(desk: Desk) -> None:
    """It closes, but in a later turn of the loop; the same work would fail again."""
    producer = Producer(is_packed=False)
    desk.batches.ask(producer)
    error = ZeroDivisionError("a bug")
    desk.turns.pop().failed(error)
    desk.batches.ask(producer)
    assert producer.error is error
    assert not desk.turns
    desk.batches.forget(producer)
    assert not desk.batches.has_asked(producer)


def test_nobody_waits_with_a_batch_while_memory_is_scarce(desk: Desk) -> None:
    producer = Producer()
    desk.batches.ask(producer)
    desk.is_scarce = True
    desk.look()
    assert producer.rounds == 1
    assert desk.batches.held_count == 0


def test_many_that_waited_too_long_are_refused_in_parts(desk: Desk) -> None:
    producers = [Producer() for _ in range(3 * REFUSED_AT_ONCE - 1)]
    for producer in producers:
        desk.batches.ask(producer)
    desk.clock.advance_ns(WAIT_MAX_NS - 1)
    desk.look()
    assert desk.batches.held_count == len(producers)
    desk.clock.advance_ns(1)
    rounds = []
    while desk.timers:
        before = sum(producer.rounds for producer in producers)
        desk.look()
        rounds.append(sum(producer.rounds for producer in producers) - before)
    assert rounds == [REFUSED_AT_ONCE, REFUSED_AT_ONCE, REFUSED_AT_ONCE - 1]
    assert not desk.turns
    assert not any(map(desk.batches.has_asked, producers))
