"""Which node of a pair this directory belongs to; the epochs of the two never coincide. Layer 2.

The file `node` in the data directory has the number as text. It is written at the first start as a
node of a pair and stays when the roles change.
"""

import contextlib
from typing import Final

from appliance.config.config import Config
from appliance.errors import CorruptionError, StorageError
from appliance.store.paths import DataPaths
from appliance.system.files import FileSystem

ALONE: Final = 0
_NUMBERS: Final = {b"1\n": 1, b"2\n": 2}


def choose_node(fs: FileSystem, paths: DataPaths, config: Config) -> int:
    """Return the number of this node, and remember it for later starts.

    Args:
        fs, paths: the data directory, which this process holds.
        config: says which node it is, or its role at the first start.

    Returns:
        1 or 2; 0 for a broker that never was a node of a pair.

    Raises:
        StorageError: the file could not be read or written.
        CorruptionError: it has something else.
    """
    known = _read(fs, paths)
    number = config.node or known
    if number == ALONE:
        if config.role == "slave":
            number = 2
        elif config.replication != "none":
            number = 1
    if number != known:
        with contextlib.closing(fs.open(paths.node, create=True)) as file:
            file.pwritev([b"%d\n" % number], 0)
            file.fdatasync()
        fs.sync_dir(paths.root)
    return number


def _read(fs: FileSystem, paths: DataPaths) -> int:
    try:
        with contextlib.closing(fs.open(paths.node, writable=False)) as file:
            data = file.pread(16, 0)
    except StorageError as error:
        if error.is_missing:
            return ALONE
        raise
    if data not in _NUMBERS:
        raise CorruptionError(paths.node, 0, "1 or 2, and a line feed", f"{data!r}")
    return _NUMBERS[data]
