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

from collections.abc import Mapping
from typing import Final

from appliance.store.state.group_frames import OffsetEntry
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.needs import of_groups, with_code
from compat.kafka.protocol.registry import Fields, Needs, handles

_FIRST_VERSION_WITH_MANY_GROUPS: Final = 8

_Offsets = Mapping[tuple[int, int], OffsetEntry]
_Wanted = dict[str, dict[int, OffsetEntry | None]]
"""Committed offsets by topic name and partition."""


def _named(request: Fields) -> list[str]:
    groups = request.get("groups")
    if not groups:
        return [request["group_id"]]
    return [group["group_id"] for group in groups]


_NEEDS: Final = Needs(of_groups(_named), with_code(ErrorCode.coordinator_load_in_progress))


@handles(key=9, name="OffsetFetch", versions=(1, 9), flexible_from=6, needs=_NEEDS)
def offset_fetch(node: Node, version: int, request: Fields) -> Fields:
    """Return the committed offsets of groups."""
    if version < _FIRST_VERSION_WITH_MANY_GROUPS:
        asked = {request["group_id"]: request["topics"]}
    else:
        # Each group once, so that a small request cannot cause a response of any size.
        asked = {group["group_id"]: group["topics"] for group in request["groups"]}
    names = {}
    if None in asked.values():
        # Built once for all groups: there may be ten thousand topics.
        names = {topic.topic_id: topic.name for topic in node.broker.topics.all()}
    answers = [
        {"group_id": group, **_answer(node, group, topics, names)}
        for group, topics in asked.items()
    ]
    return answers[0] if version < _FIRST_VERSION_WITH_MANY_GROUPS else {"groups": answers}


def _answer(
    node: Node, group: str, topics: list[Fields] | None, names: Mapping[int, str]
) -> Fields:
    committed = node.broker.groups.offsets(group)
    wanted = _all(names, committed) if topics is None else _listed(node, committed, topics)
    answers = [
        {
            "name": name,
            "partitions": [_describe(index, entry) for index, entry in partitions.items()],
        }
        for name, partitions in wanted.items()
    ]
    return {"topics": answers, "error_code": ErrorCode.none}


def _listed(node: Node, committed: _Offsets, topics: list[Fields]) -> _Wanted:
    wanted: _Wanted = {}
    for asked in topics:
        topic = node.broker.topics.find(asked["name"])
        partitions = wanted.setdefault(asked["name"], {})
        for index in asked["partition_indexes"]:
            partitions[index] = None if topic is None else committed.get((topic.topic_id, index))
    return wanted


def _all(names: Mapping[int, str], committed: _Offsets) -> _Wanted:
    wanted: _Wanted = {}
    for (topic_id, index), entry in sorted(committed.items()):
        # Deleting a topic deletes its offsets, but damage can destroy a topic's frames.
        if topic_id in names:
            wanted.setdefault(names[topic_id], {})[index] = entry
    return wanted


def _describe(index: int, entry: OffsetEntry | None) -> Fields:
    return {
        "partition_index": index,
        "committed_offset": -1 if entry is None else entry.offset,
        "committed_leader_epoch": -1 if entry is None else entry.leader_epoch,
        "metadata": "" if entry is None else entry.metadata,
        "error_code": ErrorCode.none,
    }
