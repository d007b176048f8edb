"""Settings of the store: fields of `appliance.config.config.Config`. Layer 1; does no I/O."""

from typing import Any, Final

from appliance.config.setting import number, switch
from appliance.units import GIB, KIB, MIB

MUST_EXIST: Final[Any] = switch(
    False,
    "store.must_exist",
    "Refuses to start in a directory without a log, so that a missing mount is not mistaken for a "
    "new broker. Set it after the first start.",
)
LOSS_MAX_BYTES: Final[Any] = number(
    64 * MIB,
    "store.loss_max_bytes",
    (0, 64 * GIB),
    "A start that would have to declare more of the log lost, or a whole segment, is refused.",
)
CHECKPOINT_INTERVAL_BYTES: Final[Any] = number(
    GIB,
    "store.checkpoint_interval_bytes",
    (64 * KIB, 64 * GIB),
    "Growth of the log between two checkpoints; after a crash it is replayed, at 1 GB/s.",
)
CACHE_SIZE_BYTES: Final[Any] = number(
    64 * MIB,
    "store.cache_size_bytes",
    (MIB, 64 * GIB),
    "Memory for frames that were read and checked, from which Fetch answers and deliveries are "
    "served. The kernel also caches the files.",
)
