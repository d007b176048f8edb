"""What the settings say of the connection to the other node. Layer 6."""

import contextlib
from pathlib import Path
from typing import Final

from appliance.config.config import Address, Config
from appliance.errors import ConfigError, StorageError
from appliance.replication.link_limits import LinkLimits
from appliance.replication.wire import SECRET_SIZE_MIN_BYTES
from appliance.system.clock import Clock
from appliance.system.files import FileSystem
from appliance.units import NS_PER_MS

ONE_MACHINE: Final = b"latermq: both nodes are on one machine"
"""The secret of two nodes that have none, which is allowed on one machine only."""

SECRET_SIZE_MAX_BYTES: Final = 4_096

BEATS_IN_SILENCE: Final = 4
"""A peer is lost after so many beats that do not come."""


def read_secret(fs: FileSystem, path: Path | None) -> bytes:
    """Return what both nodes know.

    Raises:
        ConfigError: the file cannot be read, or is too short.
    """
    if path is None:
        return ONE_MACHINE
    try:
        with contextlib.closing(fs.open(path, writable=False)) as file:
            secret = file.pread(SECRET_SIZE_MAX_BYTES, 0).strip()
    except StorageError as error:
        raise ConfigError(f"replication.secret_file: {error.message}") from error
    if len(secret) < SECRET_SIZE_MIN_BYTES:
        raise ConfigError(
            f"replication.secret_file = {path} has {len(secret)} bytes: write at least "
            f"{SECRET_SIZE_MIN_BYTES}, such as those of `openssl rand -hex 32`, to it"
        )
    return secret


def link_limits(config: Config) -> LinkLimits:
    """Return the limits of a connection, which are the same on both nodes."""
    silence_ms = config.replication_timeout_ms
    return LinkLimits(silence_ms=silence_ms, beat_ms=silence_ms // BEATS_IN_SILENCE)


def since_ms(clock: Clock, at_ms: int | None) -> int | None:
    """Return how long ago a boottime in ms is; None if there is none."""
    return None if at_ms is None else max(0, clock.boottime_ns() // NS_PER_MS - at_ms)


def own_listen(config: Config) -> Address | None:
    """Return where this node waits for a slave when it is the master; None if it will not."""
    return config.replication_listen if config.replication != "none" else None
