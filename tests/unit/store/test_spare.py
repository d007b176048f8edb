"""The file that will be the next segment: used again after a stop, where that is safe."""

import errno
import random
import weakref
from pathlib import Path

import pytest

from appliance.errors import StorageError
from appliance.store.log.segment import FreedSegment, Segment, SpareJob, put_aside
from appliance.store.paths import SPARE_NAME, segment_name
from appliance.system.files import OsFileSystem
from appliance.units import KIB
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import DATA_DIR
from tests.support.simulator.sim_fs import Fault, SimFileSystem
from tests.support.values.kafka_records import Record

LOG = DATA_DIR / "commitlog"
SPARE = LOG / SPARE_NAME
SIZE = 64 * KIB


class NotedDisk(SimFileSystem):
    """Notes the calls that make, rename or remove files."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[str, str]] = []

    def record_call(self, operation: str, path: Path, detail: str = "") -> Fault | None:
        if operation in ("posix_fallocate", "rename", "unlink") and path.parent == LOG:
            self.noted.append((operation, path.name))
        return super().record_call(operation, path, detail)


def fill(harness: BrokerHarness, segments: int) -> None:
    """Produce until there are so many segments, the last one more than half full."""
    rng = random.Random(segments)
    start = harness.broker.wrote_pos
    while harness.broker.wrote_pos < max(start, (segments - 1) * SIZE) + SIZE * 3 // 4:
        assert harness.produce("t", 0, [Record(rng.randbytes(3_000))]).error == 0
        harness.housekeep()


@pytest.fixture
def stopped() -> BrokerHarness:
    """A broker that stopped cleanly when its next segment had just been made."""
    harness = BrokerHarness(NotedDisk())
    harness.create_topic("t")
    fill(harness, 1)
    assert [path.name for path in harness.segment_paths()] == [segment_name(0), segment_name(SIZE)]
    harness.broker.close()
    return harness


def start(harness: BrokerHarness) -> BrokerHarness:
    """A broker on the disk of one that stopped."""
    assert isinstance(harness.disk, NotedDisk)
    harness.disk.noted.clear()
    return BrokerHarness(harness.disk, harness.clock)


def test_the_spare_that_a_clean_stop_leaves_is_the_next_segment(stopped: BrokerHarness) -> None:
    harness = start(stopped)
    before = harness.fetch("t", 0)
    while len(harness.segment_paths()) < 2:
        harness.housekeep()
    disk = harness.disk
    assert isinstance(disk, NotedDisk)
    assert disk.noted == [("rename", segment_name(SIZE)), ("rename", SPARE_NAME)]
    fill(harness, 2)
    assert harness.restart().fetch("t", 0)[: len(before)] == before


def test_a_roll_needs_no_room_on_the_disk_while_there_is_a_spare(stopped: BrokerHarness) -> None:
    harness = start(stopped)
    harness.disk.free = 0
    count = 0
    while harness.produce("t", 0, [Record(bytes(3_000))]).error == 0:
        count += 1
    assert harness.broker.wrote_pos > 3 * SIZE // 2, "it went on into the spare"
    assert len(harness.segment_paths()) == 2
    harness.disk.free = 1 << 30
    harness.clock.advance_ms(1_000)
    assert harness.produce("t", 0, [Record(b"room again")]).error == 0


def test_a_spare_of_which_there_is_another_name_is_left_alone(stopped: BrokerHarness) -> None:
    """A hard link of a backup: it must not change."""
    node = stopped.disk._node(LOG / segment_name(SIZE))
    node.link_count = 2
    before = bytes(node.content.data)
    harness = start(stopped)
    fill(harness, 2)
    assert bytes(node.content.data) == before
    assert harness.disk._node(LOG / segment_name(SIZE)) is not node


def test_a_spare_of_another_size_is_removed(stopped: BrokerHarness) -> None:
    stopped.disk.open(LOG / segment_name(SIZE)).truncate(SIZE - 4 * KIB)
    harness = start(stopped)
    assert not harness.disk.exists(SPARE)
    assert [path.name for path in harness.segment_paths()] == [segment_name(0)]
    harness.disk.open(SPARE, create=True).allocate(SIZE + 4 * KIB)
    fill(harness, 2)
    assert not harness.disk.exists(SPARE)


def test_a_spare_is_left_over_at_most_once(stopped: BrokerHarness) -> None:
    """What a cut leaves over may be several segments."""
    for base in (2 * SIZE, 3 * SIZE):
        stopped.disk.open(LOG / segment_name(base), create=True).allocate(SIZE)
    harness = start(stopped)
    assert sorted(harness.disk.list_dir(LOG)) == [segment_name(0), SPARE_NAME]


def test_a_spare_that_a_crash_leaves_is_not_used_again(stopped: BrokerHarness) -> None:
    harness = start(stopped)
    assert harness.disk.exists(SPARE)
    harness = harness.crash("kept", random.Random(0))
    assert not harness.disk.exists(SPARE)


def test_a_file_that_a_cut_left_over_is_not_used_again() -> None:
    """Its frames would fit, for the next segment has the same base; and a sync may have failed."""
    harness = BrokerHarness(NotedDisk())
    harness.create_topic("t")
    fill(harness, 1)
    kept = harness.fetch("t", 0)
    torn_at = harness.broker.wrote_pos
    rng = random.Random(1)
    while harness.broker.wrote_pos < 2 * SIZE - 8 * KIB:
        harness.send_produce("t", 0, [Record(rng.randbytes(3_000))])
    # A roll flushes nothing: all after `torn_at` may be lost, and here the first frame of it is.
    disk = harness.disk.crashed("kept", rng)
    assert isinstance(disk, NotedDisk)
    disk.open(LOG / segment_name(0)).pwritev([bytes(64)], torn_at)
    harness = BrokerHarness(disk, harness.clock)
    assert harness.report.cut_bytes > 0
    assert harness.fetch("t", 0) == kept
    assert not disk.exists(SPARE)
    values = [record.value for record in kept]
    while harness.broker.wrote_pos < SIZE + 8 * KIB:
        values.append(rng.randbytes(2_900))
        assert harness.produce("t", 0, [Record(values[-1])]).error == 0
    rest = disk.open(LOG / segment_name(SIZE)).pread(SIZE, harness.broker.wrote_pos - SIZE)
    assert not any(rest), "something is left of before the cut"
    harness = harness.crash("kept", rng)
    assert harness.values() == values
    assert harness.report.cut_bytes == 0


def test_a_spare_is_used_again_on_the_real_file_system(tmp_path: Path) -> None:
    """Zeros are written over what was written, the rest of the file stays as it was reserved."""
    fs = OsFileSystem()
    job = SpareJob(fs, tmp_path, 0, SIZE, is_prewritten=False)
    job.run()
    segment = job.take()
    segment.file.pwritev([b"x" * 5_000], 8 * KIB)
    segment.file.fdatasync()
    inode = segment.file.path.stat().st_ino
    put_aside(fs, segment, SIZE)
    job = SpareJob(fs, tmp_path, 7 * SIZE, SIZE, is_prewritten=False)
    job.run()
    again = job.take()
    assert (again.base, again.size, again.file.path.name) == (
        7 * SIZE,
        SIZE,
        segment_name(7 * SIZE),
    )
    assert again.file.path.stat().st_ino == inode
    assert again.file.pread(SIZE, 0) == bytes(SIZE)
    assert fs.list_dir(tmp_path) == [segment_name(7 * SIZE)]
    again.file.close()


def test_a_hard_link_keeps_a_segment_from_being_used_again(tmp_path: Path) -> None:
    fs = OsFileSystem()
    job = SpareJob(fs, tmp_path, 0, SIZE, is_prewritten=False)
    job.run()
    segment = job.take()
    (tmp_path / "backup").hardlink_to(segment.file.path)
    put_aside(fs, Segment(0, SIZE, segment.file), SIZE)
    assert fs.list_dir(tmp_path) == ["backup"]


def test_a_disk_that_fails_while_zeros_are_written_fails_the_job() -> None:
    disk = SimFileSystem()
    disk.make_dirs(LOG)
    file = disk.open(SPARE, create=True)
    file.allocate(SIZE)
    file.pwritev([b"old"], 0)
    disk.fail_at(disk.calls + 2, OSError(errno.EIO, "broken"), sticky=True)
    job = SpareJob(disk, LOG, 0, SIZE)
    job.run()
    with pytest.raises(Exception, match="pwritev"):
        job.take()
    disk.heal()
    assert disk.list_dir(LOG) == [SPARE_NAME]


def freed(fs: OsFileSystem, directory: Path) -> FreedSegment:
    """A segment with bytes, as the log forgets it."""
    job = SpareJob(fs, directory, 0, SIZE, is_prewritten=False)
    job.run()
    segment = job.take()
    segment.file.pwritev([b"old" * 10_000], 0)
    segment.file.fdatasync()
    return FreedSegment.of(segment)


def test_a_freed_segment_becomes_the_next_one_as_it_is(tmp_path: Path) -> None:
    fs = OsFileSystem()
    segment = freed(fs, tmp_path)
    inode = segment.path.stat().st_ino
    assert segment.remove(fs, SIZE)
    assert fs.list_dir(tmp_path) == [SPARE_NAME]
    job = SpareJob(fs, tmp_path, 7 * SIZE, SIZE, keeps_old=True)
    job.run()
    job.prewrite()
    again = job.take()
    assert again.file.path.stat().st_ino == inode
    assert again.may_hold_old
    assert again.file.pread(30_000, 0) == b"old" * 10_000


def test_a_freed_segment_takes_the_place_of_a_new_one(tmp_path: Path) -> None:
    fs = OsFileSystem()
    segment = freed(fs, tmp_path)
    new = SpareJob(fs, tmp_path, 7 * SIZE, SIZE, is_prewritten=False)
    new.run()
    assert new.is_new
    inode = segment.path.stat().st_ino
    assert segment.remove(fs, SIZE)
    job = SpareJob(fs, tmp_path, 7 * SIZE, SIZE, keeps_old=True, replaced=new.segment().file)
    job.run()
    assert fs.list_dir(tmp_path) == [segment_name(7 * SIZE)]
    assert job.take().file.path.stat().st_ino == inode
    with pytest.raises(StorageError, match="Bad file descriptor"):
        new.segment().file.size()


def test_a_freed_segment_with_a_second_name_is_removed(tmp_path: Path) -> None:
    fs = OsFileSystem()
    segment = freed(fs, tmp_path)
    (tmp_path / "backup").hardlink_to(segment.path)
    assert not segment.remove(fs, SIZE)
    assert fs.list_dir(tmp_path) == ["backup"]


@pytest.mark.parametrize("by", ["a read", "a slice of a map"])
def test_a_freed_segment_in_use_is_removed(by: str, tmp_path: Path) -> None:
    fs = OsFileSystem()
    job = SpareJob(fs, tmp_path, 0, SIZE, is_prewritten=False)
    job.run()
    file = job.take().file
    file.pwritev([b"old" * 10_000], 0)
    window = file.lock_hot(3_000, 6_000)
    if not window:
        pytest.skip("no memory may be locked here")
    used = file if by == "a read" else window[10:20]
    segment = FreedSegment(file.path, SIZE, weakref.ref(file))
    del window, file, job
    assert not segment.remove(fs, SIZE)
    assert fs.list_dir(tmp_path) == []
    assert used is not None
    del used
    assert segment.file() is None


def test_zeros_go_to_the_end_of_a_page_and_never_beyond_the_segment(tmp_path: Path) -> None:
    segment = Segment(SIZE, SIZE, OsFileSystem().open(tmp_path / "file", create=True))
    for offset in (160, 4_072, 4_080, 4_088, 4_096, SIZE - 168, SIZE - 160, SIZE):
        zeros = segment.zeros_after(SIZE + offset)
        end = offset + len(zeros)
        assert not any(zeros)
        assert end == SIZE or (len(zeros) >= 16 and end % 4_096 == 0)
        assert len(zeros) <= 4_111
