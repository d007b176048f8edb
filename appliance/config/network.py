"""Addresses, connections and their memory: fields of `Config`. Layer 1; does no I/O."""

from dataclasses import dataclass
from typing import Final

from appliance.config.setting import (
    Address,
    number,
    read_address,
    read_names,
    read_optional_address,
    read_rack,
    switch,
    value,
)
from appliance.units import GIB, KIB, MIB, MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE

_ADDRESS: Final = "HOST:PORT, an IPv6 host in brackets"


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """Addresses, connections and their memory."""

    listen: Address = value(
        Address("127.0.0.1", 9092),
        "network.listen",
        read_address,
        _ADDRESS,
        "Address for Kafka clients; 9092 is Kafka's port. Port 0 takes a free one.",
        flag="--listen",
    )
    admin: Address = value(
        Address("127.0.0.1", 9192),
        "network.admin",
        read_address,
        _ADDRESS,
        "Address for health, metrics and the admin API, over HTTP.",
        flag="--admin",
    )
    admin_names: str = value(
        "",
        "network.admin_names",
        read_names,
        "host names or addresses without port, separated by spaces",
        "Further names by which HTTP clients may call the admin address, such as that of a proxy. "
        "A request that names another host is refused, because a web page can let its own name "
        "point to this machine (DNS rebinding). Always allowed: loopback, the hosts of `admin` "
        "and `advertise`, and every numeric address if `admin` is a wildcard.",
    )
    advertise: Address | None = value(
        None,
        "network.advertise",
        read_optional_address,
        _ADDRESS,
        "Address that the broker gives to clients; required if `listen` is a wildcard. "
        "Port 0 means the port of `listen`.",
        flag="--advertise",
    )
    rack: str = value(
        "",
        "network.rack",
        read_rack,
        "up to 255 printable ASCII characters, no spaces",
        "Where this machine is, as `client.rack` of consumers has it: a rack, a room, a zone. Of a "
        "pair, a consumer in the rack of the slave reads from the slave.",
    )
    allow_insecure: bool = switch(
        False,
        "network.allow_insecure",
        "Lets other machines connect without encryption and password.",
        flag="--allow-insecure",
    )
    connection_count_max: int = number(
        10_000,
        "network.connection_count_max",
        (1, 1_000_000),
        "Further connections are closed at once. Each takes a file descriptor and some buffers.",
        unit="connections",
    )
    connection_count_max_per_address: int = number(
        5_000,
        "network.connection_count_max_per_address",
        (1, 1_000_000),
        "The same for one IP address, so that one machine cannot take all connections.",
        unit="connections",
    )
    idle_timeout_ms: int = number(
        10 * MS_PER_MINUTE,
        "network.idle_timeout_ms",
        (100, 365 * MS_PER_DAY),
        "A connection is closed if it sends no request, or does not read its answers, for this "
        "long; Kafka's connections.max.idle.ms.",
    )
    receive_timeout_ms: int = number(
        MS_PER_MINUTE,
        "network.receive_timeout_ms",
        (100, MS_PER_DAY),
        "From the first byte of a request to its last; a slower request closes its connection.",
    )
    inflight_max_bytes: int = number(
        256 * MIB,
        "network.inflight_max_bytes",
        (KIB, 1024 * GIB),
        "Memory for requests and answers of all connections. Requests beyond 1 MiB wait until "
        "there is room for all of them. Beyond the limit, others are read, and long answers "
        "produced, one at a time for each address, and connections that do not read their "
        "answers are closed.",
    )
    request_size_max_bytes: int = number(
        100 * MIB,
        "network.request_size_max_bytes",
        (4 * KIB, 100 * MIB),
        "A larger request closes its connection before memory is allocated for it; Kafka's "
        "socket.request.max.bytes. Not more than `inflight_max_bytes`.",
    )
    fetch_size_max_bytes: int = number(
        55 * MIB,
        "network.fetch_size_max_bytes",
        (KIB, GIB),
        "Maximum size of one Fetch answer, whatever the request allows; Kafka's fetch.max.bytes. "
        "A single larger batch is returned nevertheless.",
    )
    fetch_wait_max_ms: int = number(
        MS_PER_MINUTE,
        "network.fetch_wait_max_ms",
        (0, MS_PER_HOUR),
        "Maximum wait of a Fetch, whatever the request allows.",
    )
