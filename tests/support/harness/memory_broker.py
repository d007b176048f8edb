"""The part of the broker that the control plane uses, in plain lists."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

from appliance.allowance import Allowance
from appliance.config.config import Config
from appliance.errors import (
    DiskFullError,
    InvalidPartitionsError,
    PolicyError,
    StorageError,
    TopicExistsError,
)
from appliance.model import Endpoint
from appliance.routes import Member, Routes
from appliance.store.state.change_positions import ChangePositions
from appliance.store.state.group_frames import (
    GROUP_DELETED,
    OFFSET_DELETED,
    GroupFrame,
    OffsetEntry,
)
from appliance.topics import NAMED_BURST, NAMED_PER_S
from compat.kafka.groups.coordinator import GroupCoordinator
from compat.kafka.node import ControlBroker, Node
from tests.support.harness.turns import Turns
from tests.support.simulator.virtual_clock import VirtualClock


@dataclass
class MemoryProducer:
    epoch: int
    last_sequence: int
    last_ms: int


@dataclass
class MemoryPartition:
    """A partition of which only the timestamps of its visible records are kept."""

    index: int
    start_offset: int = 0
    visible_offset: int = 0
    next_offset: int = 0
    timestamps: list[int] = field(default_factory=list)
    """Of the records from start_offset to visible_offset - 1."""
    log_bytes: int = 0
    producers: dict[int, MemoryProducer] = field(default_factory=dict)

    def append(self, *timestamps: int) -> None:
        self.timestamps += timestamps
        self.visible_offset += len(timestamps)
        self.next_offset = self.visible_offset


@dataclass
class MemoryTopic:
    name: str
    uuid: UUID
    settings: dict[str, str]
    partitions: list[MemoryPartition]

    @property
    def topic_id(self) -> int:
        return self.uuid.int


class MemoryTopics:
    """Topic n has the id UUID(int=n), n from 1."""

    def __init__(self, broker: "MemoryBroker") -> None:
        self._broker = broker
        self._config = broker.config
        self.changes = ChangePositions(lambda: 0)
        self._topics: dict[str, MemoryTopic] = {}
        self._topic_count_ever = 0
        self._named = Allowance(NAMED_BURST, NAMED_PER_S)

    def may_name(self, _partition_count: int, address: str, now_ms: int) -> bool:
        return self._named.take(address, now_ms)

    def all(self) -> list[MemoryTopic]:
        return list(self._topics.values())

    def find(self, name: str) -> MemoryTopic | None:
        return self._topics.get(name)

    def find_by_uuid(self, uuid: UUID) -> MemoryTopic | None:
        return next((topic for topic in self.all() if topic.uuid == uuid), None)

    def check_create(self, name: str, partition_count: int) -> None:
        if name in self._topics:
            raise TopicExistsError(f"topic {name} exists")
        if not 1 <= partition_count <= self._config.partition_count_max_per_topic:
            raise InvalidPartitionsError(f"{partition_count} partitions")
        if len(self._topics) >= self._config.topic_count_max:
            raise PolicyError("topics.topic_count_max")

    def create(
        self, name: str, partition_count: int, settings: Mapping[str, str | None]
    ) -> MemoryTopic:
        self.check_create(name, partition_count)
        self._topic_count_ever += 1
        self._broker.change_count += 1
        self._topics[name] = MemoryTopic(
            name=name,
            uuid=UUID(int=self._topic_count_ever),
            settings={key: str(value) for key, value in settings.items()},
            partitions=[MemoryPartition(index) for index in range(partition_count)],
        )
        return self._topics[name]

    def create_named(self, name: str, partition_count: int) -> MemoryTopic:
        return self.create(name, partition_count, {})

    def delete(self, name: str) -> None:
        self._broker.change_count += 1
        del self._topics[name]

    def check_add_partitions(self, topic: Any, partition_count: int) -> None:
        if partition_count <= len(topic.partitions):
            raise InvalidPartitionsError(f"{partition_count} partitions are no increase")
        if partition_count > self._config.partition_count_max_per_topic:
            raise InvalidPartitionsError(f"{partition_count} partitions")

    def add_partitions(self, topic: Any, partition_count: int) -> None:
        self.check_add_partitions(topic, partition_count)
        self._broker.change()
        present = len(topic.partitions)
        topic.partitions += [MemoryPartition(index) for index in range(present, partition_count)]

    def replace_settings(self, topic: Any, settings: Mapping[str, str]) -> None:
        self._broker.change()
        topic.settings = dict(settings)

    def delete_records(self, topic: Any, offsets: Mapping[int, int]) -> None:
        self._broker.change()
        for index, offset in offsets.items():
            partition: MemoryPartition = topic.partitions[index]
            del partition.timestamps[: max(0, offset - partition.start_offset)]
            partition.start_offset = max(offset, partition.start_offset)


class MemoryGroups:
    """Groups and offsets as dictionaries."""

    generation_floor = 0

    def __init__(self, broker: "MemoryBroker") -> None:
        self._broker = broker
        self.changes = ChangePositions(lambda: 0)
        self.groups: dict[str, GroupFrame] = {}
        self._offsets: dict[str, dict[tuple[int, int], OffsetEntry]] = {}

    @property
    def names(self) -> list[str]:
        return sorted(self.groups.keys() | self._offsets.keys())

    def offsets(self, group: str) -> dict[tuple[int, int], OffsetEntry]:
        return self._offsets.get(group, {})

    def has_offsets(self, group: str, topic_id: int) -> bool:
        return any(each == topic_id for each, _ in self.offsets(group))

    def note_members(self, group: str) -> None:
        """Offsets do not expire here."""

    def note_address(self, group: str, address: str) -> None:
        """Nothing is bounded here."""

    def save_group(self, frame: GroupFrame) -> None:
        self._broker.change()
        if frame.op == GROUP_DELETED:
            self.groups.pop(frame.group, None)
            self._offsets.pop(frame.group, None)
        else:
            self.groups[frame.group] = frame

    def commit_offsets(self, entries: Sequence[OffsetEntry]) -> None:
        self._broker.change()
        for entry in entries:
            offsets = self._offsets.setdefault(entry.group, {})
            if entry.op == OFFSET_DELETED:
                offsets.pop((entry.topic_id, entry.partition), None)
            else:
                offsets[entry.topic_id, entry.partition] = entry
            if not offsets:
                del self._offsets[entry.group]


class MemorySearch:
    """Looks at the timestamps of `MemoryPartition`."""

    looked_count = 0

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def for_request(self) -> "MemorySearch":
        return self

    def forget_results(self) -> None:
        """It has none."""

    def find(self, queue: MemoryPartition, timestamp_ms: int) -> tuple[int, int] | None:
        for index, timestamp in enumerate(queue.timestamps):
            if timestamp >= timestamp_ms:
                return queue.start_offset + index, timestamp
        return None

    def find_stored(self, queue: MemoryPartition, stored_ms: int) -> tuple[int, int] | None:
        """The records became visible at 0 ms, 100 ms, 200 ms, ..."""
        for index in range(len(queue.timestamps)):
            if index * 100 >= stored_ms:
                return queue.start_offset + index, index * 100
        return None

    def find_highest(self, queue: MemoryPartition) -> tuple[int, int] | None:
        if not queue.timestamps:
            return None
        latest = max(queue.timestamps)
        return queue.start_offset + queue.timestamps.index(latest), latest

    def find_end_of_epoch(self, queue: MemoryPartition, epoch: int) -> tuple[int, int] | None:
        """Every record is of the present epoch, all epochs before it are known."""
        if epoch > self._epoch:
            return None
        return epoch, queue.next_offset if epoch == self._epoch else queue.start_offset


class MemoryBroker:
    """What handlers need of compat.kafka.node.ControlBroker."""

    cluster_id = "memory-cluster"
    node_id = 1
    producer_ids_pos = 0
    has_lease = True

    def __init__(self, config: Config | None = None, *, epoch: int = 0) -> None:
        self.config = Config() if config is None else config
        self.epoch = epoch
        self.change_count = 0
        self.is_full = False
        self.clock = VirtualClock()
        self.topics = MemoryTopics(self)
        self.groups = MemoryGroups(self)
        self.search = MemorySearch(epoch)
        self._next_producer_id = 1000

    def topic(self, name: str = "t") -> MemoryTopic:
        """A topic that exists."""
        return {each.name: each for each in self.topics.all()}[name]

    def change(self) -> None:
        """Count a change, or refuse it when the disk is full."""
        if self.is_full:
            raise DiskFullError("there is no room left")
        self.change_count += 1

    def space(self) -> tuple[int, int]:
        if self.is_full:
            raise StorageError(self.config.data_dir, "statvfs", 5, "Input/output error")
        return 1_000_000, 300_000

    def allocate_producer_id(self, address: str = "") -> int:
        self.change()
        self._next_producer_id += 1
        return self._next_producer_id


def _do_at_once(begin: Callable[[], Callable[[], None] | None], then: Callable[[], None]) -> None:
    work = begin()
    assert work is not None
    work()
    then()


def memory_node(broker: MemoryBroker, routes: Routes | None = None) -> Node:
    """Return a node; without `routes` its clients reach the broker alone, at 127.0.0.1:9092."""
    control = cast(ControlBroker, broker)
    return Node(
        broker=control,
        routes=routes or Routes(Member(broker.node_id, Endpoint("127.0.0.1", 9092))),
        groups=GroupCoordinator(control.groups, broker.clock, broker.config),
        read_cold=lambda _positions, then: then(),
        aside=_do_at_once,
        later=Turns(),
    )
