"""The slave's end of a connection to its master, without the connection.

Bytes and the time come in by calls. Bytes to send go out through `take_output`, and what is to be
done to the log is returned by `received`. The owner does it in that order, and reports it with
`begun`, `appended` and `flushed`. Layer 3; does no I/O; belongs to the loop's thread.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from appliance.errors import RemoteProtocolError
from appliance.replication import wire
from appliance.replication.facts import Facts, Role
from appliance.replication.link_limits import CatchUp, LinkLimits
from appliance.replication.logs import NO_CLUSTER, NO_POS, HeldLog, ReplicaLog
from appliance.replication.message_reader import MessageReader
from appliance.replication.states import SLAVE_STATES, Event, State, Walk
from appliance.replication.wire import Ack, Beat, Data, Hello, MessageType, Welcome, Yield


@dataclass(frozen=True, slots=True)
class Begin:
    """Cut the log to `pos`, or begin it there if nothing of it can stay; then call `begun`."""

    pos: int
    is_anew: bool
    may_be_acknowledged: bool = False


@dataclass(frozen=True, slots=True)
class Append:
    """Append these bytes of the master's log; then call `appended`."""

    pos: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Prepare:
    """The master hands over soon: let no checkpoint be in the way; then call `ready`.

    Attributes:
        term: that this node is to begin.
    """

    term: int


@dataclass(frozen=True, slots=True)
class Take:
    """Become the master of this term, durably; then call `taken`."""

    term: int


@dataclass(frozen=True, slots=True)
class Read:
    """Read these bytes of the log, which the master lost; then call `read`."""

    pos: int
    size: int


Order: TypeAlias = Begin | Append | Prepare | Take | Read


def introduce(log: HeldLog, facts: Facts) -> Hello:
    """Return the HELLO of a node and its log."""
    return Hello(
        cluster=log.cluster,
        node=log.node,
        format_version=log.format_version,
        segment_size_bytes=log.segment_size_bytes,
        start_pos=log.start_pos,
        end_pos=log.end_pos,
        last_pos=log.last_pos,
        last_crc=log.last_crc,
        epochs=tuple(log.epochs()[-wire.EPOCH_COUNT_MAX :]),
        facts=facts,
    )


class SlaveSession:
    """Receives the log of one master.

    Attributes:
        welcome: who the master is; None before its WELCOME.
        was_compared: the master has compared its log with this one, and goes on soon.
        beat: its last BEAT; None before the first.
        is_begun: the log ends where the stream began, and takes what comes.
        received_pos: the end of what was appended; 0 before `begun`.
        durable_pos: the end of what was flushed; 0 before the first flush.
        acked_ms: when the last ACK was made; None before. Whoever promotes this slave waits from
            here until the master's lease is certainly over.
        heard_ms: when the master was heard last.
    """

    def __init__(
        self,
        log: ReplicaLog,
        secret: bytes,
        *,
        nonce: bytes,
        now_ms: int,
        limits: LinkLimits,
        facts: Callable[[], Facts] = Facts,
    ) -> None:
        """Wait for a CHALLENGE.

        Args:
            log: what HELLO says about it is read when CHALLENGE arrives.
            secret: what both nodes know, at least SECRET_SIZE_MIN_BYTES.
            nonce: NONCE_SIZE random bytes, never used before.
            now_ms: boottime, as in all calls; never falls.
            limits: as the master has them.
            facts: returns what HELLO says of this node.
        """
        assert len(nonce) == wire.NONCE_SIZE
        assert len(secret) >= wire.SECRET_SIZE_MIN_BYTES
        self._log = log
        self._secret = secret
        self._nonce = nonce
        self._limits, self._facts = limits, facts
        self._reader = MessageReader()
        self._walk = Walk(SLAVE_STATES)
        self._output: list[bytes] = []
        self._hello: Hello | None = None
        self._expected_pos = 0
        self._acked_received_pos = 0
        self._acked_time_ms = 0
        self._last_ack_ms = now_ms
        self._catch_up: CatchUp | None = None
        self._term = 0
        self._is_ready = False
        self.welcome: Welcome | None = None
        self.was_compared = False
        self.beat: Beat | None = None
        self.is_begun = False
        self.received_pos = 0
        self.durable_pos = 0
        self.acked_ms: int | None = None
        self.heard_ms = now_ms

    @property
    def state(self) -> State:
        """Where the connection is."""
        return self._walk.state

    @property
    def reason(self) -> str:
        """Why it is lost; "" before."""
        return self._walk.reason

    @property
    def has_stream(self) -> bool:
        """The handshake is done, and the connection is not lost."""
        return self._walk.has_stream

    def take_output(self) -> list[bytes]:
        """Return what is to be sent now, in order."""
        output, self._output = self._output, []
        return output

    def received(self, data: bytes, now_ms: int) -> list[Order]:
        """Handle what arrived, at most a few hundred kilobytes, and return what to do."""
        orders: list[Order] = []
        if self._walk.is_lost:
            return orders
        if self.has_stream or self.was_compared:
            # A message of a megabyte may be long on its way. In a handshake, bytes prove nothing.
            self.heard_ms = now_ms
        self._reader.feed(data)
        try:
            while message := self._reader.next_message(self._walk.expected):
                if isinstance(message, Data):
                    orders.append(self._handle_data(message))
                    continue
                order = self._handle(*message, now_ms)
                if order is not None:
                    orders.append(order)
        except RemoteProtocolError as error:
            self._lose(Event.FAULT, error.message)
        return orders

    def begun(self, now_ms: int) -> None:
        """Note that the log ends at the position of the last Begin and has all before it."""
        assert self.welcome is not None
        self.is_begun = True
        self.received_pos = self.welcome.common_pos
        self._check_caught_up(now_ms)

    def appended(self, pos: int, size: int, now_ms: int) -> None:
        """Note that the log has the bytes of an Append."""
        assert pos == self.received_pos
        self.received_pos += size
        # The master's window must not close while a flush takes its time.
        if self.received_pos - self._acked_received_pos >= self._limits.window_bytes // 4:
            self._send_ack(now_ms)

    def flushed(self, durable_pos: int, now_ms: int) -> None:
        """Note that the log is durable up to there, and acknowledge it."""
        assert durable_pos <= self.received_pos
        self.durable_pos = max(self.durable_pos, durable_pos)
        self._send_ack(now_ms)
        self._check_caught_up(now_ms)

    def closed(self, reason: str) -> None:
        """Note that the connection ended."""
        self._lose(Event.CLOSED, reason)

    def fail(self, reason: str) -> None:
        """End it because the log refuses what the master sent."""
        self._lose(Event.FAULT, reason)

    def tick(self, now_ms: int) -> None:
        """Do what is due by `next_deadline_ms`; may be called at any time."""
        if self._walk.is_lost:
            return
        if now_ms - self.heard_ms >= self._limits.silence_ms:
            self._lose(Event.SILENCE, f"silent for {now_ms - self.heard_ms} ms")
        elif self.has_stream and self._last_ack_ms + self._limits.beat_ms <= now_ms:
            self._send_ack(now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when to call `tick`; None if it is lost."""
        if self._walk.is_lost:
            return None
        silent_ms = self.heard_ms + self._limits.silence_ms
        if not self.has_stream:
            return silent_ms
        return min(silent_ms, self._last_ack_ms + self._limits.beat_ms)

    def _handle(self, kind: MessageType, body: bytes, now_ms: int) -> Order | None:
        if kind is MessageType.CHALLENGE:
            self._handle_challenge(body)
        elif self._hello is None:
            raise RemoteProtocolError(f"{kind.name} before CHALLENGE")
        elif kind is MessageType.WELCOME:
            return self._handle_welcome(body, now_ms)
        elif kind is MessageType.REFUSED:
            refused = wire.decode_refused(body, secret=self._secret, slave_nonce=self._nonce)
            self._lose(Event.REFUSED, wire.refusal_text(refused))
        elif kind is MessageType.PREPARE:
            self._term = wire.decode_term(body)
            self._walk.go(Event.PREPARE)
            return Prepare(self._term)
        elif kind is MessageType.READ:
            self._walk.go(Event.READ)
            return Read(*wire.decode_read(body))
        elif kind is MessageType.YIELD:
            return self._handle_yield(wire.decode_yield(body))
        else:
            self._handle_beat(wire.decode_beat(body), now_ms)
        return None

    def _handle_yield(self, order: Yield) -> Take:
        here = (self._expected_pos, self.received_pos, self.durable_pos)
        if order.term != self._term or not self._is_ready or here != (order.end_pos,) * 3:
            raise RemoteProtocolError(
                f"YIELD of term {order.term} at {order.end_pos}; the slave has the log to {here}"
            )
        self._walk.go(Event.YIELD)
        return Take(order.term)

    def ready(self) -> None:
        """Say that a promotion would not have to wait; nothing if no hand-over goes on."""
        if self.state is State.HANDING_OVER and not self._is_ready:
            self._is_ready = True
            self._walk.go(Event.READY)
            self._output.append(wire.encode_term(MessageType.READY, self._term))

    def read(self, pos: int, data: bytes) -> None:
        """Send bytes of the log that the master asked for; nothing if the connection is lost."""
        if self.state is State.COMPARING:
            self._walk.go(Event.BYTES)
            self._output.append(wire.encode_bytes(pos, data))

    def taken(self) -> None:
        """Say that this node is the master now, durably."""
        if self.state is State.YIELDED:
            self._output.append(wire.encode_term(MessageType.TAKEN, self._term))
            self._lose(Event.TAKEN, "has taken over")

    def _handle_challenge(self, body: bytes) -> None:
        if self._hello is not None:
            raise RemoteProtocolError("a second CHALLENGE")
        challenge = wire.decode_challenge(body)
        if challenge.version != wire.VERSION:
            raise RemoteProtocolError(
                f"the master speaks version {challenge.version} of the protocol, "
                f"this node version {wire.VERSION}"
            )
        self._hello = introduce(self._log, self._facts())
        self._output.append(
            wire.encode_hello(
                self._hello,
                nonce=self._nonce,
                secret=self._secret,
                master_nonce=challenge.nonce,
            )
        )
        self._walk.go(Event.CHALLENGE)

    def _handle_welcome(self, body: bytes, now_ms: int) -> Begin | None:
        welcome = wire.decode_welcome(body, secret=self._secret, slave_nonce=self._nonce)
        hello = self._hello
        assert hello is not None
        if welcome.cluster != NO_CLUSTER and hello.cluster not in (NO_CLUSTER, welcome.cluster):
            raise RemoteProtocolError(f"the master is of cluster {welcome.cluster.hex()}")
        if welcome.segment_size_bytes != hello.segment_size_bytes or welcome.node == hello.node:
            raise RemoteProtocolError("the master does not fit, and does not refuse either")
        if welcome.facts.term < hello.facts.term:
            raise RemoteProtocolError(
                f"the master is of term {welcome.facts.term}, which ended: this node knows term "
                f"{hello.facts.term}"
            )
        is_anew = hello.last_pos == NO_POS or welcome.common_pos == welcome.start_pos
        if not is_anew and not hello.start_pos < welcome.common_pos <= hello.end_pos:
            raise RemoteProtocolError(
                f"the logs cannot be equal up to {welcome.common_pos}: this one is from "
                f"{hello.start_pos} to {hello.end_pos}"
            )
        if welcome.facts.role is Role.COMPARING:
            self.was_compared = True
            self._walk.go(Event.NO_STREAM)
            self.heard_ms = now_ms
            return None
        self._walk.go(Event.WELCOME)
        self.welcome = welcome
        self.heard_ms = self._last_ack_ms = now_ms
        self._expected_pos = welcome.common_pos
        return Begin(welcome.common_pos, is_anew, welcome.acknowledges_received)

    def _handle_data(self, data: Data) -> Append:
        if data.pos != self._expected_pos:
            raise RemoteProtocolError(
                f"DATA at {data.pos}; the log goes on at {self._expected_pos}"
            )
        self._walk.go(Event.DATA)
        self._expected_pos += len(data.data)
        return Append(pos=data.pos, data=data.data)

    def _handle_beat(self, beat: Beat, now_ms: int) -> None:
        before = self.beat
        if before is None:
            assert self.welcome is not None
            welcome = self.welcome
            before = Beat(welcome.start_pos, welcome.end_pos, 0, 0, welcome.epoch, 0)
        is_later = (
            before.start_pos <= beat.start_pos <= beat.committed_pos
            and before.committed_pos <= beat.committed_pos
            and before.flushed_pos <= beat.flushed_pos <= beat.committed_pos
            and before.visible_pos <= beat.visible_pos <= beat.committed_pos
            and before.epoch <= beat.epoch
            and before.time_ms <= beat.time_ms
            and self._expected_pos <= beat.committed_pos
        )
        if not is_later:
            raise RemoteProtocolError("a BEAT that goes back")
        self._walk.go(Event.BEAT)
        if self.beat is None:
            self._catch_up = CatchUp(
                committed_pos=beat.committed_pos, now_ms=now_ms, round_ms=self._limits.beat_ms
            )
        self.beat = beat
        self._check_caught_up(now_ms)
        # The ACK that answers this BEAT would wait for the end of a flush or for its interval, and
        # the master's lease would be older by it.
        if beat.time_ms - self._acked_time_ms >= self._limits.beat_ms // 2:
            self._send_ack(now_ms)

    def _check_caught_up(self, now_ms: int) -> None:
        catch_up, beat = self._catch_up, self.beat
        if catch_up is None or beat is None or not self.has_stream:
            return
        if catch_up.is_reached(
            acked_pos=self.durable_pos, committed_pos=beat.committed_pos, now_ms=now_ms
        ):
            self._catch_up = None
            self._walk.go(Event.CAUGHT_UP)

    def _send_ack(self, now_ms: int) -> None:
        if not self.has_stream:
            return
        time_ms = 0 if self.beat is None else self.beat.time_ms
        ack = Ack(self.received_pos, self.durable_pos, time_ms)
        self._output.append(wire.encode_ack(ack))
        self._acked_received_pos, self._acked_time_ms = self.received_pos, time_ms
        self._last_ack_ms = self.acked_ms = now_ms

    def _lose(self, event: Event, reason: str) -> None:
        if not self._walk.is_lost:
            self._walk.go(event, reason)
