"""Value types that more than one layer hands around. Layer 1; does no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

TimerStateName = Literal["pending", "cancelled", "delivered", "unknown"]

ColdPlace = int | tuple[int, int]
"""What a thread must read: the frame at a log position, or (partition handle, offset): the unit of
that record, and the frame that it names."""


@dataclass(frozen=True, slots=True)
class TimerState:
    """What is known of the timer that a user's id names in one topic.

    `unknown` also covers ids that fired or were cancelled longer ago than they are remembered.
    """

    state: TimerStateName
    due_at: int | None = None
    """Due time in epoch ms, None if unknown."""
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic in a list.

    Attributes:
        name, id: as clients know it.
        partition_count: how many it has.
        record_count: offsets that can be fetched; after damage not all of them hold a record.
        pending_timers: records that wait until they are due.
    """

    name: str
    id: str
    partition_count: int
    record_count: int
    pending_timers: int


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition.

    Attributes:
        partition: its index.
        start_offset, visible_offset: what can be fetched lies between them.
        next_offset: of the next record; above `visible_offset` while some are not flushed yet.
        pending_timers: records that wait until they are due.
    """

    partition: int
    start_offset: int
    visible_offset: int
    next_offset: int
    pending_timers: int


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """A topic with its partitions, and the settings that were given to it."""

    name: str
    id: str
    settings: Mapping[str, str]
    partitions: tuple[PartitionStatus, ...]


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A consumer group in a list; `state` is Kafka's word for it."""

    name: str
    state: str
    protocol_type: str
    member_count: int


@dataclass(frozen=True, slots=True)
class AssignedPartition:
    """A partition that a member of a group reads."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member of a group; `assignment` is None if it is of no form that the broker knows."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[AssignedPartition, ...] | None


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Where a group is in one partition.

    Attributes:
        topic, partition: where.
        offset: of the record that it reads next.
        metadata: what the client stored with it.
        committed_at: when, epoch ms.
        end_offset: of the record that comes next into the partition.
        lag: records between the two.
    """

    topic: str
    partition: int
    offset: int
    metadata: str | None
    committed_at: int
    end_offset: int
    lag: int


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A consumer group with its members and offsets."""

    name: str
    state: str
    protocol_type: str
    protocol: str
    generation: int
    members: tuple[MemberStatus, ...]
    offsets: tuple[CommittedOffset, ...]
