"""Produce and Fetch requests, built by kafka-python."""

from collections.abc import Sequence
from typing import Any

from tests.support.oracles.kafka_oracle import FetchRequest, ProduceRequest

Part = tuple[int, bytes | None]
"""A partition and the batch for it."""


def produce_request(
    topics: Sequence[tuple[str, Sequence[Part]]],
    *,
    acks: int = -1,
    transactional_id: str | None = None,
    timeout_ms: int = 1000,
) -> Any:
    """A Produce request of batches, by topic and partition."""
    kind = ProduceRequest.TopicProduceData
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            kind(
                name=name,
                partition_data=[
                    kind.PartitionProduceData(index=index, records=batch) for index, batch in parts
                ],
            )
            for name, parts in topics
        ],
    )


def fetch_part(
    partition: int, offset: int, *, limit: int = 1 << 20, leader_epoch: int = -1
) -> dict[str, int]:
    """A partition of a Fetch request."""
    return {
        "partition": partition,
        "current_leader_epoch": leader_epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": limit,
    }


def fetch_request(
    topics: Sequence[tuple[str, Sequence[dict[str, int]]]],
    *,
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    session_id: int = 0,
    session_epoch: int = -1,
) -> Any:
    """A Fetch request of `fetch_part`s by topic."""
    kind = FetchRequest.FetchTopic
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[
            kind(topic=name, partitions=[kind.FetchPartition(**part) for part in parts])
            for name, parts in topics
        ],
        forgotten_topics_data=[],
        rack_id="",
    )
