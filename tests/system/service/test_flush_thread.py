"""Flushes beside the loop: each ends with a call or an error, and a stop waits for the last.
So do raises of the watermark, whether a flush is in flight or not."""

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
from appliance.store.log.watermark import WatermarkJob
from appliance.system.files import File, OsFile, OsFileSystem
from tests.support.harness.live_broker import LIMIT_S, HeldDisk, until


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
        self.raised: list[WatermarkJob] = []
        self.errors: list[Exception] = []
        self.count = 0
        self.ended = asyncio.Event()
        self.thread = FlushThread(
            asyncio.get_running_loop(), self.guard, self.end, self.raised.append
        )
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

    def job(self, *files: File) -> FlushJob:
        return FlushJob(1, files, 0)


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
        self.error: StorageError | None = None

    def write(self, flushed: int, watermark: int) -> None:
        assert self.gate.wait(LIMIT_S)
        if self.error is not None:
            raise self.error
        super().write(flushed, watermark)


@pytest.mark.parametrize("is_system", [True, False])
async def test_a_flush_ends_while_the_watermark_is_raised(tmp_path: Path, is_system: bool) -> None:
    flushes = Flushes(tmp_path)
    held = HeldDisk().open(tmp_path / "held", create=True)
    checkpoint = HeldCheckpoint(tmp_path / "checkpoint")
    raising = WatermarkJob(checkpoint, 0, 4096)
    flushes.thread.begin_raise(raising)
    flushes.thread.begin(flushes.job(written(tmp_path / "file") if is_system else held))
    await asyncio.wait_for(flushes.ended.wait(), LIMIT_S)
    assert flushes.thread.is_raising
    assert not flushes.raised
    checkpoint.gate.set()
    await until(lambda: not flushes.thread.is_raising)
    await flushes.thread.stop()
    assert (flushes.count, flushes.raised, flushes.errors) == (1, [raising], [])
    found = CheckpointFile(OsFileSystem(), tmp_path / "checkpoint")
    found.open()
    assert found.last is not None
    assert found.last.watermark == 4096


async def test_a_failed_raise_of_the_watermark_is_an_error(tmp_path: Path, loop: object) -> None:
    flushes = Flushes(tmp_path)
    checkpoint = HeldCheckpoint(tmp_path / "checkpoint")
    checkpoint.error = StorageError(tmp_path / "checkpoint", "fdatasync", errno.EIO, "broken")
    checkpoint.gate.set()
    flushes.thread.begin_raise(WatermarkJob(checkpoint, 0, 4096))
    await asyncio.wait_for(flushes.ended.wait(), LIMIT_S)
    assert flushes.errors == [checkpoint.error]
    assert not flushes.raised
    assert await flushes.thread.stop() is checkpoint.error
