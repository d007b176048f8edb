"""The status of a running broker: the `StatusSource` of the real process.

Layer 5; on the event loop.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final, Protocol

from _core.queue.partition import Topic
from appliance import topic_metrics
from appliance.admin import finding
from appliance.admin.dlq import Commits, DeadLetters
from appliance.admin.status import (
    BrokerStatus,
    CleanupRequest,
    ClockStatus,
    CoordinatorStatus,
    DamagedPart,
    FreeingStatus,
    KeyIndexStatus,
    LogPositions,
    ReplicationStatus,
)
from appliance.admin.timer_listing import TimerListing
from appliance.broker import Broker
from appliance.config.config import Address
from appliance.dead_letters import (
    DeadListRequest,
    DeletedRecords,
    Place,
    ReplayedRecords,
    ReplayRequest,
)
from appliance.errors import ClockError, FindError, NotReadyError
from appliance.find import FindRequest
from appliance.metrics import render
from appliance.model import (
    CleanupStatus,
    CommittedOffset,
    ExpiredRecords,
    GroupStatus,
    GroupSummary,
    PartitionStatus,
    SnapshotStatus,
    TimerState,
    TopicStatus,
    TopicSummary,
)
from appliance.pending_timers import (
    Backlog,
    LevelQueue,
    MovedTimer,
    PurgedTimers,
    TimerCountRequest,
    TimerCounts,
    TimerListRequest,
    TimerPlace,
    TimerSelection,
)
from appliance.pump import Pump
from appliance.retention import Cleanup
from appliance.store.log_snapshots import check_name
from appliance.store.recovery.report import Progress
from appliance.system.clock import MovableClock
from appliance.timer_stages import STAGES, Stage, StageStatus
from appliance.units import MS_PER_SECOND, NS_PER_MS

DAMAGE_SHOWN_MAX: Final = 100
"""Damaged parts in a status; a failing disk may have any number."""


class Clients(Protocol):
    """The Kafka clients of a server."""

    @property
    def connection_count(self) -> int:
        """The number of connected clients."""

    @property
    def held_bytes(self) -> int:
        """Memory used by their requests and responses, bytes."""


class Frontend(Clients, Protocol):
    """The server for Kafka clients, once it accepts connections."""

    pump: Pump
    bound: Address

    @property
    def groups(self) -> Commits:
        """The coordinator of consumer groups."""

    @property
    def advertised(self) -> Address:
        """The address at which clients are told to connect."""


class Groups(Protocol):
    """The consumer groups of the coordinator."""

    def __len__(self) -> int:
        """The number of groups."""

    def summaries(self) -> Iterator[GroupSummary]:
        """Yield all groups; groups may be added or deleted during the iteration."""

    def find(self, name: str) -> GroupStatus | None:
        """Return a group without its offsets; None if there is no such group."""


class Pair(Protocol):
    """This node's part in a pair, master or slave."""

    def status(self) -> ReplicationStatus:
        """Return the state of the pair."""

    async def promote(self, *, is_forced: bool = False) -> None:
        """Make this slave the master; return once it serves clients.

        Args:
            is_forced: also if it has never caught up; what it lacks is lost.

        Raises:
            RoleError: it is no slave, or has never caught up.
            NotReadyError: the broker stops.
        """

    async def hand_over(self) -> None:
        """Make the slave of this master the master; return once it is.

        Raises:
            RoleError: there is no slave that could take over, or it did not.
            NotReadyError: the broker stops.
        """

    def go_alone(self) -> None:
        """Let a master that compares its log go on without that.

        Raises:
            RoleError: it compares none.
        """

    def go_solo(self, *, is_slave_off: bool) -> None:
        """Let the master of a sync pair go on without its slave.

        Args:
            is_slave_off: the operator states that the slave is off, and so is not promoted.

        Raises:
            RoleError: it is no master of a sync pair, or nobody says that the slave is off.
        """


def _none() -> None:
    """There is no coordinator."""


class LiveStatus:
    """The status of one broker; ready from `serves` until `stops`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._listing = TimerListing(broker)
        self._dead = DeadLetters(broker)
        self._frontend: Frontend | None = None
        self._clients: Clients | None = None
        """Of a slave."""
        self._groups: Groups
        self._pair: Pair | None = None
        self._coordinator: Callable[[], CoordinatorStatus | None] = _none
        self._admin = broker.config.admin
        self._started_at = 0
        self._started_ns = 0

    def serves(self, frontend: Frontend, groups: Groups, admin: Address) -> None:
        """Note that clients are served from now on.

        Args:
            frontend: the server for the clients.
            groups: the consumer groups.
            admin: the address on which the admin server listens.
        """
        self._frontend = frontend
        self._groups = groups
        self._admin = admin
        self._started_at = self._broker.clock.wall_ms()
        self._started_ns = self._broker.clock.monotonic_ns()

    def coordinated(self, coordinator: Callable[[], CoordinatorStatus | None]) -> None:
        """Take what says how the coordinator has the pair."""
        self._coordinator = coordinator

    def joins(self, pair: Pair, clients: Clients | None = None) -> None:
        """Note what this node does in a pair from now on, and who reads from it as a slave."""
        self._pair, self._clients = pair, clients

    def stops(self) -> None:
        """Note that clients are no longer served."""
        self._frontend = None

    @property
    def ready(self) -> bool:
        return self._frontend is not None

    @property
    def refusal(self) -> str | None:
        return None if self._frontend is None else self._broker.disk_space.refusal

    def progress(self) -> Progress:
        return self._broker.progress()

    def metrics(
        self, *, admin_connections: int, admin_held_bytes: int
    ) -> Iterator[tuple[str, int]]:
        frontend = self._frontend
        clients = self._clients if frontend is None else frontend
        connections, held = (
            (0, 0) if clients is None else (clients.connection_count, clients.held_bytes)
        )
        broker = self._broker
        gauges = replace(
            broker.gauges(connections, held + admin_held_bytes),
            admin_connections=admin_connections,
        )
        if frontend is not None:
            release = frontend.pump.release
            gauges = replace(
                gauges,
                enqueue_backlog=release.unflushed_timers,
                enqueue_backlog_seconds=release.unflushed_ms / MS_PER_SECOND,
            )
        if self._pair is not None:
            pair = self._pair.status()
            gauges = replace(
                gauges,
                replication_slave=pair.role == "slave",
                replication_streaming=pair.state == "streaming",
                replication_solo=pair.solo,
                replication_lease_seconds=(pair.lease_left_ms or 0) / MS_PER_SECOND,
                replication_lag_bytes=pair.lag_bytes or 0,
                replication_held_bytes=pair.held_bytes,
                replication_silence_seconds=(pair.heard_ms_ago or 0) / MS_PER_SECOND,
            )
        return render(broker.collect_metrics(), gauges, broker.label_names)

    def topic_metrics(self) -> Iterator[tuple[str, int]]:
        return topic_metrics.render(self._broker.topics.all(), self._broker.timers)

    @property
    def _serving(self) -> Frontend:
        if self._frontend is None:
            raise NotReadyError("the broker is starting or stopping")
        return self._frontend

    # The pair

    def replication(self) -> ReplicationStatus:
        return self._pair_status()

    async def promote(self, *, is_forced: bool = False) -> ReplicationStatus:
        await self._joined.promote(is_forced=is_forced)
        return self._pair_status()

    async def hand_over(self) -> ReplicationStatus:
        await self._joined.hand_over()
        return self._joined.status()

    def go_alone(self) -> ReplicationStatus:
        self._joined.go_alone()
        return self._pair_status()

    def go_solo(self, *, is_slave_off: bool) -> ReplicationStatus:
        self._joined.go_solo(is_slave_off=is_slave_off)
        return self._pair_status()

    def _pair_status(self) -> ReplicationStatus:
        return replace(self._joined.status(), coordinator=self._coordinator())

    @property
    def _joined(self) -> Pair:
        if self._pair is None:
            raise NotReadyError("the broker is starting")
        return self._pair

    # The broker as a whole

    def status(self) -> BrokerStatus:
        broker, frontend = self._broker, self._serving
        clock = broker.clock
        gauges = broker.gauges(frontend.connection_count)
        topics = broker.topics.all()
        return BrokerStatus(
            version=version(),
            cluster_id=broker.cluster_id,
            epoch=broker.epoch,
            kafka=str(frontend.bound),
            advertised=str(frontend.advertised),
            admin=str(self._admin),
            insecure=gauges.insecure,
            flush=broker.config.flush,
            clock_ahead_ms=clock.ahead_ms if isinstance(clock, MovableClock) else None,
            started_at=self._started_at,
            uptime_ms=(broker.clock.monotonic_ns() - self._started_ns) // NS_PER_MS,
            log=LogPositions(
                start=gauges.log_start_pos,
                wrote=gauges.log_wrote_pos,
                committed=gauges.log_committed_pos,
                flushed=gauges.log_flushed_pos,
                visible=gauges.log_visible_pos,
            ),
            key_index=KeyIndexStatus(
                on=broker.key_index.is_on,
                indexed=gauges.key_index_pos,
                lag_bytes=gauges.key_index_lag_bytes,
                rows=gauges.key_index_rows,
                runs=gauges.key_index_runs,
            ),
            disk=broker.disk_space.status(),
            freeing=FreeingStatus(
                reclaimable_bytes=gauges.log_reclaimable_bytes,
                dead_bytes=gauges.log_dead_bytes,
                held_back=gauges.carry_held_back,
                expires_early=broker.early_expiry.is_active,
                early_expired_records=broker.early_expiry.expired_records,
            ),
            connections=gauges.connections,
            topics=len(topics),
            partitions=sum(len(topic.partitions) for topic in topics),
            groups=len(self._groups),
            pending_timers=gauges.pending_timers,
            pending_timers_max=gauges.pending_timers_max,
            unreadable_timers=gauges.unreadable_timers,
            held_timers=gauges.held_timers,
            unloaded_timers=gauges.unloaded_timers,
            stopped_stages=tuple(each for each in STAGES if broker.stages.is_stopped(each)),
            next_due_at=broker.timers.next_due_ms(),
            damage_count=gauges.recovered_damage,
            damage=tuple(
                DamagedPart(str(each.path), each.offset, each.size, each.fault)
                for each in islice(broker.damage, DAMAGE_SHOWN_MAX)
            ),
        )

    # Topics

    def topics(self) -> Iterator[TopicSummary]:
        for topic in self._broker.topics.all():
            if not topic.deleted:
                yield self._summary(topic)

    def _summary(self, topic: Topic) -> TopicSummary:
        parts = topic.partitions
        return TopicSummary(
            name=topic.name,
            id=str(topic.uuid),
            partition_count=len(parts),
            record_count=sum(part.visible_offset - part.start_offset for part in parts),
            pending_timers=sum(map(self._broker.timers.count_of, parts)),
        )

    def topic(self, name: str) -> TopicStatus | None:
        topic = self._broker.topics.find(name)
        if topic is None:
            return None
        partitions = (
            PartitionStatus(
                partition=part.index,
                start_offset=part.start_offset,
                visible_offset=part.visible_offset,
                next_offset=part.next_offset,
                pending_timers=self._broker.timers.count_of(part),
            )
            for part in topic.partitions
        )
        return TopicStatus(topic.name, str(topic.uuid), dict(topic.settings), partitions)

    # Groups

    def groups(self) -> Iterator[GroupSummary]:
        return self._groups.summaries()

    def group(self, name: str) -> GroupStatus | None:
        found = self._groups.find(name)
        return None if found is None else replace(found, offsets=self._committed(name))

    def _committed(self, group: str) -> Iterator[CommittedOffset | None]:
        # Neither sorted nor copied: they may be a hundred thousand, and the client reads slowly.
        # Offsets of partitions whose topic frame was damaged are left out.
        for topic in self._broker.topics.all():
            yield None
            if not self._broker.groups.has_offsets(group, topic.topic_id):
                continue
            offsets = self._broker.groups.offsets(group)
            for partition in topic.partitions:
                entry = offsets.get((topic.topic_id, partition.index))
                if entry is None:
                    yield None
                    continue
                end_offset = partition.visible_offset
                yield CommittedOffset(
                    topic=topic.name,
                    partition=partition.index,
                    offset=entry.offset,
                    metadata=entry.metadata,
                    committed_at=entry.commit_ms,
                    end_offset=end_offset,
                    # An application may commit any offset, also one above the end.
                    lag=max(0, end_offset - entry.offset),
                )

    # Timers

    async def timer_state(self, topic: str, user_id: bytes) -> TimerState | None:
        return await self._ask_timer(topic, user_id, self._broker.timers.state)

    async def cancel_timer(self, topic: str, user_id: bytes) -> TimerState | None:
        return await self._ask_timer(topic, user_id, self._broker.timers.cancel)

    async def _ask_timer(
        self, name: str, user_id: bytes, ask: Callable[[Topic, bytes], TimerState]
    ) -> TimerState | None:
        pump = self._serving.pump
        pump.release.check()
        topic = self._broker.topics.find(name)
        if topic is None:
            return None
        await self._listing.know(pump, [(topic, user_id)])
        pump.release.check()
        state = ask(topic, user_id)
        # Report no state that a power cut could still undo.
        await pump.durable(self._broker.wrote_pos)
        return state

    async def move_timer(
        self, topic: str, user_id: bytes, due_at: int | None
    ) -> tuple[TimerState, bool]:
        found = self._broker.topics.find(topic)
        if found is None:
            raise FindError("unknown", f"there is no topic {topic!r}")
        return await self._listing.move_timer(self._serving.pump, found, user_id, due_at)

    async def move_placed(self, place: TimerPlace, due_at: int | None) -> MovedTimer:
        return await self._listing.move_at(self._serving.pump, place, due_at)

    async def list_timers(self, request: TimerListRequest) -> str:
        return await self._listing.list_timers(self._serving.pump, request)

    async def purge_timers(self, selection: TimerSelection) -> PurgedTimers:
        return await self._listing.purge_timers(self._serving.pump, selection)

    def levels(self) -> list[LevelQueue]:
        self._serving.pump.release.check()
        return self._broker.timers.levels(self._broker.config.delay_levels)

    def stages(self) -> list[StageStatus]:
        self._serving.pump.release.check()
        stages, timers = self._broker.stages, self._broker.timers
        release, now_ms = self._serving.pump.release, self._broker.clock.wall_ms()
        unflushed = Backlog(release.unflushed_timers, round(release.unflushed_ms))
        due = timers.backlog(now_ms, timers.next_due_ms())
        return [stages.status("enqueue", unflushed), stages.status("dequeue", due)]

    async def change_stage(self, stage: Stage, *, is_stopped: bool) -> list[StageStatus]:
        pump = self._serving.pump
        pump.release.check()
        self._broker.stages.change(stage, is_stopped=is_stopped)
        pump.show([])  # what has become due meanwhile
        await pump.durable(self._broker.wrote_pos)
        return self.stages()

    async def count_timers(self, request: TimerCountRequest) -> TimerCounts:
        return await self._listing.count_timers(self._serving.pump, request)

    # Records

    async def find(self, request: FindRequest) -> str:
        return await finding.find(self._broker, self._serving.pump, request)

    # Dead letters

    async def list_dead(self, request: DeadListRequest) -> str:
        return await self._dead.list_dead(self._serving.pump, request)

    async def show_dead(self, group: str, place: Place) -> str:
        return await self._dead.show(self._serving.pump, group, place)

    async def replay_dead(self, request: ReplayRequest) -> ReplayedRecords:
        serving = self._serving
        return await self._dead.replay(serving.pump, serving.groups, request)

    async def purge_dead(self, group: str, before: Place | None) -> DeletedRecords:
        return await self._dead.purge(self._serving.pump, group, before)

    # Clock

    def clock(self) -> ClockStatus:
        _ = self._serving
        clock = self._broker.clock
        if isinstance(clock, MovableClock):
            return ClockStatus("virtual", clock.wall_ms(), clock.ahead_ms)
        return ClockStatus("system", clock.wall_ms(), 0)

    async def advance_clock(self, by_ms: int) -> ClockStatus:
        pump, clock = self._serving.pump, self._broker.clock
        if not isinstance(clock, MovableClock):
            raise ClockError(
                "the clock is the machine's: start the broker with --clock virtual to advance it"
            )
        delivered = await pump.advance_clock(clock, by_ms)
        return replace(self.clock(), delivered=delivered)

    # Retention

    async def clean_up(self, wanted: CleanupRequest) -> CleanupStatus | None:
        pump, retention = self._serving.pump, self._broker.retention
        pump.release.check()
        topic = None if wanted.topic is None else self._broker.topics.find(wanted.topic)
        if topic is None and wanted.topic is not None:
            return None
        jump_ms = 0
        if wanted.confirms_clock:
            jump_ms = retention.confirm_clock()
        cleanup = Cleanup(topic=topic, before_ms=wanted.before_at, is_dry_run=wanted.is_dry_run)
        await pump.clean_up(cleanup)
        await pump.durable(self._broker.wrote_pos)
        if cleanup.error is not None:
            raise cleanup.error
        found = [ExpiredRecords(name, count) for name, count in sorted(cleanup.expired.items())]
        return CleanupStatus(found, jump_ms, retention.clock_jump_ms)

    # Snapshots

    async def snapshots(self) -> list[SnapshotStatus]:
        return await self._serving.pump.snapshot(self._broker.snapshots.all)

    async def create_snapshot(self, name: str | None) -> SnapshotStatus:
        pump = self._serving.pump
        if name is not None:
            check_name(name)
        await pump.flushed(self._broker.wrote_pos)
        snapshots = self._broker.snapshots
        # A segment that is freed meanwhile could not be linked.
        with self._broker.head_freer.paused():
            create = functools.partial(snapshots.create, snapshots.freeze(), name)
            return await pump.snapshot(create)

    async def delete_snapshot(self, name: str) -> SnapshotStatus:
        delete = functools.partial(self._broker.snapshots.delete, name)
        return await self._serving.pump.snapshot(delete)


@functools.cache
def version() -> str:
    """The version of latermq."""
    import importlib.metadata  # which is slow to load, and looks through the installed packages

    return importlib.metadata.version("latermq")
