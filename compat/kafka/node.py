"""What the control-plane handlers know of the broker behind them, as interfaces.

The broker satisfies them by its shape, so that handlers import nothing above them and tests can put
a small broker in memory in its place. Layer 3; does no I/O.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from appliance.clock import Clock
from appliance.config import Config
from appliance.model import ColdPlace
from appliance.store.group_frames import GroupFrame, OffsetEntry
from appliance.units import NS_PER_MS
from compat.kafka.groups.coordinator import GroupCoordinator


class ProducerView(Protocol):
    """What is remembered of an idempotent producer on one partition."""

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
        """What its frames take of the log, also those of records that were deleted."""

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
        """Its number in the log, by which offsets are kept; it is never given again."""

    @property
    def settings(self) -> Mapping[str, str]:
        """Only the settings that were given for it."""

    @property
    def partitions(self) -> Sequence[PartitionView]: ...


class ControlBroker(Protocol):
    """The part of the broker that answers control-plane requests.

    Topics that go into a method are ones that came out of it, hence Any: a broker asks for its own
    class.
    """

    @property
    def cluster_id(self) -> str: ...

    @property
    def node_id(self) -> int: ...

    @property
    def epoch(self) -> int:
        """The leader epoch of every partition."""

    @property
    def config(self) -> Config: ...

    def topics(self) -> Sequence[TopicView]: ...

    def find_topic(self, name: str) -> TopicView | None: ...

    def find_topic_by_uuid(self, uuid: UUID) -> TopicView | None: ...

    def check_topic(
        self, name: str, partition_count: int, settings: Mapping[str, str | None]
    ) -> None:
        """Raise the RequestError that create_topic would raise, and create nothing."""

    def create_topic(
        self, name: str, partition_count: int, settings: Mapping[str, str | None]
    ) -> TopicView: ...

    def delete_topic(self, name: str) -> None: ...

    def check_partitions(self, topic: Any, partition_count: int) -> None:
        """Raise the RequestError that add_partitions would raise, and add nothing."""

    def add_partitions(self, topic: Any, partition_count: int) -> None:
        """Raise the number of a topic's partitions to `partition_count`."""

    def replace_topic_settings(self, topic: Any, settings: Mapping[str, str]) -> None:
        """Give a topic these settings and no others; they were checked."""

    def delete_records(self, topic: Any, offsets: Mapping[int, int]) -> None:
        """Raise the start offset of partitions, by index, to offsets that are visible."""

    def end_of_epoch(self, topic: Any, partition: int, epoch: int) -> tuple[int, int] | None:
        """Find where in a partition the records of an epoch, and of all before it, end.

        Returns:
            The last epoch up to it that is known and an offset, None if it is yet to come.

        Raises:
            ColdFrameError: a frame has to be read first; then ask again.
        """

    def space(self) -> tuple[int, int]:
        """Bytes of the file system that holds the data: all, and free ones. Raises StorageError."""

    def allocate_producer_id(self) -> int: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def generation_floor(self) -> int: ...

    def groups(self) -> Mapping[str, GroupFrame]:
        """The groups that were told, by name, each as it was told last."""

    def group_names(self) -> Sequence[str]:
        """All groups, also those of which there are offsets alone."""

    def tell_group(self, frame: GroupFrame) -> None:
        """Write what a group is now, or that it is no more; raises RequestError."""

    def committed_offsets(self, group: str) -> Mapping[tuple[int, int], OffsetEntry]:
        """The offsets of a group by topic id and partition; none if nobody knows it."""

    def commit_offsets(self, entries: Sequence[OffsetEntry]) -> None:
        """Commit or delete offsets, all of them or none; raises RequestError."""

    def offset_for_time(
        self, topic: Any, partition: int, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """Find the first record from which the running maximum of timestamps reaches a time.

        Returns:
            Its offset and timestamp in epoch ms, None if there is none.

        Raises:
            ColdFrameError: a frame has to be read first; then ask again.
        """

    def offset_of_max_timestamp(self, topic: Any, partition: int) -> tuple[int, int] | None:
        """Find the record with the highest timestamp: offset and epoch ms, None if none is left.

        Raises:
            ColdFrameError: a frame has to be read first; then ask again.
        """


@dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request.

    Args:
        client_id: what the client calls itself, "" if it does not say.
        host: its address.
    """

    client_id: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """One broker and where clients reach it, as one request meets it.

    Args:
        broker: the broker.
        host: the advertised host; an IPv4 literal, unless the user chose a name: "localhost" leads
            librdkafka to ::1 first.
        port: the advertised port, 1 to 65535.
        groups: the consumer groups of this broker.
        read_cold: (places, then): has frames and units read from the disk, and calls `then` when
            they are in memory, or known to be damaged.
        client: who asks.
    """

    broker: ControlBroker
    host: str
    port: int
    groups: GroupCoordinator
    read_cold: Callable[[list[ColdPlace], Callable[[], None]], None]
    client: Client = Client()

    def now_ms(self) -> int:
        """Return the monotonic time in ms, by which the protocol's time-outs go."""
        return self.broker.clock.monotonic_ns() // NS_PER_MS
