"""Remembers that a slave has once had all of its master's log. Layer 2.

The file `caught_up` in the data directory exists from the first time that the slave has caught up
until its log begins anew or is cut, or until the node is promoted. Without it the slave may lack
anything, and its promotion would lose that.
"""

from appliance.errors import StorageError
from appliance.store.paths import DataPaths
from appliance.system.files import FileSystem


def has_caught_up(fs: FileSystem, paths: DataPaths) -> bool:
    """Return whether the slave has caught up since its log began.

    Raises:
        StorageError: the directory could not be read.
    """
    return fs.exists(paths.caught_up)


def note_caught_up(fs: FileSystem, paths: DataPaths) -> None:
    """Remember it durably.

    Raises:
        StorageError: the file could not be made.
    """
    fs.open(paths.caught_up, create=True).close()
    fs.sync_dir(paths.root)


def forget_caught_up(fs: FileSystem, paths: DataPaths) -> None:
    """Forget it durably, before the log has less than it had.

    Raises:
        StorageError: the file could not be removed.
    """
    try:
        fs.unlink(paths.caught_up)
    except StorageError as error:
        if not error.is_missing:
            raise
    fs.sync_dir(paths.root)
