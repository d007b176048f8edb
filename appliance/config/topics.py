"""How many topics and partitions there are: fields of `Config`. Layer 1; does no I/O."""

from dataclasses import dataclass

from appliance.config.setting import number, switch


@dataclass(frozen=True, kw_only=True)
class TopicSettings:
    """How many topics and partitions there are."""

    default_partition_count: int = number(
        4,
        "topics.default_partition_count",
        (1, 100_000),
        "For a topic that is created without a count; RocketMQ's four queues.",
        unit="partitions",
    )
    auto_create_topics: bool = switch(
        True,
        "topics.auto_create",
        "Creates a topic when a producer first names it, as Kafka does.",
    )
    partition_count_max_per_topic: int = number(
        1_000,
        "topics.partition_count_max_per_topic",
        (1, 100_000),
        "Each takes a directory, an open file and an entry in every Metadata answer.",
        unit="partitions",
    )
    topic_count_max: int = number(
        10_000,
        "topics.topic_count_max",
        (1, 1_000_000),
        "Bounds the topics that a client can create by naming them.",
        unit="topics",
    )
    partition_total_max: int = number(
        100_000,
        "topics.partition_total_max",
        (1, 10_000_000),
        "Total of all topics.",
        unit="partitions",
    )
