"""Backups: what they have, that they stay so, what is refused, and that damage to them is found."""

import errno
import random
from pathlib import Path

import pytest

from appliance.errors import BackupError, CorruptionError, LogRefusedError, StorageError
from appliance.offline import manifest
from appliance.store.log.segment import has_one_name
from appliance.store.paths import SPARE_NAME, DataPaths, segment_name
from tests.support.harness.backups import (
    BACKUP,
    SEGMENT,
    VERSION,
    back_up,
    back_up_live,
    bytes_under,
    fill,
    filled,
    links_of,
    open_backup,
    restore,
    start_on,
)
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.checkpoints import PATHS
from tests.support.harness.offline_scenario import check
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Record

LOG = DataPaths(BACKUP).commit_log


@pytest.fixture
def harness() -> BrokerHarness:
    return filled()


def log_of(disk: SimFileSystem, directory: Path, end: int) -> bytes:
    """The bytes of a log up to a position."""
    names = [name for name in disk.list_dir(directory) if name != SPARE_NAME]
    return b"".join(disk.files()[directory / name] for name in names)[:end]


def test_a_backup_has_the_log_as_it_was_whatever_follows(harness: BrokerHarness) -> None:
    end = harness.broker.flushed_pos
    log = log_of(harness.disk, PATHS.commit_log, end)
    made = back_up_live(harness)
    assert (made.start, made.end, made.faults, made.latermq) == (0, end, 0, VERSION)
    assert (made.cluster_id, made.epoch) == (harness.broker.cluster_id, harness.broker.epoch)
    assert made == manifest.read(harness.disk, BACKUP)
    assert log_of(harness.disk, LOG, end) == log
    before = bytes_under(harness.disk, BACKUP)
    fill(harness, 20)
    harness = harness.restart()
    fill(harness, 5)
    harness.send_produce("t", 0, [Record(b"x" * 3_000)])
    harness = harness.crash("torn", random.Random(1))
    fill(harness, 5)
    assert bytes_under(harness.disk, BACKUP) == before
    checked = check(harness.disk, BACKUP)
    assert checked.faults == []
    assert checked.report.is_backup
    assert checked.report.end == end


def test_full_segments_are_links_and_the_last_one_is_a_copy(harness: BrokerHarness) -> None:
    made = back_up_live(harness)
    assert links_of(harness.disk) == [2, 2, 1]
    assert [file.size for file in made.files[:3]] == [SEGMENT, SEGMENT, made.end - 2 * SEGMENT]
    assert [file.room for file in made.files[:3]] == [SEGMENT] * 3


def test_a_segment_above_the_published_position_is_a_copy() -> None:
    """A start that finds the log shorter would write into the file of a link."""
    harness = filled(10)
    for _ in range(30):
        harness.produce("t", 0, [Record(b"v" * 5_000)])
    harness.flush()
    back_up_live(harness)
    assert links_of(harness.disk) == [1] * len(links_of(harness.disk))


def test_a_file_with_a_second_name_may_not_be_overwritten(harness: BrokerHarness) -> None:
    first = PATHS.commit_log / segment_name(0)
    assert has_one_name(harness.disk.open(first))
    back_up_live(harness)
    assert not has_one_name(harness.disk.open(first))


def test_a_stopped_broker_is_backed_up(harness: BrokerHarness) -> None:
    values = harness.values()
    harness.broker.close()
    made = back_up(harness)
    assert made.faults == 0
    restore(harness)
    assert start_on(harness).values()[: len(values)] == values


def test_a_torn_tail_is_not_in_the_backup_of_a_broker_that_was_killed(
    harness: BrokerHarness,
) -> None:
    end = harness.broker.flushed_pos
    harness.send_produce("t", 0, [Record(b"x" * 3_000)])
    disk = harness.disk.crashed("kept", random.Random(0))
    disk.flip(PATHS.commit_log / segment_name(2 * SEGMENT), end - 2 * SEGMENT + 500, 1)
    harness.disk = disk
    before = bytes_under(disk, PATHS.root)
    assert back_up(harness).end == end
    assert bytes_under(disk, PATHS.root) == before
    assert check(disk, BACKUP).faults == []


def test_what_was_acknowledged_after_the_last_checkpoint_is_in_the_backup_of_a_killed_broker(
    harness: BrokerHarness,
) -> None:
    harness.produce("t", 0, [Record(b"last")])
    harness.disk = harness.disk.crashed("dropped", random.Random(0))
    assert back_up(harness).end == harness.broker.flushed_pos


def refuse_links(monkeypatch: pytest.MonkeyPatch, disk: SimFileSystem, code: int) -> None:
    """Let hard links below /backups fail, as to another file system."""
    record_call = disk.record_call

    def failing(operation: str, path: Path, detail: str = "") -> object:
        if operation == "link" and path.is_relative_to("/backups"):
            raise StorageError(path, operation, code, "refused")
        return record_call(operation, path, detail)

    monkeypatch.setattr(disk, "record_call", failing)


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_what_cannot_be_linked_is_copied(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_links(monkeypatch, harness.disk, code)
    made = back_up_live(harness)
    assert links_of(harness.disk) == [1, 1, 1]
    assert log_of(harness.disk, LOG, made.end) == log_of(harness.disk, PATHS.commit_log, made.end)


def test_on_request_everything_is_copied(harness: BrokerHarness) -> None:
    back_up_live(harness, may_link=False)
    assert links_of(harness.disk) == [1, 1, 1]


def test_a_second_backup_shares_what_an_earlier_one_has(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up_live(harness, may_link=False)
    fill(harness, 20)
    snapshots = harness.broker.snapshots
    held = Path(snapshots.create(snapshots.freeze(), "s").path)
    with monkeypatch.context() as patched:
        link = harness.disk.link

        def across(old: Path, new: Path) -> None:
            if not old.is_relative_to("/backups"):
                raise StorageError(new, "link", errno.EXDEV, "another disk")
            link(old, new)

        patched.setattr(harness.disk, "link", across)
        second = open_backup(harness, held, BACKUP.with_name("two"), base=BACKUP)
    assert links_of(harness.disk, BACKUP.with_name("two"))[:2] == [2, 2]
    assert second.linked_bytes == 2 * SEGMENT
    assert check(harness.disk, BACKUP.with_name("two")).faults == []


def test_a_base_with_other_bytes_is_not_shared(harness: BrokerHarness) -> None:
    """As of two logs that differ since one of them was restored, or of a disk that loses bytes."""
    back_up_live(harness, may_link=False)
    harness.disk.flip(LOG / segment_name(0), 5_000, 1)
    two = BACKUP.with_name("two")
    back_up_live(harness, two, base=BACKUP, may_link=False)
    assert links_of(harness.disk, two) == [1, 2, 1]
    assert check(harness.disk, two).faults == []


# What is refused


def test_a_backup_goes_into_a_new_directory_outside_of_the_data(harness: BrokerHarness) -> None:
    for inside in (PATHS.root, PATHS.root / "b", PATHS.root / "x" / ".." / "b"):
        with pytest.raises(BackupError, match="is inside /data"):
            back_up_live(harness, inside)
    back_up_live(harness)
    before = bytes_under(harness.disk, BACKUP)
    with pytest.raises(BackupError, match="is not empty, it has checkpoint"):
        back_up_live(harness)
    assert bytes_under(harness.disk, BACKUP) == before
    harness.disk.make_dirs(Path("/mount/lost+found"))
    back_up_live(harness, Path("/mount"))


def test_a_backup_that_did_not_end_is_named_as_such(harness: BrokerHarness) -> None:
    back_up_live(harness)
    harness.disk.unlink(BACKUP / "manifest")
    with pytest.raises(BackupError, match="a backup that did not end, which may be removed"):
        back_up_live(harness)
    with pytest.raises(BackupError, match="is not a complete backup"):
        restore(harness)


def test_no_broker_starts_on_a_backup(harness: BrokerHarness) -> None:
    back_up_live(harness)
    before = harness.disk.digest()
    with pytest.raises(LogRefusedError, match=r"this is a backup.*latermq restore"):
        start_on(harness, BACKUP)
    assert harness.disk.digest() == before


def test_a_full_disk_is_named_with_figures_and_leaves_nothing(harness: BrokerHarness) -> None:
    harness.disk.free = 2 * SEGMENT
    with pytest.raises(BackupError, match=r"/backups/one is full: .*, \d+ are free"):
        back_up_live(harness, may_link=False)
    assert not harness.disk.exists(BACKUP)
    harness.disk.free = 100 * SEGMENT
    back_up_live(harness)


def test_a_backup_that_is_given_up_leaves_nothing(harness: BrokerHarness) -> None:
    class GivenUp(BaseException):
        pass

    held = harness.broker.snapshots.create(harness.broker.snapshots.freeze(), "s")
    record_call, calls = harness.disk.record_call, 0

    def interrupting(operation: str, path: Path, detail: str = "") -> object:
        nonlocal calls
        calls += operation == "pwritev" and path.parent == LOG
        if calls == 1:
            calls += 1
            raise GivenUp
        return record_call(operation, path, detail)

    harness.disk.record_call = interrupting  # type: ignore[method-assign,assignment]
    with pytest.raises(GivenUp):
        open_backup(harness, Path(held.path))
    assert not harness.disk.exists(BACKUP)


# Damage


def test_a_damaged_log_is_backed_up_and_its_faults_are_counted(harness: BrokerHarness) -> None:
    harness.disk.flip(PATHS.commit_log / segment_name(SEGMENT), 6_000, 1)
    harness.disk.spoil(PATHS.commit_log / segment_name(2 * SEGMENT), 8_192, 4_096)
    made = back_up_live(harness)
    assert made.faults == 2
    assert len(check(harness.disk, BACKUP).faults) == 2


def test_a_copy_that_the_disk_does_not_hold_is_an_error(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_call = harness.disk.record_call

    def damaging(operation: str, path: Path, detail: str = "") -> object:
        if (operation, path) == ("fsync", LOG):
            harness.disk.flip(LOG / segment_name(2 * SEGMENT), 100, 1)
        return record_call(operation, path, detail)

    monkeypatch.setattr(harness.disk, "record_call", damaging)
    with pytest.raises(CorruptionError, match="as they were written"):
        back_up_live(harness)
    assert not harness.disk.exists(BACKUP)


def test_check_finds_any_damage_to_a_backup() -> None:
    made = filled(14)
    back_up_live(made, may_link=False)
    files = bytes_under(made.disk, BACKUP)
    assert len(files) == 5
    for path, content in files.items():
        if path.name == "snapshot":
            continue
        for at in (0, len(content) // 2, len(content) - 1):
            disk = made.disk.crashed("kept", random.Random(0))
            disk.flip(path, at, 1)
            assert check(disk, BACKUP).faults, f"{path} at {at}"
        disk = made.disk.crashed("kept", random.Random(0))
        disk.open(path).truncate(len(content) - 1)
        assert check(disk, BACKUP).faults, f"{path} cut"
        disk.unlink(path)
        assert check(disk, BACKUP).faults, f"{path} gone"
    made.disk.open(LOG / segment_name(9 * SEGMENT), create=True).pwritev([b"x"], 0)
    assert check(made.disk, BACKUP).faults


def test_a_manifest_names_nothing_outside_of_the_backup(harness: BrokerHarness) -> None:
    made = back_up_live(harness)
    for name in ("../x", "commitlog/../../x", "/etc/passwd", "commitlog/spare", "control/1"):
        forged = [manifest.BackupFile(name=name, size=1, crc32c=0, room=1)]
        fields = {each: getattr(made, each) for each in made.__slots__ if each != "files"}
        data = manifest.encode(manifest.Manifest(files=tuple(forged), **fields))
        with pytest.raises(CorruptionError, match="the name of a segment"):
            manifest.decode(BACKUP / "manifest", data)


def test_a_manifest_of_a_newer_format_is_refused(harness: BrokerHarness) -> None:
    made = back_up_live(harness)
    data = manifest.encode(made)
    line = data.partition(b"\n")[0].replace(b'"format": 1', b'"format": 2')
    newer = line + b'\n{"crc32c": %d}\n' % manifest.crc32c(line)
    with pytest.raises(BackupError, match="newer format"):
        manifest.decode(BACKUP / "manifest", newer)
