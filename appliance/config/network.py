"""Settings of the network: connections, timeouts, and the memory of one client or all.

They are fields of `appliance.config.config.Config`. Layer 1; does no I/O.
"""

from typing import Any, Final

from appliance.config.setting import number
from appliance.units import GIB, KIB, MIB, MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE

CONNECTION_COUNT_MAX: Final[Any] = number(
    10_000,
    "network.connection_count_max",
    (1, 1_000_000),
    "Further connections are closed at once. Each takes a file descriptor and some buffers.",
    unit="connections",
)
CONNECTION_COUNT_MAX_PER_ADDRESS: Final[Any] = number(
    5_000,
    "network.connection_count_max_per_address",
    (1, 1_000_000),
    "The same for one IP address, so that one machine cannot take all connections.",
    unit="connections",
)
IDLE_TIMEOUT_MS: Final[Any] = number(
    10 * MS_PER_MINUTE,
    "network.idle_timeout_ms",
    (100, 365 * MS_PER_DAY),
    "A connection is closed if it sends no request, or does not read its answers, for this long; "
    "Kafka's connections.max.idle.ms.",
)
RECEIVE_TIMEOUT_MS: Final[Any] = number(
    MS_PER_MINUTE,
    "network.receive_timeout_ms",
    (100, MS_PER_DAY),
    "From the first byte of a request to its last; a slower request closes its connection.",
)
INFLIGHT_MAX_BYTES: Final[Any] = number(
    256 * MIB,
    "network.inflight_max_bytes",
    (KIB, 1024 * GIB),
    "Memory for requests and answers of all connections. Beyond it, large requests are read one at "
    "a time, and connections that do not read their answers are closed.",
)
REQUEST_SIZE_MAX_BYTES: Final[Any] = number(
    32 * MIB,
    "network.request_size_max_bytes",
    (4 * KIB, 100 * MIB),
    "A larger request closes its connection before memory is allocated for it. "
    "Kafka's limit is 100 MiB.",
)
FETCH_SIZE_MAX_BYTES: Final[Any] = number(
    55 * MIB,
    "network.fetch_size_max_bytes",
    (KIB, GIB),
    "Maximum size of one Fetch answer, whatever the request allows; Kafka's fetch.max.bytes. "
    "A single larger batch is returned nevertheless.",
)
FETCH_WAIT_MAX_MS: Final[Any] = number(
    MS_PER_MINUTE,
    "network.fetch_wait_max_ms",
    (0, MS_PER_HOUR),
    "Maximum wait of a Fetch, whatever the request allows.",
)
