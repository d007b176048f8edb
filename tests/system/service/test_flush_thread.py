"""Flushes beside the loop: each ends with a call or an error, and a stop waits for the last."""

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.errors import StorageError
from appliance.flush_thread import FlushThread
from appliance.store.checkpoint import CheckpointFile
from appliance.store.log.flush_job import FlushJob
from appliance.system.files import File, OsFile, OsFileSystem
from tests.support.harness.live_broker import LIMIT_S, HeldDisk


def written(path: Path) -> File:
    file = OsFileSystem().open(path, create=True)
    file.pwritev([b"bytes"], 0)
    return file


def pipe_end(path: Path) -> OsFile:
    """A descriptor that can never be synced."""
    reader, writer = os.pipe()
    os.close(reader)
    return OsFile(path, writer)


class Flushes:
    """Flushes of files, and what their ends call."""

    def __init__(self, tmp_path: Path) -> None:
        self.checkpoint = CheckpointFile(OsFileSystem(), tmp_path / "checkpoint")
        self.errors: list[Exception] = []
        self.count = 0
        self.ended = asyncio.Event()
        self.thread = FlushThread(asyncio.get_running_loop(), self.guard, self.end)
        self.thread.start()

    def end(self) -> None:
        self.count += 1
        self.ended.set()

    def guard(self, step: Callable[[], None]) -> None:
        try:
            step()
        except StorageError as error:
            self.errors.append(error)
            self.ended.set()

    def job(self, *files: File, watermark: int | None = None) -> FlushJob:
        return FlushJob(1, files, self.checkpoint, 0, watermark)


@pytest.mark.parametrize("is_system", [True, False])
async def test_a_flush_of_any_files_ends_with_a_call_or_an_error(
    tmp_path: Path, loop: object, is_system: bool
) -> None:
    flushes = Flushes(tmp_path)
    disk = HeldDisk()
    held = disk.open(tmp_path / "held", create=True)
    flushes.thread.begin(flushes.job(written(tmp_path / "file") if is_system else held))
    await asyncio.wait_for(flushes.ended.wait(), LIMIT_S)
    assert not flushes.errors
    flushes.ended.clear()
    disk.error = StorageError(tmp_path / "bad", "fdatasync", errno.EIO, "broken")
    flushes.thread.begin(flushes.job(pipe_end(tmp_path / "bad") if is_system else held))
    await asyncio.wait_for(flushes.ended.wait(), LIMIT_S)
    assert [type(error) for error in flushes.errors] == [StorageError]
    await flushes.thread.stop()


@pytest.mark.parametrize("is_system", [True, False])
async def test_a_stop_waits_for_the_flush_in_flight_and_returns_its_error(
    tmp_path: Path, is_system: bool
) -> None:
    flushes = Flushes(tmp_path)
    disk = HeldDisk()
    disk.error = StorageError(tmp_path / "bad", "fdatasync", errno.EIO, "broken")
    held = disk.open(tmp_path / "held", create=True)
    flushes.thread.begin(flushes.job(pipe_end(tmp_path / "bad") if is_system else held))
    error = await flushes.thread.stop()
    assert isinstance(error, StorageError)


class HeldCheckpoint(CheckpointFile):
    """One whose write waits."""

    def __init__(self, path: Path) -> None:
        super().__init__(OsFileSystem(), path)
        self.ensure()
        self.gate = threading.Event()

    def write(self, flushed: int, watermark: int) -> None:
        assert self.gate.wait(LIMIT_S)
        super().write(flushed, watermark)


@pytest.mark.parametrize("is_system", [True, False])
async def test_a_flush_ends_once_when_its_files_and_its_watermark_are_durable(
    tmp_path: Path, is_system: bool
) -> None:
    flushes = Flushes(tmp_path)
    held = HeldDisk().open(tmp_path / "held", create=True)
    checkpoint = flushes.checkpoint = HeldCheckpoint(tmp_path / "checkpoint")
    file = written(tmp_path / "file") if is_system else held
    flushes.thread.begin(flushes.job(file, watermark=4096))
    await asyncio.sleep(0.05)  # the files are synced meanwhile
    assert flushes.count == 0
    checkpoint.gate.set()
    await asyncio.wait_for(flushes.ended.wait(), LIMIT_S)
    await flushes.thread.stop()
    assert (flushes.count, flushes.errors) == (1, [])
    found = CheckpointFile(OsFileSystem(), tmp_path / "checkpoint")
    found.open()
    assert found.last is not None
    assert found.last.watermark == 4096
