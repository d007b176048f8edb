"""What `FileSystem` promises, on the real one and on the simulated one alike."""

import errno
import random
from pathlib import Path
from typing import NamedTuple

import pytest

from appliance.errors import DataDirectoryLockedError, StorageError
from appliance.system.files import IOV_COUNT_MAX, LOCK_NAME, File, FileSystem, OsFileSystem
from appliance.units import MIB, PAGE_SIZE_BYTES
from tests.support.simulator.sim_fs import SimFileSystem


class Place(NamedTuple):
    fs: FileSystem
    root: Path


@pytest.fixture(params=["os", "sim"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "os":
        return Place(OsFileSystem(), tmp_path)
    disk = SimFileSystem()
    disk.make_dirs(tmp_path)
    return Place(disk, tmp_path)


@pytest.fixture
def file(place: Place) -> File:
    """A new file, `log`."""
    return place.fs.open(place.root / "log", create=True)


def names(place: Place) -> list[str]:
    return place.fs.list_dir(place.root)


def test_buffers_are_written_one_after_the_other(file: File) -> None:
    assert file.pwritev([b"head", bytearray(b"-"), memoryview(b"(body)")[1:5]], 3) == 9
    assert file.pread(100, 0) == b"\0\0\0head-body"
    assert file.size() == 12


def test_more_buffers_than_one_call_takes_are_all_written(file: File) -> None:
    # Sizes 0 to 6, so that a wrong resume point shows; more than two calls' worth.
    buffers = [bytes([i % 251]) * (i % 7) for i in range(2 * IOV_COUNT_MAX + 500)]
    whole = b"".join(buffers)
    assert file.pwritev(buffers, 10) == len(whole)
    assert file.pread(MIB, 10) == whole


def test_nothing_to_write_leaves_the_file_as_it_is(file: File) -> None:
    assert file.pwritev([], 100) == 0
    assert file.pwritev([b"", b""], 100) == 0
    assert file.size() == 0


def test_a_read_is_short_only_at_the_end_of_the_file(file: File) -> None:
    file.pwritev([b"0123456789"], 0)
    assert file.pread(4, 2) == b"2345"
    assert file.pread(100, 8) == b"89"
    assert file.pread(5, 10) == b""
    assert file.pread(5, 1000) == b""


def test_a_read_into_memory_is_short_only_at_the_end_of_the_file(file: File) -> None:
    file.pwritev([b"0123456789"], 0)
    memory = bytearray(b"." * 6)
    assert file.pread_into(memoryview(memory)[1:5], 2) == 4
    assert memory == b".2345."
    assert file.pread_into(memoryview(memory), 8) == 2
    assert memory[:2] == b"89"
    assert file.pread_into(memoryview(memory), 10) == 0
    assert file.pread_into(memoryview(memory), 1000) == 0
    file.close()
    with pytest.raises(StorageError, match="EBADF"):
        file.pread_into(memoryview(memory), 0)


def test_truncate_cuts_and_extends_with_zeros(file: File) -> None:
    file.pwritev([b"x" * 10_000], 0)
    file.truncate(5)
    assert file.pread(100, 0) == b"xxxxx"
    file.truncate(8)
    assert file.pread(100, 0) == b"xxxxx\0\0\0"


def test_allocate_extends_with_zeros_and_never_cuts(file: File) -> None:
    file.pwritev([b"abc"], 0)
    file.allocate(10_000)
    assert file.pread(20_000, 0) == b"abc" + bytes(9_997)
    file.allocate(10)
    assert file.size() == 10_000


def test_what_is_locked_outlives_the_file_it_is_of(place: Place, file: File) -> None:
    file.pwritev([b"still here" * 5_000], 0)
    views = [file.lock_hot(offset, size) for offset, size in ((6, 4), (4_090, 20_000), (0, 50_000))]
    file.close()
    place.fs.unlink(place.root / "log")
    expected = [(b"still here" * 5_000)[at : at + size] for at, size in ((6, 4), (4_090, 20_000))]
    assert [view and bytes(view) for view in views] == [*expected, b"still here" * 5_000]
    assert all(view and view.readonly for view in views)


def test_next_data_skips_what_was_never_written(file: File) -> None:
    file.allocate(MIB)
    assert file.next_data(0) is None
    file.pwritev([b"x" * 100], 40 * PAGE_SIZE_BYTES + 50)
    found = file.next_data(0)
    # File systems answer by block; the block holds the bytes.
    assert found is not None
    assert 0 < found <= 40 * PAGE_SIZE_BYTES + 50
    assert file.next_data(40 * PAGE_SIZE_BYTES + 60) == 40 * PAGE_SIZE_BYTES + 60
    assert file.next_data(80 * PAGE_SIZE_BYTES) is None
    assert file.next_data(2 * MIB) is None


def test_next_data_finds_written_zeros(file: File) -> None:
    file.allocate(MIB)
    file.pwritev([bytes(100)], 0)
    assert file.next_data(0) == 0


def test_dropped_cache_and_prefetch_change_no_bytes(file: File) -> None:
    file.pwritev([b"x" * 10_000], 0)
    file.fdatasync()
    file.drop_cache()
    file.will_need(0, 10_000)
    assert file.pread(20_000, 0) == b"x" * 10_000
    file.drop_cache(PAGE_SIZE_BYTES, 5_000)
    assert file.pread(20_000, 0) == b"x" * 10_000


def test_a_file_that_is_missing_is_reported_with_its_path(place: Place) -> None:
    for path in (place.root / "none", place.root / "no" / "dir"):
        with pytest.raises(StorageError, match="No such file") as caught:
            place.fs.open(path)
        assert (caught.value.errno, caught.value.operation) == (errno.ENOENT, "open")
        assert caught.value.path == path
        assert caught.value.is_missing


def test_opening_an_existing_file_with_create_keeps_its_bytes(place: Place) -> None:
    place.fs.open(place.root / "log", create=True).pwritev([b"old"], 0)
    assert place.fs.open(place.root / "log", create=True).pread(10, 0) == b"old"


def test_a_file_opened_for_reading_refuses_writes(place: Place) -> None:
    place.fs.open(place.root / "log", create=True).pwritev([b"old"], 0)
    file = place.fs.open(place.root / "log", writable=False)
    with pytest.raises(StorageError, match="EBADF"):
        file.pwritev([b"new"], 0)
    assert file.pread(10, 0) == b"old"


def test_a_closed_file_refuses_everything_and_closes_again(file: File) -> None:
    file.close()
    file.close()
    for call in (file.fdatasync, file.size, file.drop_cache):
        with pytest.raises(StorageError, match="EBADF"):
            call()


def test_a_directory_is_not_a_file(place: Place) -> None:
    place.fs.make_dirs(place.root / "dir")
    with pytest.raises(StorageError, match="EISDIR"):
        place.fs.open(place.root / "dir")
    with pytest.raises(StorageError):
        place.fs.unlink(place.root / "dir")


def test_a_link_is_another_name_of_the_same_file(place: Place, file: File) -> None:
    file.pwritev([b"one"], 0)
    place.fs.make_dirs(place.root / "dir")
    place.fs.link(place.root / "log", place.root / "dir" / "other")
    assert file.link_count() == 2
    file.pwritev([b"two"], 0)
    place.fs.unlink(place.root / "log")
    other = place.fs.open(place.root / "dir" / "other")
    assert (other.pread(10, 0), other.link_count()) == (b"two", 1)


def test_a_link_replaces_nothing_and_needs_a_file(place: Place, file: File) -> None:
    place.fs.open(place.root / "other", create=True).pwritev([b"other"], 0)
    with pytest.raises(StorageError, match="EEXIST"):
        place.fs.link(place.root / "log", place.root / "other")
    with pytest.raises(StorageError, match="ENOENT"):
        place.fs.link(place.root / "none", place.root / "new")
    assert place.fs.open(place.root / "other").pread(10, 0) == b"other"
    assert file.link_count() == 1


def test_make_dirs_makes_parents_and_may_be_repeated(place: Place) -> None:
    deep = place.root / "a" / "b" / "c"
    place.fs.make_dirs(deep)
    place.fs.make_dirs(deep)
    assert place.fs.exists(deep)
    assert place.fs.list_dir(place.root / "a") == ["b"]


def test_make_dirs_refuses_a_file_in_the_way(place: Place) -> None:
    place.fs.open(place.root / "file", create=True)
    with pytest.raises(StorageError, match="ENOTDIR"):
        place.fs.make_dirs(place.root / "file" / "dir")


def test_names_are_listed_sorted(place: Place) -> None:
    for name in ("b", "a", "10", "9"):
        place.fs.open(place.root / name, create=True)
    assert names(place) == ["10", "9", "a", "b"]
    with pytest.raises(StorageError, match="ENOENT"):
        place.fs.list_dir(place.root / "none")
    with pytest.raises(StorageError, match="ENOTDIR"):
        place.fs.list_dir(place.root / "a")


def test_exists_tells_files_and_directories_from_nothing(place: Place) -> None:
    place.fs.open(place.root / "file", create=True)
    assert place.fs.exists(place.root)
    assert place.fs.exists(place.root / "file")
    assert not place.fs.exists(place.root / "none")
    assert not place.fs.exists(place.root / "file" / "below")


def test_rename_replaces_and_open_files_follow(place: Place) -> None:
    file = place.fs.open(place.root / "new", create=True)
    file.pwritev([b"new"], 0)
    place.fs.open(place.root / "old", create=True).pwritev([b"old"], 0)
    place.fs.rename(place.root / "new", place.root / "old")
    assert names(place) == ["old"]
    file.pwritev([b"er"], 3)
    assert place.fs.open(place.root / "old").pread(10, 0) == b"newer"


def test_rename_moves_directories_and_needs_something_to_move(place: Place) -> None:
    place.fs.make_dirs(place.root / "a" / "deep")
    place.fs.make_dirs(place.root / "b")
    place.fs.rename(place.root / "a" / "deep", place.root / "b" / "here")
    assert place.fs.list_dir(place.root / "b") == ["here"]
    assert place.fs.list_dir(place.root / "a") == []
    with pytest.raises(StorageError, match="ENOENT"):
        place.fs.rename(place.root / "none", place.root / "x")


def test_rename_refuses_a_directory_that_holds_something(place: Place) -> None:
    place.fs.make_dirs(place.root / "a")
    place.fs.make_dirs(place.root / "b" / "kept")
    with pytest.raises(StorageError, match="ENOTEMPTY"):
        place.fs.rename(place.root / "a", place.root / "b")


def test_unlink_takes_the_name_and_leaves_the_open_file(place: Place, file: File) -> None:
    file.pwritev([b"open"], 0)
    place.fs.unlink(place.root / "log")
    assert names(place) == []
    assert file.pread(10, 0) == b"open"
    with pytest.raises(StorageError, match="ENOENT"):
        place.fs.unlink(place.root / "log")


def test_remove_tree_removes_all_below_and_nothing_else(place: Place) -> None:
    place.fs.make_dirs(place.root / "gone" / "a" / "b")
    place.fs.open(place.root / "gone" / "a" / "file", create=True)
    place.fs.open(place.root / "kept", create=True)
    place.fs.remove_tree(place.root / "gone")
    place.fs.remove_tree(place.root / "gone")
    assert names(place) == ["kept"]
    with pytest.raises(StorageError, match="ENOTDIR"):
        place.fs.remove_tree(place.root / "kept")
    assert names(place) == ["kept"]


def test_a_file_has_one_name(place: Place) -> None:
    fs, root = place
    file = fs.open(root / "a", create=True)
    assert file.link_count() == 1
    fs.rename(root / "a", root / "b")
    assert file.link_count() == 1


def test_sync_dir_needs_a_directory(place: Place) -> None:
    place.fs.sync_dir(place.root)
    with pytest.raises(StorageError, match="ENOENT"):
        place.fs.sync_dir(place.root / "none")


def test_hot_bytes_are_read_without_waiting(file: File) -> None:
    """A read after the end returns nothing, as does a file system that knows of no cache."""
    file.pwritev([b"0123456789"], 0)
    for size, offset, expected in ((4, 2, b"2345"), (100, 8, b"89"), (4, 100, b"")):
        memory = bytearray(size)
        count = file.pread_hot_into(memoryview(memory), offset)
        assert bytes(memory[:count]) in (expected, b"")


def test_a_tree_is_synced_with_its_names(place: Place) -> None:
    place.fs.make_dirs(place.root / "a" / "b", is_synced=False)
    place.fs.open(place.root / "a" / "b" / "c", create=True).pwritev([b"x"], 0)
    place.fs.sync_tree(place.root)
    if isinstance(place.fs, SimFileSystem):
        left = place.fs.crashed("dropped", random.Random(0)).files()
        assert left == {place.root / "a" / "b" / "c": b"x"}
    with pytest.raises(StorageError):
        place.fs.sync_tree(place.root / "missing")


def test_a_directory_is_locked_once_until_released(place: Place) -> None:
    lock = place.fs.lock(place.root)
    with pytest.raises(DataDirectoryLockedError, match=str(place.root)) as caught:
        place.fs.lock(place.root)
    assert caught.value.pid is not None
    assert "--data-dir" in str(caught.value)
    lock.release()
    lock.release()
    again = place.fs.lock(place.root)
    lock.release()
    with pytest.raises(DataDirectoryLockedError):
        place.fs.lock(place.root)
    again.release()


def test_readers_share_a_directory_and_keep_brokers_out(place: Place) -> None:
    place.fs.lock(place.root).release()
    before = names(place)
    first, second = place.fs.lock_for_reading(place.root), place.fs.lock_for_reading(place.root)
    first.release()
    first.release()
    with pytest.raises(DataDirectoryLockedError, match=f"reading {place.root}") as caught:
        place.fs.lock(place.root)
    assert caught.value.is_read
    assert caught.value.pid is None
    second.release()
    place.fs.lock(place.root).release()
    assert names(place) == before


def test_a_directory_that_a_broker_holds_is_not_read(place: Place) -> None:
    lock = place.fs.lock(place.root)
    with pytest.raises(DataDirectoryLockedError, match=str(place.root)) as caught:
        place.fs.lock_for_reading(place.root)
    assert caught.value.pid is not None
    lock.release()
    place.fs.lock_for_reading(place.root).release()


def test_a_reader_makes_no_lock_file_and_keeps_brokers_out_without_one(place: Place) -> None:
    lock = place.fs.lock_for_reading(place.root)
    assert names(place) == []
    with pytest.raises(DataDirectoryLockedError) as caught:
        place.fs.lock(place.root)
    assert caught.value.is_read
    lock.release()
    assert names(place) == []


def test_a_lock_holds_although_its_file_is_removed(place: Place) -> None:
    lock = place.fs.lock(place.root)
    place.fs.unlink(place.root / LOCK_NAME)
    for take in (place.fs.lock, place.fs.lock_for_reading):
        with pytest.raises(DataDirectoryLockedError, match=str(place.root)):
            take(place.root)
    lock.release()
    place.fs.lock(place.root).release()


def test_space_is_all_there_is_and_what_can_still_be_written(place: Place) -> None:
    total, free = place.fs.space(place.root)
    assert total >= free > MIB
    with pytest.raises(StorageError, match="ENOENT"):
        place.fs.space(place.root / "none")


def test_usage_is_what_is_used_and_what_can_still_be_written(place: Place) -> None:
    """Without what is reserved for root."""
    total, _ = place.fs.space(place.root)
    used, free = place.fs.usage(place.root)
    assert used >= 0
    assert free > 0
    assert used + free <= total
    with pytest.raises(StorageError):
        place.fs.usage(place.root / "none")


def test_random_calls_give_the_same_on_both(tmp_path: Path) -> None:
    """Whatever is called in whatever order, the simulation answers as the real one."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown only if the test fails
    rng = random.Random(seed)
    disk = SimFileSystem()
    disk.make_dirs(tmp_path)
    pair = (
        OsFileSystem().open(tmp_path / "x", create=True),
        disk.open(tmp_path / "x", create=True),
    )
    for _ in range(200):
        offset, size = rng.randrange(30_000), rng.randrange(9_000)
        call = rng.choice(("write", "write", "truncate", "allocate", "sync"))
        found = []
        for file in pair:
            match call:
                case "write":
                    found.append(file.pwritev([bytes([size % 251]) * size, b"|"], offset))
                case "truncate":
                    file.truncate(offset)
                case "allocate":
                    file.allocate(offset)
                case "sync":
                    file.fdatasync()
            found.append((file.size(), file.pread(size, offset)))
        half = len(found) // 2
        assert found[:half] == found[half:], (call, offset, size)
        # The real one may take a hole for data (a block that was cut), never data for a hole.
        real, simulated = (file.next_data(offset) for file in pair)
        assert simulated is None or (real is not None and real <= simulated), (call, offset)


def test_a_path_is_resolved_also_if_it_does_not_exist(place: Place) -> None:
    root = place.fs.resolve(place.root)
    assert place.fs.resolve(place.root / "a" / ".." / "b") == root / "b"


def test_a_path_is_resolved_through_symlinks(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    fs = OsFileSystem()
    assert fs.resolve(tmp_path / "link" / "new") == fs.resolve(tmp_path) / "real" / "new"
