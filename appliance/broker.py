"""The broker in one process, without sockets and without waiting: the one API above the store.

Synchronous and driven from outside. Whoever owns it (appliance.pump, or a test with a virtual
clock) calls `commit` at the end of each turn, flushes in the background, and calls `deliver_due`
when `next_wake_ms` has come.

 a produced record   session -> ProducePath -> LogTail -> commit -> flush -> visible, answered
 a due timer         Scheduler -> DeliverPath -> LogTail -> commit -> flush -> visible
 a fetched record    session -> FetchPath -> slices of the log

Layer 4.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, cast
from uuid import UUID

from _core.cancel import CancelPath
from _core.delay_split import BatchSplitter
from _core.deliver import DeliverPath
from _core.fetch import FetchPath
from _core.partition import Partition, Topic
from _core.produce import ProducePath
from _core.session import ParkedAnswer, ParkedFetch, Session
from appliance import broker_metrics
from appliance.clock import Clock
from appliance.config import Config
from appliance.errors import CorruptionError, RequestError, StorageError
from appliance.facade import Facade
from appliance.fs import FileSystem
from appliance.metrics import Gauges, Metrics
from appliance.model import ColdPlace, TimerState, TimerStateName
from appliance.offset_search import OffsetSearch
from appliance.schedule.scheduler import Delivery, Scheduler
from appliance.store.checkpointer import Checkpointer
from appliance.store.cold_reads import ColdRead
from appliance.store.commit_log import FlushJob
from appliance.store.group_frames import GroupFrame, OffsetEntry
from appliance.store.message_store import KAFKA_STORAGE_ERROR, MessageStore
from appliance.store.recovery import Damage, Progress, RecoveryReport
from appliance.store.segment import SpareJob
from appliance.topic_admin import TopicAdmin

NODE_ID: Final = 1

HOUSEKEEPING_PARTITIONS: Final = 256
"""Partitions looked at in one turn of the housekeeping."""

HOUSEKEEPING_IDS: Final = 65_536
"""Remembered timer ids looked at in one turn."""


class Broker:
    """Topics, records and timers. `recover` comes first.

    Attributes:
        config, clock: as given.
        metrics: what is counted.
        report: the outcome of the start, once it is over.
    """

    node_id = NODE_ID

    def __init__(
        self,
        clock: Clock,
        fs: FileSystem,
        config: Config,
        facade: Facade,
        *,
        accepts_loss: bool = False,
    ) -> None:
        """Touches no file yet; `accepts_loss`: a start goes on without what its log lacks."""
        self.clock = clock
        self.config = config
        self.metrics = Metrics()
        self._facade = facade

        def configure(topic: Topic) -> None:
            facade.configure_topic(topic, config)

        self._store = MessageStore(clock, fs, config, configure, accepts_loss=accepts_loss)
        self._progress = Progress("starting", 0, 0)
        self.is_ready = False
        self.control_pos = 0
        """What is told of topics and producer ids rests on the log up to here: answers wait."""

    # Start and stop

    def recover(self) -> Iterator[Progress]:
        """Open the store, yielding between slices. Raises what `MessageStore.recover` raises."""
        for progress in self._store.recover():
            self._progress = progress
            yield progress
        store, config = self._store, self.config
        self._topic_admin = TopicAdmin(store.topics, config)
        splitter = BatchSplitter(
            list(config.delay_levels),
            record_size_max=config.record_size_max_bytes,
            header_count_max=config.header_count_max,
            header_size_max=config.header_size_max_bytes,
        )
        item_count_max = config.partition_total_max + config.topic_count_max
        self._produce = ProducePath(
            store.writer,
            splitter,
            self._facade.decompress,
            item_count_max=item_count_max,
            unpacked_batch_max=config.decompressed_size_max_bytes,
            unpacked_size_max=config.request_decompressed_size_max_bytes,
        )
        self._fetch = FetchPath(
            store.projections,
            store.view,
            size_max=config.fetch_size_max_bytes,
            item_count_max=item_count_max,
        )
        self._fetch.epoch = store.tail.epoch
        self._deliver = DeliverPath(
            store.writer,
            store.view,
            chunk_max=config.delivery_chunk_records,
            batch_size_max=config.delivery_batch_max_bytes,
        )
        self._cancel = CancelPath(store.writer)
        self._scheduler = Scheduler(
            store.projections.due, self._deliver, chunk_records=config.delivery_chunk_records
        )
        self._offsets = OffsetSearch(store.view, self._decompress)
        self.is_ready = True

    def close(self) -> StorageError | CorruptionError | None:
        """Stop cleanly. Raises StorageError if not everything could be made durable.

        Returns:
            Why no checkpoint could be written, if so: the next start replays more of the log.
        """
        self.is_ready = False
        self._store.close()
        return self._store.stop_error

    def abandon(self) -> None:
        """Let go of the files as they are; the next start recovers."""
        self.is_ready = False
        self._store.abandon()

    def progress(self) -> Progress:
        """How far the start has come."""
        return self._progress

    @property
    def report(self) -> RecoveryReport:
        return self._store.report

    def open_session(
        self, answer_rare: Callable[[bytes], tuple[bytes, int] | ParkedAnswer | str]
    ) -> Session:
        """A new Kafka connection; see `_core.session.Session` for `answer_rare`."""
        return Session(
            self._produce,
            self._fetch,
            answer_rare,
            request_size_max=self.config.request_size_max_bytes,
        )

    def _decompress(self, codec: int, records: memoryview) -> bytes:
        return self._facade.decompress(codec, records, self.config.decompressed_size_max_bytes)

    # Log

    @property
    def wrote_pos(self) -> int:
        """Where the log ends; what changed so far is durable once the log is durable up to here."""
        return self._store.pointers.wrote

    @property
    def committed_pos(self) -> int:
        """Up to where the log is in the page cache."""
        return self._store.pointers.committed

    @property
    def flushed_pos(self) -> int:
        """Up to where the log is on the disk."""
        return self._store.pointers.flushed

    @property
    def is_sync_flush(self) -> bool:
        return self.config.flush == "sync"

    def commit(self) -> list[ParkedFetch]:
        """Write what this turn encoded; the parked fetches that have more to see (async flush)."""
        self._store.commit()
        return self._wake()

    def begin_spare(self) -> SpareJob | None:
        """The next segment of the log, to be made on a thread; None if it is not time for that."""
        return self._store.begin_spare()

    def stop_prewriting(self) -> None:
        """Let the job of `begin_spare` come to its end soon."""
        self._store.stop_prewriting()

    def begin_flush(self) -> FlushJob | None:
        """What is to be synced next; run it on a thread, then call `end_flush`."""
        return self._store.begin_flush()

    def end_flush(self, job: FlushJob) -> list[ParkedFetch]:
        """A flush has succeeded; the parked fetches that have more to see."""
        self.metrics.flushes += 1
        self._store.end_flush(job)
        return self._wake()

    def flush(self) -> list[ParkedFetch]:
        """Commit and flush on this thread."""
        self._store.flush()
        return self._wake()

    def _wake(self) -> list[ParkedFetch]:
        woken: dict[int, ParkedFetch] = {}
        for partition in self._store.projections.advance_visible(self._store.pointers.visible):
            for parked in partition.waiters:
                woken[id(parked)] = parked
        return list(woken.values())

    # Timers

    def deliver_due(self) -> Delivery:
        """Append the next chunk of due timers; commit and flush follow as for produced records."""
        # What is delivered is read from the file, so it must have been written.
        self._store.commit()
        return self._scheduler.deliver_due(self.clock.wall_ms())

    def next_wake_ms(self) -> int | None:
        """When to call `deliver_due` again, epoch ms; None while nothing is pending."""
        return self._scheduler.next_wake_ms()

    @property
    def pending_timers(self) -> int:
        return self._store.projections.due.pending

    def pending_timers_of(self, partition: Partition) -> int:
        """How many records of a partition wait until they are due."""
        return self._store.projections.due.pending_of(partition.handle)

    def timer_state(self, topic: Topic, user_id: bytes) -> TimerState:
        """What became of the timer with that id in that topic."""
        found = self._store.projections.timer_state(topic, user_id, self.clock.wall_ms())
        if found is None:
            return TimerState("unknown")
        state, due_at, partition = found
        return TimerState(cast(TimerStateName, state), due_at, partition)

    def cancel_timer(self, topic: Topic, user_id: bytes) -> TimerState:
        """Cancel the pending timer with that id; nothing happens if there is none.

        Args:
            topic: its topic.
            user_id: 1 to 255 bytes.

        Returns:
            What became of the timer: "cancelled" also if it was cancelled before. It is certain
            once the log is durable up to `wrote_pos`.

        Raises:
            RequestError: the disk is full.
        """
        self._cancel.cancel(topic, user_id, self.clock.wall_ms())
        if self._cancel.disk_full:
            raise RequestError(
                "the disk is full, so nothing was cancelled", code=KAFKA_STORAGE_ERROR
            )
        return self.timer_state(topic, user_id)

    # Cold reads

    def read_cold(self, places: list[ColdPlace], *, is_sparse: bool = False) -> ColdRead:
        """See `ColdReader.read`; the one call that may run on another thread."""
        return self._store.read_cold(places, is_sparse=is_sparse)

    def note_read(self, read: ColdRead, *, is_delivery: bool = False) -> list[Damage]:
        """Take up what `read_cold` found, for `deliver_due` or not. Returns the damage among it."""
        damage = self._store.note_read(read)
        if is_delivery:
            self._scheduler.note_read()
        return damage

    @property
    def is_delivery_waiting(self) -> bool:
        """`deliver_due` is to be called though nothing new is due: timers wait for the disk."""
        return self._scheduler.is_waiting

    def look_ahead(self, duration_ms: int) -> list[ColdPlace]:
        """Frames that deliveries will need so soon, and that are not in memory, in their order."""
        return sorted(self._deliver.look_ahead(self.clock.wall_ms() + duration_ms))

    @property
    def damage(self) -> Sequence[Damage]:
        """What was found damaged, by the start or later, in the order in which it was found."""
        return self._store.damage

    def housekeep(self) -> None:
        """A slice of background work; call about ten times a second."""
        store = self._store
        store.save_units(partitions_max=HOUSEKEEPING_PARTITIONS)
        store.retry_damaged()
        store.projections.ids.expire_some(self.clock.wall_ms(), HOUSEKEEPING_IDS)
        store.forget_producers(
            self.clock.wall_ms() - self.config.producer_id_expiry_ms,
            partitions_max=HOUSEKEEPING_PARTITIONS,
        )
        if store.offset_expiry.expire_some(self.clock.wall_ms()):
            self._await_offsets()

    @property
    def checkpoints(self) -> Checkpointer:
        """What takes checkpoints; whoever owns the broker drives it at the end of turns."""
        return self._store.checkpoints

    # Topics

    @property
    def cluster_id(self) -> str:
        return str(self._store.cluster)

    @property
    def epoch(self) -> int:
        """The leader epoch of every partition."""
        return self._store.tail.epoch

    def topics(self) -> list[Topic]:
        """All topics, in the order of their creation."""
        return list(self._store.projections.topics_by_id.values())

    def find_topic(self, name: str) -> Topic | None:
        """The topic of that name."""
        return self._store.topics.find(name)

    def find_topic_by_uuid(self, uuid: UUID) -> Topic | None:
        """The topic with that id."""
        return self._store.projections.topics_by_uuid.get(uuid.bytes)

    def check_topic(
        self, name: str, partition_count: int, settings: Mapping[str, str | None]
    ) -> None:
        """Raise what `create_topic` would raise; name and settings are the facade's to check."""
        self._topic_admin.check_create(name, partition_count)

    def create_topic(
        self, name: str, partition_count: int, settings: Mapping[str, str | None]
    ) -> Topic:
        """Make a topic; see `TopicAdmin.create`."""
        topic = self._topic_admin.create(name, partition_count, settings)
        self.control_pos = self.wrote_pos
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic; see `TopicAdmin.delete`."""
        self._topic_admin.delete(name)
        self.control_pos = self.wrote_pos

    def check_partitions(self, topic: Topic, partition_count: int) -> None:
        """Raise what `add_partitions` would raise; a full disk alone is not foreseen."""
        self._topic_admin.check_add_partitions(topic, partition_count)

    def add_partitions(self, topic: Topic, partition_count: int) -> None:
        """Give a topic more partitions; see `TopicAdmin.add_partitions`."""
        self._topic_admin.add_partitions(topic, partition_count)
        self.control_pos = self.wrote_pos

    def replace_topic_settings(self, topic: Topic, settings: Mapping[str, str]) -> None:
        """Give a topic other settings, all of them; see `TopicAdmin.replace_settings`."""
        if self._topic_admin.replace_settings(topic, settings):
            self.control_pos = self.wrote_pos

    def delete_records(self, topic: Topic, offsets: Mapping[int, int]) -> None:
        """Delete the records below some offsets; see `TopicAdmin.delete_records`."""
        if self._topic_admin.delete_records(topic, offsets):
            self.control_pos = self.wrote_pos

    def allocate_producer_id(self) -> int:
        """A producer id that was never given before."""
        producer_id = self._store.allocate_producer_id()
        self.control_pos = max(self.control_pos, self._store.producer_ids_pos)
        return producer_id

    # Groups

    @property
    def generation_floor(self) -> int:
        """A group that is not known begins its generations above it."""
        return self._store.groups.generation_floor

    def groups(self) -> Mapping[str, GroupFrame]:
        """Consumer groups by name, as they were last told."""
        return self._store.groups.groups

    def group_names(self) -> list[str]:
        """All groups, also those of which nothing but committed offsets is known."""
        return self._store.groups.names

    def tell_group(self, frame: GroupFrame) -> None:
        """Keep what a group is now; see `GroupStore.tell_group`."""
        self._store.groups.tell_group(frame)
        self.control_pos = self.wrote_pos

    def committed_offsets(self, group: str) -> Mapping[tuple[int, int], OffsetEntry]:
        """The committed offsets of a group, by topic id and partition."""
        return self._store.groups.offsets(group)

    def commit_offsets(self, entries: Sequence[OffsetEntry]) -> None:
        """Commit or delete offsets; see `GroupStore.commit_offsets`."""
        self._store.groups.commit_offsets(entries)
        self._await_offsets()

    def _await_offsets(self) -> None:
        # If their frame is yet to come: whatever else this turn writes before it, no answer leaves
        # before the turn is written as a whole, and then the log is past this.
        self.control_pos = self.wrote_pos + self._store.groups.has_gathered

    # Offsets

    def offset_for_time(
        self, topic: Topic, partition: int, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """The first offset that leads to a time; see `OffsetSearch.find`."""
        return self._offsets.find(topic.partitions[partition], timestamp_ms)

    def offset_of_max_timestamp(self, topic: Topic, partition: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first visible record with the highest one; None if empty."""
        return self._offsets.find_highest(topic.partitions[partition])

    def end_of_epoch(self, topic: Topic, partition: int, epoch: int) -> tuple[int, int] | None:
        """Where in a partition the records of an epoch, and of all before it, end.

        Returns:
            (the last epoch up to it that is known, offset), or None if there was no such epoch yet.

        Raises:
            ColdFrameError: as `OffsetSearch.find`.
        """
        found = self._store.epochs.find_end(epoch)
        if found is None:
            return None
        (known, end_pos), queue = found, topic.partitions[partition]
        if end_pos is None:
            return known, queue.next_offset
        return known, self._offsets.find_position(queue, end_pos)

    def space(self) -> tuple[int, int]:
        """Bytes of the file system that holds the data: all, and what can still be written.

        Raises:
            StorageError: it does not say.
        """
        return self._store.space()

    # Metrics

    def gauges(self, connections: int, inflight_bytes: int = 0) -> Gauges:
        """What is true at the moment, for the metrics page."""
        return broker_metrics.gauges(
            self.config, self._store, self._deliver, connections, inflight_bytes
        )

    def collect_metrics(self) -> Metrics:
        """The counters, those of the compiled paths brought up to date."""
        broker_metrics.collect(
            self.metrics, self._store.projections, self._produce, self._fetch, self._deliver
        )
        return self.metrics

    @property
    def is_disk_full(self) -> bool:
        """There was no room for the next segment of the log when it was needed."""
        return self._store.is_full
