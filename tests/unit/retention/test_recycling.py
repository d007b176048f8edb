"""The file of a freed segment becomes a later segment, and its old bytes are never seen again."""

import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, get_args

import pytest

from appliance.errors import StorageError
from appliance.store.paths import SPARE_NAME
from appliance.units import MS_PER_HOUR, MS_PER_MINUTE
from tests.support.harness import offline_scenario
from tests.support.harness.backups import BACKUP, back_up_live, restore, start_on
from tests.support.harness.broker_harness import BrokerHarness, Stop
from tests.support.harness.checkpoints import PATHS, rebuild, take_checkpoint
from tests.support.harness.configs import small_config
from tests.support.harness.crash_points import CrashPoints, ignore_call
from tests.support.harness.tables import planned, rows_of
from tests.support.simulator.sim_fs import CrashMode, SimFileSystem
from tests.support.values.kafka_records import Record
from tests.unit.retention.test_freeing import KEEP_MS, SEGMENT, bases_on, start_pos

CHECK_MS: Final = 2 * MS_PER_MINUTE
SPARE: Final = PATHS.commit_log / SPARE_NAME
STOPS: Final[tuple[Stop, ...]] = ("clean", *get_args(CrashMode))


def broker(disk: SimFileSystem | None = None, **settings: Any) -> BrokerHarness:
    """A broker that keeps records for an hour."""
    harness = BrokerHarness(disk, config=small_config(retention_time_ms=KEEP_MS, **settings))
    harness.create_topic("t")
    return harness


def start_offset(harness: BrokerHarness) -> int:
    return harness.partition().start_offset


class Writer:
    """Sends records of random sizes, and knows what must be there."""

    def __init__(self, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        self.values: list[bytes] = []

    def send(self, harness: BrokerHarness) -> None:
        value = b"%d-" % len(self.values) + self.rng.randbytes(self.rng.randrange(20, 6_000))
        assert harness.produce("t", 0, [Record(value)]).error == 0
        self.values.append(value)

    def fill(self, harness: BrokerHarness, segments: float) -> None:
        target = harness.broker.wrote_pos + int(segments * SEGMENT)
        while harness.broker.wrote_pos < target:
            self.send(harness)
            harness.housekeep()

    def check(self, harness: BrokerHarness) -> None:
        """All that has not expired is served, and nothing else."""
        partition = harness.partition()
        found = harness.fetch("t", 0, partition.start_offset)
        assert [each.value for each in found] == self.values[partition.start_offset :]
        assert partition.next_offset == len(self.values)
        assert harness.report.damage == ()


def expire(harness: BrokerHarness) -> None:
    """Let all records expire, without freeing anything yet."""
    for _ in range((KEEP_MS + MS_PER_HOUR // 2) // CHECK_MS):
        harness.clock.advance_ms(CHECK_MS)
        harness.expire()
        harness.flush()
    take_checkpoint(harness)


def free(harness: BrokerHarness) -> None:
    for _ in range(2):
        harness.free_head()
        harness.flush()


def ready(disk: SimFileSystem | None = None, **settings: Any) -> tuple[BrokerHarness, Writer]:
    """A broker whose first segments can be freed, early in its last one."""
    harness, writer = broker(disk, **settings), Writer()
    writer.fill(harness, 2.3)
    expire(harness)
    return harness, writer


def node_of(harness: BrokerHarness, path: Path) -> object:
    return harness.disk._node(path)


def in_recycled(disk: SimFileSystem | None = None) -> tuple[BrokerHarness, Writer]:
    """A broker that writes to a recycled segment."""
    harness, writer = ready(disk)
    old = node_of(harness, harness.segment_paths()[0])
    free(harness)
    writer.fill(harness, 0.9)
    assert node_of(harness, harness.segment_paths()[-1]) is old
    return harness, writer


def test_the_file_of_a_freed_segment_becomes_the_next_one() -> None:
    harness, writer = ready()
    first = harness.segment_paths()[0]
    old = node_of(harness, first)
    free(harness)
    assert not harness.disk.exists(first)
    assert harness.broker.collect_metrics().recycled_segments == 1
    harness.housekeep()
    assert not harness.disk.exists(SPARE)
    assert node_of(harness, harness.segment_paths()[-1]) is old
    writer.fill(harness, 1)
    assert harness.segment_paths()[-1].name == f"{harness.broker.log.files.bases[-1]:020d}"
    writer.check(harness)


def test_a_new_segment_that_is_not_needed_yet_gives_way() -> None:
    """So at most one file is ahead of the log."""
    harness, writer = ready()
    job = None
    while job is None:
        writer.send(harness)
        job = harness.broker.log.begin_spare()
    job.run()
    following = harness.segment_paths()[-1]
    assert int(following.name) > harness.broker.wrote_pos
    old = node_of(harness, harness.segment_paths()[0])
    free(harness)
    harness.housekeep()
    assert node_of(harness, following) is old
    assert harness.segment_paths()[-1] == following
    assert harness.broker.log.size_bytes == len(harness.segment_paths()) * SEGMENT
    writer.fill(harness, 1)
    writer.check(harness)


@pytest.mark.parametrize("end", STOPS)
def test_a_recycled_segment_survives_any_end(end: Stop) -> None:
    harness, writer = in_recycled()
    harness = harness.reborn(end)
    assert harness.report.cut_bytes == 0
    assert harness.report.is_clean == (end == "clean")
    assert not harness.disk.exists(PATHS.lost)
    writer.check(harness)
    writer.fill(harness, 1.5)
    writer.check(harness)
    writer.check(rebuild(harness, harness.disk.crashed("kept", random.Random(0))))


def test_what_is_not_flushed_in_a_recycled_segment_is_lost_and_nothing_comes_back() -> None:
    harness, writer = in_recycled()
    rng = random.Random(5)
    disk = harness.disk
    for mode in get_args(CrashMode):
        for _ in range(6):
            other = BrokerHarness(disk.crashed("kept", rng), harness.clock, harness.config)
            for _ in range(rng.randrange(1, 5)):
                other.send_produce("t", 0, [Record(rng.randbytes(rng.randrange(20, 6_000)))])
                other.broker.commit()
            started = other.crash(mode, rng)
            found = [each.value for each in started.fetch("t", 0, start_offset(started))]
            kept = writer.values[start_offset(started) :]
            assert found[: len(kept)] == kept
            assert started.report.damage == ()


@pytest.mark.parametrize("mode", get_args(CrashMode))
def test_a_crash_at_any_call_of_recycling_costs_nothing(mode: CrashMode) -> None:
    disk = CrashPoints()
    harness, writer = ready(disk)
    rng = random.Random(11)
    places: set[tuple[bool, int]] = set()

    def observe() -> None:
        observer, disk.observer = disk.observer, ignore_call
        left = disk.crashed(mode, rng)
        places.add((left.exists(SPARE), len(bases_on(left))))
        started = BrokerHarness(left, harness.clock, harness.config)
        assert not started.disk.exists(SPARE)
        found = [each.value for each in started.fetch("t", 0, start_offset(started))]
        known = writer.values[start_offset(started) :]
        # What was sent last may be there, if it is not acknowledged yet.
        assert found[: len(known)] == known
        assert len(found) - len(known) <= 1
        assert started.report.damage == ()
        assert bases_on(started.disk)[0] == start_pos(started)
        disk.observer = observer

    disk.observer = observe
    free(harness)
    for _ in range(30):
        harness.housekeep()
        writer.send(harness)
    disk.observer = ignore_call
    assert harness.broker.log.recycled_count == 1
    assert len(places) > 3
    writer.check(harness)


@pytest.mark.parametrize("seed", range(4))
def test_old_bytes_stay_away_through_lives_of_any_kind(seed: int) -> None:
    harness, writer = broker(), Writer(seed)
    rng = random.Random(seed)
    recycled = 0
    for _ in range(8):
        writer.fill(harness, rng.uniform(0.5, 3))
        expire(harness)
        free(harness)
        writer.fill(harness, rng.uniform(0.1, 2))
        recycled += harness.broker.log.recycled_count
        harness = harness.reborn(rng.choice(STOPS), rng.randrange(1 << 30))
        writer.check(harness)
        assert harness.report.cut_bytes == 0
        writer.check(rebuild(harness, harness.disk.crashed("kept", rng)))
    assert recycled > 3


def test_checks_find_nothing_in_a_recycled_segment() -> None:
    harness, writer = in_recycled()
    crashed = harness.disk.crashed("kept", random.Random(1))
    harness.broker.close()
    for disk in (crashed, harness.disk):
        found = offline_scenario.check(disk)
        assert found.faults == []
        assert not [note for note in found.notes if "torn" in note.text]
        assert planned(disk).damage == []
    values = [row["value"] for row in rows_of(harness.disk, "messages")]
    assert values == writer.values[start_offset(harness) :]
    writer.check(harness.reborn("kept"))


def test_backups_and_snapshots_of_a_recycled_segment_have_what_was_flushed() -> None:
    harness, writer = in_recycled()
    known = list(writer.values)
    snapshot = harness.broker.snapshots.create(harness.broker.snapshots.freeze(), "one")
    made = back_up_live(harness)
    assert (made.end, made.faults) == (harness.broker.flushed_pos, 0)
    writer.fill(harness, 0.3)
    checked = offline_scenario.check(harness.disk, Path(snapshot.path))
    assert checked.faults == []
    restore(harness)
    other = start_on(harness)
    found = [each.value for each in other.fetch("t", 0, start_offset(other))]
    assert found == known[start_offset(other) :]
    assert other.report.damage == ()
    assert offline_scenario.check(harness.disk, BACKUP).faults == []


@pytest.mark.parametrize("following", [0, 2])
def test_a_torn_frame_in_a_recycled_segment_is_set_aside(following: int) -> None:
    harness, writer = in_recycled()
    end = harness.broker.wrote_pos
    for _ in range(1 + following):
        harness.send_produce("t", 0, [Record(b"torn" * 500)])
        harness.broker.commit()
    written = harness.broker.wrote_pos - end
    disk = harness.disk.crashed("kept", random.Random(0))
    path, offset = harness.broker.log.path_of(end)
    disk.flip(path, offset + 300, 1)
    started = BrokerHarness(disk, harness.clock, harness.config)
    # An old frame is written over in part; its rest counts if a write is torn.
    rest = 0 if following else 7_000
    assert written - 8 <= started.report.cut_bytes <= written + rest
    (name,) = disk.list_dir(PATHS.lost)
    assert len(disk.files()[PATHS.lost / name]) <= written + rest
    writer.check(started)


# What is not recycled


def not_recycled(harness: BrokerHarness, writer: Writer) -> None:
    """Free, and check that the files are gone."""
    old = [node_of(harness, path) for path in harness.segment_paths()[:2]]
    free(harness)
    assert start_pos(harness) > 0
    assert harness.broker.log.recycled_count == 0
    assert not harness.disk.exists(SPARE)
    writer.fill(harness, 1.5)
    paths = [path for path in harness.segment_paths() if path.parent == PATHS.commit_log]
    assert not [path for path in paths if node_of(harness, path) in old]
    writer.check(harness)


@pytest.mark.parametrize(
    "settings", [{"flush": "async"}, {"recycle_segments": False}], ids=["async", "switched off"]
)
def test_only_sync_flush_recycles_and_only_if_it_may(settings: dict[str, Any]) -> None:
    not_recycled(*ready(**settings))


def test_a_segment_of_a_snapshot_is_not_recycled() -> None:
    harness, writer = ready()
    part = harness.broker.snapshots.freeze()
    harness.broker.snapshots.create(part, "whole")
    path = PATHS.snapshots / "whole" / "commitlog" / harness.segment_paths()[0].name
    before = harness.disk.files()[path]
    not_recycled(harness, writer)
    assert harness.disk.files()[path] == before


def test_a_segment_whose_bytes_a_socket_still_holds_is_not_recycled() -> None:
    harness, writer = ready()
    held = [harness.broker.log.lock_hot(base, 4_096) for base in harness.broker.log.files.bases[:2]]
    harness.broker.log.view.clear()
    not_recycled(harness, writer)
    assert all(held)


def test_a_segment_that_a_thread_still_reads_is_not_recycled() -> None:
    harness, writer = ready()
    reading = [harness.broker.log._segment_at(base) for base in (0, SEGMENT)]
    not_recycled(harness, writer)
    assert reading[0].file.pread(4, 0)


def is_short(harness: BrokerHarness) -> None:
    harness.disk.free = SEGMENT // 2
    harness.clock.advance_ms(1_000)
    harness.broker.disk_space.check()


def is_refusing(harness: BrokerHarness) -> None:
    harness.disk.free = harness.disk.size_bytes // 20
    harness.clock.advance_ms(1_000)
    harness.broker.disk_space.check()
    assert harness.broker.log.tail.is_refusing


@pytest.mark.parametrize("make_short", [is_short, is_refusing])
def test_space_comes_first(make_short: Callable[[BrokerHarness], None]) -> None:
    harness, _ = ready()
    make_short(harness)
    free_bytes = harness.disk.free
    count = len(bases_on(harness.disk))
    free(harness)
    left = len(bases_on(harness.disk))
    assert left < count
    assert harness.broker.log.recycled_count == 0
    assert harness.disk.free >= free_bytes + (count - left) * SEGMENT - 64 * 1024


def test_async_flush_goes_on_in_a_segment_with_old_bytes() -> None:
    harness, writer = in_recycled()
    harness.broker.close()
    config = small_config(retention_time_ms=KEEP_MS, flush="async")
    for _ in range(2):
        harness = BrokerHarness(harness.disk, harness.clock, config)
        assert harness.report.is_clean
        writer.check(harness)
        writer.fill(harness, 0.1)
        harness.broker.close()
    harness = BrokerHarness(harness.disk, harness.clock, config)
    writer.fill(harness, 1)
    harness.flush()
    harness = harness.crash("killed", random.Random(3))
    assert harness.report.cut_bytes == 0
    writer.check(harness)


# Calls that fail


def go_on(harness: BrokerHarness, writer: Writer) -> None:
    """Free, take the file of the first segment for the next one, and continue in it."""
    free(harness)
    end = harness.broker.log.files.end_of_files
    while harness.broker.wrote_pos < end + 8_192:
        harness.housekeep()
        value = b"%d-" % len(writer.values) + writer.rng.randbytes(4_000)
        if harness.produce("t", 0, [Record(value)]).error:
            return
        writer.values.append(value)
    harness.flush()


def check_left(harness: BrokerHarness, disk: SimFileSystem, known: list[bytes]) -> None:
    """A start on a disk knows all that was acknowledged, and at most what was under way."""
    started = BrokerHarness(disk, harness.clock, harness.config)
    found = [each.value for each in started.fetch("t", 0, start_offset(started))]
    kept = known[start_offset(started) :]
    assert found[: len(kept)] == kept
    assert len(found) <= len(kept) + 1
    assert started.report.damage == ()
    assert bases_on(started.disk)[0] == start_pos(started)
    assert started.produce("t", 0, [Record(b"after")]).error == 0


@pytest.mark.parametrize("how", ["once", "for good"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_a_failing_call_of_recycling_costs_nothing(code: int, how: str) -> None:
    prepared, writer = ready()
    config, clock, known = prepared.config, prepared.clock, list(writer.values)
    left = prepared.disk.crashed("kept", random.Random(0))

    def play(number: int | None) -> tuple[BrokerHarness, Writer, str]:
        """Go on, with one call failing."""
        disk = left.crashed("kept", random.Random(0))
        harness, again = BrokerHarness(disk, clock, config), Writer(2)
        again.values = list(known)
        before = disk.calls
        if number is not None:
            error = OSError(code, "injected")
            disk.fail_at(before + number, error, sticky=how == "for good")
        try:
            go_on(harness, again)
        except StorageError:
            return harness, again, "fatal"
        finally:
            disk.heal()
        return harness, again, f"played, {disk.calls - before} calls"

    harness, _, end = play(None)
    assert harness.broker.log.recycled_count == 1
    ends = set()
    for number in range(1, int(end.split()[1]) + 1):
        harness, again, end = play(number)
        ends.add(end.split(",")[0])
        for mode in ("killed", "kept", "dropped", "pages"):
            check_left(harness, harness.disk.crashed(mode, random.Random(number)), again.values)
    assert ends == ({"fatal"} if how == "for good" else {"fatal", "played"})


def test_a_freed_file_that_is_taken_at_once_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that makes the next segment may find the spare before the other has checked it."""
    harness, writer = ready()
    log = harness.broker.log
    with monkeypatch.context() as patch:
        patch.setattr(log, "begin_spare", lambda: None)
        while log.tail.segment_end - log.pointers.wrote > 0.4 * SEGMENT:
            writer.send(harness)
        harness.flush()
    rename = SimFileSystem.rename
    taken: list[bool] = []

    def rename_and_take(disk: SimFileSystem, old: Path, new: Path) -> None:
        rename(disk, old, new)
        if new.name == SPARE_NAME and not taken:
            job = log.begin_spare()
            assert job is not None
            job.run()
            taken.append(job.segment().may_hold_old)

    monkeypatch.setattr(SimFileSystem, "rename", rename_and_take)
    free(harness)
    assert taken == [True]
    assert log.recycled_count == 1
    assert harness.broker.head_freer._left == []
    writer.fill(harness, 1.2)
    writer.check(harness)
