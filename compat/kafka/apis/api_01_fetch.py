"""Fetch (key 1): v4-17.

Compiled code answers it, from bytes to bytes: `_core.paths.fetch` documents the behaviour.

Deviations: none. librdkafka before 2.11.1 requires that the range includes versions 4 and 10.

Versions: 12 flexible; 13 topics by the ids from Metadata; the others: `_core.paths.fetch`.
Layer 4; does no I/O.
"""

from _core.paths.session import FETCH_FLEXIBLE, FETCH_MAX, FETCH_MIN, KEY_FETCH
from compat.kafka.protocol.registry import Api, OnSlave

fetch = Api(
    KEY_FETCH,
    "Fetch",
    (FETCH_MIN, FETCH_MAX),
    FETCH_FLEXIBLE,
    served_from=FETCH_MIN,
    on_slave=OnSlave("what the master shows and it has; NOT_LEADER_OR_FOLLOWER without its master"),
)
