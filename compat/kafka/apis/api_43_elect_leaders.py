"""ElectLeaders (key 43): v0-2.

Behaviour:
- This broker leads every partition, so no election is ever needed. With a null list, which means
  all partitions, the answer is empty, as from Kafka. A partition that is named gets
  ELECTION_NOT_NEEDED, a missing one UNKNOWN_TOPIC_OR_PARTITION. Each partition is answered once.
- An election type (v1+) other than 0 and 1 gets INVALID_REQUEST for each partition.

Deviations: none.

Versions: 0 preferred leaders only; 1 election type, error of the whole request; 2 flexible.
Layer 4; does no I/O.
"""

from functools import partial
from typing import Final

from compat.kafka.configs.entries import shown
from compat.kafka.configs.internal_topic import is_internal_partition
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.named_items import by_partition
from compat.kafka.protocol.needs import on_slave
from compat.kafka.protocol.registry import Fields, handles
from compat.kafka.protocol.slices import InPieces, Items, free_in_steps

_PREFERRED: Final = 0
_UNCLEAN: Final = 1


def _refuse(error: ErrorCode, node: Node, version: int, request: Fields) -> InPieces:
    def refused(topic: Fields) -> Items:
        for index in topic["partitions"]:
            yield {"partition_id": index, "error_code": error, "error_message": None}

    topics = (
        {"topic": each["topic"], "partition_result": refused(each)}
        for each in request["topic_partitions"] or ()
    )
    return InPieces({"error_code": error, "replica_election_results": topics})


_ON_SLAVE: Final = on_slave(ErrorCode.not_controller, lambda code: partial(_refuse, code))


@handles(
    key=43, name="ElectLeaders", versions=(0, 2), flexible_from=2, needs=None, on_slave=_ON_SLAVE
)
def elect_leaders(node: Node, version: int, request: Fields) -> InPieces:
    """Answer that no partition needs another leader."""
    return InPieces(
        {"error_code": ErrorCode.none, "replica_election_results": _answer_topics(node, request)}
    )


def _answer_topics(node: Node, request: Fields) -> Items:
    election: int = request.get("election_type", _PREFERRED)
    asked = request["topic_partitions"] or ()
    by_name = yield from by_partition(asked, "topic", "partitions")
    for name, indexes in by_name.items():
        answers = (_answer(node, election, name, index) for index in indexes)
        yield {"topic": name, "partition_result": answers}
    yield from free_in_steps(by_name)


def _answer(node: Node, election: int, name: str, index: int) -> Fields:
    topic = node.broker.topics.find(name)
    code = ErrorCode.election_not_needed
    message = "Leader election not needed for topic partition."
    if election not in (_PREFERRED, _UNCLEAN):
        code, message = ErrorCode.invalid_request, f"Unknown election type {election}"
    elif topic is None and not is_internal_partition(name, index):
        code = ErrorCode.unknown_topic_or_partition
        message = f"No such topic as {shown(name)[1:-1]}"
    elif topic is not None and not 0 <= index < len(topic.partitions):
        code = ErrorCode.unknown_topic_or_partition
        message = f"No such partition as {name}-{index}"
    return {"partition_id": index, "error_code": code, "error_message": message}
