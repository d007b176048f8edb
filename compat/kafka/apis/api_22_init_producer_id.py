"""InitProducerId (key 22): v0-5.

Behaviour:
- Without a transactional id, each request gets a new producer id with epoch 0. As in Kafka, an id
  and epoch in the request (v3+) have no effect: a non-transactional producer increments its epoch
  by itself, and a new id is always safe.
- With a transactional id: TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which ends the producer at once in
  every client; see compat.kafka.apis.api_10_find_coordinator.
- If the broker cannot store the next id, the error code gives the reason.
- A slave closes the connection: clients ask another broker.
- At the limits of producers (docs/CONFIGURATION.md, Producers): COORDINATOR_LOAD_IN_PROGRESS, after
  which every client waits and asks again.

Deviations: transactions are refused.

Versions: 1 as 0; 2 flexible; 3 the client's id and epoch; 4 may return PRODUCER_FENCED; 5 may
return TRANSACTION_ABORTABLE.
Layer 4; does no I/O.
"""

from typing import Final

from appliance.errors import RemoteProtocolError, RequestError
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode, code_of
from compat.kafka.protocol.needs import refuse
from compat.kafka.protocol.registry import Fields, Needs, OnSlave, handles

# The code after which librdkafka and the Java client ask again.
_NEEDS: Final = Needs(
    lambda node, request: iter((node.broker.producer_ids_pos,)),
    refuse(ErrorCode.coordinator_load_in_progress, producer_id=-1, producer_epoch=-1),
)


def _close(node: Node, version: int, request: Fields) -> Fields:
    """Close the connection, so that the client asks another broker.

    After an error, librdkafka asks the one broker that it is connected to, again and again, and
    that may be this one.
    """
    raise RemoteProtocolError("a slave gives out no producer ids: ask the master")


_ON_SLAVE: Final = OnSlave("closes the connection", _close)


@handles(
    key=22,
    name="InitProducerId",
    versions=(0, 5),
    flexible_from=2,
    needs=_NEEDS,
    on_slave=_ON_SLAVE,
)
def init_producer_id(node: Node, version: int, request: Fields) -> Fields:
    """Return a producer id that was never used before."""
    if request["transactional_id"] is not None:
        return _refuse(ErrorCode.transactional_id_authorization_failed)
    try:
        producer_id = node.broker.allocate_producer_id(node.client.host)
    except RequestError as error:
        return _refuse(code_of(error))
    return {"error_code": ErrorCode.none, "producer_id": producer_id, "producer_epoch": 0}


def _refuse(error_code: int) -> Fields:
    return {"error_code": error_code, "producer_id": -1, "producer_epoch": -1}
