"""OffsetCommit (key 8): v2-9.

Behaviour:
- Each partition has its own error code. A missing partition gets UNKNOWN_TOPIC_OR_PARTITION. The
  group determines the code of all others: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION,
  REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID. If the group accepts the commit, partitions with too
  much metadata (`groups.offset_metadata_size_max_bytes`) get OFFSET_METADATA_TOO_LARGE, and the
  others are committed.
- The internal topic gets TOPIC_AUTHORIZATION_FAILED.
- Without a member id and a generation (an admin tool, or a consumer that assigns its own
  partitions) the group must have no members. The commit creates a missing group.
- Offset, leader epoch and metadata are stored unchanged; null metadata is stored as empty.
- The response waits until the offsets are as durable as the broker's flush mode promises. If the
  disk is full, nothing is stored: COORDINATOR_NOT_AVAILABLE, after which every client retries.
- A request that names more than 300 partitions is committed 300 at a time, each time all or none;
  fewer if group name and metadata are long.
  A partition that is named more than once is answered once; the last one counts.
- A retention time (v2-4) other than -1 is stored with the offset.

Deviations:
- The size of metadata counts bytes of UTF-8; Kafka counts UTF-16 units.
- Offsets beyond `groups.offset_total_size_max_bytes` get INVALID_COMMIT_OFFSET_SIZE, and so do all
  of a commit whose group name takes more than 1 MiB, once for each partition. Kafka has no limit of
  the first kind, and one of 1 MiB for the whole commit.
- While commits of the client's address write much to the log and others are served
  (docs/CONFIGURATION.md, The log), a commit waits; what has waited for 10 s gets
  COORDINATOR_LOAD_IN_PROGRESS, after which clients send it again.
- A member of a missing group gets ILLEGAL_GENERATION also in version 9, after which it rejoins.
  Kafka sends GROUP_ID_NOT_FOUND, after which some clients stop.

Versions: 2 retention time; 3 throttle time; 4 as 3; 5 without retention time; 6 leader epoch;
7 static members; 8 flexible; 9 as 8.
Layer 4; does no I/O.
"""

from typing import Final

from _core.queue.partition import Topic
from appliance.errors import RequestError
from appliance.store.state.group_frames import OFFSET_COMMITTED, OffsetEntry
from compat.kafka.configs.internal_topic import is_internal_partition
from compat.kafka.groups.offset_rules import (
    Answers,
    answer_partitions,
    check_names,
    commit_code_of,
    in_steps,
)
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.named_items import by_partition
from compat.kafka.protocol.needs import GROUP, on_slave, refuse_partitions
from compat.kafka.protocol.registry import Fields, Needs, Response, handles
from compat.kafka.protocol.slices import InPieces, Steps

_NO_RETENTION: Final = -1
_NO_EPOCH: Final = -1
_LAST_MS: Final = (1 << 63) - 1


ENTRY_BYTES: Final = 64
"""What the log takes of an offset besides its group and metadata."""

_NEEDS: Final = Needs(GROUP, refuse_partitions(ErrorCode.coordinator_not_available))

_ON_SLAVE: Final = on_slave(ErrorCode.not_coordinator, refuse_partitions)


@handles(
    key=8, name="OffsetCommit", versions=(2, 9), flexible_from=8, needs=_NEEDS, on_slave=_ON_SLAVE
)
def offset_commit(node: Node, version: int, request: Fields) -> Steps[Response]:
    """Commit offsets of one group."""
    by_name = yield from by_partition(request["topics"], "name", "partitions", "partition_index")
    answers = Answers()
    names_error = check_names(request["group_id"], sum(map(len, by_name.values())))
    asked = ((name, each) for name, partitions in by_name.items() for each in partitions.values())
    name_size = len(request["group_id"])

    def size_of(item: tuple[str, Fields]) -> int:
        return name_size + len(item[1]["committed_metadata"] or "")

    error, address = names_error, node.client.host
    for chunk, work in in_steps(asked, size_of):
        if error == ErrorCode.none and node.commits.must_wait(address):
            yield node.commits.wait(address)
            if node.commits.must_wait(address):
                error = ErrorCode.coordinator_load_in_progress  # clients try again
        _commit(node, request, chunk, answers, error)
        if error == ErrorCode.none:
            node.commits.charge(address, sum(map(size_of, chunk)) + ENTRY_BYTES * len(chunk))
        yield work
    return InPieces({"topics": answer_partitions(by_name, answers)})


def _commit(
    node: Node,
    request: Fields,
    asked: list[tuple[str, Fields]],
    answers: Answers,
    error: int,
) -> None:
    """Commit the offsets of the partitions that exist, all or none, and note the errors."""
    found: list[tuple[Topic, Fields]] = []
    for name, partition in asked:
        topic = node.broker.topics.find(name)
        index: int = partition["partition_index"]
        if topic is not None and 0 <= index < len(topic.partitions):
            found.append((topic, partition))
        elif is_internal_partition(name, index):
            answers[name, index] = ErrorCode.topic_authorization_failed
        else:
            answers[name, index] = ErrorCode.unknown_topic_or_partition
    if not found:
        return
    if error == ErrorCode.none:
        error = node.groups.check_commit(
            request["group_id"],
            request["member_id"],
            request.get("group_instance_id"),
            request["generation_id_or_member_epoch"],
            node.now_ms(),
            address=node.client.host,
        )
    entries = {}
    for topic, partition in found:
        key = topic.name, partition["partition_index"]
        entry = _entry(node, request, topic, partition)
        if error != ErrorCode.none:
            answers[key] = error
        elif entry is None:
            answers[key] = ErrorCode.offset_metadata_too_large
        else:
            entries[key] = entry
    if not entries:
        return
    try:
        node.broker.groups.commit_offsets(list(entries.values()))
    except RequestError as refusal:
        answers.update(dict.fromkeys(entries, commit_code_of(refusal)))


def _entry(node: Node, request: Fields, topic: Topic, partition: Fields) -> OffsetEntry | None:
    """Return the entry to store, None if its metadata is too large."""
    metadata: str = partition["committed_metadata"] or ""
    if len(metadata.encode()) > node.broker.config.offset_metadata_size_max_bytes:
        return None
    retention_ms: int = request.get("retention_time", _NO_RETENTION)
    return OffsetEntry(
        op=OFFSET_COMMITTED,
        group=request["group_id"],
        topic_id=topic.topic_id,
        partition=partition["partition_index"],
        offset=partition["committed_offset"],
        leader_epoch=partition.get("committed_leader_epoch", _NO_EPOCH),
        metadata=metadata,
        commit_ms=node.broker.clock.wall_ms(),
        retention_ms=-1 if retention_ms == _NO_RETENTION else min(max(retention_ms, 0), _LAST_MS),
    )
