"""The file `snapshot` in a directory: no broker may start on it, and why. Layer 2.

    snapshot    the last segment is the file that the log of a broker continues in
    backup      what a broker wrote there would change the backup
    restore     the copy of a backup is not complete

Its content is JSON, `{"created_at": epoch ms, "kind": ...}`; a snapshot has no kind.
"""

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from appliance.errors import StorageError
from appliance.system.files import FileSystem

MARK_SIZE_MAX_BYTES: Final = 4096

MarkKind = Literal["snapshot", "backup", "restore"]


@dataclass(frozen=True, slots=True)
class Mark:
    """What a mark says.

    Attributes:
        kind: what the directory is.
        created_at: when it was made, epoch ms; 0 if that is damaged.
    """

    kind: MarkKind
    created_at: int


def write_mark(fs: FileSystem, path: Path, mark: Mark) -> None:
    """Write a mark durably; the caller syncs its directory.

    Raises:
        StorageError: it failed.
    """
    kind = {} if mark.kind == "snapshot" else {"kind": mark.kind}
    with closing(fs.open(path, create=True)) as file:
        file.pwritev([json.dumps({"created_at": mark.created_at, **kind}).encode()], 0)
        file.fdatasync()


def read_mark(fs: FileSystem, path: Path) -> Mark | None:
    """Return what a mark says; None if there is none. A damaged one counts as a snapshot's.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        file = fs.open(path, writable=False)
    except StorageError as error:
        if not error.is_missing:
            raise
        return None
    try:
        found = json.loads(file.pread(MARK_SIZE_MAX_BYTES, 0))
        kind = found.get("kind", "snapshot")
        return Mark(kind if kind in get_args(MarkKind) else "snapshot", int(found["created_at"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return Mark("snapshot", 0)
    finally:
        file.close()
