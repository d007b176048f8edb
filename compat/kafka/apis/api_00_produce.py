"""Produce (key 0): v3-11, advertised from v0.

Compiled code answers it, from bytes to bytes: `_core.paths.produce` documents the behaviour.

Deviations:
- Versions 0 to 2 are advertised but not served, as in Kafka 4: librdkafka before 2.11.1 compresses
  only if the broker's range overlaps [0, version of the codec].

Versions: 3 transactional id; 5 log start offset; 7 zstd; 8 record errors and message; 9 flexible.
Layer 4; does no I/O.
"""

from _core.paths.session import KEY_PRODUCE, PRODUCE_FLEXIBLE, PRODUCE_MAX, PRODUCE_MIN
from compat.kafka.protocol.registry import Api, OnSlave

produce = Api(
    KEY_PRODUCE,
    "Produce",
    (0, PRODUCE_MAX),
    PRODUCE_FLEXIBLE,
    served_from=PRODUCE_MIN,
    on_slave=OnSlave("NOT_LEADER_OR_FOLLOWER"),
)
