"""DescribeCluster (key 60): v0-2.

Behaviour:
- Returns this broker, or the two of a pair, as Metadata does. The controller is the leader; -1
  while none is known.
- A client that expects a controller listener (v1+, endpoint type 2) gets MISMATCHED_ENDPOINT_TYPE.
  Other endpoint types get UNSUPPORTED_ENDPOINT_TYPE.
- No broker is ever fenced (v2+).

Deviations:
- Authorized operations are always "unknown".

Versions: 0 flexible from the start; 1 endpoint types; 2 fenced brokers.
Layer 4; does no I/O.
"""

from typing import Final

from appliance.routes import NO_NODE
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.registry import Fields, OnSlave, handles

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


@handles(
    key=60,
    name="DescribeCluster",
    versions=(0, 2),
    flexible_from=0,
    needs=None,
    on_slave=OnSlave("names the master"),
)
def describe_cluster(node: Node, version: int, request: Fields) -> Fields:
    """Return the brokers of the cluster."""
    asked: int = request.get("endpoint_type", _BROKERS)
    if asked != _BROKERS:
        return _refuse(asked)
    leader = node.routes.leader
    brokers = [
        {
            "broker_id": each.node_id,
            "host": each.at.host,
            "port": each.at.port,
            "rack": each.at.rack or None,
            "is_fenced": False,
        }
        for each in node.routes.members
    ]
    return {
        "error_code": ErrorCode.none,
        "endpoint_type": _BROKERS,
        "cluster_id": node.broker.cluster_id,
        "controller_id": NO_NODE if leader is None else leader.node_id,
        "brokers": brokers,
    }


def _refuse(asked: int) -> Fields:
    if asked == _CONTROLLERS:
        code = ErrorCode.mismatched_endpoint_type
        message = "this is a broker, not a controller: use bootstrap.servers"
    else:
        code = ErrorCode.unsupported_endpoint_type
        message = f"endpoint type {asked} is not supported: use {_BROKERS}"
    return {
        "error_code": code,
        "error_message": message,
        "endpoint_type": _BROKERS,
        "cluster_id": "",
        "brokers": (),
    }
