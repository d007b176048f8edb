"""What the simulated file system leaves after a crash, and how it fails on purpose."""

import errno
import random
from pathlib import Path

import pytest

from appliance.errors import StorageError
from appliance.system.files import IOV_COUNT_MAX, File, FileSystem
from appliance.units import PAGE_SIZE_BYTES
from tests.support.simulator.sim_fs import CrashMode, SimCrash, SimFileSystem

ROOT = Path("/data")
ROUNDS = 200


@pytest.fixture
def disk() -> SimFileSystem:
    disk = SimFileSystem()
    disk.make_dirs(ROOT)
    return disk


def put(disk: SimFileSystem, name: str, data: bytes) -> File:
    """Make a file of which everything is durable; return it, open."""
    file = disk.open(ROOT / name, create=True)
    file.pwritev([data], 0)
    file.fdatasync()
    disk.sync_dir(ROOT)
    return file


def found(disk: SimFileSystem, mode: CrashMode, seed: int = 0) -> dict[str, bytes]:
    files = disk.crashed(mode, random.Random(seed)).files()
    return {path.name: data for path, data in files.items()}


def found_torn(disk: SimFileSystem) -> list[dict[str, bytes]]:
    return [found(disk, "torn", seed) for seed in range(ROUNDS)]


def test_a_killed_process_loses_nothing_it_wrote(disk: SimFileSystem) -> None:
    put(disk, "a", b"old").pwritev([b"new"], 0)
    disk.open(ROOT / "b", create=True).pwritev([b"b"], 0)
    assert found(disk, "kept") == {"a": b"new", "b": b"b"}


def test_a_power_cut_loses_what_was_not_synced(disk: SimFileSystem) -> None:
    file = put(disk, "a", b"old")
    file.pwritev([b"new+more"], 0)
    file.truncate(6)
    assert found(disk, "dropped") == {"a": b"old"}
    file.fdatasync()
    file.pwritev([b"later"], 0)
    assert found(disk, "dropped") == {"a": b"new+mo"}


def test_the_size_is_as_durable_as_the_bytes(disk: SimFileSystem) -> None:
    file = put(disk, "a", b"")
    file.allocate(10_000)
    assert found(disk, "dropped") == {"a": b""}
    file.fdatasync()
    assert found(disk, "dropped") == {"a": bytes(10_000)}
    file.truncate(5)
    assert found(disk, "dropped") == {"a": bytes(10_000)}


def test_a_synced_file_without_a_synced_name_is_lost(disk: SimFileSystem) -> None:
    file = disk.open(ROOT / "a", create=True)
    file.pwritev([b"a"], 0)
    file.fdatasync()
    assert found(disk, "dropped") == {}
    disk.sync_dir(ROOT)
    assert found(disk, "dropped") == {"a": b"a"}


def test_a_synced_name_without_synced_bytes_is_an_empty_file(disk: SimFileSystem) -> None:
    disk.open(ROOT / "a", create=True).pwritev([b"a"], 0)
    disk.sync_dir(ROOT)
    assert found(disk, "dropped") == {"a": b""}


def test_unsynced_renames_and_unlinks_are_undone(disk: SimFileSystem) -> None:
    put(disk, "a", b"a")
    put(disk, "b", b"b")
    disk.rename(ROOT / "a", ROOT / "c")
    disk.unlink(ROOT / "b")
    assert found(disk, "kept") == {"c": b"a"}
    assert found(disk, "dropped") == {"a": b"a", "b": b"b"}
    disk.sync_dir(ROOT)
    assert found(disk, "dropped") == {"c": b"a"}


def test_directories_are_durable_when_they_are_made(disk: SimFileSystem) -> None:
    disk.make_dirs(ROOT / "x" / "y")
    assert disk.crashed("dropped", random.Random(0)).list_dir(ROOT / "x") == ["y"]


def test_a_removed_tree_is_back_until_its_parent_is_synced(disk: SimFileSystem) -> None:
    disk.make_dirs(ROOT / "x")
    disk.open(ROOT / "x" / "file", create=True)
    disk.sync_dir(ROOT / "x")
    disk.remove_tree(ROOT / "x")
    assert disk.crashed("dropped", random.Random(0)).list_dir(ROOT / "x") == ["file"]
    disk.sync_dir(ROOT)
    assert not disk.crashed("dropped", random.Random(0)).exists(ROOT / "x")


def test_unsynced_writes_come_back_by_sectors_in_any_combination(disk: SimFileSystem) -> None:
    file = put(disk, "a", b"o" * 2_000)
    file.pwritev([b"1" * 1_000], 100)
    file.pwritev([b"2" * 500], 1_200)
    states = {state["a"] for state in found_torn(disk)}
    for state in states:
        assert len(state) == 2_000
        assert set(state[:100]) | set(state[1_100:1_200]) | set(state[1_700:]) == set(b"o")
        # The first write is not the last, so it is torn at sectors only: 100, 512, 1024, 1100.
        for start, end in ((100, 512), (512, 1_024), (1_024, 1_100)):
            assert len(set(state[start:end])) == 1
    assert b"o" * 2_000 in states
    assert b"o" * 100 + b"1" * 1_000 + b"o" * 100 + b"2" * 500 + b"o" * 300 in states
    assert any(b"o" + b"1" * 76 + b"o" in state for state in states), "a lone last sector"
    assert any(b"2" in state and b"1" not in state for state in states), "only the later write"


def test_the_last_write_of_a_file_may_stop_at_any_byte(disk: SimFileSystem) -> None:
    put(disk, "a", b"").pwritev([b"0123456789"], 0)
    states = {state["a"] for state in found_torn(disk)}
    assert states == {b"0123456789"[:size] for size in range(11)}


def test_unsynced_changes_of_names_come_back_in_any_combination(disk: SimFileSystem) -> None:
    put(disk, "a", b"a")
    put(disk, "b", b"b")
    disk.open(ROOT / "new", create=True)
    disk.rename(ROOT / "a", ROOT / "moved")
    disk.unlink(ROOT / "b")
    states = {tuple(sorted(state)) for state in found_torn(disk)}
    assert states == {
        tuple(sorted((moved, *rest)))
        for moved in ("a", "moved")
        for rest in ((), ("b",), ("new",), ("b", "new"))
    }


def test_a_file_that_moves_is_always_in_exactly_one_place(disk: SimFileSystem) -> None:
    for name in ("x", "y", "z"):
        disk.make_dirs(ROOT / name)
    disk.open(ROOT / "x" / "file", create=True)
    disk.sync_dir(ROOT / "x")
    disk.rename(ROOT / "x" / "file", ROOT / "y" / "file")
    disk.rename(ROOT / "y" / "file", ROOT / "z" / "file")
    places = set()
    for seed in range(ROUNDS):
        (path,) = disk.crashed("torn", random.Random(seed)).files()
        places.add(path.parent.name)
    assert places == {"x", "y", "z"}
    disk.sync_dir(ROOT / "z")
    for mode in ("dropped", "torn"):
        (path,) = disk.crashed(mode, random.Random(0)).files()
        assert path.parent.name == "z"


def test_a_later_sync_does_not_bring_an_earlier_change_back(disk: SimFileSystem) -> None:
    disk.make_dirs(ROOT / "x")
    disk.open(ROOT / "x" / "file", create=True)
    disk.rename(ROOT / "x" / "file", ROOT / "file")
    disk.sync_dir(ROOT)
    disk.sync_dir(ROOT / "x")
    assert list(disk.crashed("dropped", random.Random(0)).files()) == [ROOT / "file"]


def test_a_crashed_disk_is_durable_whole_and_unlocked(disk: SimFileSystem) -> None:
    put(disk, "a", b"old").pwritev([b"new"], 0)
    disk.lock(ROOT)
    disk.fail_at(disk.calls + 1, SimCrash())
    with pytest.raises(SimCrash):
        disk.sync_dir(ROOT)
    after = disk.crashed("kept", random.Random(0))
    assert after.calls == 0
    assert after.crashed("dropped", random.Random(0)).files() == after.files()
    after.lock(ROOT).release()
    after.open(ROOT / "a").pwritev([b"changed"], 0)
    assert disk.files()[ROOT / "a"] == b"new", "the crashed disk stays as it was"


def test_a_crash_can_be_had_before_every_call() -> None:
    """The disk before the nth call holds what the first n - 1 did."""

    def work(fs: FileSystem) -> None:
        fs.make_dirs(ROOT)
        file = fs.open(ROOT / "a", create=True)
        file.allocate(4)
        file.pwritev([b"ab", b"cd"], 0)
        file.fdatasync()
        fs.sync_dir(ROOT)
        fs.rename(ROOT / "a", ROOT / "b")
        file.truncate(1)
        fs.unlink(ROOT / "b")

    whole = SimFileSystem()
    work(whole)
    states = []
    for number in range(1, whole.calls + 1):
        disk = SimFileSystem()
        disk.fail_at(number, SimCrash())
        with pytest.raises(SimCrash):
            work(disk)
        assert disk.calls == number
        states.append(found(disk, "kept"))
    assert states == [
        {},  # mkdir
        {},  # fsync of its parent
        {},  # open
        {"a": b""},  # posix_fallocate
        {"a": bytes(4)},  # pwritev
        {"a": b"abcd"},  # fdatasync
        {"a": b"abcd"},  # fsync
        {"a": b"abcd"},  # rename
        {"b": b"abcd"},  # ftruncate
        {"b": b"a"},  # unlink
    ]
    assert found(whole, "kept") == {}


def test_nothing_works_after_a_crash(disk: SimFileSystem) -> None:
    file = disk.open(ROOT / "a", create=True)
    disk.fail_at(disk.calls + 1, SimCrash())
    with pytest.raises(SimCrash):
        file.pwritev([b"x"], 0)
    for call in (file.fdatasync, lambda: file.truncate(5), lambda: disk.unlink(ROOT / "a")):
        with pytest.raises(SimCrash):
            call()
    assert found(disk, "kept") == {"a": b""}


def test_one_call_fails_as_the_real_one_would(disk: SimFileSystem) -> None:
    file = disk.open(ROOT / "a", create=True)
    disk.fail_at(disk.calls + 2, OSError(errno.ENOSPC, "full"))
    file.pwritev([b"1"], 0)
    with pytest.raises(StorageError, match="No space left") as caught:
        file.pwritev([b"2"], 1)
    assert caught.value.is_disk_full
    file.pwritev([b"3"], 1)
    assert found(disk, "kept") == {"a": b"13"}


def test_all_calls_fail_until_healed(disk: SimFileSystem) -> None:
    disk.fail_at(disk.calls + 1, OSError(errno.EIO, "broken"), sticky=True)
    for _ in range(2):
        with pytest.raises(StorageError, match="EIO"):
            disk.open(ROOT / "a", create=True)
    disk.heal()
    disk.open(ROOT / "a", create=True)


def test_a_short_write_leaves_half(disk: SimFileSystem) -> None:
    file = disk.open(ROOT / "a", create=True)
    disk.fail_at(disk.calls + 1, OSError(errno.ENOSPC, "full"), short_write=True)
    with pytest.raises(StorageError, match="ENOSPC"):
        file.pwritev([b"0123", b"4567"], 0)
    assert file.pread(100, 0) == b"0123"


def test_a_crash_falls_between_the_parts_of_a_long_write(disk: SimFileSystem) -> None:
    file = disk.open(ROOT / "a", create=True)
    disk.fail_at(disk.calls + 2, SimCrash())
    with pytest.raises(SimCrash):
        file.pwritev([b"x"] * (IOV_COUNT_MAX + 5), 0)
    assert found(disk, "kept") == {"a": b"x" * IOV_COUNT_MAX}


def test_a_sync_that_is_repeated_after_it_failed_saves_nothing(disk: SimFileSystem) -> None:
    file = put(disk, "a", b"old")
    file.pwritev([b"new"], 0)
    disk.fail_at(disk.calls + 1, OSError(errno.EIO, "broken"))
    with pytest.raises(StorageError) as caught:
        file.fdatasync()
    assert caught.value.is_fatal
    file.fdatasync()
    assert file.pread(10, 0) == b"new"
    assert found(disk, "dropped") == {"a": b"old"}
    for _ in range(3):
        file.pwritev([b"+" * 100], 3)
        file.fdatasync()
    assert found(disk, "dropped") == {"a": b"old" + b"+" * 100}


def test_a_full_disk_takes_what_fits_and_gets_room_back(disk: SimFileSystem) -> None:
    disk.free = 10_000
    file = disk.open(ROOT / "a", create=True)
    file.allocate(8_000)
    assert disk.space(ROOT)[1] == 2_000
    with pytest.raises(StorageError, match="ENOSPC"):
        file.pwritev([b"x" * 2_001], 8_000)
    file.pwritev([b"x" * 9_999], 1)
    assert disk.space(ROOT)[1] == 0
    file.truncate(1_000)
    assert disk.space(ROOT)[1] == 9_000
    put(disk, "b", b"x" * 500)
    disk.rename(ROOT / "b", ROOT / "a")
    assert disk.space(ROOT)[1] == 9_500
    disk.unlink(ROOT / "a")
    assert disk.space(ROOT)[1] == 10_000


def is_hot(file: File, offset: int, size: int) -> bool:
    return file.pread_hot_into(memoryview(bytearray(size)), offset) == size


def test_an_evicted_file_is_cold_until_it_is_read(disk: SimFileSystem) -> None:
    file = put(disk, "a", b"x" * (3 * PAGE_SIZE_BYTES))
    disk.evict(ROOT / "a")
    file.pread(1, PAGE_SIZE_BYTES)
    assert [is_hot(file, page * PAGE_SIZE_BYTES, 1) for page in range(3)] == [False, True, False]
    file.will_need(0, 3 * PAGE_SIZE_BYTES)
    file.drop_cache(PAGE_SIZE_BYTES, PAGE_SIZE_BYTES)
    assert [is_hot(file, page * PAGE_SIZE_BYTES, 1) for page in range(3)] == [True, False, True]


def test_dirty_pages_stay_in_memory(disk: SimFileSystem) -> None:
    file = disk.open(ROOT / "a", create=True)
    file.pwritev([b"x"], 0)
    file.drop_cache()
    assert is_hot(file, 0, 1)


def test_flipped_bits_are_seen_by_reads_and_after_a_crash(disk: SimFileSystem) -> None:
    put(disk, "a", b"\x00\x0f\x00")
    disk.flip(ROOT / "a", 1, 0x81)
    assert disk.open(ROOT / "a").pread(3, 0) == b"\x00\x8e\x00"
    for mode in ("kept", "dropped", "torn"):
        assert found(disk, mode) == {"a": b"\x00\x8e\x00"}


def test_an_unreadable_range_fails_only_reads_that_touch_it(disk: SimFileSystem) -> None:
    put(disk, "a", b"0123456789")
    disk.spoil(ROOT / "a", 4, 2)
    file = disk.open(ROOT / "a")
    assert file.pread(4, 0) + file.pread(4, 6) == b"01236789"
    for offset, size in ((0, 5), (5, 1), (3, 10)):
        with pytest.raises(StorageError, match="EIO"):
            file.pread(size, offset)
        assert not is_hot(file, offset, size)


def test_unreadable_pages_stop_a_read_into_memory_and_are_never_resident(
    disk: SimFileSystem,
) -> None:
    content = b"".join(bytes([number]) * PAGE_SIZE_BYTES for number in range(1, 5))
    put(disk, "a", content)
    disk.spoil(ROOT / "a", PAGE_SIZE_BYTES, PAGE_SIZE_BYTES)
    for found in (disk, disk.crashed("kept", random.Random(1))):
        file = found.open(ROOT / "a")
        memory = memoryview(bytearray(9000))
        assert file.pread_into(memory, 100) == PAGE_SIZE_BYTES - 100
        with pytest.raises(StorageError, match="EIO"):
            file.pread_into(memory, 2 * PAGE_SIZE_BYTES - 1)
        assert file.pread_into(memory, 2 * PAGE_SIZE_BYTES) == 2 * PAGE_SIZE_BYTES
        assert memory[: 2 * PAGE_SIZE_BYTES] == content[2 * PAGE_SIZE_BYTES :]
        file.will_need(0, len(content))
        assert not is_hot(file, 0, PAGE_SIZE_BYTES + 1)
        assert is_hot(file, 0, PAGE_SIZE_BYTES)
    disk.repair(ROOT / "a")
    assert disk.open(ROOT / "a").pread(20_000, 0) == content


def test_only_what_is_in_memory_and_readable_is_locked(disk: SimFileSystem) -> None:
    file = put(disk, "a", bytes(range(256)) * 64)
    disk.spoil(ROOT / "a", PAGE_SIZE_BYTES, PAGE_SIZE_BYTES)
    assert file.lock_hot(0, PAGE_SIZE_BYTES + 1) is None
    assert file.lock_hot(2 * PAGE_SIZE_BYTES, 3) == b"\0\1\2"
    disk.repair(ROOT / "a")
    disk.evict(ROOT / "a")
    assert file.lock_hot(0, 1) is None
    file.pread(1, 0)
    view = file.lock_hot(0, PAGE_SIZE_BYTES)
    disk.evict(ROOT / "a")
    assert view == bytes(range(256)) * 16
    disk.may_lock = False
    file.pread(1, 0)
    assert file.lock_hot(0, 1) is False


def test_the_trace_shows_what_was_called(disk: SimFileSystem) -> None:
    disk.open(ROOT / "a", create=True).pwritev([b"abc"], 7)
    assert disk.trace().splitlines() == [
        "    1 mkdir /data",
        "    2 fsync /",
        "    3 open /data/a new",
        "    4 pwritev /data/a 3 bytes at 7",
    ]


def test_a_long_run_keeps_what_is_durable(disk: SimFileSystem) -> None:
    """Syncs are folded into the base image now and then; no fold loses or invents a byte."""
    rng = random.Random(20260101)
    file = put(disk, "a", b"")
    durable = bytearray(3_000)
    for _ in range(300):
        offset, data = rng.randrange(2_000), bytes([rng.randrange(256)]) * rng.randrange(1_000)
        file.pwritev([data], offset)
        durable[offset : offset + len(data)] = data
        file.fdatasync()
        file.pwritev([b"unsynced" * 100], 0)
        size = len(found(disk, "dropped")["a"])
        assert found(disk, "dropped")["a"] == durable[:size]
        file.pwritev([durable[:800]], 0)


def test_what_a_killed_process_did_not_sync_can_still_be_lost(disk: SimFileSystem) -> None:
    put(disk, "a", b"old").pwritev([b"new"], 0)
    disk.open(ROOT / "b", create=True)
    disk.rename(ROOT / "b", ROOT / "c")
    killed = disk.crashed("killed", random.Random(0))
    disk.open(ROOT / "a").fdatasync()
    assert found(killed, "kept") == {"a": b"new", "c": b""}
    assert found(killed, "dropped") == {"a": b"old"}
    killed.sync_dir(ROOT)
    killed.open(ROOT / "a").fdatasync()
    assert found(killed, "dropped") == {"a": b"new", "c": b""}


def test_a_dropped_cache_shows_that_a_failed_sync_saved_nothing(disk: SimFileSystem) -> None:
    file = put(disk, "a", b"old" * PAGE_SIZE_BYTES)
    file.pwritev([b"new"], 0)
    disk.fail_at(disk.calls + 1, OSError(errno.EIO, "broken"))
    with pytest.raises(StorageError):
        file.fdatasync()
    file.pwritev([b"later"], PAGE_SIZE_BYTES)
    after = disk.crashed("killed", random.Random(0)).open(ROOT / "a")
    assert after.pread(3, 0) == b"new"
    after.drop_cache()
    assert after.pread(3, 0) == b"old"
    assert after.pread(5, PAGE_SIZE_BYTES) == b"later"


@pytest.mark.parametrize("mode", ["pages", "last", "names"])
def test_other_power_cuts_leave_what_their_names_say(disk: SimFileSystem, mode: CrashMode) -> None:
    file = put(disk, "a", b"o" * (2 * PAGE_SIZE_BYTES))
    file.pwritev([b"n" * PAGE_SIZE_BYTES], 0)
    file.pwritev([b"n" * PAGE_SIZE_BYTES], PAGE_SIZE_BYTES)
    disk.open(ROOT / "b", create=True)
    states = [found(disk, mode, seed) for seed in range(ROUNDS)]
    for state in states:
        parts = state["a"][:PAGE_SIZE_BYTES], state["a"][PAGE_SIZE_BYTES:]
        if mode == "pages":
            assert {len(set(part)) for part in parts} == {1}
        elif mode == "last":
            assert set(parts[0]) == set(b"n")
        else:
            assert len(set(state["a"])) == 1
    assert {"b" in state for state in states} == ({True} if mode == "last" else {True, False})
    assert len({state["a"] for state in states}) > (1 if mode == "names" else 3)


def test_equal_disks_have_equal_digests(disk: SimFileSystem) -> None:
    put(disk, "a", b"old")
    same = disk.crashed("kept", random.Random(0))
    assert same.digest() == disk.digest() == disk.crashed("dropped", random.Random(1)).digest()
    same.open(ROOT / "a").pwritev([b"new"], 0)
    changed = same.digest()
    same.open(ROOT / "a").fdatasync()
    assert len({disk.digest(), changed, same.digest()}) == 3
    same.open(ROOT / "b", create=True)
    assert same.digest(ROOT) != disk.digest(ROOT)
    assert same.digest(ROOT / "none") == 0
