"""The interfaces through which control-plane handlers use the broker.

The broker implements them structurally, so that handlers import nothing above them and tests can
substitute a small broker in memory. Layer 3; does no I/O.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from appliance.config.config import Config
from appliance.model import ColdPlace
from appliance.system.clock import Clock
from appliance.units import NS_PER_MS
from compat.kafka.groups.coordinator import GroupCoordinator
from compat.kafka.groups.group_log import GroupLog


class ProducerView(Protocol):
    """The state of an idempotent producer on one partition."""

    @property
    def epoch(self) -> int: ...

    @property
    def last_sequence(self) -> int: ...

    @property
    def last_ms(self) -> int:
        """When its last batch was stored, epoch ms."""


class PartitionView(Protocol):
    """One partition; start_offset <= visible_offset <= next_offset."""

    @property
    def index(self) -> int: ...

    @property
    def start_offset(self) -> int:
        """The first record that can be fetched."""

    @property
    def visible_offset(self) -> int:
        """One past the last record that may be fetched: Kafka's high watermark."""

    @property
    def log_bytes(self) -> int:
        """Bytes of its frames in the log, including those of deleted records."""

    @property
    def producers(self) -> Mapping[int, ProducerView]:
        """By producer id."""


class TopicView(Protocol):
    """One topic; `partitions[i].index == i`."""

    @property
    def name(self) -> str: ...

    @property
    def uuid(self) -> UUID: ...

    @property
    def topic_id(self) -> int:
        """The topic's number in the log, the key of committed offsets; never reused."""

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings given for the topic, without defaults."""

    @property
    def partitions(self) -> Sequence[PartitionView]: ...


class TopicsView(Protocol):
    """The topics. Those that go into a method are ones that came out of it, hence Any."""

    def all(self) -> Sequence[TopicView]: ...

    def find(self, name: str) -> TopicView | None: ...

    def find_by_uuid(self, uuid: UUID) -> TopicView | None: ...

    def check_create(self, name: str, partition_count: int) -> None:
        """Raise the RequestError that `create` would raise, and create nothing."""

    def create(
        self, name: str, partition_count: int, settings: Mapping[str, str | None]
    ) -> TopicView: ...

    def delete(self, name: str) -> None: ...

    def check_add_partitions(self, topic: Any, partition_count: int) -> None:
        """Raise the RequestError that `add_partitions` would raise, and add nothing."""

    def add_partitions(self, topic: Any, partition_count: int) -> None:
        """Raise the number of a topic's partitions to `partition_count`."""

    def replace_settings(self, topic: Any, settings: Mapping[str, str]) -> None:
        """Give a topic these settings and no others; they were checked."""

    def delete_records(self, topic: Any, offsets: Mapping[int, int]) -> None:
        """Raise the start offset of partitions, by index, to offsets that are visible."""


class SearchView(Protocol):
    """Finds offsets in a partition. Each call may raise ColdFrameError: read it, then ask again."""

    def find(self, queue: Any, timestamp_ms: int) -> tuple[int, int] | None:
        """Find the first record from which the running maximum of timestamps reaches a time.

        Returns:
            Its offset and timestamp in epoch ms, None if there is none.
        """

    def find_highest(self, queue: Any) -> tuple[int, int] | None:
        """Find the record with the highest timestamp: offset and epoch ms, None if none is left."""

    def find_end_of_epoch(self, queue: Any, epoch: int) -> tuple[int, int] | None:
        """Find where the records of an epoch, and of all before it, end.

        Returns:
            The last epoch up to it that is known and an offset, None if it is yet to come.
        """


class ControlBroker(Protocol):
    """The part of the broker that answers control-plane requests."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def node_id(self) -> int: ...

    @property
    def epoch(self) -> int:
        """The leader epoch of every partition."""

    @property
    def config(self) -> Config: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def topics(self) -> TopicsView: ...

    @property
    def groups(self) -> GroupLog: ...

    @property
    def search(self) -> SearchView: ...

    def space(self) -> tuple[int, int]:
        """Return total and free bytes of the data's file system. Raises StorageError."""

    def allocate_producer_id(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Client:
    """The sender of a request.

    Args:
        client_id: the client's name for itself, "" if it sends none.
        host: its IP address.
    """

    client_id: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """One broker and where clients reach it, as one request meets it.

    Args:
        broker: the broker.
        host: the advertised host; an IPv4 literal unless the user chose a name: for "localhost"
            librdkafka tries ::1 first.
        port: the advertised port, 1 to 65535.
        groups: the consumer groups of this broker.
        read_cold: (places, then): reads frames and units from the disk, and calls `then` when they
            are in memory or known to be damaged.
        client: the sender of the request.
    """

    broker: ControlBroker
    host: str
    port: int
    groups: GroupCoordinator
    read_cold: Callable[[list[ColdPlace], Callable[[], None]], None]
    client: Client = Client()

    def now_ms(self) -> int:
        """Return the monotonic time in ms, the clock of the protocol's time-outs."""
        return self.broker.clock.monotonic_ns() // NS_PER_MS
