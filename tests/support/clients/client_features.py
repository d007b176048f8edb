"""Which clients are tested with which features: what the table in docs/KAFKA.md is about.

Every client has a program that tries each feature against a running broker and reports. The
features mean the same in all of them, as their texts say. A feature that a client lacks is declared
here with the reason; everything else has to work.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Feature:
    """One thing that a program tries.

    Args:
        name: as the programs report it.
        text: what is done, for the table.
    """

    name: str
    text: str


FEATURES: Final = (
    Feature("create_topic", "create a topic; creating it twice is refused"),
    Feature("list_topics", "list and describe topics"),
    Feature("auto_create", "producing creates the topic"),
    Feature("describe_cluster", "describe the cluster"),
    Feature("acks_0", "produce with acks 0"),
    Feature("acks_1", "produce with acks 1"),
    Feature("acks_all", "produce with acks all"),
    Feature("codec_gzip", "produce and consume gzip"),
    Feature("codec_snappy", "produce and consume snappy"),
    Feature("codec_lz4", "produce and consume lz4"),
    Feature("codec_zstd", "produce and consume zstd"),
    Feature("headers", "headers: binary, empty, one name twice"),
    Feature("idempotent", "idempotent producer"),
    Feature("delay", "`x-delay`"),
    Feature("deliver_at", "`x-deliver-at`"),
    Feature("cancel", "cancel a delayed record"),
    Feature("replace", "replace a delayed record"),
    Feature("bad_delay", "a wrong delay header is refused"),
    Feature("assign", "consume by assignment"),
    Feature("seek", "seek"),
    Feature("gaps", "read on after offsets that hold nothing"),
    Feature("wait", "a waiting consumer gets a delayed record when it is due"),
    Feature("ends", "first and last offset"),
    Feature("offsets_by_time", "offsets by time"),
    Feature("subscribe", "consumer group with default settings"),
    Feature("commit", "commit and fetch offsets, with metadata"),
    Feature("resume", "resume from committed offsets"),
    Feature("rebalance", "two members share; one leaves, the other takes over"),
    Feature("static_member", "static member comes back without a rebalance"),
    Feature("cooperative", "cooperative rebalance"),
    Feature("list_groups", "list groups"),
    Feature("describe_group", "describe a group"),
    Feature("set_offsets", "set the offsets of a group that is empty"),
    Feature("delete_offsets", "delete offsets of a group"),
    Feature("delete_group", "delete a group"),
    Feature("create_partitions", "add partitions"),
    Feature("describe_configs", "describe settings of topic and broker"),
    Feature("alter_configs", "change a setting of a topic"),
    Feature("delete_records", "delete records"),
    Feature("delete_topic", "delete a topic"),
)


@dataclass(frozen=True, slots=True)
class Client:
    """A client library and the program that tries it.

    Args:
        name: of the program.
        title: as people know it, with its version.
        lacks: feature -> why the client cannot try it.
    """

    name: str
    title: str
    lacks: Mapping[str, str] = field(default_factory=dict)


_NO_ADMIN: Final = "is no administration tool"
_NO_STATIC: Final = "knows no static members"
_NO_COOPERATIVE: Final = "knows eager rebalances only"
_GROUPS_ONLY: Final = "consumes in groups only"

CLIENTS: Final = (
    Client(
        "aiokafka",
        "aiokafka 0.14",
        {
            "cooperative": _NO_COOPERATIVE,
            "set_offsets": "has no call for it",
            "delete_offsets": "has no call for it",
            "delete_group": "has no call for it",
        },
    ),
    Client("confluent", "confluent-kafka 2.16", {"delete_offsets": "has no call for it"}),
    Client("kafka_python", "kafka-python 3.0"),
    Client(
        "kcat",
        "kcat 1.7",
        {
            **dict.fromkeys(
                (
                    "create_topic",
                    "describe_cluster",
                    "list_groups",
                    "describe_group",
                    "set_offsets",
                    "delete_offsets",
                    "delete_group",
                    "create_partitions",
                    "describe_configs",
                    "alter_configs",
                    "delete_records",
                    "delete_topic",
                ),
                _NO_ADMIN,
            ),
            "commit": "commits by itself only",
        },
    ),
    Client(
        "kafkajs",
        "KafkaJS 2.2",
        {
            "assign": _GROUPS_ONLY,
            "static_member": _NO_STATIC,
            "cooperative": _NO_COOPERATIVE,
            "delete_offsets": "has no call for it",
        },
    ),
    Client("java_3", "Java 3.9"),
    Client("java_4", "Java 4.3"),
)
