"""OffsetFetch (key 9): v1-9.

Behaviour:
- Returns the committed offsets of a group on the requested partitions; with a null topic list (v2+)
  on all. One request may name many groups (v8+).
- Without a committed offset, and for a missing group, topic or partition: offset -1, leader epoch
  -1, empty metadata, and no error.
- Deleting a topic deletes its offsets; a new topic with the same name has none.
- The response waits until its offsets are as durable as the broker's flush mode promises.
- `require_stable` (v7+) has no effect: there are no transactions, so every offset is stable.
- Member id and epoch (v9) are for groups whose assignment the broker makes; they are ignored for
  classic groups.

Deviations: a group, topic or partition that is requested twice is answered once.

Versions: 1 one group, its topics listed; 2 all topics, error of the whole request; 3 throttle time;
4 as 3; 5 leader epoch; 6 flexible; 7 require_stable; 8 many groups; 9 member id and epoch.
Layer 4; does no I/O.
"""

from collections.abc import Iterable
from functools import partial
from typing import Final

from _core.queue.partition import Topic
from appliance.store.state.group_frames import OffsetEntry
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.named_items import by_partition
from compat.kafka.protocol.needs import of_groups, on_slave
from compat.kafka.protocol.registry import Fields, Needs, handles
from compat.kafka.protocol.slices import VALUE_WORK, InPieces, Items, free_in_steps

_FIRST_VERSION_WITH_MANY_GROUPS: Final = 8


def _named(request: Fields) -> list[str]:
    groups = request.get("groups")
    return [request["group_id"]] if groups is None else [group["group_id"] for group in groups]


def _refuse(error: ErrorCode, node: Node, version: int, request: Fields) -> InPieces:
    if version >= _FIRST_VERSION_WITH_MANY_GROUPS:
        groups = dict.fromkeys(_named(request))
        refused = ({"group_id": each, "error_code": error, "topics": ()} for each in groups)
        return InPieces({"groups": refused})
    nothing = {"committed_offset": -1, "metadata": "", "error_code": error}
    topics = (
        {
            "name": topic["name"],
            "partitions": [
                {"partition_index": index, **nothing} for index in topic["partition_indexes"]
            ],
        }
        for topic in request["topics"] or ()
    )
    return InPieces({"error_code": error, "topics": topics})


_NEEDS: Final = Needs(of_groups(_named), partial(_refuse, ErrorCode.coordinator_load_in_progress))

_ON_SLAVE: Final = on_slave(ErrorCode.not_coordinator, lambda code: partial(_refuse, code))


@handles(
    key=9, name="OffsetFetch", versions=(1, 9), flexible_from=6, needs=_NEEDS, on_slave=_ON_SLAVE
)
def offset_fetch(node: Node, version: int, request: Fields) -> InPieces:
    """Return the committed offsets of groups."""
    if version < _FIRST_VERSION_WITH_MANY_GROUPS:
        return InPieces(_answer(node, request["group_id"], request["topics"]))
    # Each group once, so that a small request cannot cause a response of any size.
    asked = {group["group_id"]: group["topics"] for group in request["groups"]}
    answers = ({"group_id": group, **_answer(node, group, asked[group])} for group in asked)
    return InPieces({"groups": answers})


def _answer(node: Node, group: str, topics: list[Fields] | None) -> Fields:
    wanted = _all(node, group) if topics is None else _listed(node, group, topics)
    return {"topics": wanted, "error_code": ErrorCode.none}


def _listed(node: Node, group: str, topics: list[Fields]) -> Items:
    by_name = yield from by_partition(topics, "name", "partition_indexes")
    for name, indexes in by_name.items():
        yield {"name": name, "partitions": _describe_listed(node, group, name, indexes)}
    yield from free_in_steps(by_name)


def _describe_listed(node: Node, group: str, name: str, indexes: Iterable[int]) -> Items:
    for index in indexes:
        topic = node.broker.topics.find(name)
        entry = None
        if topic is not None:
            entry = node.broker.groups.offsets(group).get((topic.topic_id, index))
        yield _describe(index, entry)


def _all(node: Node, group: str) -> Items:
    if not node.broker.groups.offsets(group):
        return
    for topic in node.broker.topics.all():
        if node.broker.groups.has_offsets(group, topic.topic_id):
            yield {"name": topic.name, "partitions": _describe_all(node, group, topic)}
        else:
            yield VALUE_WORK


def _describe_all(node: Node, group: str, topic: Topic) -> Items:
    for index in range(len(topic.partitions)):
        entry = node.broker.groups.offsets(group).get((topic.topic_id, index))
        yield VALUE_WORK if entry is None else _describe(index, entry)


def _describe(index: int, entry: OffsetEntry | None) -> Fields:
    return {
        "partition_index": index,
        "committed_offset": -1 if entry is None else entry.offset,
        "committed_leader_epoch": -1 if entry is None else entry.leader_epoch,
        "metadata": "" if entry is None else entry.metadata,
        "error_code": ErrorCode.none,
    }
