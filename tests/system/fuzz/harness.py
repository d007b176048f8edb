"""Runs a case against a broker in process, and checks what may never happen whatever is sent.

- No exception. A connection is answered, or closed with a reason that is one of ours.
- Answers come in the order of the requests, and other people's code decodes every byte of them.
- What a client makes the broker hold and send is bounded by what it sent.
- No more is stored than was acknowledged; nothing of a request that is malformed.
- The broker serves a good client afterwards, and nobody waits for ever.
- A start from the log finds the same state.
"""

import dataclasses
import random
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from _core.paths.answer import Reply, ResponseSlot
from _core.paths.parked_fetch import ParkedFetch
from _core.paths.session import Session
from appliance.errors import RemoteProtocolError
from compat.kafka import dispatch
from compat.kafka.node import Client
from compat.kafka.protocol.deferred import DeferredResponse
from tests.support.clients.wire_client import WireClient, run_work, split_answers
from tests.support.harness.broker_harness import BrokerHarness, Digest
from tests.support.harness.configs import small_config
from tests.support.oracles.response_oracle import decode_any_response
from tests.support.values.kafka_records import Record
from tests.support.values.raw_batch import Raw, make_batch
from tests.system.fuzz.cases import CONNECTION_COUNT, MEMBER_IDS, TOPIC_IDS, Case, Step, Verb
from tests.system.fuzz.outline import ProduceOutline, outline_of

GOOD_TOPIC: Final = "of-the-good-client"
USER_IDS: Final = (b"a", b"b", b"c", b"\x00\xff", b"i" * 255)

ANSWER_FACTOR: Final = 64
ANSWER_CONSTANT_BYTES: Final = 1 << 17
"""An answer is at most so many times the size of its request, and this, and what it fetched."""

INPUT_KEPT_BYTES: Final = 1 << 20
KEPT_BYTES: Final = 32
SENT_BYTES: Final = 100

PRODUCE, FETCH, JOIN_GROUP = 0, 1, 11


class Finding(AssertionError):
    """The broker did what it must not."""


def check(is_right: object, what: str) -> None:
    """Raise a Finding unless it is right."""
    if not is_right:
        raise Finding(what)


class FuzzConnection:
    """One connection, and what it may expect.

    Attributes:
        session: the broker's end.
        parked: fetches that wait.
    """

    def __init__(self, harness: "Harness", *, is_small: bool) -> None:
        """`is_small`: treat it as the server does when memory is scarce, and more so."""
        self._harness = harness
        self._is_small = is_small
        self._target = harness.target
        self.session: Session = self._target.broker.open_session(self._answer_control_plane)
        self.parked: list[ParkedFetch] = []
        self._unparsed = b""
        self._waiting: list[bytes] = []  # requests that are not answered yet
        self._is_cut = False
        self._is_lost = False
        self._deferred: DeferredResponse[Any] | None = None

    def _answer_control_plane(self, request: memoryview) -> Any:
        """As the server does, but what is no declared error ends the run."""
        node = replace(self._target._node, client=Client(host="127.0.0.1"))
        try:
            answer = dispatch.answer(node, request)
        except RemoteProtocolError as error:
            return error.message
        if isinstance(answer, Reply):
            return answer
        parked = ResponseSlot()
        self._deferred = answer
        answer.when_complete(partial(self._complete, parked))
        return parked

    def _complete(self, parked: ResponseSlot, reply: Reply) -> None:
        self._deferred = None
        if not self._is_lost:
            parked.complete(reply)

    # What a client does

    def send(self, data: bytes, read_size: int) -> None:
        """Send bytes, of which the broker gets `read_size` at a time; 0: as many as it takes."""
        self._note_requests(data)
        start = 0
        while start < len(data):
            self._complete_pause()
            if self.session.close_reason is not None:
                return
            room = self.session.get_buffer()
            check(
                len(room) <= 2 * self._target.config.request_size_max_bytes + (1 << 16),
                f"an input buffer of {len(room)} bytes",
            )
            part = data[start : start + min(read_size or len(room), len(room))]
            room[: len(part)] = part
            self.session.received(len(part), now_ns=self._target.clock.wall_ns())
            start += len(part)
            self._end_round()

    def _complete_pause(self) -> None:
        """A server does not read from a connection whose session is paused."""
        for _ in range(1000):
            if not self.is_behind or self._is_lost:
                return
            self._harness.advance()
        raise Finding("a connection stays paused")

    @property
    def is_behind(self) -> bool:
        """The broker has not looked at all that it received."""
        return self.session.paused or self.session.yielded

    def resume(self) -> None:
        """Let the broker look at what it left: too much for a turn, or too many answers."""
        if self.session.yielded or (self.session.paused and not self.session.is_waiting):
            run_work(self.session)
            self.session.resume(now_ns=self._target.clock.wall_ns())
            self._end_round()

    def _end_round(self) -> None:
        self._harness.wake(self._target.broker.commit())
        self.session.compact(KEPT_BYTES if self._is_small else INPUT_KEPT_BYTES)
        for parked in self.session.new_parked:
            if not parked.answered:
                self.parked.append(parked)
                self.read_cold(parked)

    def read_cold(self, parked: ParkedFetch) -> None:
        """Read frames from the disk until the fetch is answered or waits for data."""
        for _ in range(100):
            if parked.answered:
                self.parked.remove(parked)
                return
            if not parked.cold:
                return
            self._target.read_cold(parked.cold)
            self.session.retry(parked)
        raise Finding("a fetch reads cold frames for ever")

    def expire(self) -> None:
        """The time of all waiting fetches is over."""
        for parked in list(self.parked):
            parked.is_expired = True
            self.session.retry(parked)
            self.read_cold(parked)
            check(parked.answered, "a fetch whose time is over is not answered")

    def take(self) -> None:
        """Receive what the broker sends, and check it."""
        durable_pos = self._target.durable_pos
        data = b"".join(self.session.output(durable_pos, *([SENT_BYTES] * self._is_small)))
        while self.session.has_more:
            data += b"".join(self.session.output(durable_pos, SENT_BYTES))
        for payload in split_answers(data):
            self._check_answer(payload)
        if self.session.close_reason is not None and not self.session.is_waiting:
            self.close()

    def close(self) -> None:
        """The connection ends."""
        reason = self.session.close_reason
        check(reason is None or reason, "a connection is closed without a reason")
        check(not (reason or "").startswith("internal"), f"closed: {reason}")
        for frame in self._waiting:
            self._harness.note_unanswered(frame, is_closed=True)
        for parked in self.parked:
            parked.unpark()
        self.parked = []
        self._is_lost = True
        if self._deferred is not None:
            self._deferred.abandon()
        self.session.close()
        self._harness.replace(self)

    # What is checked

    def _note_requests(self, data: bytes) -> None:
        """Find the requests as the broker should."""
        self._unparsed += data
        size_max = self._target.config.request_size_max_bytes
        while not self._is_cut and len(self._unparsed) >= 4:
            size = int.from_bytes(self._unparsed[:4], "big", signed=True)
            if not 8 <= size <= size_max:
                self._is_cut = True
            elif len(self._unparsed) >= 4 + size:
                self._waiting.append(self._unparsed[4 : 4 + size])
                self._unparsed = self._unparsed[4 + size :]
            else:
                return

    def _check_answer(self, payload: bytes) -> None:
        while self._waiting:
            frame = self._waiting.pop(0)
            if frame[4:8] == payload[:4] and not is_silent(frame):
                break
            self._harness.note_unanswered(frame, is_closed=False)
        else:
            raise Finding(f"an answer that nobody asked for: {payload[:64].hex()}")
        key = int.from_bytes(frame[:2], "big", signed=True)
        version = int.from_bytes(frame[2:4], "big", signed=True)
        bound = ANSWER_FACTOR * len(frame) + ANSWER_CONSTANT_BYTES
        if key == FETCH:
            bound += self._target.config.fetch_size_max_bytes
        check(len(payload) <= bound, f"an answer of {len(payload)} bytes to {len(frame)}")
        try:
            answer = decode_any_response(key, version, payload)
        except Exception as error:
            raise Finding(f"the answer {payload.hex()} to {frame.hex()}: {error!r}") from error
        if key == PRODUCE:
            self._harness.note_produced(answer)
        if key == JOIN_GROUP:
            self._harness.note_member(self, answer.member_id)

    def check_all_answered(self) -> None:
        """Nothing that could be answered may be left once nobody waits for anything."""
        session = self.session
        if session.close_reason is None and not session.partial_bytes:
            session.trim()
            check(session.held_bytes == 0, f"{session.held_bytes} bytes held by who waits not")
        check(not self.session.is_waiting, "an answer waits for ever")
        is_closed = self.session.close_reason is not None
        for frame in self._waiting:
            self._harness.note_unanswered(frame, is_closed=is_closed)
        self._waiting = []


def is_silent(frame: bytes) -> bool:
    """Whether a request is one that gets no answer if all is well."""
    outline = outline_of(frame)
    return isinstance(outline, ProduceOutline) and outline.acks == 0


class Harness:
    """A broker with a few topics, and connections to it.

    Attributes:
        target: the broker.
    """

    def __init__(self, *, is_sync: bool) -> None:
        self.target = BrokerHarness(config=small_config(flush="sync" if is_sync else "async"))
        create = self.target.broker.topics.create  # a request for each would cost more than a case
        create("t", 2, {})
        create("u", 1, {"message.timestamp.type": "LogAppendTime", "delay.invalid": "pass"})
        create("v", 1, {"delay.timestamp": "due", "delay.max.ms": "5000"})
        create(GOOD_TOPIC, 1, {})
        self.target.produce("t", 0, [Record(b"first"), Record(b"second")])
        self._ids = {
            alias: topic.uuid.bytes
            for alias, topic in zip(TOPIC_IDS, self.target.broker.topics.all(), strict=False)
        }
        self._begin()

    def _begin(self) -> None:
        self._connections = [
            FuzzConnection(self, is_small=number == 1) for number in range(CONNECTION_COUNT)
        ]
        self._accepted_before = self._accepted()
        self._stored_max = 0

    def _accepted(self) -> int:
        return self.target.broker.collect_metrics().accepted_frames

    def run(self, case: Case) -> None:
        """Do all steps, and check what is left. Raises Finding, or what the broker raised."""
        self.play(case)
        self._check_good_client()
        self._check_replay()

    def play(self, case: Case) -> None:
        """Do all steps, until nobody waits for anything."""
        for step in case.steps:
            self._do(step)
        self._end()

    def _do(self, step: Step) -> None:
        match step.verb:
            case Verb.SEND:
                data = step.data
                for alias, topic_id in self._ids.items():
                    data = data.replace(alias, topic_id)
                self._connections[step.numbers[0]].send(data, step.numbers[1])
            case Verb.TAKE:
                self._connections[step.numbers[0]].take()
            case Verb.CLOSE:
                self._connections[step.numbers[0]].close()
            case Verb.TRIM:
                self._connections[step.numbers[0]].session.trim()
            case Verb.FLUSH:
                self.flush()
            case Verb.EXPIRE:
                self.expire()
            case Verb.TIME:
                self.let_pass(step.numbers[0])
            case Verb.STEP:
                self.target.clock.step_ms(step.numbers[0])
            case Verb.HOUSEKEEP:
                self.target.housekeep()
            case Verb.RESTART:
                self._end()
                self.target = self.target.restart()
                self._begin()

    # What the pump and the server do

    def wake(self, woken: Iterable[ParkedFetch]) -> None:
        """Look at parked fetches again."""
        for parked in woken:
            for connection in self._connections:
                if parked in connection.parked:
                    connection.session.retry(parked)
                    connection.read_cold(parked)

    def flush(self) -> None:
        """Make all durable, and send what may leave."""
        self.wake(self.target.broker.flush())
        for connection in list(self._connections):
            connection.take()
            connection.resume()

    def advance(self) -> None:
        """Let everything happen that somebody waits for."""
        self.flush()
        self.expire()
        self.flush()
        due_ms = self.target.groups.next_deadline_ms()
        if due_ms is not None:
            self.target.pass_ms(max(due_ms - self.target.now_ms(), 0))
            self.flush()

    def expire(self) -> None:
        """The waits of all fetches are over."""
        for connection in list(self._connections):
            connection.expire()

    def let_pass(self, duration_ms: int) -> None:
        """Time passes, and what is due is delivered."""
        self.target.pass_ms(duration_ms)
        while self.target.deliver_once().has_more:
            pass
        self.flush()

    def replace(self, closed: FuzzConnection) -> None:
        """In place of a connection that ended comes another one."""
        number = self._connections.index(closed)
        self._connections[number] = FuzzConnection(self, is_small=number == 1)

    # What is checked

    def note_produced(self, answer: Any) -> None:
        """Count what was acknowledged."""
        for topic in answer.responses:
            for part in topic.partition_responses:
                self._stored_max += part.error_code == 0

    def note_member(self, connection: FuzzConnection, member_id: str) -> None:
        """The broker made a member id: what the connection's alias stands for from now on."""
        number = self._connections.index(connection)
        if number < len(MEMBER_IDS) and len(member_id) == len(MEMBER_IDS[number]):
            self._ids[MEMBER_IDS[number].encode()] = member_id.encode()

    def note_unanswered(self, frame: bytes, *, is_closed: bool) -> None:
        """A request that was not answered: right only without acks, or on a closed connection."""
        outline = outline_of(frame)
        if isinstance(outline, ProduceOutline):
            check(is_closed or outline.acks == 0, f"no answer to {frame.hex()}")
            self._stored_max += outline.batch_count
        else:
            check(is_closed, f"no answer to {frame.hex()}")

    def _end(self) -> None:
        """Until nobody waits for anything."""
        self.flush()
        for _ in range(1000):
            if not any(item.session.is_waiting or item.is_behind for item in self._connections):
                break
            self.advance()
        for connection in self._connections:
            connection.check_all_answered()
        for connection in list(self._connections):
            connection.close()
        stored = self._accepted() - self._accepted_before
        check(
            stored <= self._stored_max,
            f"{stored} batches stored, at most {self._stored_max} may be",
        )
        self._accepted_before = self._accepted()
        self._stored_max = 0

    def _check_good_client(self) -> None:
        client = WireClient(self.target)
        value = b"the good client's"
        answer = client.produce(GOOD_TOPIC, 0, make_batch([Raw(value)]))
        check(answer.error_code == 0, f"the good client is refused: {answer}")
        records = client.fetch_records(GOOD_TOPIC, 0, answer.base_offset)
        check(value in records, "the good client does not get its record back")

    def _check_replay(self) -> None:
        self.target.flush()
        disk = self.target.disk.crashed("kept", random.Random(0))
        again = BrokerHarness(disk, self.target.clock, self.target.config)
        check(kept_groups(self.target) == kept_groups(again), "groups are replayed as others")
        live, replayed = self.target.digest(USER_IDS), again.digest(USER_IDS)
        check(live.next_producer_id <= replayed.next_producer_id, "a producer id is given twice")
        for field in dataclasses.fields(Digest):
            was, found = getattr(live, field.name), getattr(replayed, field.name)
            # Ids of producers are reserved in blocks, the rest of one is lost.
            check(was == found or field.name == "next_producer_id", f"{was}\nreplayed as\n{found}")


def kept_groups(target: BrokerHarness) -> Any:
    """Groups and committed offsets as the log has them."""
    broker = target.broker
    offsets = {name: dict(broker.groups.offsets(name)) for name in broker.groups.names}
    return dict(broker.groups.groups), offsets


def run_case(case: Case) -> None:
    """Run a case. Raises Finding or what the broker raised."""
    Harness(is_sync=case.is_sync).run(case)
