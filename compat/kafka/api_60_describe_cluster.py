"""DescribeCluster (key 60): v0-2.

Behaviour:
- One broker, this one, which is the controller.
- A client that believes to talk to a controller's own listener (v1+, endpoint type 2) is told that
  it does not: MISMATCHED_ENDPOINT_TYPE. Other kinds of endpoints: UNSUPPORTED_ENDPOINT_TYPE.
- No broker is ever fenced (v2+).

Deviations:
- Authorized operations are always "not known".

Versions: 0 flexible from the start; 1 kinds of endpoints; 2 fenced brokers.
Layer 4; does no I/O.
"""

from typing import Final

from compat.kafka.error_codes import ErrorCode
from compat.kafka.node import Node
from compat.kafka.registry import Fields, handles

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


@handles(key=60, name="DescribeCluster", versions=(0, 2), flexible_from=0)
def describe_cluster(node: Node, version: int, request: Fields) -> Fields:
    """Answer which brokers there are."""
    asked: int = request.get("endpoint_type", _BROKERS)
    if asked != _BROKERS:
        return _refuse(asked)
    broker = node.broker
    brokers = [
        {"broker_id": broker.node_id, "host": node.host, "port": node.port, "is_fenced": False}
    ]
    return {
        "error_code": ErrorCode.NONE,
        "endpoint_type": _BROKERS,
        "cluster_id": broker.cluster_id,
        "controller_id": broker.node_id,
        "brokers": brokers,
    }


def _refuse(asked: int) -> Fields:
    if asked == _CONTROLLERS:
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        message = "this is the listener of a broker, not that of a controller"
    else:
        code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        message = f"there are no endpoints of type {asked}"
    return {
        "error_code": code,
        "error_message": message,
        "endpoint_type": _BROKERS,
        "cluster_id": "",
        "brokers": (),
    }
