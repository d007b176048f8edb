"""FindCoordinator (key 10): v0-6.

Behaviour:
- The coordinator of every group is the leader: this broker, or of a pair the master. While none is
  known: COORDINATOR_NOT_AVAILABLE, after which clients ask again.
- Transactional ids get TRANSACTIONAL_ID_AUTHORIZATION_FAILED, as from InitProducerId. Kafka has no
  code for "no such feature" that ends a transactional producer at once in every client: Java stops
  on any code that is not retriable, librdkafka only on this one and on
  CLUSTER_AUTHORIZATION_FAILED, and it shows the message.
- A key that is named more than once is answered once.
- Other key types (share groups, v6) get INVALID_REQUEST.

Deviations: the two refusals above.

Versions: 0 groups only; 1 key types, messages, throttle time; 2 as 1; 3 flexible; 4 many keys in
one request; 5 and 6 as 4, with more error codes and key types.
Layer 4; does no I/O.
"""

from typing import Final

from appliance.routes import NO_NODE
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.named_items import each_once
from compat.kafka.protocol.registry import Fields, OnSlave, handles
from compat.kafka.protocol.slices import InPieces

_FIRST_VERSION_WITH_MANY_KEYS: Final = 4
_GROUP: Final = 0
_TRANSACTION: Final = 1


@handles(
    key=10,
    name="FindCoordinator",
    versions=(0, 6),
    flexible_from=3,
    needs=None,
    on_slave=OnSlave("names the master"),
)
def find_coordinator(node: Node, version: int, request: Fields) -> Fields | InPieces:
    """Return the leader as the coordinator of groups."""
    found = _answer(node, request.get("key_type", _GROUP))
    if version < _FIRST_VERSION_WITH_MANY_KEYS:
        return found
    keys = each_once(request["coordinator_keys"])
    coordinators = (key if isinstance(key, int) else {**found, "key": key} for key in keys)
    return InPieces({"coordinators": coordinators})


def _answer(node: Node, key_type: int) -> Fields:
    leader = node.routes.leader
    if key_type == _GROUP and leader is not None:
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "node_id": leader.node_id,
            "host": leader.at.host,
            "port": leader.at.port,
        }
    if key_type == _GROUP:
        error_code = ErrorCode.coordinator_not_available
        error_message = "no master is known: ask again"
    elif key_type == _TRANSACTION:
        error_code = ErrorCode.transactional_id_authorization_failed
        error_message = "transactions are not supported yet: leave out transactional.id"
    else:
        error_code = ErrorCode.invalid_request
        error_message = f"key type {key_type} is not supported: use {_GROUP} for groups"
    return {
        "error_code": error_code,
        "error_message": error_message,
        "node_id": NO_NODE,
        "host": "",
        "port": -1,
    }
