"""Small configurations, with which a test fills segments and reaches limits quickly."""

from pathlib import Path
from typing import Any, Final

from appliance.config.config import Address, Config
from appliance.units import KIB, MIB

DATA_DIR: Final = Path("/data")
"""Where a broker on a simulated file system keeps its data."""

_SMALL: Final[dict[str, Any]] = {
    "data_dir": DATA_DIR,
    "listen": Address("127.0.0.1", 0),
    "admin": Address("127.0.0.1", 0),
    "segment_size_bytes": 64 * KIB,
    "prewrite_segments": False,
    "request_size_max_bytes": MIB,
    "fetch_size_max_bytes": MIB,
    "batch_size_max_bytes": 8 * KIB,
    "decompressed_size_max_bytes": 12 * KIB,
    "record_size_max_bytes": 8 * KIB,
    "header_size_max_bytes": 4 * KIB,
    "header_count_max": 100,
    "partition_count_max_per_topic": 64,
    "group_size_max_bytes": 16 * KIB,
    "group_total_size_max_bytes": MIB,
    "delivery_chunk_records": 64,
    "delivery_batch_max_bytes": 8 * KIB,
    "process_priority": 0,
}


def small_config(**overrides: Any) -> Config:
    """Return a configuration with segments of 64 KiB and limits to match.

    Args:
        overrides: fields of `Config` to change.
    """
    return Config(**(_SMALL | overrides))
