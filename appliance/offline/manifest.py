"""The manifest of a backup: what it has, written last, so that a backup without it is incomplete.

    {"format": 1, "created_at": ..., "files": [{"name": ..., "size": ..., ...}, ...]}
    {"crc32c": ...}

Two lines of JSON; the second has the CRC32C of the first. docs/FORMAT.md has the fields. Layer 4.
"""

import json
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from _core.bytes.crc32c import crc32c
from appliance.errors import BackupError, CorruptionError, StorageError
from appliance.store.paths import DataPaths, parse_segment_name
from appliance.system.files import FileSystem
from appliance.units import MIB

FORMAT: Final = 1
SIZE_MAX_BYTES: Final = 64 * MIB
"""Half a million segments; a file beyond it is none of ours."""

TEMPORARY_SUFFIX: Final = ".new"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupFile:
    """One file of a backup.

    Attributes:
        name: its path below the backup.
        size: bytes.
        crc32c: of all of them.
        room: bytes that the file has in a data directory; the last segment has room for more.
    """

    name: str
    size: int
    crc32c: int
    room: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a backup has.

    Attributes:
        created_at: when the position was taken, epoch ms.
        latermq: the version that made it.
        cluster_id: of the log.
        start, end: the log positions between which it has the log.
        epoch: the last one below `end`.
        faults: what `check` found when it was made.
        files: all files but the manifest and the mark.
    """

    created_at: int
    latermq: str
    cluster_id: str
    start: int
    end: int
    epoch: int
    faults: int
    files: tuple[BackupFile, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def encode(manifest: Manifest) -> bytes:
    """Return the bytes of the file."""
    line = json.dumps({"format": FORMAT, **asdict(manifest)}).encode()
    return line + b"\n" + json.dumps({"crc32c": crc32c(line)}).encode() + b"\n"


def decode(path: Path, data: bytes) -> Manifest:
    """Decode the bytes of the file.

    Args:
        path: of the file, for errors.
        data: its content.

    Raises:
        CorruptionError: they are damaged.
        BackupError: a newer latermq made the backup.
    """
    line, _, rest = data.partition(b"\n")
    expected: Any
    try:
        # With its line end: any byte that is missing or added is damage.
        expected = json.loads(rest)["crc32c"] if rest.endswith(b"}\n") else None
    except (ValueError, KeyError, TypeError):
        expected = None
    found = crc32c(line)
    if expected != found:
        raise CorruptionError(path, 0, f"a manifest with CRC32C {expected}", f"one with {found}")
    fields = json.loads(line)
    if fields.pop("format") != FORMAT:
        raise BackupError(f"{path} is of a newer format: use the latermq that made the backup")
    files = tuple(BackupFile(**each) for each in fields.pop("files"))
    for file in files:
        if not _is_known(file.name):
            raise CorruptionError(path, 0, "the name of a segment", repr(file.name))
    return Manifest(files=files, **fields)


def _is_known(name: str) -> bool:
    paths = DataPaths(Path())
    directory, _, segment = name.partition("/")
    is_segment = directory == paths.commit_log.name and parse_segment_name(segment) is not None
    return is_segment or name == paths.checkpoint.name


def write(fs: FileSystem, root: Path, manifest: Manifest) -> None:
    """Write the manifest of a backup durably, in one step.

    Raises:
        StorageError: it failed.
    """
    path = DataPaths(root).manifest
    new = path.with_name(path.name + TEMPORARY_SUFFIX)
    with closing(fs.open(new, create=True)) as file:
        file.pwritev([encode(manifest)], 0)
        file.fdatasync()
    fs.rename(new, path)
    fs.sync_dir(root)


def read(fs: FileSystem, root: Path) -> Manifest:
    """Read the manifest of a backup.

    Raises:
        BackupError: there is none, or a newer latermq made it.
        CorruptionError: it is damaged.
        StorageError: it cannot be read.
    """
    path = DataPaths(root).manifest
    try:
        file = fs.open(path, writable=False)
    except StorageError as error:
        if not error.is_missing:
            raise
        raise BackupError(
            f"{root} is not a complete backup: it has no file {path.name}. A backup that did not "
            "end lacks it: take another one"
        ) from None
    with closing(file):
        return decode(path, file.pread(min(file.size(), SIZE_MAX_BYTES), 0))
