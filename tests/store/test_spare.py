"""The file that will be the next segment: used again after a stop, where that is safe."""

import errno
import random
from pathlib import Path

import pytest

from appliance.fs import OsFileSystem
from appliance.store.paths import SPARE_NAME, segment_name
from appliance.store.segment import Segment, SpareJob, put_aside
from appliance.units import KIB
from tests.support.broker_rig import BrokerRig
from tests.support.configs import DATA_DIR
from tests.support.kafka_records import Record
from tests.support.sim_fs import Fault, SimFileSystem

LOG = DATA_DIR / "commitlog"
SPARE = LOG / SPARE_NAME
SIZE = 64 * KIB


class NotedDisk(SimFileSystem):
    """Notes the calls that make, rename or remove files."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[str, str]] = []

    def reach(self, operation: str, path: Path, detail: str = "") -> Fault | None:
        if operation in ("posix_fallocate", "rename", "unlink") and path.parent == LOG:
            self.noted.append((operation, path.name))
        return super().reach(operation, path, detail)


def fill(rig: BrokerRig, segments: int) -> None:
    """Produce until there are so many segments, the last one more than half full."""
    rng = random.Random(segments)
    start = rig.broker.wrote_pos
    while rig.broker.wrote_pos < max(start, (segments - 1) * SIZE) + SIZE * 3 // 4:
        assert rig.produce("t", 0, [Record(rng.randbytes(3_000))]).error == 0
        rig.housekeep()


@pytest.fixture
def stopped() -> BrokerRig:
    """A broker that stopped cleanly when its next segment had just been made."""
    rig = BrokerRig(NotedDisk())
    rig.create_topic("t")
    fill(rig, 1)
    assert [path.name for path in rig.segment_paths()] == [segment_name(0), segment_name(SIZE)]
    rig.broker.close()
    return rig


def start(rig: BrokerRig) -> BrokerRig:
    """A broker on the disk of one that stopped."""
    assert isinstance(rig.disk, NotedDisk)
    rig.disk.noted.clear()
    return BrokerRig(rig.disk, rig.clock)


def test_the_spare_that_a_clean_stop_leaves_is_the_next_segment(stopped: BrokerRig) -> None:
    rig = start(stopped)
    before = rig.fetch("t", 0)
    while len(rig.segment_paths()) < 2:
        rig.housekeep()
    disk = rig.disk
    assert isinstance(disk, NotedDisk)
    assert disk.noted == [("rename", segment_name(SIZE)), ("rename", SPARE_NAME)]
    fill(rig, 2)
    assert rig.restart().fetch("t", 0)[: len(before)] == before


def test_a_roll_needs_no_room_on_the_disk_while_there_is_a_spare(stopped: BrokerRig) -> None:
    rig = start(stopped)
    rig.disk.free = 0
    count = 0
    while rig.produce("t", 0, [Record(bytes(3_000))]).error == 0:
        count += 1
    assert rig.broker.wrote_pos > 3 * SIZE // 2, "it went on into the spare"
    assert len(rig.segment_paths()) == 2
    rig.disk.free = 1 << 30
    rig.clock.advance_ms(1_000)
    assert rig.produce("t", 0, [Record(b"room again")]).error == 0


def test_a_spare_of_which_there_is_another_name_is_left_alone(stopped: BrokerRig) -> None:
    """A hard link of a backup: it must not change."""
    node = stopped.disk._node(LOG / segment_name(SIZE))
    node.link_count = 2
    before = bytes(node.content.data)
    rig = start(stopped)
    fill(rig, 2)
    assert bytes(node.content.data) == before
    assert rig.disk._node(LOG / segment_name(SIZE)) is not node


def test_a_spare_of_another_size_is_removed(stopped: BrokerRig) -> None:
    stopped.disk.open(LOG / segment_name(SIZE)).truncate(SIZE - 4 * KIB)
    rig = start(stopped)
    assert not rig.disk.exists(SPARE)
    assert [path.name for path in rig.segment_paths()] == [segment_name(0)]
    rig.disk.open(SPARE, create=True).allocate(SIZE + 4 * KIB)
    fill(rig, 2)
    assert not rig.disk.exists(SPARE)


def test_a_spare_is_left_over_at_most_once(stopped: BrokerRig) -> None:
    """What a cut leaves over may be several segments."""
    for base in (2 * SIZE, 3 * SIZE):
        stopped.disk.open(LOG / segment_name(base), create=True).allocate(SIZE)
    rig = start(stopped)
    assert sorted(rig.disk.list_dir(LOG)) == [segment_name(0), SPARE_NAME]


def test_frames_that_a_cut_left_over_are_not_there_when_the_file_is_used_again() -> None:
    """They would fit: the segment has the same base as before the cut."""
    rig = BrokerRig(NotedDisk())
    rig.create_topic("t")
    fill(rig, 1)
    kept = rig.fetch("t", 0)
    torn_at = rig.broker.wrote_pos
    rng = random.Random(1)
    while rig.broker.wrote_pos < 2 * SIZE - 8 * KIB:
        rig.send_produce("t", 0, [Record(rng.randbytes(3_000))])
    # A roll flushes nothing: all after `torn_at` may be lost, and here the first frame of it is.
    disk = rig.disk.crashed("kept", rng)
    assert isinstance(disk, NotedDisk)
    disk.open(LOG / segment_name(0)).pwritev([bytes(64)], torn_at)
    rig = BrokerRig(disk, rig.clock)
    assert rig.report.cut_bytes > 0
    assert rig.fetch("t", 0) == kept
    assert disk.open(SPARE).next_data(0) is not None, "it holds frames of before the cut"
    values = [record.value for record in kept]
    while rig.broker.wrote_pos < SIZE + 8 * KIB:
        values.append(rng.randbytes(2_900))
        assert rig.produce("t", 0, [Record(values[-1])]).error == 0
    assert not disk.exists(SPARE)
    rest = disk.open(LOG / segment_name(SIZE)).pread(SIZE, rig.broker.wrote_pos - SIZE)
    assert not any(rest), "something is left of before the cut"
    rig = rig.crash("kept", rng)
    assert [record.value for record in rig.fetch("t", 0)] == values
    assert rig.report.cut_bytes == 0


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
