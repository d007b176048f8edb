"""The watermark in the checkpoint, and the zeros written to a segment before it is used."""

import errno
import random
from collections.abc import Iterator
from typing import Final, get_args

import pytest

from appliance.errors import StorageError
from appliance.store.checkpoint import COPY_SIZE, Checkpoint, CheckpointFile, decode, encode
from appliance.store.log.commit_log import WATERMARK_STEP_BYTES
from appliance.store.log.segment import SpareJob
from appliance.units import KIB
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.checkpoints import checkpoint_file_on
from tests.support.harness.configs import DATA_DIR, small_config
from tests.support.harness.small_files import small_watermark
from tests.support.simulator.sim_fs import CrashMode, SimFileSystem
from tests.support.values.kafka_records import Record

CHECKPOINT: Final = DATA_DIR / "checkpoint"
SEGMENT_SIZE_BYTES: Final = 64 * KIB
BODY_SIZE: Final = len(encode(Checkpoint(1, 2, 3)))


def checkpoint_of(disk: SimFileSystem) -> Checkpoint | None:
    """What a start would read."""
    return checkpoint_file_on(disk).last


def prewriting_harness() -> BrokerHarness:
    return with_topic(config=small_config(prewrite_segments=True))


@pytest.fixture
def small_steps() -> Iterator[None]:
    with small_watermark():
        yield


def new_file() -> tuple[SimFileSystem, CheckpointFile]:
    disk = SimFileSystem()
    disk.make_dirs(DATA_DIR)
    file = CheckpointFile(disk, CHECKPOINT)
    file.open()
    file.ensure()
    return disk, file


def fill(harness: BrokerHarness, count: int, size: int = 3000) -> list[bytes]:
    """Produce batches of one record, with the pump's background work between them."""
    values = []
    for number in range(count):
        values.append(b"%d" % number * (size // len(b"%d" % number)))
        harness.produce("t", 0, [Record(values[-1])])
        if number % 3 == 0:
            harness.housekeep()
    return values


@pytest.mark.parametrize("at", range(BODY_SIZE))
def test_a_copy_with_a_flipped_bit_is_none(at: int) -> None:
    copy = bytearray(encode(Checkpoint(7, 100, 200)))
    assert decode(bytes(copy)) == Checkpoint(7, 100, 200)
    copy[at] ^= 0x10
    assert decode(bytes(copy)) is None
    assert decode(encode(Checkpoint(7, 100, 200))[:at]) is None


def test_the_newer_whole_copy_counts() -> None:
    disk, file = new_file()
    assert checkpoint_of(disk) is None
    for flushed in range(1, 6):
        file.write(flushed, flushed + 10)
        assert checkpoint_of(disk) == Checkpoint(flushed, flushed, flushed + 10)
    disk.flip(CHECKPOINT, 5 % 2 * COPY_SIZE + 20, 1)
    assert checkpoint_of(disk) == Checkpoint(4, 4, 14)
    disk.flip(CHECKPOINT, 4 % 2 * COPY_SIZE + 20, 1)
    assert checkpoint_of(disk) is None


def test_a_watermark_is_lowered_by_a_clean_stop_alone() -> None:
    disk, file = new_file()
    file.write(10, 1000)
    file.write(20, 500)
    assert file.last == Checkpoint(2, 20, 1000)
    file.end(30)
    assert checkpoint_of(disk) == Checkpoint(3, 30, 30)


def test_a_flushed_position_is_never_taken_back() -> None:
    disk, file = new_file()
    file.write(20, 1000)
    file.note_flushed(10)
    assert checkpoint_of(disk) == Checkpoint(2, 20, 1000)


@pytest.mark.parametrize("what", ["half of it", "nothing", "all but the sync"])
def test_a_write_that_fails_again_and_again_leaves_the_copy_before_it(what: str) -> None:
    disk, file = new_file()
    file.write(1, 10)
    for sequence in range(2, 6):
        good = file.last
        assert good is not None
        known = {good.flushed}
        for attempt in range(3):
            error = OSError(errno.EIO, "injected")
            skipped = what == "all but the sync"
            disk.fail_at(disk.calls + 1 + skipped, error, short_write=what == "half of it")
            with pytest.raises(StorageError):
                file.write(100 * sequence + attempt, 1000)
            disk.heal()
            assert file.last == good
            known.add(100 * sequence + attempt)
            for mode in get_args(CrashMode):
                saved = checkpoint_of(disk.crashed(mode, random.Random(attempt)))
                assert saved is not None, (sequence, attempt, mode)
                assert saved.flushed in known
        file.write(1000 * sequence, 10_000)
        saved = checkpoint_of(disk)
        assert saved is not None
        assert (saved.sequence, saved.flushed) == (sequence, 1000 * sequence)


def test_the_log_is_never_written_after_what_the_disk_has_of_its_watermark() -> None:
    harness = prewriting_harness()
    for number in range(40):
        harness.produce("t", 0, [Record(b"%d" % number * 1000)])
        for mode in get_args(CrashMode):
            saved = checkpoint_of(harness.disk.crashed(mode, random.Random(number)))
            assert saved is not None
            assert harness.broker.wrote_pos <= saved.watermark
            assert saved.watermark <= harness.broker.wrote_pos + WATERMARK_STEP_BYTES


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("is_early", [True, False])
def test_a_raise_of_the_watermark_counts_once_the_disk_has_it(is_early: bool) -> None:
    harness = prewriting_harness()
    log = harness.broker.log
    raising = None
    while raising is None:
        harness.produce("t", 0, [Record(bytes(1000))])
        raising = log.begin_raise()
    before = log.watermark.pos
    if is_early:
        raising.run()
        log.watermark.end_raise(raising)
        assert log.watermark.pos == raising.watermark > before
    for number in range(40):
        harness.produce("t", 0, [Record(bytes(1000))])
        for mode in get_args(CrashMode):
            saved = checkpoint_of(harness.disk.crashed(mode, random.Random(number)))
            assert saved is not None
            assert harness.broker.wrote_pos <= saved.watermark
    assert log.watermark.pos > raising.watermark, "the log went beyond both"
    after = log.watermark.pos
    if not is_early:  # the thread was so slow that the loop did it
        raising.run()
        log.watermark.end_raise(raising)
    saved = checkpoint_of(harness.disk)
    assert saved is not None
    assert log.watermark.pos == saved.watermark == after


def test_a_clean_stop_says_where_the_log_ends() -> None:
    harness = prewriting_harness()
    fill(harness, 5)
    harness.broker.close()
    end = harness.broker.flushed_pos
    saved = checkpoint_of(harness.disk)
    assert saved is not None
    assert (saved.flushed, saved.watermark) == (end, end)


@pytest.mark.parametrize("mode", get_args(CrashMode))
@pytest.mark.parametrize("count", [0, 1, 15, 40, 70])
def test_records_in_prewritten_segments_survive(count: int, mode: CrashMode) -> None:
    harness = prewriting_harness()
    sent = fill(harness, count)
    harness.housekeep()
    started = harness.crash(mode, random.Random(count))
    assert started.values() == sent
    assert started.report.damage == ()
    assert started.report.cut_bytes == 0
    sent += fill(started, 30)
    assert started.values() == sent
    assert started.restart().values() == sent


def test_a_torn_frame_in_a_prewritten_segment_is_cut() -> None:
    harness = prewriting_harness()
    sent = fill(harness, 30)
    end = harness.broker.wrote_pos
    base = end - end % SEGMENT_SIZE_BYTES
    harness.produce("t", 0, [Record(b"torn" * 500)])
    disk = harness.disk.crashed("kept", random.Random(0))
    disk.flip(DATA_DIR / "commitlog" / f"{base:020d}", end - base + 300, 1)
    started = BrokerHarness(disk, harness.clock, harness.config)
    assert started.values() == sent
    assert started.report.cut_bytes > 0


@pytest.mark.parametrize("harm", ["missing", "one copy", "both copies"])
def test_a_start_can_do_without_a_checkpoint(harm: str) -> None:
    harness = prewriting_harness()
    sent = fill(harness, 40)
    disk = harness.disk.crashed("kept", random.Random(0))
    if harm == "missing":
        disk.unlink(CHECKPOINT)
    else:
        newest = checkpoint_of(disk)
        assert newest is not None
        disk.flip(CHECKPOINT, newest.sequence % 2 * COPY_SIZE + 9, 1)
        if harm == "both copies":
            disk.flip(CHECKPOINT, (newest.sequence + 1) % 2 * COPY_SIZE + 9, 1)
    started = BrokerHarness(disk, harness.clock, harness.config)
    assert started.values() == sent
    assert started.report.damage == ()


def test_a_watermark_of_another_log_hides_nothing() -> None:
    """As when the log of one machine was copied, and the checkpoint of another."""
    harness = prewriting_harness()
    sent = fill(harness, 40)
    disk = harness.disk.crashed("kept", random.Random(0))
    file = CheckpointFile(disk, CHECKPOINT)
    file.open()
    file.end(500)
    file.close()
    started = BrokerHarness(disk, harness.clock, harness.config)
    assert started.values() == sent


def spare(disk: SimFileSystem) -> SpareJob:
    disk.make_dirs(DATA_DIR)
    return SpareJob(disk, DATA_DIR, 0, SEGMENT_SIZE_BYTES)


def test_a_spare_is_made_of_zeros_that_were_written() -> None:
    disk = SimFileSystem()
    job = spare(disk)
    job.run()
    segment = job.segment()
    assert segment.file.next_data(0) is None
    job.prewrite()
    assert segment.file.next_data(0) == 0
    assert segment.file.pread(SEGMENT_SIZE_BYTES, 0) == bytes(SEGMENT_SIZE_BYTES)
    assert job.take() is segment


def test_nothing_but_the_log_writes_into_a_segment_that_is_taken() -> None:
    disk = SimFileSystem()
    job = spare(disk)
    job.run()
    segment = job.take()
    segment.file.pwritev([b"frame"], 0)
    job.prewrite()
    assert segment.file.pread(5, 0) == b"frame"
    assert segment.file.next_data(4096) is None


def test_zeros_are_written_only_on_request() -> None:
    harness = with_topic(config=small_config())
    while len(harness.segment_paths()) < 2:
        fill(harness, 1)
    assert harness.disk.open(harness.segment_paths()[-1]).next_data(0) is None
