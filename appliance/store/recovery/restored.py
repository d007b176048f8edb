"""The file `restored`: the first start on a restored log takes numbers that nobody else has.

The broker of the backup went on after it, and gave away producer ids, generations of groups and
topic ids that the log does not show. The first start after a restore writes a verdict that lets all
of them continue above what that broker can have used, and removes the file then. Layer 2.
"""

import json
from contextlib import closing
from typing import Final

from appliance.store.paths import DataPaths
from appliance.system.files import FileSystem

JUMP: Final = 1 << 20
"""Topic ids and generations that the broker of the backup can have used since: a topic, or a
rebalance of a group, in each minute of two years. There are enough for two thousand restores."""

PRODUCER_ID_SHIFT: Final = 20
"""Producer ids begin at the epoch, in seconds, times 2^20: two restores of one backup get different
ones, and no broker gives away a million in a second. They stay below 2^53, which clients in
JavaScript need."""


def first_producer_id(epoch: int) -> int:
    """Return the lowest producer id of a restored log whose first epoch this is."""
    return epoch << PRODUCER_ID_SHIFT


def write_restored(fs: FileSystem, paths: DataPaths, *, restored_at: int) -> None:
    """Note durably that the log of a directory was restored; the caller syncs the directory.

    Args:
        fs, paths: the directory.
        restored_at: epoch ms, for people.

    Raises:
        StorageError: it failed.
    """
    with closing(fs.open(paths.restored_mark, create=True)) as file:
        file.pwritev([json.dumps({"restored_at": restored_at}).encode()], 0)
        file.fdatasync()


def is_restored(fs: FileSystem, paths: DataPaths) -> bool:
    """Return whether no start on the restored log has served yet."""
    return fs.exists(paths.restored_mark)


def forget_restored(fs: FileSystem, paths: DataPaths) -> None:
    """Remove the file durably, once the verdict is durable.

    Raises:
        StorageError: it failed; the next start writes another verdict.
    """
    fs.unlink(paths.restored_mark)
    fs.sync_dir(paths.root)
