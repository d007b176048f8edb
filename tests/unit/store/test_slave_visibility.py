"""A slave shows consumers what is durable and applied here and may be read on its master."""

from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.slave_harness import SlaveHarness
from tests.support.values.kafka_records import Record


def visible_offset(slave: SlaveHarness) -> int:
    """Of the partition t/0 on the slave."""
    store = slave.broker._store
    topic = store.state.projections.topics_by_name[b"t"]
    offset: int = topic.partitions[0].visible_offset
    return offset


def pair() -> tuple[BrokerHarness, SlaveHarness, list[int]]:
    """A master with three records, a slave that has them, and where the log ends after each."""
    master, slave = BrokerHarness(), SlaveHarness()
    master.create_topic("t", 1)
    ends = []
    for number in range(3):
        master.produce("t", 0, [Record(b"%d" % number)])
        ends.append(master.broker.log.pointers.committed)
    slave.receive(master)
    return master, slave, ends


def test_nothing_is_shown_before_it_is_durable_here() -> None:
    _, slave, ends = pair()
    slave.follower.show(ends[2])
    assert visible_offset(slave) == 0
    slave.flush()
    slave.follower.show(ends[2])
    assert visible_offset(slave) == 3


def test_nothing_is_shown_before_the_master_shows_it() -> None:
    _, slave, ends = pair()
    slave.flush()
    for count, end in enumerate(ends, start=1):
        slave.follower.show(end - 8)
        assert visible_offset(slave) == count - 1
        slave.follower.show(end)
        assert visible_offset(slave) == count


def test_position_that_falls_hides_nothing() -> None:
    _, slave, ends = pair()
    slave.flush()
    slave.follower.show(ends[2])
    slave.follower.show(ends[0])
    assert visible_offset(slave) == 3


def test_long_stream_shows_nothing_by_itself() -> None:
    """Units are saved every 16 MiB; what is shown must not follow from that."""
    master, slave, ends = pair()
    for number in range(4):
        master.produce("t", 0, [Record(bytes([number]) * 7_000)])
    slave.follower._start._unbounded = 1 << 30
    slave.receive(master)
    slave.flush()
    assert slave.follower._start._unbounded == 0
    assert visible_offset(slave) == 0
    slave.follower.show(ends[1])
    assert visible_offset(slave) == 2


def test_slave_that_started_again_is_not_readable_before_the_master_shows_its_whole_log() -> None:
    """The replay of its start shows all of its log, and the master may lose the end of that."""
    _, slave, ends = pair()
    slave.flush()
    slave.follower.show(ends[1])
    assert slave.follower.is_readable
    again = slave.restart()
    assert not again.follower.is_readable
    again.follower.show(ends[1])
    assert not again.follower.is_readable
    again.follower.show(ends[2])
    assert again.follower.is_readable
