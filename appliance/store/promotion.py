"""Remembers that this node was promoted, so that its next start is not that of a slave. Layer 2.

The file `promoted` in the data directory names the master that the node followed until then. It
counts as long as the configuration names that master: a node that is to follow another one, or the
same one again after it was promoted in its turn, follows once the file is removed or the address
differs.
"""

import contextlib

from appliance.config.config import Config
from appliance.errors import StorageError
from appliance.store.caught_up import forget_caught_up
from appliance.store.paths import DataPaths
from appliance.system.files import FileSystem

TEXT_MAX_BYTES = 1_024


def is_slave(fs: FileSystem, paths: DataPaths, config: Config) -> bool:
    """Return whether a start is that of a slave.

    Raises:
        StorageError: the file could not be read.
    """
    if config.role != "slave":
        return False
    try:
        with contextlib.closing(fs.open(paths.promoted, writable=False)) as file:
            return file.pread(TEXT_MAX_BYTES, 0) != _text(config)
    except StorageError as error:
        if error.is_missing:
            return True
        raise


def note_promotion(fs: FileSystem, paths: DataPaths, config: Config) -> None:
    """Remember durably that this node is a master from now on.

    Raises:
        StorageError: the file could not be written.
    """
    data = _text(config)
    with contextlib.closing(fs.open(paths.promoted, create=True)) as file:
        file.truncate(len(data))
        file.pwritev([data], 0)
        file.fdatasync()
    forget_caught_up(fs, paths)  # as a slave again it lacks what the other master wrote


def _text(config: Config) -> bytes:
    return f"followed {config.master}\n".encode()
