"""A slave's log has the master's bytes, and a promotion serves what they say."""

import random

import pytest

from appliance.errors import ReplicaError
from appliance.store.log import followed_files
from appliance.store.log.watermark import AllocationWatermark
from appliance.store.paths import segment_name
from appliance.store.source_log import SourceLog
from appliance.units import KIB
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.checkpoints import checkpoint_file_on
from tests.support.harness.configs import DATA_DIR, small_config
from tests.support.harness.slave_harness import SlaveHarness
from tests.support.simulator.sim_fs import CrashMode, SimFileSystem
from tests.support.values.kafka_records import Record, delay

SEEDS = range(6)


def write_some(master: BrokerHarness, rng: random.Random, count: int = 40) -> None:
    """Produce records and timers to several partitions; fills some segments."""
    if not master.broker.topics.all():
        master.create_topic("t", 3)
    for number in range(count):
        headers = delay(rng.randrange(1, 5_000)) if rng.random() < 0.4 else []
        value = b"%d " % number + rng.randbytes(rng.choice([10, 3_000]))
        master.produce("t", rng.randrange(3), [Record(value, headers=headers)])
        if rng.random() < 0.3:
            master.tick(rng.randrange(500))


def segment_bytes(disk: SimFileSystem, base: int, size: int) -> bytes:
    file = disk.open(DATA_DIR / "commitlog" / segment_name(base))
    return file.pread(size, 0)


def assert_equal_logs(master: BrokerHarness, slave: SlaveHarness) -> None:
    end = master.broker.log.pointers.committed
    for base, size in master.broker.log.files.places:
        if base < end:
            used = min(size, end - base)
            wanted = segment_bytes(master.disk, base, used)
            assert segment_bytes(slave.disk, base, used) == wanted


@pytest.mark.parametrize("seed", SEEDS)
def test_slave_has_the_masters_bytes_and_its_state(seed: int) -> None:
    rng = random.Random(seed)
    master, slave = BrokerHarness(), SlaveHarness()
    for _ in range(4):
        write_some(master, rng)
        slave.receive(master, rng)
        slave.flush()
    end = master.broker.log.pointers.committed
    assert slave.follower.end_pos == slave.follower.durable_pos == end
    assert len(master.broker.log.files.bases) > 3
    assert_equal_logs(master, slave)
    assert slave.follower.last_pos == master.broker.log.tail.last_pos
    promoted = slave.promote()
    assert promoted.report.damage == ()
    assert promoted.digest() == master.digest()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", ["killed", "dropped", "torn", "pages", "last", "names"])
def test_slave_goes_on_after_a_crash_where_its_log_ends(mode: CrashMode, seed: int) -> None:
    rng = random.Random(seed)
    master, slave = BrokerHarness(), SlaveHarness()
    for _ in range(5):
        write_some(master, rng, 20)
        end = master.broker.log.pointers.committed
        slave.receive(master, rng, end=rng.randrange(slave.follower.received_pos, end))
        if rng.random() < 0.5:
            slave.flush()
        durable = slave.follower.durable_pos
        slave = slave.crash(mode, rng)
        assert slave.follower.received_pos == slave.follower.end_pos >= durable
    slave.receive(master)
    slave.flush()
    assert_equal_logs(master, slave)
    assert slave.promote().digest() == master.digest()


def test_promotion_begins_an_epoch_of_its_own_and_serves_and_delivers() -> None:
    master, slave = BrokerHarness(), SlaveHarness()
    master.create_topic("t", 1)
    master.produce("t", 0, [Record(b"now")])
    master.produce("t", 0, [Record(b"later", headers=delay(1_000))])
    slave.receive(master)
    slave.flush()
    promoted = slave.promote()
    assert promoted.epoch_starts()[-1][0] > master.epoch_starts()[-1][0]
    assert promoted.epoch_starts()[-1][0] % 2 == 0
    promoted.tick(2_000)
    assert promoted.values() == [b"now", b"later"]
    promoted.produce("t", 0, [Record(b"after")])
    assert promoted.values() == [b"now", b"later", b"after"]
    assert promoted.restart().values() == [b"now", b"later", b"after"]


def test_part_of_a_frame_is_cut_at_a_promotion() -> None:
    master, slave = BrokerHarness(), SlaveHarness()
    master.create_topic("t", 1)
    master.produce("t", 0, [Record(b"whole")])
    whole = master.broker.log.pointers.committed
    master.produce("t", 0, [Record(b"part" * 500)])
    slave.receive(master, end=whole + 1_000)
    assert slave.follower.end_pos == whole
    promoted = slave.promote()
    assert promoted.values() == [b"whole"]
    assert promoted.report.damage == ()


def test_slave_trusts_its_own_flushed_mark_and_not_those_of_the_master() -> None:
    """Otherwise a torn tail would look like damage: the frames after it say that it was flushed."""
    rng = random.Random(1)
    master, slave = BrokerHarness(), SlaveHarness()
    write_some(master, rng)
    slave.receive(master)
    slave.flush()
    durable = slave.follower.durable_pos
    write_some(master, rng)
    slave.receive(master)
    pos = next(
        each
        for each in range(durable, slave.follower.end_pos, 8)
        if master.broker.log.read(each, 2) == master.broker.log.read(0, 2)
    )
    path = DATA_DIR / "commitlog" / segment_name(pos // 65_536 * 65_536)
    slave.disk.open(path).pwritev([b"\xff" * 64], pos % 65_536)
    again = SlaveHarness(slave.disk.crashed("killed", rng), slave.clock)
    assert again.follower.end_pos == pos
    again.receive(master)
    assert again.promote().digest() == master.digest()


@pytest.mark.parametrize("fault", ["gap", "rot", "other log"])
def test_bytes_that_do_not_continue_the_log_are_refused(fault: str) -> None:
    rng = random.Random(2)
    master, slave = BrokerHarness(), SlaveHarness()
    write_some(master, rng, 5)
    slave.receive(master)
    end = slave.follower.end_pos
    write_some(master, rng, 5)
    data = bytearray(master.broker.log.read(end, 20_000))
    if fault == "rot":
        data[300] ^= 1
    elif fault == "other log":
        other = BrokerHarness()
        write_some(other, rng, 10)
        data[:] = other.broker.log.read(end, 20_000)
    with pytest.raises(ReplicaError):
        slave.follower.append(end + 8 * (fault == "gap"), bytes(data))
    whole = slave.follower.end_pos
    assert whole < master.broker.log.pointers.committed
    again = SlaveHarness(slave.disk.crashed("killed", rng), slave.clock)
    assert again.follower.end_pos == whole
    again.receive(master)
    assert again.promote().digest() == master.digest()


def test_tail_that_the_master_lacks_is_kept_aside_and_cut_off() -> None:
    """The slave was a master until the other one was promoted: a part of its log is nobody's."""
    rng = random.Random(3)
    old, slave = BrokerHarness(config=small_config(node=1)), SlaveHarness()
    write_some(old, rng)
    slave.receive(old)
    slave.flush()
    common = slave.follower.end_pos
    write_some(old, rng, 30)
    end = old.broker.log.pointers.committed
    tail = old.broker.log.read(common, end - common)
    old.broker.close()
    new = slave.promote()
    new.produce("t", 0, [Record(b"after the promotion")])
    returned = SlaveHarness(old.disk, old.clock)
    assert returned.follower.end_pos > common
    with pytest.raises(ReplicaError):
        returned.follower.truncate(common)
    assert returned.follower.wants_start
    (name,) = old.disk.list_dir(DATA_DIR / "diverged")
    kept = old.disk.open(DATA_DIR / "diverged" / name).pread(end, 0)
    assert kept.startswith(tail)
    returned.broker.abandon()
    again = SlaveHarness(old.disk, old.clock)
    assert again.follower.end_pos == common
    again.receive(new)
    assert_equal_logs(new, again)
    assert again.promote().digest() == new.digest()


@pytest.mark.parametrize("mode", ["killed", "dropped", "torn", "pages"])
def test_crash_while_a_tail_is_cut_leaves_one_that_can_be_cut_again(mode: CrashMode) -> None:
    rng = random.Random(4)
    master, slave = BrokerHarness(), SlaveHarness()
    write_some(master, rng)
    common = master.broker.log.pointers.committed
    write_some(master, rng)
    slave.receive(master)
    slave.flush()
    with pytest.raises(ReplicaError):
        slave.follower.truncate(common)
    again = slave.crash(mode, rng)
    assert again.follower.end_pos == common
    again.receive(master)
    assert again.promote().digest() == master.digest()


def test_slave_that_shares_nothing_starts_anew() -> None:
    rng = random.Random(5)
    master, other, slave = BrokerHarness(), BrokerHarness(), SlaveHarness()
    write_some(master, rng)
    write_some(other, rng)
    slave.receive(other)
    slave.flush()
    with pytest.raises(ReplicaError):
        slave.follower.restart(master.broker.log.start_pos)
    slave.broker.abandon()
    (name,) = slave.disk.list_dir(DATA_DIR / "diverged")
    assert name.endswith("-log")
    assert slave.disk.list_dir(DATA_DIR / "diverged" / name)
    again = SlaveHarness(slave.disk, slave.clock, must_exist=True)
    assert not again.follower.has_log
    again.receive(master)
    assert again.promote().digest() == master.digest()


@pytest.mark.parametrize("mode", ["killed", "dropped", "names"])
def test_mark_that_a_slave_caught_up_lasts_until_it_has_less_than_that(mode: CrashMode) -> None:
    rng = random.Random(11)
    master, slave = BrokerHarness(), SlaveHarness()
    write_some(master, rng)
    slave.receive(master)
    slave.flush()
    assert not slave.follower.has_caught_up
    slave.follower.note_caught_up()
    slave = slave.crash(mode, rng)
    assert slave.follower.has_caught_up
    with pytest.raises(ReplicaError):
        slave.follower.truncate(slave.follower.last_pos)
    slave = slave.crash(mode, rng)
    assert not slave.follower.has_caught_up, "cut"
    slave.follower.note_caught_up()
    with pytest.raises(ReplicaError):
        slave.follower.restart(master.broker.log.start_pos)
    slave = slave.crash(mode, rng)
    assert not slave.follower.has_caught_up, "begun anew"
    slave.receive(master)
    slave.follower.note_caught_up()
    slave.promote().broker.close()
    slave.disk.unlink(DATA_DIR / "role")
    assert not SlaveHarness(slave.disk, slave.clock).follower.has_caught_up, "promoted"


def test_source_log_says_what_a_slave_needs() -> None:
    master = BrokerHarness(config=small_config(node=1))
    write_some(master, random.Random(6))
    store = master.broker._store
    source = SourceLog(store.log, store.state, master.config)
    tail = store.log.tail
    assert source.crc_at(tail.last_pos) == tail.last_crc
    assert source.crc_at(tail.last_pos + 8) is None
    assert source.crc_at(source.committed_pos) is None
    assert source.node == 1
    assert source.epochs() == master.epoch_starts()
    assert source.epoch == master.epoch_starts()[-1][0]
    first_end = store.log.files.places[0][1]
    assert len(source.read(first_end - 10, 100)) == 10


def test_tail_that_the_master_acknowledged_and_lost_is_not_cut_off() -> None:
    """With async flush and sync replication the slave's memory vouches for it."""
    rng = random.Random(7)
    master = BrokerHarness(config=small_config(node=1, flush="async"))
    slave = SlaveHarness()
    write_some(master, rng)
    master.flush()
    common = master.broker.flushed_pos
    master.send_produce("t", 0, [Record(b"acknowledged")])
    master.broker.commit()
    slave.receive(master)
    lost = BrokerHarness(master.disk.crashed("dropped", rng), master.clock, master.config)
    assert b"acknowledged" not in lost.values()
    with pytest.raises(ReplicaError, match="promote this slave"):
        slave.follower.truncate(common, may_be_acknowledged=True)
    assert not slave.follower.wants_start
    assert b"acknowledged" in slave.promote().values()


def test_own_tail_of_a_node_that_was_master_is_cut_off_in_every_mode() -> None:
    rng = random.Random(8)
    old = BrokerHarness(config=small_config(node=1, flush="async"))
    write_some(old, rng)
    common = old.broker.log.pointers.committed
    write_some(old, rng)
    old.broker.close()
    returned = SlaveHarness(old.disk, old.clock, node=1)
    with pytest.raises(ReplicaError):
        returned.follower.truncate(common, may_be_acknowledged=True)
    assert returned.follower.wants_start


def test_slave_with_a_part_of_a_frame_has_no_log_and_begins_again() -> None:
    master, slave = BrokerHarness(), SlaveHarness()
    write_some(master, random.Random(9))
    slave.receive(master, end=100)
    assert not slave.follower.has_log
    assert slave.follower.cluster == bytes(16)
    slave.follower.restart(master.broker.log.start_pos)
    slave.receive(master)
    slave.flush()
    assert slave.promote().digest() == master.digest()


def test_bytes_of_a_frame_that_was_cut_are_not_durable() -> None:
    master, slave = BrokerHarness(), SlaveHarness()
    master.create_topic("t", 1)
    whole = master.broker.log.pointers.committed
    master.produce("t", 0, [Record(b"part" * 500)])
    slave.receive(master, end=whole + 500)
    slave.flush()
    slave.follower.truncate(slave.follower.end_pos)
    slave.receive(master)
    assert slave.follower.durable_pos == whole, "nothing was flushed since"
    slave.flush()
    assert slave.follower.durable_pos == slave.follower.end_pos


def test_snapshot_of_a_slave_keeps_what_is_cut_off() -> None:
    rng = random.Random(10)
    master, slave = BrokerHarness(), SlaveHarness()
    write_some(master, rng, 5)
    slave.receive(master)
    slave.flush()
    end = slave.follower.end_pos
    path = DATA_DIR / "commitlog" / segment_name(0)
    before = slave.disk.open(path).pread(end, 0)
    slave.disk.link(path, DATA_DIR / "kept")
    with pytest.raises(ReplicaError):
        slave.follower.truncate(slave.follower.last_pos)
    assert slave.disk.open(DATA_DIR / "kept").pread(end, 0) == before


def test_an_append_never_waits_for_a_watermark_that_was_raised_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(followed_files, "WATERMARK_STEP_BYTES", 64 * KIB)
    master, slave = BrokerHarness(), SlaveHarness()
    write_some(master, random.Random(1), 20)
    slave.receive(master)

    def fail(*_: object) -> None:
        raise AssertionError("the loop raises the watermark")

    monkeypatch.setattr(AllocationWatermark, "raise_after", fail)
    raises = 0
    for seed in range(30):
        job = slave.follower.begin_raise()
        if job is not None:
            job.run()
            slave.follower.end_raise(job)
            raises += 1
        write_some(master, random.Random(seed), 10)
        slave.receive(master)
        saved = checkpoint_file_on(slave.disk.crashed("dropped", random.Random(seed))).last
        assert saved is not None
        assert slave.follower.received_pos <= saved.watermark
    assert 5 < raises < 30
