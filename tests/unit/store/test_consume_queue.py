"""ConsumeQueue files: never trusted, rebuilt where they are wrong, durable when a job says so."""

import errno
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from _core.bytes.layout import UNIT_SIZE
from _core.queue.partition import Partition
from appliance.errors import StorageError
from appliance.store import unit_saver
from appliance.store.cold_reads import ColdRead
from appliance.store.paths import DataPaths, segment_name
from appliance.store.queue import consume_queue
from appliance.store.queue.consume_queue import ConsumeQueues
from appliance.system.files import File
from tests.support.clients.wire_client import WireClient, receive
from tests.support.harness import offline_scenario
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.checkpoints import take_checkpoint
from tests.support.values.kafka_records import Record
from tests.support.values.raw_batch import Raw, make_batch
from tests.support.values.record_requests import fetch_part, fetch_request

BATCHES: Final = 22
BATCH_RECORDS: Final = 30
COUNT: Final = BATCHES * BATCH_RECORDS
"""More than a block of units; all but the last 64 of them are in the file alone."""


def value_of(partition: int, offset: int) -> bytes:
    return b"%d of %d " % (offset, partition) + random.Random(offset).randbytes(40)


@pytest.fixture
def harness() -> BrokerHarness:
    """A broker whose topic "t" has two partitions with the same number of records."""
    harness = with_topic(2)
    client = WireClient(harness)
    for start in range(0, COUNT, BATCH_RECORDS):
        for partition in (0, 1):
            values = [value_of(partition, start + i) for i in range(BATCH_RECORDS)]
            client.produce("t", partition, make_batch([Raw(value) for value in values]))
    for _ in range(3):
        harness.housekeep()
    assert [each.unsaved_count for each in partitions_of(harness)] == [0, 0]
    return harness


def partitions_of(harness: BrokerHarness) -> list[Partition]:
    topic = harness.topic()
    return topic.partitions


def path_of(harness: BrokerHarness, partition: int = 0) -> Path:
    return DataPaths(harness.config.data_dir).queue("t", partition) / segment_name(0)


def check_served(harness: BrokerHarness, partition: int, offset: int) -> None:
    """Everything from an offset on is what was sent."""
    found = [(record.offset, record.value) for record in harness.fetch("t", partition, offset)]
    assert found == [(each, value_of(partition, each)) for each in range(offset, COUNT)]


def unit_at(offset: int) -> slice:
    return slice(offset * UNIT_SIZE, (offset + 1) * UNIT_SIZE)


# Units that are wrong


def test_no_flipped_bit_of_a_unit_is_served(harness: BrokerHarness) -> None:
    """It is reported with file and offset, and the log still gives the record."""
    path, offset = path_of(harness), COUNT - 100
    good = harness.disk.files()[path]
    blocks = partitions_of(harness)[0].blocks
    assert blocks is not None
    for bit in range(0, 12 * 8, 3):
        harness.disk.flip(path, offset * UNIT_SIZE + bit // 8, 1 << bit % 8)
        blocks.drop(partitions_of(harness)[0].handle, 0, COUNT)
        check_served(harness, 0, offset)
        assert len(harness.broker.damage) == bit // 3 + 1, f"bit {bit}"
        damage = harness.broker.damage[bit // 3]
        assert (damage.path, damage.offset, damage.is_repaired) == (path, offset * UNIT_SIZE, True)
        assert harness.disk.files()[path] == good
    check_served(harness, 0, offset)
    assert len(harness.broker.damage) == 12 * 8 // 3


@pytest.mark.parametrize("other", [0, 131, COUNT - 1])
def test_a_unit_of_another_record_is_not_believed(harness: BrokerHarness, other: int) -> None:
    path = path_of(harness)
    good = harness.disk.files()[path]
    put(harness, path, good[unit_at(other)], 100)
    check_served(harness, 0, 100)
    assert [damage.path for damage in harness.broker.damage] == [path]
    assert harness.disk.files()[path] == good


def test_units_of_another_partition_are_not_believed(harness: BrokerHarness) -> None:
    """Its records have the same offsets."""
    paths = path_of(harness, 0), path_of(harness, 1)
    good = [harness.disk.files()[path] for path in paths]
    put(harness, paths[0], good[1], 0)
    check_served(harness, 0, 0)
    check_served(harness, 1, 0)
    assert harness.disk.files()[paths[0]] == good[0]
    assert {damage.path for damage in harness.broker.damage} == {paths[0]}


@pytest.mark.parametrize("byte", [0x00, 0x01, 0xFF])
def test_a_sector_of_one_byte_is_not_believed(harness: BrokerHarness, byte: int) -> None:
    path = path_of(harness)
    good = harness.disk.files()[path]
    put(harness, path, bytes([byte]) * 512, 50)
    check_served(harness, 0, 0)
    assert harness.disk.files()[path] == good


def put(harness: BrokerHarness, path: Path, units: bytes, offset: int) -> None:
    harness.disk.open(path).pwritev([units], offset * UNIT_SIZE)


@pytest.mark.parametrize("size", [0, 1, UNIT_SIZE, 100 * UNIT_SIZE + 7, 499 * UNIT_SIZE])
def test_a_file_that_was_cut_is_made_whole(harness: BrokerHarness, size: int) -> None:
    path = path_of(harness)
    good = harness.disk.files()[path]
    harness.disk.open(path).truncate(size)
    check_served(harness, 0, 0)
    assert harness.disk.files()[path] == good
    assert {damage.path for damage in harness.broker.damage} == {path}


def test_a_sector_that_cannot_be_read_is_made_good_from_the_log(harness: BrokerHarness) -> None:
    path = path_of(harness)
    harness.disk.spoil(path, 100 * UNIT_SIZE, 1)
    check_served(harness, 0, 0)
    assert {damage.path for damage in harness.broker.damage} == {path}


def test_a_file_that_is_gone_is_rebuilt(harness: BrokerHarness) -> None:
    path = path_of(harness)
    good = harness.disk.files()[path]
    harness.broker._store._queues.close()
    harness.disk.unlink(path)
    check_served(harness, 0, 0)
    assert harness.disk.files()[path] == good


def test_units_are_served_though_the_disk_is_too_full_to_repair_them(
    harness: BrokerHarness,
) -> None:
    path = path_of(harness)
    harness.broker._store._queues.close()
    harness.disk.unlink(path)
    harness.disk.free = 0
    check_served(harness, 0, 0)
    assert path not in harness.disk.files() or not harness.disk.files()[path]


@pytest.mark.parametrize("offset", [0, 480, 590])
def test_a_frame_that_rotted_is_blamed_and_not_its_unit(
    harness: BrokerHarness, offset: int
) -> None:
    harness = harness.restart()  # what was written a moment ago is taken to be in memory
    first = offset - offset % BATCH_RECORDS
    pos = harness.position_of(partitions_of(harness)[0], first)
    segment = max(path for path in harness.segment_paths() if int(path.name) <= pos)
    pos -= int(segment.name)
    harness.disk.flip(segment, pos + 200, 1)
    harness.make_cold()
    units = harness.disk.files()[path_of(harness)]
    found = [record.offset for record in harness.fetch("t", 0)]
    assert found == [each for each in range(COUNT) if not first <= each < first + BATCH_RECORDS]
    assert [(each.path, each.offset) for each in harness.broker.damage] == [(segment, pos)]
    assert harness.disk.files()[path_of(harness)] == units


@pytest.mark.parametrize("seed", range(30))
def test_nothing_wrong_is_served_whatever_happens_to_the_files(
    harness: BrokerHarness, seed: int
) -> None:
    rng = random.Random(seed)
    for _ in range(rng.randrange(1, 6)):
        path = path_of(harness, rng.randrange(2))
        size = len(harness.disk.files()[path])
        start, other = rng.randrange(size), rng.randrange(size)
        match rng.randrange(4):
            case 0:
                harness.disk.flip(path, start, 1 << rng.randrange(8))
            case 1:
                harness.disk.open(path).pwritev([bytes(512)], start - start % 512)
            case 2:
                part = harness.disk.open(path).pread(512, other - other % 512)
                harness.disk.open(path).pwritev([part], start - start % 512)
            case _:
                harness.disk.spoil(path, start, 1)
    if rng.random() < 0.5:
        harness.make_cold()
    for _ in range(6):
        check_served(harness, rng.randrange(2), rng.randrange(COUNT))


# Units that are cold


def test_a_cold_unit_is_read_by_a_thread(harness: BrokerHarness) -> None:
    """The fetch is parked meanwhile, and names the unit to be read."""
    harness.disk.evict(path_of(harness))
    handle = partitions_of(harness)[0].handle
    session = receive(harness, fetch_request([("t", [fetch_part(0, 10)])]))
    (parked,) = session.new_parked
    assert parked.cold == [(handle, 10)]
    assert harness.read_cold(parked.cold) == []
    assert session.retry(parked)


def test_live_consumers_wait_for_no_thread(harness: BrokerHarness) -> None:
    """The last units are in memory; older ones come from what the kernel has of the file."""
    for offset in (COUNT - 1, COUNT - 60, 300, 0):
        assert receive(harness, fetch_request([("t", [fetch_part(0, offset)])])).new_parked == []


def test_a_deleted_topic_is_not_read(harness: BrokerHarness) -> None:
    handle = partitions_of(harness)[0].handle
    read = harness.broker.read_cold([(handle, 10)])
    harness.delete_topic("t")
    assert harness.broker.note_read(read) == []
    assert harness.broker.note_read(harness.broker.read_cold([(handle, 10)])) == []


def read_while(harness: BrokerHarness, step: Callable[[], None]) -> ColdRead:
    """Read a unit on the thread, of a file that is gone, while something happens on the loop."""
    handle = partitions_of(harness)[0].handle
    harness.broker._store._queues.close()
    harness.disk.unlink(path_of(harness))
    opened = harness.disk.open
    steps = [step]

    def open_late(path: Path, **how: bool) -> File:
        if steps:
            steps.pop()()
        return opened(path, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.disk, "open", open_late)
        read = harness.broker.read_cold([(handle, 10)])
    assert not steps
    return read


def test_records_may_be_deleted_while_their_units_are_rebuilt(harness: BrokerHarness) -> None:
    partition = partitions_of(harness)[0]

    def delete() -> None:
        harness.broker.topics.delete_records(partition.topic, {0: COUNT - 10})

    harness.broker.note_read(read_while(harness, delete))
    assert partition.start_offset == COUNT - 10
    check_served(harness, 0, COUNT - 10)


def test_files_of_a_topic_that_is_deleted_meanwhile_are_no_damage(harness: BrokerHarness) -> None:
    def delete() -> None:
        harness.delete_topic("t")

    read = read_while(harness, delete)
    assert harness.broker.note_read(read) == []


def test_units_that_are_read_take_no_more_memory_than_they_may(harness: BrokerHarness) -> None:
    blocks = partitions_of(harness)[0].blocks
    assert blocks is not None
    for offset in range(0, COUNT - 64, 10):
        harness.fetch("t", offset % 2, offset)
    assert 0 < blocks.size <= blocks.size_max
    small = type(blocks)(size_max=15_000)
    for number in range(10):
        small.put(number, 0, bytes(500 * UNIT_SIZE))
    assert small.size <= 15_000


# Files


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(consume_queue, "OPEN_FILES_MAX", 3)
    return 3


def test_a_bounded_number_of_files_stays_open(few_files: int) -> None:
    harness = with_topic(10)
    for partition in range(10):
        harness.produce("t", partition, [Record(b"%d" % i) for i in range(200)])
    for _ in range(4):
        harness.housekeep()
    queues = harness.broker._store._queues
    assert [each.unsaved_count for each in partitions_of(harness)] == [0] * 10
    assert len(queues._files) == few_files
    for partition in range(10):
        found = harness.fetch("t", partition, 5)
        assert [record.value for record in found] == [b"%d" % i for i in range(5, 200)]
        assert len(queues._files) <= few_files


@pytest.mark.parametrize("each_max", [0, 64])
def test_what_a_job_synced_survives_a_power_cut(
    harness: BrokerHarness, each_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it syncs each file, or all at once because there are many."""
    monkeypatch.setattr(consume_queue, "SYNCED_EACH_MAX", each_max)
    queues = harness.broker._store._queues
    client = WireClient(harness)
    client.produce("t", 1, make_batch([Raw(b"one more")]))
    waiting = iter(partitions_of(harness))
    while queues.save_some(waiting, partitions_max=1):
        pass
    job = queues.sync_job()
    job.run()
    left = harness.disk.crashed("dropped", random.Random(1)).files()
    for partition, count in ((0, COUNT), (1, COUNT + 1)):
        path = path_of(harness, partition)
        assert left[path] == harness.disk.files()[path]
        assert len(left[path]) == count * UNIT_SIZE


def test_a_file_whose_name_the_process_before_did_not_sync_survives_a_power_cut() -> None:
    """That process was killed. The kernel still has the name, and it is on no disk yet."""
    harness = with_topic()
    assert take_checkpoint(harness).error is None
    harness.produce("t", 0, [Record(b"%d" % number) for number in range(8)])
    harness = harness.crash("torn", random.Random(1))
    harness = harness.crash("killed", random.Random(1))
    assert harness.disk.exists(path_of(harness))
    assert not harness.disk.crashed("dropped", random.Random(1)).exists(path_of(harness))
    assert take_checkpoint(harness).error is None
    assert harness.partition().units_saved == 8
    disk = harness.disk.crashed("dropped", random.Random(1))
    assert disk.exists(path_of(harness))
    assert offline_scenario.check(disk).faults == []


def test_a_name_is_synced_though_the_file_could_not_be_opened_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process was out of files, and a sync ended before it had one again."""
    harness = with_topic()
    queues = harness.broker._store._queues
    harness.produce("t", 0, [Record(b"%d" % number) for number in range(8)])

    def refuse(path: Path, **_: bool) -> File:
        raise StorageError(path, "open", errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(harness.disk, "open", refuse)
        assert queues.save(harness.partition(), units_max=9) == 9
    job = queues.sync_job()
    job.run()
    queues.end_sync(job)
    assert take_checkpoint(harness).error is None
    assert harness.partition().units_saved == 8
    assert harness.disk.crashed("dropped", random.Random(1)).exists(path_of(harness))


def test_a_job_covers_what_was_written_since_the_last_one_that_ended(
    harness: BrokerHarness,
) -> None:
    queues = harness.broker._store._queues
    both = {path_of(harness, 0), path_of(harness, 1)}
    assert set(queues.sync_job().files) == both
    job = queues.sync_job()
    WireClient(harness).produce("t", 1, make_batch([Raw(b"one more")]))
    queues.save(partitions_of(harness)[1])
    job.run()
    queues.end_sync(job)
    assert set(queues.sync_job().files) == {path_of(harness, 1)}
    queues.end_sync(queues.sync_job())
    assert not queues.sync_job().files
    assert not queues.sync_job().directories


def test_a_job_passes_over_a_topic_that_was_deleted_meanwhile(harness: BrokerHarness) -> None:
    job = harness.broker._store._queues.sync_job()
    harness.delete_topic("t")
    job.run()


def test_units_that_find_no_room_make_no_checkpoint(harness: BrokerHarness) -> None:
    WireClient(harness).produce("t", 1, make_batch([Raw(b"one more")]))
    harness.disk.free = 0
    queues = harness.broker._store._queues
    with pytest.raises(StorageError):
        queues.save_some(iter(partitions_of(harness)), partitions_max=10)
    queues.save(partitions_of(harness)[1])
    assert partitions_of(harness)[1].unsaved_count == 1


def restored(harness: BrokerHarness, next_offset: int) -> tuple[ConsumeQueues, Partition]:
    """The first partition as a start from a checkpoint finds it."""
    known = partitions_of(harness)[0]
    partition = Partition(known.topic, 0, 77, 0, 0)
    partition.blocks = known.blocks
    partition.restore(
        start_offset=0, next_offset=next_offset, running_max=5, log_bytes=9, applied=0
    )
    assert known.blocks is not None
    return ConsumeQueues(harness.disk, DataPaths(harness.config.data_dir), known.blocks), partition


def test_a_start_goes_on_with_the_files(harness: BrokerHarness) -> None:
    queues, partition = restored(harness, COUNT)
    assert queues.restore(partition)
    assert partition.unit(COUNT - 1) is None  # it is read when it is wanted
    assert (partition.next_offset, partition.visible_offset) == (COUNT, COUNT)
    assert (partition.unsaved_count, partition.running_max, partition.log_bytes) == (0, 5, 9)


@pytest.mark.parametrize("missing", [1, UNIT_SIZE, COUNT * UNIT_SIZE])
def test_a_start_reports_files_that_are_too_short(harness: BrokerHarness, missing: int) -> None:
    harness.disk.open(path_of(harness)).truncate(COUNT * UNIT_SIZE - missing)
    queues, partition = restored(harness, COUNT)
    assert not queues.restore(partition)
    harness.disk.unlink(path_of(harness))
    assert not queues.restore(partition)


def test_an_empty_partition_needs_no_file(harness: BrokerHarness) -> None:
    harness.disk.unlink(path_of(harness))
    queues, partition = restored(harness, 0)
    assert queues.restore(partition)


@pytest.mark.parametrize("offset", [0, 1, 333, COUNT])
def test_a_cut_takes_the_units_after_it(harness: BrokerHarness, offset: int) -> None:
    queues, partition = restored(harness, COUNT)
    good = harness.disk.files()[path_of(harness)]
    queues.cut(partition, offset)
    assert harness.disk.files().get(path_of(harness), b"") == good[: offset * UNIT_SIZE]
    assert (partition.next_offset, partition.unsaved_count) == (offset, 0)
    assert partition.unit(offset) is None


def test_many_units_are_saved_in_slices(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the loop serves others; what is left in memory is not moved each time."""
    for module in (consume_queue, unit_saver):
        monkeypatch.setattr(module, "UNITS_PER_SLICE", 10)
    monkeypatch.setattr(unit_saver, "UNITS_SAVED_AT", 1)
    harness.housekeep()
    WireClient(harness).produce("t", 1, make_batch([Raw(b"x")] * 95))
    partition = partitions_of(harness)[1]
    left = [partition.unsaved_count]
    is_more = harness.broker.housekeep()
    while is_more:
        left.append(partition.unsaved_count)
        is_more = harness.broker.units.save()
    assert left == [95 - 10 * i for i in range(10)]
    assert partition.unsaved_count == 0
    assert len(harness.fetch("t", 1, COUNT)) == 95


def test_a_checkpoint_saves_units_in_slices(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume_queue, "UNITS_PER_SLICE", 10)
    WireClient(harness).produce("t", 1, make_batch([Raw(b"x")] * 25))
    queues = harness.broker._store._queues
    waiting = iter(partitions_of(harness))
    partition, left = partitions_of(harness)[1], []
    while queues.save_some(waiting, partitions_max=10):
        left.append(partition.unsaved_count)
    assert left == [15, 5]
    assert partition.unsaved_count == 0


def test_a_checkpoint_makes_few_files_in_a_slice() -> None:
    """Of partitions with few units, before a thread has made their files."""
    harness = with_topic(50)
    client = WireClient(harness)
    for index in range(50):
        client.produce("t", index, make_batch([Raw(b"x")]))
    queues = harness.broker._store._queues
    waiting = iter(partitions_of(harness))

    def file_count() -> int:
        directory = DataPaths(harness.config.data_dir).consume_queue
        return sum(path.is_relative_to(directory) for path in harness.disk.files())

    counts = [file_count()]
    while queues.save_some(waiting, partitions_max=128):
        counts.append(file_count())
    assert [after - before for before, after in pairwise(counts)] == [16, 16, 16]
    assert file_count() - counts[0] == 50
    assert all(each.unsaved_count == 0 for each in partitions_of(harness))
