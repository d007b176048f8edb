"""Fetch (key 1): v4-17.

Compiled code answers it, from bytes to bytes: `_core.paths.fetch` documents the behaviour.

Deviations: none. librdkafka before 2.11.1 requires that the range includes versions 4 and 10.

Versions: 12 flexible; 13 topics by the ids from Metadata; the others: `_core.paths.fetch`.
Layer 4; does no I/O.
"""

from compat.kafka.protocol.registry import Api

fetch = Api(key=1, name="Fetch", versions=(4, 17), flexible_from=12, served_from=4)
