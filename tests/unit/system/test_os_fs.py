"""What only the real file system can show: other processes, symlinks, limits, the page cache."""

import errno
import fcntl
import os
import random
import resource
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from appliance.errors import DataDirectoryLockedError, StorageError, UnsafeDirectoryError
from appliance.system import files as fs_module
from appliance.system.files import IOV_COUNT_MAX, Buffer, File, OsFileSystem
from appliance.units import MIB

_READ: Final = os.preadv


@pytest.mark.parametrize("bytes_per_call", [1, 2, 3, 7, 10_000])
def test_a_short_write_is_continued_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_per_call: int
) -> None:
    # No kernel can be asked for a short write, so this one writes only the first bytes of each.
    real = os.pwritev

    def pwritev(fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        assert len(buffers) <= IOV_COUNT_MAX
        return real(fd, [b"".join(buffers)[:bytes_per_call]], offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    for buffers in (
        [b"abc", b"", bytearray(b"de"), memoryview(b"fghij")],
        [bytes([65 + i % 26]) * (i % 3) for i in range(IOV_COUNT_MAX + 50)],
    ):
        file = OsFileSystem().open(tmp_path / f"log-{len(buffers)}", create=True)
        whole = b"".join(buffers)
        assert file.pwritev(buffers, 7) == len(whole)
        assert file.pread(10_000, 7) == whole


def test_a_write_that_the_kernel_cuts_short_fails_with_its_reason(tmp_path: Path) -> None:
    file = OsFileSystem().open(tmp_path / "log", create=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Only this process' files are bounded, and only for two calls.
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(StorageError, match="EFBIG"):
            file.pwritev([b"a" * 6_000, b"b" * 6_000], 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.pread(20_000, 0) == b"a" * 6_000 + b"b" * 4_000


def test_a_full_disk_is_distinguished_from_other_errors() -> None:
    with pytest.raises(StorageError) as caught:
        OsFileSystem().open(Path("/dev/full")).pwritev([b"x"], 0)
    assert caught.value.is_disk_full
    assert not caught.value.is_fatal
    assert str(caught.value) == (
        "pwritev of /dev/full failed: No space left on device (ENOSPC, errno 28)"
    )


def test_a_failed_sync_is_fatal() -> None:
    with pytest.raises(StorageError) as caught:
        OsFileSystem().open(Path("/dev/full")).fdatasync()
    assert caught.value.is_fatal
    assert isinstance(caught.value.__cause__, OSError)


def test_another_process_is_named_as_the_holder_until_it_is_killed(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, time; from appliance.system.files import OsFileSystem;"
        "held = OsFileSystem().lock(pathlib.Path(sys.argv[1])); print('held', flush=True);"
        "sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(fs_module.__file__).parents[2],
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DataDirectoryLockedError, match=f"pid {holder.pid}"):
            OsFileSystem().lock(tmp_path)
        holder.kill()
    OsFileSystem().lock(tmp_path).release()


def test_a_lock_is_not_inherited(tmp_path: Path) -> None:
    lock = OsFileSystem().lock(tmp_path)
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
        try:
            lock.release()
            OsFileSystem().lock(tmp_path).release()
        finally:
            child.kill()


def test_a_lock_file_that_is_a_link_is_refused_and_its_target_kept(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    data.mkdir()
    target.write_text("precious")
    fs = OsFileSystem()
    for make, fault in (
        (Path.symlink_to, "is a link"),
        (Path.hardlink_to, "has another name too"),
    ):
        make(data / "lock", target)
        for take in (fs.lock, fs.lock_for_reading):
            with pytest.raises(UnsafeDirectoryError, match=f"lock {fault}"):
                take(data)
        (data / "lock").unlink()
    (data / "lock").symlink_to(tmp_path / "missing")
    with pytest.raises(UnsafeDirectoryError):
        fs.lock(data)
    assert not (tmp_path / "missing").exists()
    (data / "lock").unlink()
    os.mkfifo(data / "lock")
    for take in (fs.lock, fs.lock_for_reading):
        with pytest.raises(UnsafeDirectoryError, match="is not a file"):
            take(data)
    (data / "lock").unlink()
    assert target.read_text() == "precious"
    fs.lock(data).release()


def test_a_lock_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    OsFileSystem().lock(tmp_path).release()
    (tmp_path / "lock").chmod(0o666)
    with pytest.raises(UnsafeDirectoryError, match=r"writable by every user \(mode 666\)"):
        OsFileSystem().lock(tmp_path)


def test_a_lock_of_an_earlier_version_is_respected(tmp_path: Path) -> None:
    """It locked the file alone."""
    (tmp_path / "lock").write_text("4711\n")
    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for take in (OsFileSystem().lock, OsFileSystem().lock_for_reading):
            with pytest.raises(DataDirectoryLockedError, match="pid 4711"):
                take(tmp_path)
    OsFileSystem().lock(tmp_path).release()


def test_a_directory_that_cannot_be_locked_itself_is_locked_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock

    def flock(fd: int, how: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):  # as NFS does
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = OsFileSystem().lock(tmp_path)
    with pytest.raises(DataDirectoryLockedError):
        OsFileSystem().lock(tmp_path)
    lock.release()
    OsFileSystem().lock_for_reading(tmp_path).release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_other_users_own_or_may_write_is_refused_to_root(tmp_path: Path) -> None:
    fs, nobody = OsFileSystem(), 65_534
    data, link = tmp_path / "data", tmp_path / "link"
    data.mkdir()
    for mode in (0o777, 0o1777, 0o702):
        data.chmod(mode)
        with pytest.raises(UnsafeDirectoryError, match=f"mode {mode:o}.* chmod o-w {data}"):
            fs.lock(data)
    fs.lock_for_reading(data).release()  # it writes nothing
    assert list(data.iterdir()) == []
    data.chmod(0o750)
    (data / "lock").touch()
    os.chown(data / "lock", nobody, nobody)
    with pytest.raises(UnsafeDirectoryError, match=f"belongs to user {nobody}"):
        fs.lock(data)
    os.chown(data, nobody, nobody)
    fs.lock(data).release()  # the directory is that user's
    link.symlink_to(data)
    fs.lock(link).release()
    os.chown(link, nobody, nobody, follow_symlinks=False)
    with pytest.raises(UnsafeDirectoryError, match=f"a link that belongs to user {nobody}"):
        fs.lock(link)


def test_remove_tree_removes_a_symlink_and_not_what_it_leads_to(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(precious)
    (tmp_path / "link").symlink_to(precious)
    OsFileSystem().remove_tree(tmp_path / "tree")
    with pytest.raises(StorageError, match="ENOTDIR"):
        OsFileSystem().remove_tree(tmp_path / "link")
    assert not (tmp_path / "tree").exists()
    assert (precious / "file").read_text() == "kept"


def test_make_dirs_syncs_the_parent_of_each_new_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    OsFileSystem().make_dirs(tmp_path / "a" / "b")
    assert synced == [str(tmp_path), str(tmp_path / "a")]


def test_files_and_directories_are_closed_to_others(tmp_path: Path) -> None:
    fs = OsFileSystem()
    fs.make_dirs(tmp_path / "dir")
    fs.open(tmp_path / "dir" / "file", create=True)
    assert (tmp_path / "dir").stat().st_mode & 0o007 == 0
    assert (tmp_path / "dir" / "file").stat().st_mode & 0o117 == 0


def has_nowait(path: Path) -> bool:
    """Whether the file system of a file has reads that do not wait: tmpfs has none, and no disk."""
    with path.open("rb") as file:
        try:
            _READ(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError as error:
            return error.errno != errno.EOPNOTSUPP
        return True


def drop(file: File, offset: int, size: int) -> None:
    """Drop cached pages until the first is gone; the kernel keeps what it is still working on."""
    end_s = time.monotonic() + 20
    while True:
        file.drop_cache(offset, size)
        if file.pread_hot_into(memoryview(bytearray(1)), offset) == 0:
            return
        assert time.monotonic() < end_s, "the kernel drops nothing"
        time.sleep(0.01)


def read_warm(file: File, memory: memoryview) -> None:
    """Read and expect all of it in memory; short of memory, the kernel drops some at any time."""
    end_s = time.monotonic() + 20
    while True:
        assert file.pread_into(memory, 0) == len(memory)
        if file.pread_hot_into(memory, 0) == len(memory):
            return
        assert time.monotonic() < end_s, "a read warms nothing"


def test_what_left_the_cache_is_cold_and_a_read_warms_it(tmp_path: Path) -> None:
    file = OsFileSystem().open(tmp_path / "log", create=True)
    file.pwritev([b"x" * (16 * MIB)], 0)
    memory = memoryview(bytearray(16 * MIB))
    if not has_nowait(tmp_path / "log"):
        pytest.skip("this file system may drop nothing from memory")
    file.fdatasync()
    # The kernel keeps files in pieces of up to some MiB, and drops whole ones.
    # Asking whether a page is there starts a read of it: only the first answer counts.
    drop(file, 8 * MIB, 8 * MIB)
    assert file.pread_hot_into(memory, 12 * MIB) == 0
    read_warm(file, memory)
    assert memory == b"x" * (16 * MIB)


def test_only_what_is_in_memory_is_locked_and_then_it_stays(tmp_path: Path) -> None:
    file = OsFileSystem().open(tmp_path / "log", create=True)
    file.pwritev([b"x" * (16 * MIB)], 0)
    if not has_nowait(tmp_path / "log"):
        pytest.skip("this file system may drop nothing from memory")
    file.fdatasync()
    drop(file, 8 * MIB, 8 * MIB)
    assert file.lock_hot(12 * MIB, MIB) is None
    read_warm(file, memoryview(bytearray(16 * MIB)))
    view = file.lock_hot(12 * MIB + 5, MIB)
    if view is False:
        pytest.skip("this process may not lock a MiB: raise `ulimit -l`")
    assert view
    file.drop_cache()
    assert file.pread_hot_into(memoryview(bytearray(MIB)), 12 * MIB + 5) == MIB
    assert view == b"x" * MIB
    del view
    drop(file, 8 * MIB, 8 * MIB)
    assert file.lock_hot(12 * MIB + 5, MIB) is None


LOCK_TOO_MUCH = """
import os, resource, sys
from _core.log.locked_window import lock_window
os.setgroups([]); os.setgid(65534); os.setuid(65534)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (100_000, 100_000))
first = lock_window(0, 0, 60_000)
assert first, first
assert lock_window(0, 100_000, 60_000) is False
del first
assert lock_window(0, 100_000, 60_000)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user who has a limit")
def test_what_the_limit_does_not_allow_is_not_locked(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 200_000)
    with path.open("rb+") as file:
        done = subprocess.run(
            [sys.executable, "-c", LOCK_TOO_MUCH], stdin=file, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_file_takes_one_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    file = OsFileSystem().open(tmp_path / "log", create=True)
    file.pwritev([b"x"], 0)
    view = file.lock_hot(0, 1)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    file.close()
    assert view
    assert bytes(view) == b"x"
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("writable", [False, True])
def test_a_pipe_is_refused_without_waiting_for_its_other_end(
    tmp_path: Path, writable: bool
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="it is a pipe, not a file"):
        OsFileSystem().open(tmp_path / "pipe", writable=writable)


def test_what_is_in_memory_is_known_on_a_file_system_without_reads_that_do_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            raise OSError(errno.EOPNOTSUPP, "as ZFS and tmpfs say")
        return _READ(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", refuse)
    file = OsFileSystem().open(tmp_path / "log", create=True)
    content = random.Random(1).randbytes(3 * MIB + 5)
    file.pwritev([content], 0)
    file.fdatasync()
    read_warm(file, memoryview(bytearray(len(content))))
    for offset, size in ((0, 100), (4_095, 2), (12_345, 70_000), (3 * MIB, 5), (3 * MIB, 100)):
        memory = memoryview(bytearray(size))
        count = file.pread_hot_into(memory, offset)
        assert memory[:count] == content[offset : offset + size]
        assert count == min(size, len(content) - offset)
    assert file.pread_hot_into(memoryview(bytearray(1)), len(content)) == 0
    assert file.pread_hot_into(memoryview(bytearray(1)), len(content) + 10_000) == 0
    if has_nowait(tmp_path / "log"):  # else it may be a file system that drops nothing
        drop(file, 0, 2 * MIB)
        assert file.pread_hot_into(memoryview(bytearray(100)), 5) == 0
