"""The settings of the network: who may connect, and what one client or all may take.

They are fields of `appliance.config.Config`, kept apart because each needs a reason. Layer 1; does
no I/O.
"""

from typing import Any, Final

from appliance.setting import number
from appliance.units import GIB, KIB, MIB, MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE

CONNECTION_COUNT_MAX: Final[Any] = number(
    10_000,
    "network.connection_count_max",
    (1, 1_000_000),
    "Further ones are closed at once. Each takes a file descriptor and some buffers.",
    unit="connections",
)
CONNECTION_COUNT_MAX_PER_ADDRESS: Final[Any] = number(
    5_000,
    "network.connection_count_max_per_address",
    (1, 1_000_000),
    "Likewise, from one IP address: one machine cannot take all there are.",
    unit="connections",
)
IDLE_TIMEOUT_MS: Final[Any] = number(
    10 * MS_PER_MINUTE,
    "network.idle_timeout_ms",
    (100, 365 * MS_PER_DAY),
    "A connection that asks for nothing, or does not take its answers, for so long is closed; "
    "Kafka's connections.max.idle.ms.",
)
RECEIVE_TIMEOUT_MS: Final[Any] = number(
    MS_PER_MINUTE,
    "network.receive_timeout_ms",
    (100, MS_PER_DAY),
    "From the first byte of a request to its last; a slower one closes its connection.",
)
INFLIGHT_MAX_BYTES: Final[Any] = number(
    256 * MIB,
    "network.inflight_max_bytes",
    (KIB, 1024 * GIB),
    "Memory for requests and answers of all connections. Beyond it large requests are read one "
    "after the other, and who does not take its answers is closed.",
)
REQUEST_SIZE_MAX_BYTES: Final[Any] = number(
    32 * MIB,
    "network.request_size_max_bytes",
    (4 * KIB, 100 * MIB),
    "A larger request closes its connection before memory is taken for it. "
    "Kafka's limit is 100 MiB.",
)
FETCH_SIZE_MAX_BYTES: Final[Any] = number(
    55 * MIB,
    "network.fetch_size_max_bytes",
    (KIB, GIB),
    "The most one Fetch answers with, whatever it asks for; Kafka's fetch.max.bytes. "
    "One batch is always answered.",
)
FETCH_WAIT_MAX_MS: Final[Any] = number(
    MS_PER_MINUTE,
    "network.fetch_wait_max_ms",
    (0, MS_PER_HOUR),
    "The longest a Fetch is parked, whatever it asks for.",
)
