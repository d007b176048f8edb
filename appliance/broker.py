"""The broker as one object, without sockets and without waiting: the only API above the store.

It is synchronous and driven from outside. Its owner (appliance.pump, or a test with a virtual
clock) calls `commit` at the end of each turn, flushes in the background, and calls `deliver_due`
at `next_wake_ms`.

 a produced record   session -> ProducePath -> LogTail -> commit -> flush -> visible, answered
 a due timer         Scheduler -> DeliverPath -> LogTail -> commit -> flush -> visible
 a fetched record    session -> FetchPath -> slices of the log

Layer 4.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from _core.paths.deliver import DeliverPath
from _core.paths.parked_fetch import ParkedFetch
from _core.paths.session import Session
from _core.paths.timer_quota import TimerQuota
from _core.queue.partition import Topic
from appliance import broker_metrics
from appliance.client_log import ClientLog
from appliance.client_paths import ControlPlane, make_fetch_path, make_produce_path
from appliance.config.config import Config
from appliance.cron_rules import CronRules
from appliance.dead_replay import DeadReplay
from appliance.early_expiry import EarlyExpiry
from appliance.errors import CorruptionError, ProducerQuotaError, StorageError
from appliance.facade import Facade
from appliance.find import Finder
from appliance.metrics import Gauges, LabelNames, Metrics
from appliance.model import ColdPlace
from appliance.offset_search import OffsetSearch
from appliance.pending_timers import PendingTimers
from appliance.producers import Producers
from appliance.replication.lease import NO_LEASE, Lease
from appliance.retention import Retention
from appliance.retry_topics import RetryTopics
from appliance.saved_timers import SavedTimers
from appliance.schedule.scheduler import Delivery, Scheduler
from appliance.slave_broker import SlaveBroker
from appliance.store.cold_reads import ColdRead
from appliance.store.comparison import Comparison
from appliance.store.damage import Damage
from appliance.store.disk_space import DiskSpace
from appliance.store.follower import Follower
from appliance.store.head.head_freer import HeadFreer
from appliance.store.keys.key_index import KeyIndex
from appliance.store.keys.log_part import LogPart
from appliance.store.log.flush_job import FlushJob
from appliance.store.log_snapshots import LogSnapshots
from appliance.store.message_store import MessageStore
from appliance.store.recovery.report import Progress, RecoveryReport
from appliance.store.repair import Repair
from appliance.store.role_file import RoleFile, RoleRecord
from appliance.store.runs.timer_memory import TimerMemory
from appliance.store.source_log import SourceLog
from appliance.store.state.checkpointer import Checkpointer
from appliance.store.state.flushed_mark import FlushedMark
from appliance.store.unit_saver import UnitSaver
from appliance.system.clock import Clock
from appliance.system.files import FileSystem
from appliance.timer_moves import TimerMoves
from appliance.timer_stages import TimerStages
from appliance.topics import Topics
from appliance.units import NS_PER_MS

LONE_NODE_ID: Final = 1
"""The id, for clients, of a broker that was never a node of a pair."""

INDEX_SETTING: Final = "index.keys"
"""Of a topic: "off" leaves it out of the key index."""

HOUSEKEEPING_TIMERS: Final = 65_536
"""Timers looked at in one turn, to count those of the seconds that come near: a millisecond."""

HOUSEKEEPING_IDS: Final = 65_536
"""Remembered timer ids checked for expiry in one turn."""


class Broker:
    """Topics, records and timers. Call `recover` first.

    Attributes:
        config, clock, log: as passed to the constructor, and the CommitLog.
        topics, groups, search: the parts that handlers of the control plane use; set by `recover`.
        producers: admits idempotent producers, and lets them expire; set by `recover`.
        saved_timers: those that are on the disk alone; set by `recover`.
        stages: accept and deliver timers, unless they are stopped; set by `recover`.
        timer_quota: bounds the pending timers of all and of each address; set by `recover`.
        retention: what expires records; set by `recover`.
        early_expiry: what does so because the disk fills up; set by `recover`.
        timers: the pending timers, for people; set by `recover`.
        key_index: where keys and ids are in the log; set by `recover`.
        leads: True: it accepts records and coordinates groups.
        lease: what a master of a sync pair needs to acknowledge and deliver; None otherwise.
        metrics, client_log: the counters, and what writes the lines of the log of clients.
        report: the outcome of recovery, once it is complete.
    """

    leads = True
    key_index: KeyIndex

    def __init__(
        self,
        clock: Clock,
        fs: FileSystem,
        config: Config,
        facade: Facade,
        *,
        accepts_loss: bool = False,
        compares: bool = False,
    ) -> None:
        """Touch no file yet.

        Args:
            clock, fs, config, facade: what it works with.
            accepts_loss: recovery continues without what the log lacks.
            compares: a pair's master waits before its first write; see `comparison`.
        """
        self.clock = clock
        self.config = config
        self.metrics = Metrics()
        self.client_log = ClientLog(clock)
        self.lease: Lease | None = None
        self._facade = facade

        def configure(topic: Topic) -> None:
            facade.configure_topic(topic, config)
            is_left_out = topic.settings.get(INDEX_SETTING) == "off"
            (left_out.add if is_left_out else left_out.discard)(topic.topic_id)

        left_out = self._left_out = set[int]()

        self._store = MessageStore(
            clock, fs, config, configure, accepts_loss=accepts_loss, compares=compares
        )
        self._progress = Progress("starting", 0, 0)
        self._is_recovered = False
        self._slave: SlaveBroker | None = None
        self.log = self._store.log

    # Start and stop

    def recover(self) -> Iterator[Progress]:
        """Open the store, yielding between slices. Raises what `MessageStore.recover` raises."""
        for progress in self._store.recover():
            self._progress = progress
            yield progress
        store, config = self._store, self.config
        state = store.state
        self.topics = Topics(state.topics, state.projections, config, self.client_log)
        self.groups = state.groups
        self.search = OffsetSearch(store.log.view, state.epochs, self._decompress)
        self.producers = Producers(state.projections, config, self.clock, self.client_log)
        self.timer_quota = self._make_timer_quota()
        assert state.expiry is not None
        self.retention = Retention(
            self.clock,
            self.topics,
            self.search,
            config,
            expiry=state.expiry,
            sizes=state.sizes,
        )
        store.carriers.records.kept_from = lambda: self.retention.kept_from
        self.early_expiry = EarlyExpiry(
            self.retention,
            store.log,
            store.disk_space,
            store.head_freer,
            takes_all=config.disk_expire_all_topics,
        )
        self.key_index = store.new_key_index(
            self._decompress, left_out=self._left_out, is_on=config.index_keys
        )
        self.instants = CronRules(self.clock.monotonic_ns)
        self._make_paths()

    def _make_paths(self) -> None:
        """Make what handles produced, fetched, due and cancelled records."""
        store, config = self._store, self.config
        facade, cluster_id = self._facade, self.cluster_id
        self._produce = make_produce_path(
            store.writer,
            self.timer_quota,
            config,
            facade,
            cluster_id=cluster_id,
            make_topic=RetryTopics(self.topics, self.clock, self.timer_quota).make,
            instants=self.instants,
        )
        self._produce.admit_producer = self.producers.admit
        projections, view = store.state.projections, store.log.view
        self._fetch = make_fetch_path(projections, view, config, facade, cluster_id)
        self._fetch.epoch = store.log.tail.epoch
        self._deliver = DeliverPath(
            store.writer,
            store.log.view,
            chunk_max=config.delivery_chunk_records,
            batch_size_max=config.delivery_batch_max_bytes,
            rules=self.instants,
        )
        self.timers = PendingTimers(store, self._deliver, self.clock)
        self.saved_timers = SavedTimers(store)
        self.timer_moves = TimerMoves(self._produce, self.timers, config, self.clock)
        self.dead_replay = DeadReplay(self._produce, self.topics, self.groups, self.clock)
        self._scheduler = Scheduler(
            store.state.projections.due, self._deliver, chunk_records=config.delivery_chunk_records
        )
        stopped = store.state.stopped_stages
        self.stages = TimerStages(self.timer_quota, self._scheduler, stopped, store.stop_stages)
        self._is_recovered = True

    def _make_timer_quota(self) -> TimerQuota:
        quota = TimerQuota(
            self._store.state.projections,
            count_max=self.config.pending_timers_max,
            second_max=self.config.due_per_second_max,
        )
        quota.await_again = self.producers.await_again
        return quota

    def close(self) -> StorageError | CorruptionError | None:
        """Stop cleanly. Raises StorageError if not everything could be made durable.

        Returns:
            The error if no checkpoint could be written; the next start replays more of the log.
        """
        self._close_key_index()
        self._store.close()
        return self._store.stop_error

    def abandon(self) -> None:
        """Close the files as they are; the next start recovers."""
        self._close_key_index()
        self._store.abandon()

    def _close_key_index(self) -> None:
        if hasattr(self, "key_index"):  # a start may end before there is one
            self.key_index.close()

    @property
    def follower(self) -> Follower | None:
        """A slave's end of the log, once its start has come so far; None for a master."""
        return self._store.follower

    @property
    def timer_memory(self) -> TimerMemory:
        """Which timers are in memory."""
        return self._store.timer_memory

    @property
    def comparison(self) -> Comparison | None:
        """A pair's master before its first write, once its start has come so far; else None."""
        return self._store.comparison

    @property
    def repair(self) -> Repair | None:
        """A slave whose log is damaged, once its start has come so far; else None."""
        return self._store.repair

    @property
    def role_file(self) -> RoleFile:
        """Where the role of this node is remembered."""
        return self._store.role

    @property
    def role(self) -> RoleRecord:
        """The role of this node in a pair, and its term, once the start holds the directory."""
        return self._store.role.record

    def slave(self) -> SlaveBroker:
        """What this node serves while it follows; its log has a whole frame."""
        follower = self._store.follower
        assert follower is not None
        self._slave = SlaveBroker(
            self._store,
            follower,
            self._facade,
            self._decompress,
            config=self.config,
            clock=self.clock,
            metrics=self.metrics,
            client_log=self.client_log,
        )
        return self._slave

    def read_at_slave(self, node_id: int | None, rack: str, late_bytes: int) -> None:
        """Let consumers read from a slave, or from none; see `ReadReplica.set`."""
        self._fetch.replica.set(-1 if node_id is None else node_id, rack.encode(), late_bytes)

    def source_log(self) -> SourceLog:
        """The log, as a slave reads it."""
        store = self._store
        return SourceLog(store.log, store.state, self.config)

    def progress(self) -> Progress:
        """The progress of recovery."""
        return self._progress

    @property
    def report(self) -> RecoveryReport:
        return self._store.report

    def open_session(self, answer_control_plane: ControlPlane) -> Session:
        """A new Kafka connection; see `_core.paths.session.Session` for `answer_control_plane`."""
        return Session(
            self._produce,
            self._fetch,
            answer_control_plane,
            request_size_max=self.config.request_size_limit_bytes,
        )

    def note_client(self, address: str) -> None:
        """Note the IP address of the client whose Produce requests are handled next."""
        self.producers.address = self.timer_quota.address = address

    @property
    def label_names(self) -> LabelNames:
        """Names the numbers by which metrics count the client protocol."""
        return self._facade.label_names

    def _decompress(self, codec: int, records: memoryview, size_max: int | None = None) -> bytes:
        limit = self.config.decompressed_size_max_bytes
        return self._facade.decompress(codec, records, min(limit, size_max or limit))

    # Log

    @property
    def wrote_pos(self) -> int:
        """The end of the log; every change so far is durable once the log is durable up to here."""
        return self._store.log.pointers.wrote

    @property
    def producer_ids_pos(self) -> int:
        """The end of the frame in the log that reserves the producer ids given out last."""
        return self._store.producer_ids_pos

    @property
    def committed_pos(self) -> int:
        """The end of the part of the log that is in the page cache."""
        return self._store.log.pointers.committed

    @property
    def flushed_pos(self) -> int:
        """The end of the part of the log that is on the disk."""
        return self._store.log.pointers.flushed

    @property
    def is_sync_flush(self) -> bool:
        return self.config.flush == "sync"

    def commit(self) -> list[ParkedFetch]:
        """Write what this turn encoded; return parked fetches with new records (async flush)."""
        self._store.commit()
        return self._wake()

    def end_flush(self, job: FlushJob) -> list[ParkedFetch]:
        """Record a flush that succeeded; return the parked fetches with new records."""
        self.metrics.flushes += 1
        self.log.end_flush(job)
        return self._wake()

    @property
    def replicated_pos(self) -> int:
        """Log position up to which nothing waits for a slave; very large without a sync pair."""
        return self._store.log.pointers.replicated

    @property
    def has_lease(self) -> bool:
        """Nobody else can be the master, so that this node may acknowledge, change and deliver."""
        return self.lease is None or self.lease.is_held

    def check_lease(self) -> bool:
        """Return `has_lease`, and refuse batches from now on if it is False, else no more."""
        self._produce.missing_lease = None if self.has_lease else NO_LEASE
        return self._produce.missing_lease is None

    def need_replica(self, missing: str | None) -> None:
        """Show nothing more that the slave lacks; `missing`: why acks=all is refused, or None."""
        self._store.log.pointers.need_replica()
        self._produce.missing_replica = missing

    def release_replica(self) -> list[ParkedFetch]:
        """Wait for no slave; return the parked fetches with new records."""
        self._store.log.pointers.release_replica()
        self._produce.missing_replica = None
        return self._wake()

    def replicated(self, pos: int) -> list[ParkedFetch]:
        """Record what the slave has; return the parked fetches with new records."""
        self._store.log.pointers.advance_replicated(pos)
        return self._wake()

    def flush(self) -> list[ParkedFetch]:
        """Commit and flush on this thread; return the parked fetches with new records."""
        self._store.flush()
        return self._wake()

    def _wake(self) -> list[ParkedFetch]:
        visible_pos = self._store.log.pointers.visible
        woken: dict[ParkedFetch, None] = {}
        for partition in self._store.state.projections.advance_visible(visible_pos):
            woken.update(dict.fromkeys(partition.waiting()))
        return [parked for parked in woken if parked.may_have_enough(visible_pos)]

    # Timers

    def deliver_due(self) -> Delivery:
        """Append the next chunk of due timers; commit and flush follow as for produced records."""
        # Delivery reads the records from the file, so they must have been written.
        self._store.commit()
        return self._scheduler.deliver_due(self.clock.wall_ms())

    def next_wake_ms(self) -> int | None:
        """When to call `deliver_due` again, epoch ms; None while nothing is pending."""
        return self._scheduler.next_wake_ms(self.clock.wall_ms())

    @property
    def pending_timers(self) -> int:
        return self.timers.count

    # Cold reads

    def read_cold(self, places: list[ColdPlace], *, is_sparse: bool = False) -> ColdRead:
        """See `ColdReader.read`; the only call that may run on another thread."""
        return self._store.cold.read(places, is_sparse=is_sparse)

    def note_read(self, read: ColdRead, *, is_delivery: bool = False) -> list[Damage]:
        """Apply the result of `read_cold`, read for `deliver_due` or not. Returns new damage."""
        damage = self._store.note_read(read)
        if is_delivery:
            self._scheduler.note_read()
        return damage

    @property
    def is_delivery_waiting(self) -> bool:
        """Timers wait for the disk: call `deliver_due` although nothing new is due."""
        return self._scheduler.is_waiting

    def look_ahead(self, duration_ms: int) -> list[ColdPlace]:
        """Return, in order, the frames not in memory that are due within `duration_ms`."""
        return sorted(self._deliver.look_ahead(self.clock.wall_ms() + duration_ms))

    @property
    def damage(self) -> Sequence[Damage]:
        """All damage found by recovery or later, in the order in which it was found."""
        return self._store.damage

    def housekeep(self) -> bool:
        """Do a slice of background work; call about ten times a second.

        Returns:
            True if there are many ConsumeQueue units to save: call `units.save` soon.
        """
        store = self._store
        has_more = self.units.save()
        store.cold.retry_damaged(store.damage)
        self.early_expiry.step()
        self.retention.step()
        self._expire_state()
        due = store.state.projections.due
        due.advance_wheels(self.clock.wall_ms(), HOUSEKEEPING_TIMERS)
        return has_more

    @property
    def units(self) -> UnitSaver:
        """Saves the ConsumeQueue units in slices."""
        return self._store.units

    def _expire_state(self) -> None:
        """Let ids, producers and offsets expire, in slices; by the age that `retention` steps."""
        state, config = self._store.state, self.config
        assert state.expiry is not None
        position_before = state.expiry.position_before
        ids = state.projections.ids
        ids.forget_below(position_before(config.completed_id_memory_ms))
        ids.expire_some(HOUSEKEEPING_IDS)
        self.producers.expire(position_before)
        monotonic_ms = self.clock.monotonic_ns() // NS_PER_MS
        state.offset_expiry.expire_some(monotonic_ms, position_before)

    @property
    def checkpoints(self) -> Checkpointer:
        """The checkpointer; the broker's owner drives it at the end of turns."""
        return self._store.checkpoints

    @property
    def head_freer(self) -> HeadFreer:
        """What frees the first segments; the broker's owner drives it as well."""
        return self._store.head_freer

    @property
    def flushed_mark(self) -> FlushedMark:
        """What publishes the flushed position; the broker's owner drives it as well."""
        return self._store.mark

    @property
    def disk_space(self) -> DiskSpace:
        """What watches how full the disk is; the broker's owner drives it as well."""
        return self._store.disk_space

    @property
    def snapshots(self) -> LogSnapshots:
        """The snapshots of the log."""
        return self._store.snapshots

    # Find

    def begin_find(self) -> tuple[Finder, LogPart]:
        """Return what finds records up to the visible end of the log, for one use on any thread.

        The caller closes the part of the log, and calls `KeyIndex.end_search`.
        """
        store = self._store
        search, part = self.key_index.begin_search(store.log.pointers.visible)
        finder = Finder(
            part,
            search,
            dict(store.state.projections.topics_by_id),
            store.state.projections.moved.place,
            self._facade.decompress,
            unpacked_max=self.config.decompressed_size_max_bytes,
        )
        return finder, part

    # Topics

    @property
    def cluster_id(self) -> str:
        return str(self._store.state.cluster)

    @property
    def node_id(self) -> int:
        """The id of this broker for clients: its number in the pair, which stays with it."""
        return self._store.state.node or LONE_NODE_ID

    @property
    def epoch(self) -> int:
        """The leader epoch of every partition."""
        return self._store.log.tail.epoch

    def allocate_producer_id(self, address: str = "") -> int:
        """Return a producer id that was never allocated before.

        Args:
            address: IP address of the client.

        Raises:
            ProducerQuotaError: the client, or the broker, has too many: the client tries again.
            RequestError: the disk is full.
        """
        if not self.producers.may_allocate(address):
            raise ProducerQuotaError("too many producers: try again later")
        return self._store.allocate_producer_id()

    def space(self) -> tuple[int, int]:
        """Return the total and the available bytes of the file system that holds the data.

        Raises:
            StorageError: the system call failed.
        """
        return self._store.space()

    # Metrics

    def gauges(self, connections: int, inflight_bytes: int = 0) -> Gauges:
        """Return the current values for the metrics page."""
        if not self._is_recovered:
            config, store = self.config, self._store
            return broker_metrics.following_gauges(config, store, connections, inflight_bytes)
        return broker_metrics.gauges(
            self.config,
            self._store,
            self._deliver,
            self.key_index,
            retention=self.retention,
            expires_early=self.early_expiry.is_active,
            timers=self.timers,
            stages=self.stages,
            now_ms=self.clock.wall_ms(),
            connections=connections,
            inflight_bytes=inflight_bytes,
        )

    def collect_metrics(self) -> Metrics:
        """Return the counters, updated from the compiled paths."""
        if not self._is_recovered:
            if self._slave is not None:
                self._slave.collect_metrics()
            return self.metrics
        metrics, store = self.metrics, self._store
        broker_metrics.collect(metrics, store, self._produce, self._fetch, self._deliver)
        broker_metrics.collect_expiry(metrics, self.producers, self.retention, self.early_expiry)
        return self.metrics
