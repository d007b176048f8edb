"""Settings of the store that are fields of `appliance.config.Config`. Layer 1; does no I/O."""

from typing import Any, Final

from appliance.setting import number
from appliance.units import GIB, KIB, MIB

CHECKPOINT_INTERVAL_BYTES: Final[Any] = number(
    GIB,
    "store.checkpoint_interval_bytes",
    (64 * KIB, 64 * GIB),
    "The log's growth between two checkpoints; after a crash it is replayed, at 1 GB/s.",
)
CACHE_SIZE_BYTES: Final[Any] = number(
    64 * MIB,
    "store.cache_size_bytes",
    (MIB, 64 * GIB),
    "Memory for frames that were read and checked; all that is answered or delivered comes from "
    "it. The kernel caches the files besides.",
)
