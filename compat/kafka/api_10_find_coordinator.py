"""FindCoordinator (key 10): v0-6.

Behaviour:
- Groups: COORDINATOR_NOT_AVAILABLE. Consumers that assign their partitions themselves do not need
  one and work. The API is here at all because librdkafka takes it as the sign of an lz4-capable
  broker.
- Transactional ids: TRANSACTIONAL_ID_AUTHORIZATION_FAILED, as InitProducerId answers them. There is
  no code for "no such feature" that ends a transactional producer at once in every client: Java
  gives up on any code that is not retriable, librdkafka only on this one and on the cluster's, and
  shows the message with it.
- Other kinds of keys (share groups, v6): INVALID_REQUEST.

Deviations: the two refusals above.

Versions: 0 groups only; 1 kinds of keys, messages, throttle time; 2 as 1; 3 flexible; 4 many keys
in one request; 5 and 6 as 4, with more error codes and kinds.
Layer 4; does no I/O.
"""

from typing import Final

from compat.kafka.error_codes import ErrorCode
from compat.kafka.node import Node
from compat.kafka.registry import Fields, handles

_FIRST_VERSION_WITH_MANY_KEYS: Final = 4
_GROUP: Final = 0
_TRANSACTION: Final = 1

_REFUSALS: Final = {
    _GROUP: (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        "consumer groups are not supported yet: assign partitions instead of subscribing",
    ),
    _TRANSACTION: (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "transactions are not supported yet: leave out transactional.id",
    ),
}


@handles(key=10, name="FindCoordinator", versions=(0, 6), flexible_from=3)
def find_coordinator(node: Node, version: int, request: Fields) -> Fields:
    """Answer, for now, that there is no coordinator."""
    key_type: int = request.get("key_type", _GROUP)
    error_code, error_message = _REFUSALS.get(
        key_type,
        (ErrorCode.INVALID_REQUEST, f"there are no coordinators for keys of kind {key_type}"),
    )
    refusal: Fields = {
        "error_code": error_code,
        "error_message": error_message,
        "node_id": -1,
        "host": "",
        "port": -1,
    }
    if version < _FIRST_VERSION_WITH_MANY_KEYS:
        return refusal
    return {"coordinators": [{**refusal, "key": key} for key in request["coordinator_keys"]]}
