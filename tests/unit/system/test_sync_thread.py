"""The thread that syncs files: it needs the interpreter for nothing, and loses no error."""

import errno
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from _core.log.sync_loop import SYNC_FILES_MAX
from appliance.errors import StorageError
from appliance.system.files import File, OsFile, OsFileSystem
from appliance.system.sync_thread import SyncThread
from tests.support.harness.kept_interpreter import becomes_readable
from tests.support.harness.live_broker import HeldDisk

LIMIT_MS = 60_000


@pytest.fixture
def thread() -> Iterator[SyncThread]:
    thread = SyncThread()
    yield thread
    thread.shutdown()
    thread.close()


def written(path: Path) -> File:
    file = OsFileSystem().open(path, create=True)
    file.pwritev([b"bytes"], 0)
    return file


def is_done(thread: SyncThread, within_ms: int) -> bool:
    return bool(select.select([thread.fileno()], [], [], within_ms / 1_000)[0])


def pipe_end(path: Path) -> OsFile:
    """A descriptor that can never be synced."""
    reader, writer = os.pipe()
    os.close(reader)
    return OsFile(path, writer)


def test_a_sync_ends_while_the_loop_keeps_the_interpreter(
    thread: SyncThread, tmp_path: Path
) -> None:
    """The loop lets go of it too briefly for a thread of Python to get it."""
    for count in (1, SYNC_FILES_MAX):
        assert thread.try_begin([written(tmp_path / str(each)) for each in range(count)])
        assert becomes_readable(thread.fileno(), LIMIT_MS)
        thread.end()
        assert not thread.is_busy
        assert not is_done(thread, 0)


def test_a_failed_sync_names_its_file_and_the_next_request_stands_alone(
    thread: SyncThread, tmp_path: Path
) -> None:
    good, bad = written(tmp_path / "good"), pipe_end(tmp_path / "bad")
    assert thread.try_begin([good, bad, good])
    with pytest.raises(StorageError, match="bad") as caught:
        thread.end()
    assert (caught.value.errno, caught.value.is_fatal) == (errno.EINVAL, True)
    assert thread.try_begin([good])
    thread.end()


def test_a_closed_file_is_an_error_and_not_another_file(thread: SyncThread, tmp_path: Path) -> None:
    file = written(tmp_path / "closed")
    file.close()
    assert thread.try_begin([file])
    with pytest.raises(StorageError, match="closed"):
        thread.end()


def test_files_that_are_not_the_systems_and_too_many_are_left_to_others(
    thread: SyncThread, tmp_path: Path
) -> None:
    file = written(tmp_path / "file")
    held = HeldDisk().open(tmp_path / "held", create=True)
    assert not thread.try_begin([file, held])
    assert not thread.try_begin([file] * (SYNC_FILES_MAX + 1))
    assert not thread.is_busy


def test_the_request_in_progress_ends_before_the_thread(tmp_path: Path) -> None:
    thread = SyncThread()
    assert thread.try_begin([written(tmp_path / "file"), pipe_end(tmp_path / "bad")])
    thread.shutdown()
    assert is_done(thread, 0)
    with pytest.raises(StorageError, match="bad"):
        thread.end()
    thread.close()
