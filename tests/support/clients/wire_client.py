"""A Kafka connection to a `BrokerHarness`, in any version; every byte of each answer is checked.

    client = WireClient(BrokerHarness())
    client.harness.create_topic("t")
    assert client.produce("t", 0, make_batch([Raw(b"a")]), version=3).base_offset == 0
    assert client.fetch_records("t", 0) == b"..."

kafka-python encodes the requests and decodes the answers.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final
from uuid import NAMESPACE_DNS, UUID, uuid5

from _core.paths.answer import Reply, ResponseSlot
from _core.paths.session import Session
from appliance.errors import RemoteProtocolError
from appliance.store.damage import Damage
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.oracles.kafka_oracle import (
    FetchRequest,
    FetchResponse,
    ProduceResponse,
    decode_response,
    encode_request,
)
from tests.support.values.record_requests import fetch_part, fetch_request, produce_request

FETCH_BY_ID_FROM: Final = 13
"""The first version of Fetch that names topics by their ids."""


def framed(request: Any, version: int, correlation_id: int) -> bytes:
    """A request as it is sent over a socket."""
    frame = encode_request(request, version, correlation_id)
    return len(frame).to_bytes(4, "big") + frame


def split_answers(data: bytes) -> Iterator[bytes]:
    """Split an output into its answers, without their sizes; nothing may be left over."""
    start = 0
    while start < len(data):
        end = start + 4 + int.from_bytes(data[start : start + 4], "big")
        assert end <= len(data), "the last answer is cut short"
        yield data[start + 4 : end]
        start = end


def receive(harness: BrokerHarness, request: Any, version: int = 11) -> Session:
    """A new connection whose request was handled; nothing was read from the disk for it yet."""
    session = harness.broker.open_session(harness._answer_control_plane)
    data = framed(request, version, 1)
    session.get_buffer()[: len(data)] = data
    session.received(len(data), now_ns=harness.clock.wall_ns())
    return session


def run_work(session: Session) -> None:
    """Do what a thread is to do for a Produce request, if it is this session's turn."""
    if session.work is not None and session.work.is_made:
        session.work.run()


class WireClient:
    """One connection.

    Attributes:
        harness: the broker.
        session: the broker's end of the connection.
        parked: fetches that wait.
        damage: what its fetches found damaged on the disk.
    """

    def __init__(self, harness: BrokerHarness) -> None:
        """Connect."""
        self.harness = harness
        self.session = harness.broker.open_session(self._answer_control_plane)
        self.parked: list[Any] = []
        self.damage: list[Damage] = []
        self._last_correlation_id = 0

    def _answer_control_plane(self, request: memoryview) -> Reply | ResponseSlot | str:
        try:
            return self.harness._answer_control_plane(request)
        except RemoteProtocolError as error:
            return error.message

    def send_bytes(self, data: bytes) -> None:
        """Let the broker receive bytes in one round, and write the resulting frames."""
        self.feed(data, self.end_round)

    def feed(self, data: bytes, after_each: Callable[[], object] = lambda: None) -> None:
        """Let the broker receive bytes in parts, each with its first turn; no turn is ended."""
        start = 0
        while start < len(data):
            room = self.session.get_buffer()
            part = data[start : start + len(room)]
            room[: len(part)] = part
            self.session.received(len(part), now_ns=self.harness.clock.wall_ns())
            start += len(part)
            after_each()

    def resume(self) -> None:
        """Let the broker process the requests that it left while there were too many answers."""
        self.session.resume(now_ns=self.harness.clock.wall_ns())
        self.end_round()

    def end_round(self, between: Callable[[], object] = lambda: None) -> int:
        """End this turn and take those that are left; return how many there were in all."""
        count = 1
        self.end_turn()
        while self.session.yielded:
            between()
            run_work(self.session)
            self.session.resume(now_ns=self.harness.clock.wall_ns())
            self.end_turn()
            count += 1
        return count

    def end_turn(self) -> None:
        """Write the resulting frames, and start the fetches that wait."""
        self.harness.broker.commit()
        self.session.compact()
        for parked in self.session.new_parked:
            self._read_cold(parked)

    def _read_cold(self, parked: Any) -> None:
        """Read frames from the disk until the fetch is answered or waits for data."""
        is_answered = False
        while (parked.cold or parked.is_unfinished) and not is_answered:
            self.damage += self.harness.read_cold(parked.cold)
            is_answered = self.session.retry(parked)
        if not is_answered:
            self.parked.append(parked)

    def end_waits(self) -> None:
        """Time out all parked fetches."""
        waiting, self.parked = self.parked, []
        for parked in waiting:
            parked.is_expired = True
            if not self.session.retry(parked):
                self._read_cold(parked)

    def take(self) -> bytes:
        """Return what the broker sends now."""
        broker = self.harness.broker
        durable_pos = broker.flushed_pos if broker.is_sync_flush else broker.committed_pos
        return b"".join(self.session.output(durable_pos))

    def answers(self, response_class: Any, version: int) -> list[Any]:
        """The answers that leave now, all of one kind."""
        return [
            decode_response(response_class, version, each) for each in split_answers(self.take())
        ]

    def topic_id(self, name: str) -> UUID:
        """The id of a topic; an id that no topic has if there is no topic of that name."""
        topic = self.harness.broker.topics.find(name)
        return uuid5(NAMESPACE_DNS, name) if topic is None else topic.uuid

    def send(self, request: Any, version: int) -> int:
        """Send a request; return its correlation id. A Fetch may name topics in any version."""
        self._last_correlation_id += 1
        if isinstance(request, FetchRequest) and version >= FETCH_BY_ID_FROM:
            for topic in request.topics:
                topic.topic_id = topic.topic_id or self.topic_id(topic.topic)
        self.send_bytes(framed(request, version, self._last_correlation_id))
        return self._last_correlation_id

    def ask(self, request: Any, version: int, response_class: Any) -> Any:
        """Send a request, flush, and return the one answer."""
        number = self.send(request, version)
        self.harness.flush()
        (answer,) = self.answers(response_class, version)
        assert answer.header.correlation_id == number
        return answer

    def produce(
        self,
        topic: str,
        partition: int,
        batch: bytes | None,
        *,
        version: int = 8,
        acks: int = -1,
        transactional_id: str | None = None,
    ) -> Any:
        """Produce one batch durably; return the answer for its partition."""
        request = produce_request(
            [(topic, [(partition, batch)])], acks=acks, transactional_id=transactional_id
        )
        (of_topic,) = self.ask(request, version, ProduceResponse).responses
        assert of_topic.name == topic
        (part,) = of_topic.partition_responses
        assert part.index == partition
        return part

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int = 0,
        *,
        version: int = 11,
        limit: int = 1 << 20,
        leader_epoch: int = -1,
        max_bytes: int = 1 << 20,
    ) -> Any:
        """Fetch one partition; return its answer."""
        wanted = fetch_part(partition, offset, limit=limit, leader_epoch=leader_epoch)
        request = fetch_request([(topic, [wanted])], max_bytes=max_bytes)
        answer = self.ask(request, version, FetchResponse)
        (of_topic,) = answer.responses
        if version >= FETCH_BY_ID_FROM:
            assert of_topic.topic_id == self.topic_id(topic)
        else:
            assert of_topic.topic == topic
        (part,) = of_topic.partitions
        assert part.partition_index == partition
        return part

    def fetch_records(self, topic: str, partition: int, offset: int = 0, **how: int) -> bytes:
        """The record section of a partition."""
        part = self.fetch(topic, partition, offset, **how)
        assert part.error_code == 0
        return bytes(part.records)
