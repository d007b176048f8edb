"""Value types that several layers share. Layer 1; does no I/O."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

STORED_TIMES_FROM: Final = 1 << 62
"""In ListOffsets, a time of this much or more asks for the first record that became visible at the
rest of it, epoch ms, or later, whatever timestamp its producer chose. No clock shows such a time.
"""

TimerStateName = Literal["pending", "cancelled", "delivered", "unknown"]

ColdPlace = int | tuple[int, int]
"""What a thread must read: a log position names the frame there; (partition handle, offset) names
the unit of that record and the frame that the unit points to."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where clients reach a node.

    Attributes:
        host, port: as it advertises them.
        rack: where the machine is, as `client.rack` of consumers has it; "" if it does not say.
    """

    host: str
    port: int
    rack: str = ""


@dataclass(frozen=True, slots=True)
class TimerState:
    """The state of the timer with a user's id in one topic.

    `unknown` also covers ids that were delivered or cancelled so long ago that they are forgotten.
    """

    state: TimerStateName
    due_at: int | None = None
    """Due time in epoch ms, None if unknown."""
    partition: int | None = None
    offset: int | None = None
    """Where the record was delivered; None if it was not, or by a version that did not note it."""


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic in a list.

    Attributes:
        name, id: as clients see them.
        partition_count: number of its partitions.
        record_count: offsets that can be fetched; after damage, some may hold no record.
        pending_timers: records that are not due yet.
    """

    name: str
    id: str
    partition_count: int
    record_count: int
    pending_timers: int


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """A snapshot of the log.

    Attributes:
        name: unique among the snapshots of a data directory.
        path: its directory.
        created_at: when it was made, epoch ms.
        start, end: the log positions between which it has the log.
        size_bytes: bytes of its segments, which it shares with the log and other snapshots.
        kept_bytes: bytes of those segments that the log no longer has.
    """

    name: str
    path: str
    created_at: int
    start: int
    end: int
    size_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class ExpiredRecords:
    """How many records of a topic a cleanup removed, or would remove."""

    topic: str
    expired_records: int


@dataclass(frozen=True, slots=True)
class CleanupStatus:
    """The outcome of a cleanup.

    Attributes:
        topics: those of which records expired.
        age_jump_ms: by how much all records aged because the wall clock was confirmed.
        clock_jump_ms: how far the wall clock is still ahead of the age of records.
    """

    topics: list[ExpiredRecords]
    age_jump_ms: int
    clock_jump_ms: int


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition.

    Attributes:
        partition: its index.
        start_offset, visible_offset: the range of offsets that can be fetched.
        next_offset: of the next record; above `visible_offset` while records are not flushed yet.
        pending_timers: records that are not due yet.
    """

    partition: int
    start_offset: int
    visible_offset: int
    next_offset: int
    pending_timers: int


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """A topic with its partitions, which can be walked once, and its own settings."""

    name: str
    id: str
    settings: Mapping[str, str]
    partitions: Iterable[PartitionStatus]


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A consumer group in a list; `state` is Kafka's name of its state."""

    name: str
    state: str
    protocol_type: str
    member_count: int


DiskState = Literal["ok", "warn", "refusing"]
"""How full the disk is; "refusing" new records and topics."""


@dataclass(frozen=True, slots=True)
class DiskStatus:
    """The file system that holds the data.

    Attributes:
        state: how full it is.
        total_bytes, free_bytes: of the file system, without what only root may use.
        used_percent: what is not free, as df shows it.
        log_bytes: what the log takes of it.
        seconds_until_full: at the rate of the last minutes; None if it does not get fuller.
        refusal: why new records are refused, with what to do; None if they are accepted.
    """

    state: DiskState
    total_bytes: int
    free_bytes: int
    used_percent: float
    log_bytes: int
    seconds_until_full: int | None
    refusal: str | None


@dataclass(frozen=True, slots=True)
class AssignedPartition:
    """A partition that a member of a group reads."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member of a group.

    Attributes:
        member_id, instance_id, client_id, host: of the client.
        assignment: what it reads, to be walked once and before the next member; None if the broker
            does not know its format. A None in it is a step that finds nothing.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: Iterable[AssignedPartition | None] | None


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The committed offset of a group in one partition.

    Attributes:
        topic, partition: the partition.
        offset: of the record that the group reads next.
        metadata: what the client stored with it.
        committed_at: time of the commit, epoch ms.
        end_offset: of the next record to be appended to the partition.
        lag: the difference of the two offsets.
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
    """A consumer group.

    Its members and offsets may be a hundred thousand, and are read as they are walked, once. A None
    among them is a step that finds nothing: whoever walks them can pause there as after an item.
    """

    name: str
    state: str
    protocol_type: str
    protocol: str
    generation: int
    members: Iterable[MemberStatus | None]
    offsets: Iterable[CommittedOffset | None]
