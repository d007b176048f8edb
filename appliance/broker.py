"""The broker in one process, without sockets and without waiting: the one API above the store.

Synchronous and driven from outside. Whoever owns it (appliance.pump, or a test with a virtual
clock) calls `commit` at the end of each turn, flushes in the background, and calls `deliver_due`
when `next_wake_ms` has come.

 a produced record   session -> ProducePath -> LogTail -> commit -> flush -> visible, answered
 a due timer         Scheduler -> DeliverPath -> LogTail -> commit -> flush -> visible
 a fetched record    session -> FetchPath -> slices of the log

Layer 4.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast
from uuid import UUID

from _core.batch import batch_header, timestamps
from _core.cancel import CancelPath
from _core.delay_split import BatchSplitter
from _core.deliver import DeliverPath
from _core.fetch import FetchPath
from _core.frames import read_header
from _core.layout import BATCH_HEADER_SIZE, FRAME_HEADER_SIZE
from _core.partition import Partition, Topic
from _core.produce import ProducePath
from _core.session import ParkedAnswer, ParkedFetch, Session
from appliance.clock import Clock
from appliance.config import Config
from appliance.errors import PolicyError, RequestError, TopicExistsError, UnknownTopicError
from appliance.fs import FileSystem
from appliance.metrics import Gauges, Metrics
from appliance.model import TimerState, TimerStateName
from appliance.schedule.scheduler import Delivery, Scheduler
from appliance.store.commit_log import FlushJob, SpareJob
from appliance.store.group_frames import GroupFrame, OffsetEntry
from appliance.store.message_store import KAFKA_STORAGE_ERROR, MessageStore
from appliance.store.recovery import Damage, Progress, RecoveryReport
from appliance.units import NS_PER_MS

NODE_ID: Final = 1

PRODUCE_KEY: Final = 0
FETCH_KEY: Final = 1

HOUSEKEEPING_PARTITIONS: Final = 256
"""Partitions looked at in one turn of the housekeeping."""

RESIDENCY_TRUSTED_NS: Final = 1000 * NS_PER_MS
"""For so long a page that was in memory is taken to be there still."""

HOUSEKEEPING_IDS: Final = 65_536
"""Remembered timer ids looked at in one turn."""

_CODEC_MASK: Final = 7


@dataclass(frozen=True, slots=True)
class Facade:
    """What the Kafka facade contributes; the broker itself knows no client protocol.

    Attributes:
        decompress: (codec, record section, most bytes) -> plain bytes; raises RequestError.
        configure_topic: sets on a topic what its settings mean under a configuration.
    """

    decompress: Callable[[int, memoryview, int], bytes]
    configure_topic: Callable[[Topic, Config], None]


class Broker:
    """Topics, records and timers. `recover` comes first.

    Attributes:
        config, clock: as given.
        metrics: what is counted.
        report: the outcome of the start, once it is over.
    """

    node_id = NODE_ID

    def __init__(self, clock: Clock, fs: FileSystem, config: Config, facade: Facade) -> None:
        """Touches no file yet."""
        self.clock = clock
        self.config = config
        self.metrics = Metrics()
        self._facade = facade
        self._store = MessageStore(
            clock, fs, config, lambda topic: facade.configure_topic(topic, config)
        )
        self._progress = Progress("starting", 0, 0)
        self._partition_total = 0
        self.is_ready = False
        self._residency_asked_ns = clock.monotonic_ns()
        self.control_pos = 0
        """What is told of topics and producer ids rests on the log up to here: answers wait."""

    # Start and stop

    def recover(self) -> Iterator[Progress]:
        """Open the store, yielding between slices. Raises what `MessageStore.recover` raises."""
        for progress in self._store.recover():
            self._progress = progress
            yield progress
        store, config = self._store, self.config
        splitter = BatchSplitter(
            list(config.delay_levels),
            record_size_max=config.record_size_max_bytes,
            header_count_max=config.header_count_max,
            header_size_max=config.header_size_max_bytes,
        )
        self._produce = ProducePath(store.writer, splitter, self._decompress)
        self._fetch = FetchPath(
            store.projections,
            store.view,
            size_max=config.fetch_size_max_bytes,
            item_count_max=config.partition_total_max + config.topic_count_max,
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
        self._partition_total = sum(len(topic.partitions) for topic in self.topics())
        self.is_ready = True

    def close(self) -> None:
        """Stop cleanly. Raises StorageError if not everything could be made durable."""
        self.is_ready = False
        self._store.close()

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
        # What is delivered is read through the mapping, so it must have been written.
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

    def verify_frames(self, positions: list[int]) -> list[tuple[int, int, str]]:
        """Read frames from the disk; the one call that may run on another thread."""
        return self._store.verify_frames(positions)

    def note_verified(self, found: list[tuple[int, int, str]]) -> list[Damage]:
        """Take up what `verify_frames` found. Returns the damage among it."""
        return self._store.note_verified(found)

    @property
    def damage(self) -> Sequence[Damage]:
        """What was found damaged, by the start or later, in the order in which it was found."""
        return self._store.damage

    def housekeep(self) -> None:
        """A slice of background work; call about ten times a second."""
        store = self._store
        store.save_units(partitions_max=HOUSEKEEPING_PARTITIONS)
        now_ns = self.clock.monotonic_ns()
        if now_ns - self._residency_asked_ns >= RESIDENCY_TRUSTED_NS:
            self._residency_asked_ns = now_ns
            store.view.forget_residency()
        store.projections.ids.expire_some(self.clock.wall_ms(), HOUSEKEEPING_IDS)
        store.forget_producers(
            self.clock.wall_ms() - self.config.producer_id_expiry_ms,
            partitions_max=HOUSEKEEPING_PARTITIONS,
        )
        store.offset_expiry.expire_some(self.clock.wall_ms())

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
        return self._store.projections.topics_by_name.get(name.encode("utf-8", "surrogateescape"))

    def find_topic_by_uuid(self, uuid: UUID) -> Topic | None:
        """The topic with that id."""
        return self._store.projections.topics_by_uuid.get(uuid.bytes)

    def check_topic(
        self, name: str, partition_count: int, settings: Mapping[str, str | None]
    ) -> None:
        """Raise what `create_topic` would raise; name and settings are the facade's to check."""
        config = self.config
        topics = self._store.projections.topics_by_id
        if self.find_topic(name) is not None:
            raise TopicExistsError(f"topic {name} exists already")
        if not 1 <= partition_count <= config.partition_count_max_per_topic:
            raise RequestError(
                f"{partition_count} partitions; topics.partition_count_max_per_topic is "
                f"{config.partition_count_max_per_topic}",
                code=37,
            )
        if len(topics) >= config.topic_count_max:
            raise PolicyError(f"there are {len(topics)} topics; topics.topic_count_max is reached")
        if self._partition_total + partition_count > config.partition_total_max:
            raise PolicyError(
                f"there are {self._partition_total} partitions; {partition_count} more would pass "
                f"topics.partition_total_max = {config.partition_total_max}"
            )

    def create_topic(
        self, name: str, partition_count: int, settings: Mapping[str, str | None]
    ) -> Topic:
        """Make a topic; it can be used at once, and is durable after the next flush.

        Args:
            name: checked by the caller.
            partition_count: 1 or more.
            settings: checked by the caller; those without a value keep the default.

        Raises:
            TopicExistsError, PolicyError: see `check_topic`.
            RequestError: likewise, or the disk is full.
        """
        self.check_topic(name, partition_count, settings)
        given = {key: value for key, value in settings.items() if value is not None}
        topic = self._store.create_topic(name, partition_count, given)
        self._partition_total += partition_count
        self.control_pos = self.wrote_pos
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its records and its timers.

        Raises:
            UnknownTopicError: there is no such topic.
            RequestError: the disk is full.
        """
        topic = self.find_topic(name)
        if topic is None:
            raise UnknownTopicError(f"there is no topic {name}")
        self._store.delete_topic(topic)
        self._partition_total -= len(topic.partitions)
        self.control_pos = self.wrote_pos

    def allocate_producer_id(self) -> int:
        """A producer id that was never given before."""
        producer_id = self._store.allocate_producer_id()
        self.control_pos = max(self.control_pos, self._store.producer_ids_pos)
        return producer_id

    # Groups

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
        # Their frame is yet to come. Whatever else this turn writes before it, no answer leaves
        # before the turn is written as a whole, and then the log is past this.
        self.control_pos = self.wrote_pos + self._store.groups.has_gathered

    # Offsets by time

    def offset_for_time(
        self, topic: Topic, partition: int, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """The first offset from which the running maximum of timestamps reaches `timestamp_ms`.

        Returns:
            (offset, its record's timestamp in epoch ms), or None if no visible record does.
            O(log n) frame headers are read.
        """
        queue = topic.partitions[partition]
        low, high = queue.start_offset, queue.visible_offset
        while low < high:
            middle = (low + high) // 2
            if self._frame_header(queue, middle)["running_max"] >= timestamp_ms:
                high = middle
            else:
                low = middle + 1
        if low >= queue.visible_offset:
            return None
        # All records of a frame share its running maximum, so `low` is the first one of a frame.
        return self._first_in_frame(queue, low, timestamp_ms)

    def offset_of_max_timestamp(self, topic: Topic, partition: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first visible record with the highest one; None if empty."""
        queue = topic.partitions[partition]
        if queue.visible_offset == queue.start_offset:
            return None
        highest = self._frame_header(queue, queue.visible_offset - 1)["running_max"]
        return self.offset_for_time(topic, partition, highest)

    def _frame_header(self, queue: Partition, offset: int) -> dict[str, int]:
        return read_header(self._store.view.read(queue.unit_position(offset), FRAME_HEADER_SIZE))

    def _first_in_frame(
        self, queue: Partition, offset: int, timestamp_ms: int
    ) -> tuple[int, int] | None:
        header = self._frame_header(queue, offset)
        pos = header["phys_offset"] + FRAME_HEADER_SIZE + header["tables_size"]
        batch = memoryview(self._store.view.read(pos, header["visible_size"]))
        fields = batch_header(batch)
        records = batch[BATCH_HEADER_SIZE:]
        if fields["attributes"] & 8:  # LogAppendTime: all records have the batch's
            return header["base_offset"], fields["max_timestamp"]
        codec = fields["attributes"] & _CODEC_MASK
        plain = self._decompress(codec, records) if codec else records
        for index, delta in enumerate(timestamps(plain, fields["count"])):
            if fields["base_timestamp"] + delta >= timestamp_ms:
                return header["base_offset"] + index, fields["base_timestamp"] + delta
        return None

    # Metrics

    def gauges(self, connections: int) -> Gauges:
        """What is true at the moment, for the metrics page."""
        due, pointers = self._store.projections.due, self._store.pointers
        return Gauges(
            connections=connections,
            pending_timers=due.pending,
            log_wrote_pos=pointers.wrote,
            log_committed_pos=pointers.committed,
            log_flushed_pos=pointers.flushed,
            log_visible_pos=pointers.visible,
            recovered_damage=len(self._store.damage),
            insecure=self.config.allow_insecure,
            level_queue_lag={
                level: due.level_next_offset(level) - due.level_head_offset(level)
                for level in range(1, due.level_count + 1)
            },
        )

    def collect_metrics(self) -> Metrics:
        """The counters, those of the compiled paths brought up to date."""
        metrics, state = self.metrics, self._store.projections
        metrics.requests[PRODUCE_KEY] = self._produce.requests
        metrics.requests[FETCH_KEY] = self._fetch.requests
        metrics.request_errors = dict(Counter(self._produce.refused) + Counter(self._fetch.refused))
        metrics.accepted_frames = state.accepted_frames
        metrics.accepted_records = state.accepted_records + state.timers_accepted
        metrics.timers_accepted = state.timers_accepted
        metrics.timers_delivered = state.timers_delivered
        metrics.timers_cancelled = state.timers_cancelled
        metrics.timers_replaced = state.timers_replaced
        metrics.delivered_frames = self._deliver.frames
        metrics.delivery_lateness_ms.counts = self._deliver.lateness
        metrics.delivery_lateness_ms.total = self._deliver.lateness_sum_ms
        return metrics
