"""Which log this is, and the epoch that a start begins in it. Layer 2."""

import secrets
from typing import Final

from appliance.config.config import Config
from appliance.store.checkpoint import LogIdentity
from appliance.store.log.data_files import DataFiles
from appliance.store.node_number import choose_node
from appliance.store.recovery.start import Start
from appliance.store.state.epoch_starts import next_epoch

SALT_SIZE: Final = 4


def identify(files: DataFiles, start: Start, config: Config) -> int:
    """Say which log it is, in the state and for the next copies of the checkpoint.

    Args:
        files: the directory, which this process holds.
        start: the replay has ended; a new log has no salt yet and gets one.
        config: says which node of a pair this is.

    Returns:
        The epoch of this start.
    """
    scan, state, log = start.scan, start.state, files.log
    state.node = choose_node(files.fs, files.paths, config)
    known = max(scan.epoch, start.knowledge.epoch)
    epoch = next_epoch(known, files.clock.wall_ms(), state.node)
    state.salt = state.salt or scan.salt
    if start.last_frame[0] < 0 and not log.has_segments:
        state.begin_log(int.from_bytes(secrets.token_bytes(SALT_SIZE)) or 1)
    files.checkpoint.log = LogIdentity(
        cluster=state.cluster,
        start=log.start_pos,
        # Before a promotion no frame was this node's own.
        own_from=min(start.own_from, scan.pos),
        salt=state.salt,
        epoch=epoch,
    )
    return epoch
