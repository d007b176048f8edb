"""Commits, reads and deletes offsets over a `WireClient`: every byte comes from kafka-python.

offsets = OffsetsClient(WireClient(harness))
assert offsets.commit("g", {("t", 0): Commit(5, "note")}) == {("t", 0): 0}
assert offsets.fetch("g") == {("t", 0): Committed(5, "note")}
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal

from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.oracles.kafka_oracle import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

Place = tuple[str, int]
"""Topic and partition."""

COMMIT_VERSION: Final = 7
FETCH_VERSION: Final = 7
FIRST_VERSION_WITH_MANY_GROUPS: Final = 8


@dataclass(frozen=True, slots=True)
class Commit:
    """The offset to commit for one partition."""

    offset: int
    metadata: str | None = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Committed:
    """The answer for one partition; the leader epoch is -1 before version 5."""

    offset: int
    metadata: str | None = ""
    leader_epoch: int = -1
    error: int = 0


NOTHING: Final = Committed(-1)


def by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    """Partitions by topic, both in the order given."""
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    return topics


def commit_request(
    group: str,
    commits: Mapping[Place, Commit],
    *,
    member_id: str = "",
    instance_id: str | None = None,
    generation: int = -1,
    retention_ms: int = -1,
) -> Any:
    """An OffsetCommit request."""
    kind = OffsetCommitRequest.OffsetCommitRequestTopic
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        retention_time_ms=retention_ms,
        topics=[
            kind(
                name=topic,
                partitions=[
                    kind.OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=commits[topic, partition].offset,
                        committed_leader_epoch=commits[topic, partition].leader_epoch,
                        committed_metadata=commits[topic, partition].metadata,
                    )
                    for partition in partitions
                ],
            )
            for topic, partitions in by_topic(commits).items()
        ],
    )


def fetch_request(version: int, groups: Mapping[str, Iterable[Place] | None]) -> Any:
    """An OffsetFetch request; None asks for everything of a group, and only v8+ for many groups."""
    if version < FIRST_VERSION_WITH_MANY_GROUPS:
        ((group, places),) = groups.items()
        topics = _fetch_topics(OffsetFetchRequest.OffsetFetchRequestTopic, places)
        return OffsetFetchRequest(group_id=group, topics=topics, require_stable=True)
    kind = OffsetFetchRequest.OffsetFetchRequestGroup
    return OffsetFetchRequest(
        groups=[
            kind(
                group_id=group,
                member_id=None,
                member_epoch=-1,
                topics=_fetch_topics(kind.OffsetFetchRequestTopics, places),
            )
            for group, places in groups.items()
        ],
        require_stable=True,
    )


def _fetch_topics(kind: Any, places: Iterable[Place] | None) -> list[Any] | None:
    if places is None:
        return None
    return [
        kind(name=topic, partition_indexes=partitions)
        for topic, partitions in by_topic(places).items()
    ]


def delete_request(group: str, places: Iterable[Place]) -> Any:
    """An OffsetDelete request."""
    kind = OffsetDeleteRequest.OffsetDeleteRequestTopic
    return OffsetDeleteRequest(
        group_id=group,
        topics=[
            kind(
                name=topic,
                partitions=[
                    kind.OffsetDeleteRequestPartition(partition_index=partition)
                    for partition in partitions
                ],
            )
            for topic, partitions in by_topic(places).items()
        ],
    )


def commit_errors(answer: Any) -> dict[Place, int]:
    """The error codes of an OffsetCommit or OffsetDelete response."""
    return {
        (topic.name, partition.partition_index): partition.error_code
        for topic in answer.topics
        for partition in topic.partitions
    }


def committed(topics: Any, version: int) -> dict[Place, Committed]:
    """The offsets of one group in an OffsetFetch response."""
    return {
        (topic.name, partition.partition_index): Committed(
            partition.committed_offset,
            partition.metadata,
            partition.committed_leader_epoch if version >= 5 else -1,
            partition.error_code,
        )
        for topic in topics
        for partition in topic.partitions
    }


class OffsetsClient:
    """Commits, fetches and deletes offsets on one broker.

    Attributes:
        client: the connection.
    """

    def __init__(self, client: WireClient) -> None:
        self.client = client

    @property
    def harness(self) -> BrokerHarness:
        """The broker."""
        return self.client.harness

    def reborn(self, how: Literal["restart", "crash"]) -> "OffsetsClient":
        """A client of the broker that starts on the disk after a clean stop or a power cut."""
        harness = (
            self.harness.restart() if how == "restart" else self.harness.crash("dropped", Random(0))
        )
        return OffsetsClient(WireClient(harness))

    def commit(
        self,
        group: str,
        commits: Mapping[Place, Commit],
        *,
        version: int = COMMIT_VERSION,
        **fields: Any,
    ) -> dict[Place, int]:
        """Commit durably; return the error codes."""
        request = commit_request(group, commits, **fields)
        return commit_errors(self.client.ask(request, version, OffsetCommitResponse))

    def fetch(
        self, group: str, places: Iterable[Place] | None = None, *, version: int = FETCH_VERSION
    ) -> dict[Place, Committed]:
        """The committed offsets of a group; of all partitions if none are given."""
        return self.fetch_many({group: places}, version=version)[group]

    def fetch_many(
        self, groups: Mapping[str, Iterable[Place] | None], *, version: int
    ) -> dict[str, dict[Place, Committed]]:
        """The committed offsets of several groups."""
        request = fetch_request(version, groups)
        answer = self.client.ask(request, version, OffsetFetchResponse)
        if version < FIRST_VERSION_WITH_MANY_GROUPS:
            if version >= 2:
                assert answer.error_code == 0
            (group,) = groups
            return {group: committed(answer.topics, version)}
        assert all(group.error_code == 0 for group in answer.groups)
        return {group.group_id: committed(group.topics, version) for group in answer.groups}

    def delete(self, group: str, places: Iterable[Place]) -> tuple[int, dict[Place, int]]:
        """Delete offsets durably; return the error code of the request, and of each partition."""
        answer = self.client.ask(delete_request(group, places), 0, OffsetDeleteResponse)
        return answer.error_code, commit_errors(answer)
