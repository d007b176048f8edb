"""Copies files in steps, durably, with their CRC32C; and what a new directory must be like.

Bytes that the disk cannot read become zeros in the copy: a backup of a failing disk is worth more
than none, and `check` names the place. Layer 4.
"""

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from _core.bytes.crc32c import crc32c
from appliance.errors import BackupError
from appliance.store.log.reads import read_around
from appliance.store.marks import read_mark
from appliance.store.paths import DataPaths
from appliance.system.files import LOCK_NAME, File, FileSystem
from appliance.units import MIB

STEP_BYTES: Final = MIB
"""Size of one read and one write."""

SYNC_BYTES: Final = 16 * MIB
"""Bytes between syncs, so that few pages are dirty when a broker syncs its log."""

IGNORED_NAMES: Final = frozenset({"lost+found"})
"""What an empty directory may hold: the root of a file system has it."""

DIRECTORIES: Final = frozenset({DataPaths(Path()).commit_log.name})
"""What of a backup is a directory."""

Step = tuple[str, int, int]
"""What is done, bytes done so far, and bytes in all."""

Work = Generator[int, None, int]
"""Yields bytes that were done; returns a CRC32C."""


@dataclass(slots=True)
class Amount:
    """How far something is: what is done, bytes done so far, and bytes in all."""

    what: str
    total: int
    done: int = 0


def measured(work: Work, amount: Amount) -> Generator[Step, None, int]:
    """Do some work of several; yield how far all of it is, and return its result."""
    while True:
        try:
            amount.done += next(work)
        except StopIteration as end:
            return int(end.value)
        yield amount.what, amount.done, amount.total


def copy_file(fs: FileSystem, source: Path, target: Path, *, size: int, room: int) -> Work:
    """Copy the beginning of a file into a new one, durably; the caller syncs its directory.

    Args:
        fs: of both.
        source: has `size` bytes or more; what lies after them may change meanwhile.
        target: does not exist.
        size: so many bytes are copied.
        room: size of the new file; zeros follow the copy.

    Returns:
        CRC32C of the bytes as they were read.

    Raises:
        StorageError: it failed; the new file may exist.
    """
    assert size <= room
    crc = 0
    unsynced_bytes = 0
    memory = memoryview(bytearray(min(STEP_BYTES, size)))
    with (
        closing(fs.open(source, writable=False)) as old,
        closing(fs.open(target, create=True)) as new,
    ):
        new.allocate(room)
        for start in range(0, size, STEP_BYTES):
            part = memory[: size - start]
            read_around(old, part, start)
            crc = crc32c(part, crc)
            new.pwritev([part], start)
            unsynced_bytes += len(part)
            if unsynced_bytes >= SYNC_BYTES:
                new.fdatasync()
                unsynced_bytes = 0
            yield len(part)
        new.fdatasync()
        # Whoever reads it next reads what the disk has.
        new.drop_cache()
    return crc


def crc_of(file: File, size: int) -> Work:
    """Return the CRC32C of the first bytes of a file."""
    crc = 0
    memory = memoryview(bytearray(min(STEP_BYTES, size)))
    for start in range(0, size, STEP_BYTES):
        part = memory[: size - start]
        read_around(file, part, start)
        crc = crc32c(part, crc)
        yield len(part)
    return crc


def check_is_new(fs: FileSystem, target: Path, *, other: Path) -> None:
    """Check that a directory is missing or empty, and outside another one.

    Args:
        fs: of both.
        target: to be filled.
        other: what is copied.

    Raises:
        BackupError: it is not.
        DataDirectoryLockedError: a broker runs on it.
        StorageError: it cannot be read.
    """
    inner, outer = fs.resolve(target), fs.resolve(other)
    if inner == outer or outer in inner.parents:
        raise BackupError(f"{target} is inside {other}: choose a directory outside of it")
    if not fs.exists(target):
        return
    names = [name for name in fs.list_dir(target) if name not in IGNORED_NAMES]
    if LOCK_NAME in names:
        fs.lock_for_reading(target).release()
    if names:
        paths = DataPaths(target)
        mark = read_mark(fs, paths.snapshot_mark)
        what = f"it has {names[0]}"
        if mark is not None and mark.kind == "restore":
            what = "it has a restore that did not end, which may be removed"
        elif mark is not None and mark.kind == "backup" and not fs.exists(paths.manifest):
            what = "it has a backup that did not end, which may be removed"
        raise BackupError(
            f"{target} is not empty, {what}: choose a new directory; nothing was changed"
        )


def check_room(fs: FileSystem, target: Path, size: int, outcome: str) -> None:
    """Check that what is to be copied fits.

    Args:
        fs: of the target.
        target: exists.
        size: bytes of all copies.
        outcome: what the operator has if it does not fit.

    Raises:
        BackupError: it does not.
        StorageError: the file system does not say.
    """
    free = fs.usage(target)[1]
    if size > free:
        why = f"the files to be copied need {size} bytes, {free} are free"
        raise disk_full(target, why, outcome)


def disk_full(target: Path, why: str, outcome: str) -> BackupError:
    """Return the error of a copy that does not fit, and is removed."""
    return BackupError(
        f"the disk of {target} is full: {why}. {outcome}, and what was copied is removed"
    )


def remove_content(fs: FileSystem, target: Path, names: Sequence[str], *, is_made: bool) -> None:
    """Remove what was made in a directory, as far as that is possible.

    Args:
        fs, target: the directory.
        names: of files and directories in it, in this order. The first is what makes it complete:
            it is durably gone before the next is removed.
        is_made: the directory itself was made.

    Raises:
        StorageError: something is left.
    """
    for name in names:
        path = target / name
        if fs.exists(path):
            remove = fs.remove_tree if name in DIRECTORIES else fs.unlink
            remove(path)
            if name == names[0]:
                fs.sync_dir(target)
    if is_made:
        fs.remove_tree(target)
    fs.sync_dir(target.parent if is_made else target)
