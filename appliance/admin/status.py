"""The interface through which the admin server gets its data, and the types only it needs.

Times are epoch ms and end in `_at`, durations end in `_ms`. Layer 5.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from appliance.dead_letters import (
    DeadListRequest,
    DeletedRecords,
    Place,
    ReplayedRecords,
    ReplayRequest,
)
from appliance.find import FindRequest
from appliance.model import (
    CleanupStatus,
    DiskStatus,
    GroupStatus,
    GroupSummary,
    SnapshotStatus,
    TimerState,
    TopicStatus,
    TopicSummary,
)
from appliance.pending_timers import (
    LevelQueue,
    MovedTimer,
    PurgedTimers,
    TimerCountRequest,
    TimerCounts,
    TimerListRequest,
    TimerPlace,
    TimerSelection,
)
from appliance.store.recovery.report import Progress
from appliance.timer_stages import Stage, StageStatus


@dataclass(frozen=True, slots=True)
class LogPositions:
    """Where the log begins, and its end positions, in bytes; see `_core.log.pointers`."""

    start: int
    wrote: int
    committed: int
    flushed: int
    visible: int


@dataclass(frozen=True, slots=True)
class KeyIndexStatus:
    """How far the key index is.

    Attributes:
        on: it is built.
        indexed: log position up to which everything is indexed.
        lag_bytes: flushed bytes of the log after that.
        rows, runs: its size: rows, and files.
    """

    on: bool
    indexed: int
    lag_bytes: int
    rows: int
    runs: int


@dataclass(frozen=True, slots=True)
class FreeingStatus:
    """How the first segments of the log are freed.

    Attributes:
        reclaimable_bytes: of the first segments in which nothing is needed.
        dead_bytes: all bytes of the log that nothing needs, wherever they are; an estimate.
        held_back: what lives on is not moved at this hour (`store.delete_when`).
        expires_early: records expire before their retention is over (`disk.expire_percent`).
        early_expired_records: how many did since the start.
    """

    reclaimable_bytes: int
    dead_bytes: int
    held_back: bool
    expires_early: bool
    early_expired_records: int


@dataclass(frozen=True, slots=True)
class DamagedPart:
    """Bytes of a file that are damaged."""

    file: str
    offset: int
    size: int
    fault: str


@dataclass(frozen=True, slots=True)
class ClockStatus:
    """The clock of the broker.

    Attributes:
        kind: "system" or "virtual".
        now_at: its wall clock, epoch ms.
        ahead_ms: how far that is ahead of the machine's.
        delivered: timers that were delivered while it was advanced; None if it was not.
    """

    kind: str
    now_at: int
    ahead_ms: int
    delivered: int | None = None


@dataclass(frozen=True, slots=True)
class CoordinatorStatus:
    """The pair as etcd has it.

    Attributes:
        standing: of this node; docs/REPLICATION.md has the table.
        holder: the node that has the key; None if none has it, or if it is not known.
        term: of the key's last holder; None if it is not known.
        in_sync: the other node may take the key once it is gone; None if it is not known.
        key_left_ms: for how long this node certainly has the key; 0 if it has not.
        problem: why etcd did not do what it was asked last; "" if it did.
    """

    standing: str
    holder: int | None
    term: int | None
    in_sync: bool | None
    key_left_ms: int
    problem: str


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """The pair, as this node sees it.

    Attributes:
        role: "master" or "slave".
        term: of the pair, as this node knows it; 0 if it knows none.
        mode: "none", "async" or "sync".
        solo: a master of a sync pair that waits for no slave for now.
        node: 1 or 2; 0 if this node is none of a pair.
        state: "off", "waiting" for the peer, "handshake", "catch-up", "streaming";
            "comparing": a master that serves nobody yet; "repairing": a slave that gets damaged
            parts of its log.
        peer: address of the other node; None if it is not connected.
        end: log position of the end of this node's log.
        received, durable: what the slave has, and what of that is on its disk; None if no slave was
            heard of.
        lag_bytes: what the slave lacks; None if that is not known.
        catch_up_max_bytes_per_s: what a slave that catches up gets at most; 0: no bound, or it does
            not catch up.
        heard_ms_ago: the time since the last message of the peer; None if there was none.
        promise: what an acknowledgement means at this moment.
        caught_up: a slave has once had the whole log, so that it may be promoted; None on a master.
        held_bytes: of the log, which a master keeps for its slave alone.
        given_up: a master freed what its connected slave lacks: that was too much to keep.
        read_bytes: of records, which consumers read from this slave since its start.
        lease_left_ms: how long a master may acknowledge without another sign of its slave; 0 if it
            has no lease; None if it needs none.
        promotion_wait_ms: how long a promotion of this slave would wait for its master's lease.
        coordinator: what etcd says, and where this node stands; None without etcd.
    """

    role: str
    mode: str
    solo: bool
    node: int
    state: str
    peer: str | None
    end: int
    received: int | None
    durable: int | None
    lag_bytes: int | None
    heard_ms_ago: int | None
    promise: str
    caught_up: bool | None = None
    held_bytes: int = 0
    given_up: bool = False
    term: int = 0
    read_bytes: int = 0
    catch_up_max_bytes_per_s: int = 0
    lease_left_ms: int | None = None
    promotion_wait_ms: int = 0
    coordinator: CoordinatorStatus | None = None


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A snapshot of the broker.

    Attributes:
        version: of latermq.
        cluster_id, epoch: of the log.
        kafka: the address on which the broker listens for Kafka clients.
        advertised: the address that clients are told to connect to.
        admin: the address of the admin server.
        insecure: other machines can connect without encryption or password.
        flush: "sync" or "async".
        clock_ahead_ms: how far a virtual clock is ahead of the machine's; None for the latter.
        started_at: when the broker began to serve clients.
        uptime_ms: the time since then.
        log: positions.
        key_index: how far it is.
        disk: how full it is.
        freeing: how segments are freed.
        connections: the number of Kafka clients.
        topics, partitions, groups: how many exist.
        pending_timers: records that are not due yet.
        pending_timers_max: how many there may be.
        unreadable_timers: due records that the disk cannot read.
        held_timers: due records that their topics hold back (delay.paused and the like).
        unloaded_timers: delayed records that are on the disk alone, about.
        stopped_stages: those of "enqueue" and "dequeue" that an operator has stopped.
        next_due_at: no record is due earlier; None if none is pending.
        damage_count: damaged parts found since the start began.
        damage: the first of them.
    """

    version: str
    cluster_id: str
    epoch: int
    kafka: str
    advertised: str
    admin: str
    insecure: bool
    flush: str
    clock_ahead_ms: int | None
    started_at: int
    uptime_ms: int
    log: LogPositions
    key_index: KeyIndexStatus
    disk: DiskStatus
    freeing: FreeingStatus
    connections: int
    topics: int
    partitions: int
    groups: int
    pending_timers: int
    pending_timers_max: int
    unreadable_timers: int
    held_timers: int
    unloaded_timers: int
    stopped_stages: tuple[str, ...]
    next_due_at: int | None
    damage_count: int
    damage: tuple[DamagedPart, ...]


@dataclass(frozen=True, slots=True)
class CleanupRequest:
    """What an operator wants to expire.

    Attributes:
        topic: only this topic; None for all.
        before_at: what is older than this instant, epoch ms; None for what the limits say.
        is_dry_run: expire nothing; only count.
        confirms_clock: the wall clock is right: its jump counts at once.
    """

    topic: str | None = None
    before_at: int | None = None
    is_dry_run: bool = False
    confirms_clock: bool = False


class StatusSource(Protocol):
    """The data that the admin server shows. Each call is fast: it blocks the event loop.

    Only the first seven may be called before the broker is ready. All others may raise
    NotReadyError if the broker is about to stop.
    """

    @property
    def ready(self) -> bool:
        """Clients are served."""

    @property
    def refusal(self) -> str | None:
        """Why new records are refused although clients are served; None if they are accepted."""

    def progress(self) -> Progress:
        """Return the progress of the start."""

    def metrics(
        self, *, admin_connections: int, admin_held_bytes: int
    ) -> Iterator[tuple[str, int]]:
        """Return all metrics in Prometheus' text format 0.0.4, in parts, each with its work.

        Args:
            admin_connections: open connections of the admin address.
            admin_held_bytes: memory of their requests and answers.
        """

    def topic_metrics(self) -> Iterator[tuple[str, int]]:
        """Yield the metrics by topic in the same format, in parts, each with its work.

        Topics may be created or deleted during the iteration.
        """

    def replication(self) -> ReplicationStatus:
        """Return the state of the pair.

        Raises:
            NotReadyError: the start has not come so far.
        """

    async def promote(self, *, is_forced: bool = False) -> ReplicationStatus:
        """Make this slave the master; return once it serves clients.

        Args:
            is_forced: also if it has never caught up; what it lacks is lost.

        Raises:
            RoleError: it is no slave, or has never caught up.
            NotReadyError: the start has not come so far, or the broker stops.
        """

    async def hand_over(self) -> ReplicationStatus:
        """Make the slave of this master the master; return once it is.

        Raises:
            RoleError: there is no slave that could take over, or it did not.
            NotReadyError: the start has not come so far, or the broker stops.
        """

    def go_alone(self) -> ReplicationStatus:
        """Let a master that compares its log go on: the operator says that the other node is off.

        Raises:
            RoleError: it compares none.
            NotReadyError: the start has not come so far.
        """

    def go_solo(self, *, is_slave_off: bool) -> ReplicationStatus:
        """Let the master of a sync pair go on without its slave.

        Args:
            is_slave_off: the operator states that the slave is off, and so is not promoted.

        Raises:
            RoleError: it is no master of a sync pair, or nobody says that the slave is off.
            NotReadyError: the start has not come so far.
        """

    def status(self) -> BrokerStatus:
        """Return the state of the broker."""

    def topics(self) -> Iterator[TopicSummary]:
        """Yield all topics; topics may be created or deleted during the iteration."""

    def topic(self, name: str) -> TopicStatus | None:
        """Return a topic, None if there is no such topic."""

    def groups(self) -> Iterator[GroupSummary]:
        """Yield all consumer groups, like `topics`."""

    def group(self, name: str) -> GroupStatus | None:
        """Return a consumer group, None if there is no such group."""

    async def timer_state(self, topic: str, user_id: bytes) -> TimerState | None:
        """Return the durable state of a timer; None if there is no such topic.

        Args:
            topic: any text.
            user_id: 1 to 255 bytes of any kind.
        """

    async def move_timer(
        self, topic: str, user_id: bytes, due_at: int | None
    ) -> tuple[TimerState, bool]:
        """Give a pending timer another due time, and return its state once that is durable.

        Args:
            topic: any text.
            user_id: 1 to 255 bytes of any kind.
            due_at: epoch ms; None to deliver it now.

        Returns:
            Its state, and whether it was moved.

        Raises:
            FindError: there is no such topic, or the timer cannot have this due time.
            RequestError: the disk is full.
        """

    async def move_placed(self, place: TimerPlace, due_at: int | None) -> MovedTimer:
        """Give the pending timer at a place another due time, and return once that is durable.

        Args:
            place: as a list has it.
            due_at: epoch ms; None to deliver it now.

        Raises:
            FindError: it is not there, or cannot have this due time.
            RequestError: the disk is full.
        """

    async def cancel_timer(self, topic: str, user_id: bytes) -> TimerState | None:
        """Cancel a pending timer, and return its state once that is durable.

        Args:
            topic: any text.
            user_id: 1 to 255 bytes of any kind.

        Returns:
            "cancelled", also if it was cancelled before; another state if nothing could be
            cancelled. None if there is no such topic.

        Raises:
            RequestError: the disk is full.
        """

    async def list_timers(self, request: TimerListRequest) -> str:
        """Return pending timers in order of their due times, as JSON.

        Raises:
            FindError: the request is wrong, or what it names does not exist.
        """

    async def purge_timers(self, selection: TimerSelection) -> PurgedTimers:
        """Cancel all timers of a selection, and return once that is durable.

        Raises:
            FindError: what the selection names does not exist.
            RequestError: the disk is full; some may be cancelled.
        """

    async def count_timers(self, request: TimerCountRequest) -> TimerCounts:
        """Return how many timers are due when.

        Raises:
            FindError: what the request names does not exist.
        """

    def levels(self) -> list[LevelQueue]:
        """Return the queues of the delay levels."""

    def stages(self) -> list[StageStatus]:
        """Return the two stages of delayed records."""

    async def change_stage(self, stage: Stage, *, is_stopped: bool) -> list[StageStatus]:
        """Stop or start a stage, and return both once that is durable.

        Raises:
            RequestError: the disk is full; nothing has changed.
        """

    async def find(self, request: FindRequest) -> str:
        """Return the next records and timers that a request finds, as JSON.

        Raises:
            FindError: the request is wrong, or what it names does not exist.
        """

    async def list_dead(self, request: DeadListRequest) -> str:
        """Return dead records of a group in order of partition and offset, as JSON.

        Raises:
            FindError: what the request names does not exist.
        """

    async def show_dead(self, group: str, place: Place) -> str:
        """Return all of a dead record, as JSON.

        Raises:
            FindError: there is no such record, or it cannot be read.
        """

    async def replay_dead(self, request: ReplayRequest) -> ReplayedRecords:
        """Give dead records back to their group, and return once that is durable.

        Raises:
            FindError: what the request names does not exist, or cannot be read.
            RequestError: a record is refused, or all are; a DiskFullError if the disk is full.
        """

    async def purge_dead(self, group: str, before: Place | None) -> DeletedRecords:
        """Delete dead records of a group, and return once that is durable.

        Args:
            group: any text.
            before: only those of its partition with lower offsets; None for all.

        Raises:
            FindError: what is named does not exist.
            RequestError: the disk is full.
        """

    def clock(self) -> ClockStatus:
        """Return the state of the clock."""

    async def advance_clock(self, by_ms: int) -> ClockStatus:
        """Advance a virtual clock; return once consumers see what is due by then.

        Args:
            by_ms: from 0 on.

        Raises:
            ClockError: the clock is the machine's.
        """

    async def clean_up(self, wanted: CleanupRequest) -> CleanupStatus | None:
        """Expire records now; return what expired once it is durable.

        None if there is no such topic.

        Raises:
            RequestError: the disk is full; some records may have expired.
        """

    async def snapshots(self) -> list[SnapshotStatus]:
        """Return all snapshots of the log, oldest first."""

    async def create_snapshot(self, name: str | None) -> SnapshotStatus:
        """Make a snapshot of everything that was accepted so far; return it once it is durable.

        Args:
            name: any text; None for a name made of the time.

        Raises:
            SnapshotError: it cannot be made; the error says why.
        """

    async def delete_snapshot(self, name: str) -> SnapshotStatus:
        """Remove a snapshot, and return what it was.

        Args:
            name: any text.

        Raises:
            SnapshotError: there is no such snapshot.
        """
