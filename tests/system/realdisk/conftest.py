"""Disks for the tests here; where they cannot be made the tests are skipped, with the reason."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.disks.bad_disk import BadDisk
from tests.support.disks.loop_disk import DiskRefusedError, LoopDisk, Tmpfs


@pytest.fixture
def make_loop_disk(tmp_path: Path) -> Iterator[Callable[..., LoopDisk]]:
    """Makes a `LoopDisk` of the given sizes, which is taken away after the test."""
    with ExitStack() as stack:

        def make(**sizes: int) -> LoopDisk:
            try:
                disk = LoopDisk(tmp_path, **sizes)
            except DiskRefusedError as error:
                pytest.skip(f"no loop device with ext4 here: {error}")
            stack.callback(disk.close)
            return disk

        yield make


@pytest.fixture
def make_bad_disk(tmp_path: Path) -> Iterator[Callable[..., BadDisk]]:
    """Mounts a `BadDisk` at a path, which is taken away after the test."""
    with ExitStack() as stack:

        def make(path: Path, **sizes: int) -> BadDisk:
            try:
                disk = BadDisk(tmp_path, path, **sizes)
            except DiskRefusedError as error:
                pytest.skip(f"no disk with unreadable sectors here: {error}")
            stack.callback(disk.close)
            return disk

        yield make


@pytest.fixture
def make_tmpfs(tmp_path: Path) -> Iterator[Callable[[int], Tmpfs]]:
    """Makes a `Tmpfs` of so many bytes, which is taken away after the test."""
    with ExitStack() as stack:

        def make(size_bytes: int) -> Tmpfs:
            try:
                disk = Tmpfs(tmp_path / "small", size_bytes)
            except DiskRefusedError as error:
                pytest.skip(f"no tmpfs here: {error}")
            stack.callback(disk.close)
            return disk

        yield make
