"""A slave has few timers and ids in memory, as its master does, and loses none by a promotion."""

import random
from collections.abc import Iterator

import pytest

from _core.bytes.layout import RUN_IDS
from _core.state.id_rows import named_timer
from _core.timers.id_index import IdIndex
from appliance.errors import CorruptionError
from appliance.store.paths import DataPaths
from appliance.store.runs.saved_ids import SavedIds
from appliance.store.runs.timer_memory import TIMER_BYTES
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.configs import DATA_DIR
from tests.support.harness.loading import in_pieces
from tests.support.harness.slave_harness import SlaveHarness
from tests.support.values.kafka_records import Record, cancel, delay

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


def ids_of(slave: SlaveHarness) -> IdIndex:
    return slave.follower._start.state.projections.ids


def named(number: int) -> bytes:
    return b"id-%d" % number


def cancel_by_header(master: BrokerHarness, number: int) -> None:
    assert master.produce("t", 0, [Record(b"", headers=cancel(named(number)))]).error == 0
    master.flush()


@pytest.fixture
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop of a slave reads no run."""

    def fail(*_: object) -> None:
        raise AssertionError("an id is read on the loop")

    monkeypatch.setattr(SavedIds, "recall", fail)


@pytest.mark.usefixtures("few")
def test_a_slave_leaves_ids_to_the_disk() -> None:
    master, slave = pair(*range(COUNT))
    assert not ids_of(slave).is_whole
    empty = ids_of(slave).memory_bytes
    send(master, *range(COUNT, 2 * COUNT))
    slave.receive(master)
    assert ids_of(slave).memory_bytes > empty
    slave.checkpoint()
    assert ids_of(slave).memory_bytes < empty + 1_000
    slave.flush()
    slave.follower.promote()
    for _ in slave._start:
        pass
    assert not ids_of(slave).is_whole


@pytest.mark.usefixtures("few", "no_waits")
@pytest.mark.parametrize("seed", range(8))
def test_a_slave_knows_ids_before_it_applies_frames_that_name_them(seed: int) -> None:
    """Replacements, cancels by a header and of the API, and deliveries, in pieces of any size."""
    rng = random.Random(seed)
    master, slave = pair(*range(0, 2 * COUNT, 2))
    for _ in range(30):
        number = rng.randrange(0, 2 * COUNT, 2)
        way = rng.choice(["replace", "cancel", "header", "tick"])
        if way == "replace":
            send(master, number)
        elif way == "cancel":
            master.cancel_timer("t", named(number))
        elif way == "header":
            cancel_by_header(master, number)
        else:
            master.tick(MINUTE_MS // 2)
        master.flush()
        slave.receive(master, rng)
        if rng.random() < 0.1:
            slave.checkpoint()
    assert slave.lookup_count > 5
    assert not ids_of(slave).is_whole
    slave.flush()
    promoted = slave.promote()
    assert promoted.broker.pending_timers == master.broker.pending_timers
    for _ in range(3 * COUNT):
        promoted.tick(MINUTE_MS)
        promoted.housekeep()
        master.tick(MINUTE_MS)
        master.housekeep()
    assert promoted.values() == master.values()


@pytest.mark.usefixtures("few", "no_waits")
def test_what_waits_for_ids_is_not_durable_and_a_checkpoint_may_end_meanwhile() -> None:
    master, slave = pair(*range(0, COUNT, 2))
    cancel_by_header(master, 4)
    follower = slave.follower
    end, following = follower.end_pos, master.broker.log.pointers.committed
    data = master.broker.log.read(end, following - end)
    lookup = follower.append(end, data)
    assert lookup is not None
    slave.checkpoint()  # what is read now may be out of date
    assert (follower.end_pos, follower.durable_pos) == (end, end)
    assert follower.received_pos == following
    lookup.run()
    again = follower.end_lookup(lookup)
    assert again is not None
    again.run()
    assert follower.end_lookup(again) is None
    slave.flush()
    assert (follower.end_pos, follower.durable_pos) == (following, following)


@pytest.mark.usefixtures("few")
def test_what_waits_for_ids_is_received_again_after_a_stop() -> None:
    master, slave = pair(*range(0, COUNT, 2))
    cancel_by_header(master, 4)
    end = slave.follower.end_pos
    log = master.broker.log
    assert slave.follower.append(end, log.read(end, log.pointers.committed - end)) is not None
    slave = slave.restart()
    assert slave.follower.received_pos == slave.follower.end_pos == end
    slave.receive(master)
    slave.flush()
    assert slave.promote().broker.pending_timers == COUNT // 2 - 1


@pytest.mark.usefixtures("few")
def test_a_damaged_run_of_ids_ends_a_slave_and_its_next_start_does_without() -> None:
    master, slave = pair(*range(0, COUNT, 2))
    cancel_by_header(master, 4)
    (entry,) = [each for each in slave.follower._start.runs.entries if each.kind == RUN_IDS]
    path = entry.path(DataPaths(DATA_DIR))
    file = slave.disk.open(path)
    file.pwritev([bytes([file.pread(1, 40)[0] ^ 1])], 40)
    log, end = master.broker.log, slave.follower.end_pos
    lookup = slave.follower.append(end, log.read(end, log.pointers.committed - end))
    assert lookup is not None
    lookup.run()
    with pytest.raises(CorruptionError):
        slave.follower.end_lookup(lookup)
    assert not slave.disk.exists(path)
    slave = slave.crash("killed", random.Random(1))
    slave.receive(master)
    slave.flush()
    assert slave.promote().broker.pending_timers == COUNT // 2 - 1


@pytest.mark.usefixtures("few")
def test_look_ups_on_a_slave_do_not_load_all_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.store.runs.saved_ids.RECALLS_MAX", 1)
    _, slave = pair(*range(0, COUNT, 2))
    projections = slave.follower._start.state.projections
    (topic,) = projections.topics_by_id.values()
    for number in range(0, 20, 2):
        assert named_timer(projections, topic, named(number)) is not None
    assert not ids_of(slave).is_whole
