"""A slave has few timers in memory, as its master does, and loses none when it is promoted."""

import random
from collections.abc import Iterator

import pytest

from appliance.store.runs.timer_memory import TIMER_BYTES
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.loading import in_pieces
from tests.support.harness.slave_harness import SlaveHarness
from tests.support.values.kafka_records import Record, delay

MINUTE_MS = 60_000
COUNT = 40
EMPTY_BYTES = 1 << 14


@pytest.fixture
def few() -> Iterator[None]:
    """Room for ten timers, on both nodes."""
    with in_pieces(count_max=10):
        yield


def value(number: int) -> bytes:
    return b"%d" % number


def send(master: BrokerHarness, *numbers: int) -> None:
    """Send records, each due in the minute of its number; the even ones have ids."""
    for number in numbers:
        user_id = b"id-%d" % number if number % 2 == 0 else None
        due = (number + 1) * MINUTE_MS - (master.clock.wall_ms() - BEGIN_MS)
        record = Record(value(number), headers=delay(due, user_id))
        assert master.produce("t", 0, [record]).error == 0
    master.flush()


BEGIN_MS = BrokerHarness().clock.wall_ms()


def pair(*numbers: int) -> tuple[BrokerHarness, SlaveHarness]:
    """A master with timers, and a slave that began with a checkpoint of them."""
    master = with_topic()
    send(master, *numbers)
    slave = SlaveHarness(clock=master.clock)
    slave.receive(master)
    slave.checkpoint()
    return master, slave.restart()


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("seed", range(6))
def test_a_promoted_slave_delivers_what_it_never_had_in_memory(seed: int) -> None:
    rng = random.Random(seed)
    numbers = rng.sample(range(COUNT), COUNT)
    master, slave = pair(*numbers[:30])
    due = slave.follower.timer_memory._due
    assert due.pending == 30
    assert not due.is_loaded
    assert due.tree_bytes <= 15 * TIMER_BYTES + EMPTY_BYTES
    send(master, *numbers[30:])
    cancelled = [number for number in rng.sample(numbers, 15) if number % 2 == 0]
    for number in cancelled:
        master.cancel_timer("t", b"id-%d" % number)
    gone = rng.randrange(25)
    for _ in range(gone):
        master.tick(MINUTE_MS)
        master.flush()
        slave.receive(master, rng)
        if rng.random() < 0.3:
            slave.checkpoint()
        slave.load_timers()
    master.flush()
    slave.receive(master)
    slave.flush()
    wanted = [value(number) for number in range(COUNT) if number not in cancelled]
    assert master.values() == [each for each in wanted if int(each) < gone]
    promoted = slave.promote()
    assert promoted.broker.pending_timers == len(wanted) - len(master.values())
    for _ in range(COUNT - gone):
        promoted.tick(MINUTE_MS)
        promoted.housekeep()
    assert promoted.values() == wanted


def test_what_the_master_delivered_leaves_the_memory_of_a_slave() -> None:
    """Nothing is ever popped there: what is completed is swept out."""
    with in_pieces(rows=500, count_max=3_000):
        master = with_topic()
        for first in range(0, 20_000, 100):
            records = [
                Record(b"", headers=delay((first + number) * 100 + MINUTE_MS))
                for number in range(100)
            ]
            assert master.produce("t", 0, records).error == 0
        master.flush()
        slave = SlaveHarness(clock=master.clock)
        slave.receive(master)
        slave.checkpoint()
        slave = slave.restart()
        due = slave.follower.timer_memory._due
        slave.load_timers()
        assert not due.is_loaded
        largest = due.tree_bytes
        for _ in range(24):
            master.tick(MINUTE_MS)
            master.flush()
            slave.receive(master)
            slave.checkpoint()
            slave.load_timers()
            largest = max(largest, due.tree_bytes)
            assert due.pending == master.broker.pending_timers
        assert len(master.values()) > 13_000
        assert largest <= 2 * 3_000 * TIMER_BYTES + EMPTY_BYTES
        slave.flush()
        promoted = slave.promote()
        promoted.tick(30 * MINUTE_MS)
        assert len(promoted.values()) == 20_000


@pytest.mark.usefixtures("few")
def test_a_promoted_slave_leaves_ids_to_the_disk() -> None:
    _, slave = pair(*range(COUNT))
    runs = slave.follower._start.runs
    ids = runs._projections.ids
    slave.checkpoint()
    assert ids.is_whole
    slave.flush()
    slave.follower.promote()
    for _ in slave._start:
        pass
    assert runs.ids.limit_bytes == 0
