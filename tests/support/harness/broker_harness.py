"""One broker in process on a simulated disk and a virtual clock, driven by verbs.

A test sends real Kafka requests through a real `Session`: kafka-python encodes them and decodes the
answers, aiokafka builds and reads the record batches. Neither shares code with the broker.

    harness = BrokerHarness()
    harness.create_topic("t")
    harness.produce("t", 0, [Record(b"later", headers=delay(1500))])
    harness.tick(1500)
    assert [record.value for record in harness.fetch("t", 0)] == [b"later"]
    harness = harness.crash("torn", random.Random(1))

`send_produce` and the like only write: `flush` makes the frames durable, and `answers` returns the
answers that may leave then, as for a client on a socket.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal
from uuid import UUID

from _core.bytes.layout import UNIT_SIZE, UNITS_PER_FILE
from _core.paths.answer import Reply, ResponseSlot
from _core.queue.partition import Partition, Topic
from appliance.broker import Broker
from appliance.config.config import Config
from appliance.kafka_facade import KAFKA_FACADE
from appliance.model import ColdPlace, Endpoint
from appliance.pending_timers import EVER_MS
from appliance.routes import Member, Routes
from appliance.schedule.scheduler import Delivery
from appliance.store.damage import Damage
from appliance.store.paths import SPARE_NAME, DataPaths, segment_name
from appliance.store.queue.consume_queue import file_start
from appliance.store.recovery.report import RecoveryReport
from appliance.store.state.group_frames import GroupFrame
from compat.kafka import dispatch
from compat.kafka.groups.coordinator import GroupCoordinator
from compat.kafka.node import Node
from tests.support.compiled import timer_calls as calls
from tests.support.harness.configs import small_config
from tests.support.harness.forecast import Forecast
from tests.support.harness.harness_connection import FETCH_VERSION, Connection, encode_fetch
from tests.support.harness.turns import Turns
from tests.support.oracles.kafka_oracle import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    FetchResponse,
    ProduceResponse,
)
from tests.support.simulator.sim_fs import CrashMode, SimFileSystem
from tests.support.simulator.virtual_clock import VirtualClock
from tests.support.values.kafka_records import (
    Fetched,
    Producer,
    Record,
    build_batch,
    end_of_batches,
    read_batches,
)
from tests.support.values.record_requests import produce_request

PRODUCE_VERSION: Final = 8
CREATE_VERSION: Final = 5
DELETE_VERSION: Final = 4

Stop = CrashMode | Literal["clean"]
"""How a broker ends."""

UNITS_SIZE: Final = UNIT_SIZE * UNITS_PER_FILE


@dataclass(frozen=True, slots=True)
class Produced:
    """The answer to a batch."""

    error: int
    base_offset: int
    message: str | None


@dataclass(frozen=True, slots=True)
class Digest:
    """The state that two brokers of the same log share; see `BrokerHarness.digest`."""

    cluster_id: str
    topics: tuple[Any, ...]
    pending: tuple[Any, ...]
    levels: tuple[Any, ...]
    ids: tuple[Any, ...]
    groups: tuple[Any, ...]
    stopped_stages: Any
    next_producer_id: int


class BrokerHarness:
    """A recovered broker, and one client connected to it.

    Attributes:
        disk, clock, config, broker, groups: what it is made of.
        report: the outcome of its start.
        turns: the later slices of long answers.
        control_damage: what control-plane requests found damaged on the disk.
    """

    def __init__(
        self,
        disk: SimFileSystem | None = None,
        clock: VirtualClock | None = None,
        config: Config | None = None,
        *,
        accepts_loss: bool = False,
    ) -> None:
        """Recover a broker; by default on an empty disk, from START_MS, with small limits.

        Raises what `Broker.recover` raises.
        """
        self.disk = disk or SimFileSystem()
        self.clock = clock or VirtualClock()
        self.config = config or small_config()
        self.broker = Broker(
            self.clock, self.disk, self.config, KAFKA_FACADE, accepts_loss=accepts_loss
        )
        for _ in self.broker.recover():
            pass
        self.groups = GroupCoordinator(self.broker.groups, self.broker.clock, self.config)
        self.turns = Turns()
        self._node = Node(
            self.broker,
            Routes(Member(self.broker.node_id, Endpoint("127.0.0.1", 9092))),
            self.groups,
            read_cold=self._read_cold_for_control,
            aside=self._do_aside,
            later=self.turns,
        )
        self.aside_count = 0
        """Work of requests that the broker does on a thread."""
        self.control_damage: list[Damage] = []
        self.groups.restore(self.now_ms())
        self._client = Connection(self.broker, self.clock, self._answer_control_plane)
        # Its own connection: an answer waits for those of earlier requests of its connection.
        self._consumer = Connection(self.broker, self.clock, self._answer_control_plane)

    @property
    def report(self) -> RecoveryReport:
        return self.broker.report

    def _answer_control_plane(self, request: memoryview) -> Reply | ResponseSlot | str:
        answer = dispatch.answer(self._node, request)
        if isinstance(answer, Reply):
            return answer
        parked = ResponseSlot()
        answer.when_complete(parked.complete)
        return parked

    def send(self, request: Any, version: int, response_class: Any) -> int:
        """Send a request and let the broker write; return its correlation id."""
        return self._client.send(request, version, response_class)

    def answers(self) -> dict[int, Any]:
        """The answers that may leave now, by correlation id."""
        return self._client.answers()

    @property
    def refused_count(self) -> int:
        """Batches refused so far; their answers may still wait for a flush."""
        return sum(self.broker._produce.refused.values())

    # Topics

    def send_create_topic(
        self, name: str, partition_count: int = 1, settings: dict[str, str] | None = None
    ) -> int:
        """Request a topic; see `answers`."""
        topic = CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partition_count,
            replication_factor=-1,
            assignments=[],
            configs=[
                CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=key, value=value)
                for key, value in (settings or {}).items()
            ],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
        return self.send(request, CREATE_VERSION, CreateTopicsResponse)

    def create_topic(
        self, name: str, partition_count: int = 1, settings: dict[str, str] | None = None
    ) -> None:
        """Create a topic; durable when this returns."""
        answer = self._ask(self.send_create_topic(name, partition_count, settings))
        assert answer.topics[0].error_code == 0, answer

    def send_delete_topic(self, name: str) -> int:
        """Request the deletion of a topic; see `answers`."""
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=1000)
        return self.send(request, DELETE_VERSION, DeleteTopicsResponse)

    def delete_topic(self, name: str) -> None:
        """Delete a topic; durable when this returns."""
        answer = self._ask(self.send_delete_topic(name))
        assert answer.responses[0].error_code == 0, answer

    def _ask(self, number: int) -> Any:
        found = self.answers()
        if number not in found:
            self.flush()
            found = self.answers()
        return found[number]

    # Records

    def send_produce(
        self,
        topic: str,
        partition: int,
        records: Sequence[Record],
        producer: Producer | None = None,
        *,
        codec: int = 0,
    ) -> int:
        """Send a batch with acks=all; it is written, not flushed."""
        batch = build_batch(records, producer, codec=codec)
        request = produce_request([(topic, [(partition, batch)])])
        return self.send(request, PRODUCE_VERSION, ProduceResponse)

    def produce(
        self,
        topic: str,
        partition: int,
        records: Sequence[Record],
        producer: Producer | None = None,
        *,
        codec: int = 0,
    ) -> Produced:
        """Send a batch and flush; return the answer."""
        number = self.send_produce(topic, partition, records, producer, codec=codec)
        return produced(self._ask(number))

    def fetch(self, topic: str, partition: int, offset: int = 0) -> list[Fetched]:
        """All visible records from an offset on; cold frames are read as by the pump."""
        found: list[Fetched] = []
        size_max = self.config.fetch_size_max_bytes
        while True:
            payload = self.fetch_once(encode_fetch(topic, partition, offset, size_max))
            response = FetchResponse.decode(payload, version=FETCH_VERSION, header=True)
            answer = response.responses[0].partitions[0]
            assert answer.error_code == 0, f"{topic}/{partition} at {offset}: {answer.error_code}"
            section = bytes(answer.records or b"")
            if not section:
                return found
            found += read_batches(section, offset)
            offset = end_of_batches(section)

    def values(self, topic: str = "t", partition: int = 0) -> list[bytes]:
        """The values of all visible records of a partition."""
        return [record.value for record in self.fetch(topic, partition)]

    def fetch_once(self, request: bytes) -> bytes:
        """The encoded response to an encoded Fetch; cold frames are read as by the pump."""
        consumer = self._consumer
        number = consumer.send_encoded(request)
        for parked in consumer.session.new_parked:
            parked.is_expired = True
            while not consumer.session.retry(parked):
                self.read_cold(parked.cold)
        answer: bytes = consumer.answers()[number]
        return answer

    # What the pump and the server do

    def now_ms(self) -> int:
        """Monotonic time, which the time-outs of groups use."""
        return self._node.now_ms()

    def pass_ms(self, duration_ms: int) -> None:
        """Let time pass and expire the time-outs of groups; nothing is delivered."""
        self.clock.advance_ms(duration_ms)
        self.groups.expire(self.now_ms())
        self.broker.commit()

    def flush(self) -> None:
        """Make everything durable."""
        self.broker.flush()

    def read_cold(self, places: Sequence[ColdPlace], *, is_delivery: bool = False) -> list[Damage]:
        """Read frames and units from the disk and check them, as the pump does on a thread."""
        assert places
        read = self.broker.read_cold(list(places))
        return self.broker.note_read(read, is_delivery=is_delivery)

    def position_of(self, partition: Partition, offset: int) -> int:
        """Log position in the unit of an offset, in memory or in its file.

        -1 if the file is missing, 0 if it is too short or has a hole there.
        """
        return self._positions_of(partition, range(offset, offset + 1))[0]

    def _positions_of(self, partition: Partition, offsets: range) -> tuple[int, ...]:
        found = []
        paths = DataPaths(self.config.data_dir)
        directory = paths.queue(partition.topic.name, partition.index)
        files: dict[int, bytes | None] = {}
        for offset in offsets:
            unit = partition.unit_in_memory(offset)
            if unit is not None:
                found.append(unit[0])
                continue
            first = file_start(offset)
            if first not in files:
                path = directory / segment_name(first * UNIT_SIZE)
                # Neither counted nor cached, so that the query changes nothing.
                is_there = self.disk.exists(path)
                files[first] = self.disk.peek(path, UNITS_SIZE, 0) if is_there else None
            data, at = files[first], (offset - first) * UNIT_SIZE
            found.append(-1 if data is None else int.from_bytes(data[at : at + 8], "big"))
        return tuple(found)

    def _do_aside(
        self, begin: Callable[[], Callable[[], None] | None], then: Callable[[], None]
    ) -> None:
        self.aside_count += 1
        work = begin()
        assert work is not None
        work()
        then()

    def _read_cold_for_control(self, places: list[ColdPlace], then: Callable[[], None]) -> None:
        self.control_damage += self.read_cold(places)
        then()

    def topic(self, name: str = "t") -> Topic:
        """A topic that exists."""
        found = self.broker.topics.find(name)
        assert found is not None, name
        return found

    def partition(self, index: int = 0, topic: str = "t") -> Partition:
        """A partition of a topic that exists."""
        return self.topic(topic).partitions[index]

    def segment_paths(self) -> list[Path]:
        """The files of the log, in order."""
        paths = [path for path in self.disk.files() if path.parent.name == "commitlog"]
        return sorted(path for path in paths if path.name != SPARE_NAME)

    def make_cold(self) -> None:
        """Drop the log's pages from the page cache, and the broker's read buffers."""
        for path in self.segment_paths():
            self.disk.evict(path)
        self.broker._store.log.view.clear()
        self.clock.advance_ms(2_000)
        self.broker.housekeep()

    def housekeep(self) -> None:
        """Do a slice of background work; make the next files and check the disk if it is time."""
        self.broker.housekeep()
        self.make_unit_files()
        self.load_piece()
        self._read_for_retention()
        spare = self.broker.log.begin_spare()
        if spare is not None:
            spare.run()
            spare.prewrite()
        self.broker.disk_space.check()
        self.free_head()

    def make_unit_files(self) -> None:
        """Make the files that units wait for."""
        job = self.broker.units.begin_files()
        if job is not None:
            job.run()
            self.broker.units.end_files(job)

    def expire(self) -> None:
        """Do a slice of the search for expired records."""
        self.broker.retention.step()
        self._read_for_retention()

    def _read_for_retention(self) -> None:
        retention = self.broker.retention
        while retention.cold is not None:
            self.read_cold([retention.cold])
            retention.note_read()
            retention.step()

    def free_head(self) -> None:
        """Free the first segments, if nothing needs them, as far as no flush is needed."""
        while True:
            job = self.broker.head_freer.step(self.broker.retention.kept_from)
            if job is not None:
                job.run()
                self.broker.head_freer.end(job)
            elif not self.broker.head_freer.is_carrying:
                return

    def load_timers(self, until_ms: int = EVER_MS) -> None:
        """Load timers as the pump does, up to a due time."""
        while not self.broker.timers.want_loaded(until_ms):
            self.load_piece()

    @property
    def is_loaded(self) -> bool:
        """Whether all timers are in memory."""
        return self.broker._store.state.projections.due.is_loaded

    def load_piece(self) -> None:
        """Load some timers, or drop some, if the memory of timers wants that."""
        memory, now = self.broker.timer_memory, (self.clock.wall_ms(), self.clock.monotonic_ns())
        memory.evict(*now)
        count = memory.begin_count(now[0])
        if count is not None:
            count.run()
            memory.end_count(count)
        load = memory.next(*now)
        if load is not None:
            load.take(load.read())

    def deliver_once(self) -> Delivery:
        """Deliver one chunk of what is due, without a flush; cold records are read first."""
        self.load_timers(self.clock.wall_ms())
        delivery = self.broker.deliver_due()
        count = delivery.count
        while delivery.cold:
            self.read_cold(delivery.cold, is_delivery=True)
            delivery = self.broker.deliver_due()
            count += delivery.count
        self.broker.commit()
        return Delivery(count, delivery.has_more)

    def deliver_all(self) -> int:
        """Deliver all that is due now, and flush; return how many."""
        count = 0
        while True:
            delivery = self.deliver_once()
            count += delivery.count
            if not delivery.has_more:
                break
        self.flush()
        return count

    def tick(self, duration_ms: int) -> int:
        """Let time pass, then deliver all that is due; return how many."""
        self.clock.advance_ms(duration_ms)
        return self.deliver_all()

    def age(self, duration_ms: int) -> None:
        """Flush, then let time pass for what expires by age, with housekeeping at both ends.

        What was written before counts as one check interval younger, as for a broker that checks
        just before that interval ends.
        """
        self.flush()
        interval_ms = min(duration_ms, self.config.retention_check_interval_ms)
        for step_ms in (interval_ms, duration_ms - interval_ms):
            self.pass_ms(step_ms)
            for _ in range(3):
                self.housekeep()

    def next_wake_ms(self) -> int | None:
        """When the broker wants to be woken; loads timers until that is known. None: never."""
        while (wake_ms := self.broker.next_wake_ms()) is None and not self.is_loaded:
            self.broker.timers.want_loaded(EVER_MS)
            self.load_piece()
        return wake_ms

    def run_until_idle(self) -> int:
        """Wake at each due millisecond until nothing is pending; return how many were delivered."""
        count = 0
        while (wake_ms := self.next_wake_ms()) is not None:
            self.clock.advance_to_ms(max(wake_ms, self.clock.wall_ms()))
            count += self.deliver_all()
        return count

    # Stops

    def crash(self, mode: CrashMode, rng: random.Random) -> "BrokerHarness":
        """Start a broker on what a crash at this moment leaves."""
        return BrokerHarness(self.disk.crashed(mode, rng), self.clock, self.config)

    def restart(self) -> "BrokerHarness":
        """Stop cleanly and start again on the same disk."""
        self.broker.close()
        return BrokerHarness(self.disk, self.clock, self.config)

    def reborn(self, how: Stop, seed: int = 1) -> "BrokerHarness":
        """Start again after a clean stop or a crash."""
        return self.restart() if how == "clean" else self.crash(how, random.Random(seed))

    # State

    def timer_state(self, topic: str, user_id: bytes) -> tuple[str, int | None, int | None]:
        """State, due time and partition of a timer, as the admin API reports them."""
        state = self.broker.timers.state(self.topic(topic), user_id)
        return state.state, state.due_at, state.partition

    @property
    def durable_pos(self) -> int:
        """Log position up to which frames may be acknowledged."""
        broker = self.broker
        return broker.flushed_pos if broker.is_sync_flush else broker.committed_pos

    def epoch_starts(self) -> list[tuple[int, int]]:
        """Every epoch and the log position where it starts."""
        return self.broker._store.state.epochs.all()

    def cancel_timer(self, topic: str, user_id: bytes) -> tuple[str, int | None, int | None]:
        """Cancel a timer as the admin API does; it is written, not flushed."""
        state = self.broker.timers.cancel(self.topic(topic), user_id)
        self.broker.commit()
        return state.state, state.due_at, state.partition

    def digest(self, user_ids: Sequence[bytes] = ()) -> Digest:
        """All state that follows from the log. It pops the timers, and puts them back.

        Args:
            user_ids: ids of timers to be looked up in every topic.
        """
        self.load_timers()
        state = self.broker._store.state.projections
        topics = self.topics_digest()
        places = {
            partition.handle: (topic.name, partition.index)
            for topic in self.broker.topics.all()
            for partition in topic.partitions
        }
        ids = tuple(
            (topic.name, user_id, self.timer_state(topic.name, user_id))
            for topic in self.broker.topics.all()
            for user_id in user_ids
        )
        forecast = Forecast(state.due, self.clock.wall_ms())
        # By the thousand: room for all there may be takes longer to get than most tests do.
        chunks = iter(lambda: calls.pop(state.due, 1 << 48, 1000), [])
        popped = list(chain.from_iterable(chunks))
        calls.unpop(state.due, popped)
        forecast.check([timer[0] for timer in popped])
        ends = state.levels.all()
        return Digest(
            cluster_id=self.broker.cluster_id,
            topics=topics,
            levels=tuple(
                (end, state.levels.pending_of(level) if state.levels.is_exact else None)
                for level, end in enumerate(ends, start=1)
            ),
            ids=ids,
            groups=tuple(self._group_digest(name) for name in self.broker.groups.names),
            stopped_stages=self.broker._store.state.stopped_stages,
            pending=tuple((due, pos, index, places[handle]) for due, pos, index, handle in popped),
            next_producer_id=self.broker.allocate_producer_id(),
        )

    def topics_digest(self) -> tuple[Any, ...]:
        """The part of `digest` that leaves the broker unchanged."""
        return tuple(self._topic_digest(topic) for topic in self.broker.topics.all())

    def _group_digest(self, name: str) -> tuple[str, GroupFrame | None, tuple[Any, ...]]:
        offsets = self.broker.groups.offsets(name)
        return name, self.broker.groups.groups.get(name), tuple(sorted(offsets.items()))

    def _topic_digest(self, topic: Any) -> tuple[str, UUID, int, tuple[Any, ...], tuple[Any, ...]]:
        partitions = tuple(
            (
                partition.start_offset,
                partition.next_offset,
                partition.visible_offset,
                partition.running_max,
                self._positions_of(partition, range(partition.start_offset, partition.next_offset)),
                tuple(
                    (producer_id, known.epoch, known.last_ms)
                    for producer_id, known in sorted(partition.producers.items())
                ),
            )
            for partition in topic.partitions
        )
        settings = tuple(sorted(topic.settings.items()))
        return topic.name, topic.uuid, topic.topic_id, settings, partitions


def with_topic(
    partition_count: int = 1, settings: dict[str, str] | None = None, **made: Any
) -> BrokerHarness:
    """A broker with the topic `t`; for `made` see `BrokerHarness`."""
    harness = BrokerHarness(**made)
    harness.create_topic("t", partition_count, settings)
    return harness


def produced(response: Any) -> Produced:
    """The outcome of the one batch of a Produce response."""
    part = response.responses[0].partition_responses[0]
    return Produced(part.error_code, part.base_offset, part.error_message)
