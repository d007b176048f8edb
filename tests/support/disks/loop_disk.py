"""Real file systems that a test can fill, cut off from power and make fail.

 tmpfs `backing`  <-  image file (sparse)  <-  loop device  <-  ext4, mounted at `path`

What ext4 has written to the image is "on the disk"; what is only in its page cache is not. A power
cut is ext4's own shutdown: from then on nothing reaches the image. An image larger than its tmpfs
is an overcommitted disk: writeback fails when the tmpfs is full, long after the write itself
succeeded.

Mounting needs root and a kernel with loop devices; `DiskRefusedError` says why it is refused.
"""

import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from appliance.units import KIB, MIB

EXT4_IOC_SHUTDOWN: Final = 0x8004587D
"""_IOR('X', 125, __u32)."""
SHUTDOWN_WITHOUT_LOG_FLUSH: Final = 2

FIFREEZE: Final = 0xC0045877
FITHAW: Final = 0xC0045878
"""_IOWR('X', 119, int) and 120."""

BLOCK_SIZE: Final = 4096
FIRST_BLOCKS: Final = 2048
"""More than the bitmaps, the inodes and the journal take, which come first in this order, and the
directories after them."""

UMOUNT_LIMIT_S: Final = 60.0


class DiskRefusedError(Exception):
    """This machine does not permit such a disk; the message holds the output of the command."""


class Tmpfs:
    """A file system in memory, whose size can be changed.

    Attributes:
        path: where it is mounted.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        """Mount it.

        Raises:
            DiskRefusedError: that is not permitted here.
        """
        self.path = path
        path.mkdir(parents=True)
        run_command("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "none", str(path))

    def resize(self, size_bytes: int) -> None:
        run_command("mount", "-o", f"remount,size={size_bytes}", str(self.path))

    def close(self) -> None:
        unmount(self.path)


class LoopDisk:
    """An ext4 file system whose disk is an image in memory.

    Attributes:
        path: where it is mounted.
    """

    def __init__(self, root: Path, *, size_bytes: int, backing_bytes: int | None = None) -> None:
        """Make and mount it.

        Args:
            root: an existing directory for the mount points.
            size_bytes: of the disk.
            backing_bytes: size of the tmpfs that holds the image; by default enough.

        Raises:
            DiskRefusedError: that is not permitted here.
        """
        self.path = root / "disk"
        self.path.mkdir()
        self._backing = Tmpfs(root / "backing", backing_bytes or size_bytes + 16 * MIB)
        self._image = self._backing.path / "image"
        self._is_mounted = False
        self._is_overcommitted = backing_bytes is not None
        self._give_back: Callable[[], object] = bool
        try:
            with self._image.open("wb") as image:
                image.truncate(size_bytes)
            few_inodes = (
                "-O",
                "^resize_inode",
                "-N",
                "1024",
                "-J",
                "size=4",
                "-b",
                str(BLOCK_SIZE),
            )
            run_command("mkfs.ext4", "-q", "-F", "-m", "0", *few_inodes, str(self._image))
            self._reserve_metadata()
            self._mount()
        except DiskRefusedError:
            self.close()
            raise

    def _reserve_metadata(self) -> None:
        """Allocate the backing of all but the files, so that only their data lacks room later.

        Otherwise ext4 may fail first: it then stops all writing, and no fsync fails.
        """
        with self._image.open("r+b", buffering=0) as image:
            for block in range(FIRST_BLOCKS):
                data = os.pread(image.fileno(), BLOCK_SIZE, block * BLOCK_SIZE)
                os.pwrite(image.fileno(), data, block * BLOCK_SIZE)

    def _mount(self) -> None:
        # The loop device goes with the mount.
        run_command("mount", "-o", "loop", str(self._image), str(self.path))
        self._is_mounted = True
        if self._is_overcommitted:
            self._limit_requests()

    def _limit_requests(self) -> None:
        """Make the loop device write single pages.

        It reports success for a larger request of which only a part fits into the backing: such
        a disk loses acknowledged writes, and no broker can keep its promises on it.
        """
        number = os.minor(self.path.stat().st_dev)
        setting = Path(f"/sys/block/loop{number}/queue/max_sectors_kb")
        try:
            usual = setting.read_text()
            setting.write_text(f"{BLOCK_SIZE // KIB}")
        except OSError as error:
            raise DiskRefusedError(f"{setting}: {error.strerror}") from error
        self._give_back = lambda: setting.write_text(usual)

    def cut_power(self) -> None:
        """Let nothing more reach the disk; calls fail with EIO until `restore_power`.

        Raises:
            DiskRefusedError: this kernel's ext4 cannot do that.
        """
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", SHUTDOWN_WITHOUT_LOG_FLUSH))
        except OSError as error:
            raise DiskRefusedError(f"EXT4_IOC_SHUTDOWN: {error.strerror}") from error
        finally:
            os.close(fd)

    def restore_power(self) -> None:
        """Mount what is on the disk. Processes that had files open there must have ended."""
        self._umount()
        self._mount()

    def complete(self) -> None:
        """Write the journal's content in place, so that existing directories take no room later."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, FIFREEZE, 0)
            fcntl.ioctl(fd, FITHAW, 0)
        finally:
            os.close(fd)

    def resize_backing(self, size_bytes: int) -> None:
        """Change the size of the backing tmpfs."""
        self._backing.resize(size_bytes)

    def _umount(self) -> None:
        if self._is_mounted:
            self._give_back()
            unmount(self.path)
            self._is_mounted = False

    def close(self) -> None:
        """Unmount it and delete its content."""
        self._umount()
        self._backing.close()


def run_command(*command: str) -> str:
    """Run a command; return its standard output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise DiskRefusedError(f"{command[0]} is not installed") from error
    if done.returncode != 0:
        raise DiskRefusedError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def unmount(path: Path) -> None:
    """Unmount; another process may hold a new mount for a moment, so try again for a while."""
    deadline_s = time.monotonic() + UMOUNT_LIMIT_S
    while True:
        try:
            run_command("umount", str(path))
            return
        except DiskRefusedError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)
