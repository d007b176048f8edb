"""The master's end of a connection to a slave, without the connection.

Bytes and the time come in by calls, and bytes to send go out through `take_output`. The owner reads
the log for it: it asks `next_read` what to read, and hands the bytes to `loaded`. Layer 3; does no
I/O; belongs to the loop's thread.
"""

from collections.abc import Callable, Sequence
from typing import Final

from appliance.errors import RemoteProtocolError, StorageError
from appliance.replication import wire
from appliance.replication.common_point import CommonPoint, LogFacts, Relation, find_common_point
from appliance.replication.facts import Facts, Role
from appliance.replication.link_limits import CatchUp, LinkLimits
from appliance.replication.logs import NO_CLUSTER, NO_POS, SourceLog
from appliance.replication.message_reader import MessageReader
from appliance.replication.states import MASTER_STATES, Event, State, Walk
from appliance.replication.wire import (
    Ack,
    Beat,
    Data,
    Hello,
    MessageType,
    RefusalCode,
    Refused,
    Welcome,
)
from appliance.units import KIB, MS_PER_SECOND

PACED_PIECES_A_SECOND: Final = 20
"""Pieces of a slave that is slowed down are so small, for an even load."""

PACED_PIECE_MIN_BYTES: Final = 4 * KIB

PACED_LATE_MAX_MS: Final = 200
"""A piece that leaves later than it may is made up for, up to this; a pause is not."""

_DOUBT: Final = "an ACK that cannot be"


class MasterSession:
    """Streams a log to one slave.

    Attributes:
        hello: who the slave is; None before a HELLO of somebody who knows the secret.
        refused: the REFUSED that was sent: close the connection after what is to be sent.
        relation: how the slave's log relates to this one; None before the stream.
        compared: the same of a session that only compares.
        is_answered: it was lost because it was only a question, or only compared the logs.
        sent_pos: the end of what was sent.
        received_pos, durable_pos: as the slave acknowledged last; 0 before.
        found: bytes that the slave has and this node lacks: write them, then call `took`.
        is_ready, is_taken: the slave of a hand-over has said so.
        proved_ms: the slave is known to have been there after this time, and to have had a
            connection to this master: when the BEAT was sent that it acknowledged last; None before
            that. A lease counts from here, not from the arrival of an ACK, which may be late.
        acked_ms: when the last ACK arrived; None before.
        heard_ms: when the last message arrived.
    """

    def __init__(
        self,
        log: SourceLog,
        secret: bytes,
        *,
        nonce: bytes,
        now_ms: int,
        admit: Callable[[Hello], Refused | None],
        limits: LinkLimits,
        facts: Callable[[], Facts] = Facts,
        compares: bool = False,
        damaged: Callable[[], Sequence[tuple[int, int]]] = tuple,
        catch_up_rate: Callable[[], int] = lambda: 0,
    ) -> None:
        """Begin with a CHALLENGE.

        Args:
            log: what is streamed.
            secret: what both nodes know, at least SECRET_SIZE_MIN_BYTES.
            nonce: NONCE_SIZE random bytes, never used before.
            now_ms: boottime, as in all calls; never falls.
            admit: says why a slave is refused that fits otherwise, None if it is not.
            limits: as the slave has them.
            facts: returns what WELCOME says of this node.
            compares: the logs are only compared, and no stream begins.
            damaged: returns the parts of the log that a slave is asked for when logs are compared.
            catch_up_rate: returns how many bytes a second a slave gets at most while it catches up;
                0 for no bound.
        """
        assert len(nonce) == wire.NONCE_SIZE
        assert len(secret) >= wire.SECRET_SIZE_MIN_BYTES
        self._log = log
        self._secret = secret
        self._nonce = nonce
        self._slave_nonce = b""
        self._admit = admit
        self._limits, self._facts, self._compares = limits, facts, compares
        self._damaged = damaged
        self._reader = MessageReader()
        self._walk = Walk(MASTER_STATES)
        self._output: list[bytes] = [wire.encode_challenge(nonce)]
        self._catch_up: CatchUp | None = None
        self._catch_up_rate = catch_up_rate
        self._paced_to_ms = now_ms
        self._is_paced = False
        self._common_pos = 0
        self._beat: Beat | None = None
        self._acked_time_ms = 0
        self.hello: Hello | None = None
        self.refused: Refused | None = None
        self.relation: Relation | None = None
        self.compared: CommonPoint | None = None
        self.is_answered = False
        self._common: CommonPoint | None = None
        self._missing: list[tuple[int, int]] = []
        self._requested: tuple[int, int] | None = None
        self.found: Data | None = None
        self._term = 0
        self.is_ready = self.is_taken = False
        self.sent_pos = 0
        self.received_pos = 0
        self.durable_pos = 0
        self.proved_ms: int | None = None
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

    @property
    def common_pos(self) -> int:
        """Where the stream began."""
        return self._common_pos

    def take_output(self) -> list[bytes]:
        """Return what is to be sent now, in order."""
        output, self._output = self._output, []
        return output

    def received(self, data: bytes, now_ms: int) -> None:
        """Handle what arrived, at most a few hundred kilobytes."""
        if self._walk.is_lost:
            return
        self._reader.feed(data)
        try:
            while message := self._reader.next_message(self._walk.expected):
                self.heard_ms = now_ms
                assert not isinstance(message, Data), "a master expects no DATA"
                kind, body = message
                if kind is MessageType.HELLO:
                    self._handle_hello(body, now_ms)
                elif kind is MessageType.BYTES:
                    self._handle_bytes(wire.decode_bytes(body))
                elif kind is MessageType.REQUEST:
                    self._handle_request(*wire.decode_read(body))
                elif kind in (MessageType.READY, MessageType.TAKEN):
                    self._handle_step(kind, wire.decode_term(body))
                else:
                    self._handle_ack(wire.decode_ack(body), now_ms)
        except RemoteProtocolError as error:
            self._lose(Event.FAULT, error.message)

    def closed(self, reason: str) -> None:
        """Note that the connection ended."""
        self._lose(Event.CLOSED, reason)

    def fail(self, reason: str) -> None:
        """End it because the log cannot be read there, or another slave takes its place."""
        self._lose(Event.FAULT, reason)

    def tick(self, now_ms: int) -> None:
        """Do what is due by `next_deadline_ms`; may be called at any time."""
        self._is_paced = False  # the owner reads on, or does so once the socket takes more
        if self._walk.is_lost:
            return
        if now_ms - self.heard_ms >= self._limits.silence_ms:
            self._lose(Event.SILENCE, f"silent for {now_ms - self.heard_ms} ms")
        elif self.has_stream and self._next_beat_ms() <= now_ms:
            self._send_beat(now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when to call `tick`; None if it is lost."""
        if self._walk.is_lost:
            return None
        silent_ms = self.heard_ms + self._limits.silence_ms
        if not self.has_stream:
            return silent_ms
        due_ms = min(silent_ms, self._next_beat_ms())
        return min(due_ms, self._paced_to_ms) if self._is_paced else due_ms

    def next_read(self, now_ms: int) -> tuple[int, int] | None:
        """Return position and size of what to read of the log, None if nothing is to be sent now.

        Call it only after what it returned before was passed to `loaded`.
        """
        self._is_paced = False
        if self.state is State.REPAIRING:
            return self._requested
        if not self.has_stream:
            return None
        waiting = self._log.committed_pos - self.sent_pos
        if waiting <= 0:
            return None
        if self.sent_pos < self._log.start_pos:
            self.fail("the slave lacks a segment that was freed")
            return None
        size = min(waiting, self._limits.piece_bytes)
        rate = 0 if self._catch_up is None else self._catch_up_rate()
        if rate:
            size = min(size, max(PACED_PIECE_MIN_BYTES, rate // PACED_PIECES_A_SECOND))
            self._is_paced = now_ms < self._paced_to_ms
            if self._is_paced:
                return None
        unacked = self.sent_pos - max(self.received_pos, self._common_pos)
        return (self.sent_pos, size) if unacked + size <= self._limits.window_bytes else None

    def loaded(self, pos: int, data: bytes, now_ms: int) -> None:
        """Send bytes of the log that were read for `next_read`."""
        if self.state is State.REPAIRING:
            self._requested = None
            if not data:
                self.fail(f"its log has nothing at {pos}")
                return
            self._walk.go(Event.SUPPLY)
            self._output.append(wire.encode_bytes(pos, data, MessageType.SUPPLY))
        if not self.has_stream:
            return
        assert pos == self.sent_pos
        rate = 0 if self._catch_up is None else self._catch_up_rate()
        if rate:
            began_ms = max(self._paced_to_ms, now_ms - PACED_LATE_MAX_MS)
            self._paced_to_ms = began_ms + -(-len(data) * MS_PER_SECOND // rate)
        self._output += (wire.encode_data_head(pos, len(data)), data)
        self.sent_pos += len(data)
        self.moved(now_ms)

    def moved(self, now_ms: int) -> None:
        """Send a BEAT if the log changed since the last one and all before it was sent."""
        if self.has_stream and self.sent_pos >= self._log.committed_pos:
            before = self._beat
            if before is None or before != self._make_beat(before.time_ms):
                self._send_beat(now_ms)

    def _begin_supply(self, common: CommonPoint) -> None:
        """Let a slave whose log is damaged ask for parts of what both logs have.

        If it has nothing that this log lacks, its end may be damaged, and is beyond the last frame
        that it can read.
        """
        self.relation, self._common_pos = common.relation, common.pos
        if common.relation is Relation.FOLLOWS:
            self._common_pos = self._log.committed_pos
        self._send_welcome(common.pos)
        self._walk.go(Event.DAMAGED)

    def _handle_request(self, pos: int, size: int) -> None:
        if self._requested is not None:
            raise RemoteProtocolError("a REQUEST before the last one is answered")
        if not self._log.start_pos <= pos < pos + size <= self._common_pos:
            raise RemoteProtocolError(
                f"a REQUEST from {pos} to {pos + size}, outside of {self._log.start_pos} to "
                f"{self._common_pos}"
            )
        self._walk.go(Event.REQUEST)
        self._requested = (pos, size)

    def _find_missing(self, hello: Hello, common: CommonPoint) -> list[tuple[int, int]]:
        """Return what this node lacks and the slave has, as log positions."""
        missing = [
            (pos, end)
            for pos, end in self._damaged()
            if hello.start_pos <= pos < end <= common.pos and common.pos > self._log.start_pos
        ]
        if self._lost_end(hello, common):
            missing.append((common.pos, hello.end_pos))
        return missing

    def _begin_taking(self, common: CommonPoint, missing: list[tuple[int, int]]) -> None:
        """Ask for what the slave has and this node lost."""
        self._common, self.relation = common, common.relation
        self._common_pos = self.sent_pos = common.pos
        self._missing = missing
        self._send_welcome(common.pos)
        self._walk.go(Event.LACKS)
        self._read_next()

    def _read_next(self) -> None:
        pos, end_pos = self._missing[0]
        size = min(end_pos - pos, wire.READ_SIZE_MAX_BYTES)
        self._walk.go(Event.READ)
        self._output.append(wire.encode_read(pos, size))

    def _handle_bytes(self, found: Data) -> None:
        pos, end_pos = self._missing[0]
        end = found.pos + len(found.data)
        if found.pos != pos or end > end_pos or self.found is not None:
            raise RemoteProtocolError(f"BYTES from {found.pos} to {end}, not from {pos}")
        self._walk.go(Event.BYTES)
        self.found = found

    def took(self) -> None:
        """Note that `found` is written; ask for the next piece, or end the comparison."""
        found, self.found = self.found, None
        assert found is not None
        pos, end_pos = found.pos + len(found.data), self._missing[0][1]
        self._missing[:1] = [(pos, end_pos)] if pos < end_pos else []
        if self._missing:
            self._read_next()
        else:
            self.compared = self._common
            self.is_answered = True
            self._lose(Event.ANSWERED, "answered")

    @property
    def takes_all(self) -> bool:
        """With `found` this node has all that the slave has."""
        found = self.found
        is_last = len(self._missing) == 1
        return found is not None and is_last and found.pos + len(found.data) == self._missing[0][1]

    def prepare(self, term: int) -> None:
        """Begin a hand-over: the slave, which has caught up, gets ready for a promotion.

        Args:
            term: that the slave is to begin.
        """
        self._walk.go(Event.PREPARE)
        self._term = term
        self._output.append(wire.encode_term(MessageType.PREPARE, term))

    def give_up_mastery(self, end_pos: int) -> None:
        """Let the slave take over; nothing is appended to the log any more.

        Args:
            end_pos: of the log, all of which the slave has acknowledged as durable.
        """
        assert self.is_ready
        assert self.durable_pos == end_pos
        self._walk.go(Event.YIELD)
        self._output.append(wire.encode_yield(wire.Yield(self._term, end_pos)))

    def _handle_step(self, kind: MessageType, term: int) -> None:
        if term != self._term:
            raise RemoteProtocolError(f"{kind.name} about term {term}, not {self._term}")
        if kind is MessageType.READY:
            self._walk.go(Event.READY)
            self.is_ready = True
        else:
            self.is_taken = True
            self._lose(Event.TAKEN, "the slave has taken over")

    def _handle_hello(self, body: bytes, now_ms: int) -> None:
        if wire.hello_version(body) != wire.VERSION:
            self._refuse(Refused(RefusalCode.OTHER_VERSION, ""))
            return
        found = wire.decode_hello(body, secret=self._secret, master_nonce=self._nonce)
        if found is None:
            self._refuse(Refused(RefusalCode.WRONG_SECRET, ""))
            return
        self.hello, self._slave_nonce = found
        mismatch = self._find_mismatch(self.hello)
        if mismatch is not None:
            self._refuse(mismatch)
            return
        is_damaged = self.hello.facts.role is Role.REPAIRING
        if self.hello.facts.role is not Role.SLAVE and not is_damaged:
            self._answer(self._log.start_pos)  # it asks who the master is
            return
        unfit = self._find_newer_term(self.hello)
        if unfit is None and not is_damaged:
            unfit = self._find_short_lease(self.hello)
        if unfit is not None:
            self._refuse(unfit)
            return
        try:
            common = self._compare(self.hello)
        except StorageError as error:
            self.fail(f"the logs cannot be compared: {error.message}")
            return
        if is_damaged:
            self._begin_supply(common)
        else:
            self._begin(self.hello, common, now_ms)

    def _begin(self, hello: Hello, common: CommonPoint, now_ms: int) -> None:
        """Begin a stream to a slave, or compare logs with it."""
        refused: Refused | None
        missing = self._find_missing(hello, common) if self._compares else []
        if missing:
            self._begin_taking(common, missing)
            return
        if self._lost_end(hello, common):
            text = f"lost what is after {common.pos}; the slave has it up to {hello.end_pos}"
            refused = Refused(RefusalCode.AHEAD, text)
        else:
            refused = self._admit(hello)
        if refused is not None:
            self._refuse(refused)
        elif self._compares:
            self.compared = common
            self._answer(common.pos)
        else:
            self._welcome(common, now_ms)

    def _find_mismatch(self, hello: Hello) -> Refused | None:
        log = self._log
        if hello.format_version != log.format_version:
            text = f"writes frames of version {log.format_version}, not {hello.format_version}"
            return Refused(RefusalCode.OTHER_FORMAT, text)
        if hello.segment_size_bytes != log.segment_size_bytes:
            text = f"has segments of {log.segment_size_bytes}, not {hello.segment_size_bytes} bytes"
            return Refused(RefusalCode.OTHER_SEGMENT_SIZE, text)
        if hello.cluster not in (NO_CLUSTER, log.cluster):
            text = f"is of cluster {log.cluster.hex()}, not {hello.cluster.hex()}"
            return Refused(RefusalCode.OTHER_CLUSTER, text)
        if hello.node == log.node:
            return Refused(RefusalCode.SAME_NODE, f"is node {log.node} as well")
        return None

    def _find_newer_term(self, hello: Hello) -> Refused | None:
        term = self._facts().term
        if hello.facts.term <= term:
            return None
        text = f"is of term {term}, which ended: the slave knows term {hello.facts.term}"
        return Refused(RefusalCode.NEWER_TERM, text)

    def _find_short_lease(self, hello: Hello) -> Refused | None:
        """Refuse a slave that could be promoted after a restart before this master's lease ends."""
        lease_ms, known_ms = self._facts().lease_ms, hello.facts.lease_ms
        if known_ms >= lease_ms:
            return None
        text = f"has replication.lease_ms = {lease_ms}, the slave only {known_ms}"
        return Refused(RefusalCode.SHORT_LEASE, text)

    def _lost_end(self, hello: Hello, common: CommonPoint) -> bool:
        """Whether the slave has what this node wrote in this term, and lost before it served again.

        A slave of an older term may have been the master, and what it has beyond is its own.
        """
        if not self._compares:
            return common.relation is Relation.AHEAD
        is_longer = common.pos == self._log.committed_pos < hello.end_pos
        has_common = common.relation is not Relation.ANEW
        return is_longer and has_common and hello.facts.term == self._facts().term

    def _compare(self, hello: Hello) -> CommonPoint:
        log = self._log
        is_damaged = hello.facts.role is Role.REPAIRING or bool(self._damaged())
        if is_damaged and hello.last_pos != NO_POS and log.crc_at(hello.last_pos) == hello.last_crc:
            # The list of epochs may lack one that begins in a damaged part. A slave got its last
            # frame after all before it, so the same frame here says as much.
            return CommonPoint(hello.end_pos, Relation.FOLLOWS)
        return find_common_point(
            LogFacts(log.start_pos, log.committed_pos, log.epochs()),
            LogFacts(hello.start_pos, hello.end_pos, hello.epochs),
            last_pos=hello.last_pos,
            last_crc=hello.last_crc,
            crc_at=log.crc_at,
        )

    def _answer(self, common_pos: int) -> None:
        self._send_welcome(common_pos)
        self.is_answered = True
        self._lose(Event.ANSWERED, "answered")

    def _send_welcome(self, common_pos: int) -> None:
        log = self._log
        welcome = Welcome(
            cluster=log.cluster,
            node=log.node,
            epoch=log.epoch,
            segment_size_bytes=log.segment_size_bytes,
            start_pos=log.start_pos,
            end_pos=log.committed_pos,
            common_pos=common_pos,
            acknowledges_received=log.acknowledges_received,
            facts=self._facts(),
        )
        self._output.append(
            wire.encode_welcome(welcome, secret=self._secret, slave_nonce=self._slave_nonce)
        )

    def _welcome(self, common: CommonPoint, now_ms: int) -> None:
        log = self._log
        self._send_welcome(common.pos)
        self._walk.go(Event.HELLO)
        self._common_pos = self.sent_pos = common.pos
        self.relation = common.relation
        self._catch_up = CatchUp(
            committed_pos=log.committed_pos, now_ms=now_ms, round_ms=self._limits.beat_ms
        )
        self._send_beat(now_ms)

    def _refuse(self, refused: Refused) -> None:
        self._output.append(
            wire.encode_refused(refused, secret=self._secret, slave_nonce=self._slave_nonce)
        )
        self.refused = refused
        self._lose(Event.REFUSED, wire.refusal_text(refused))

    def _handle_ack(self, ack: Ack, now_ms: int) -> None:
        if not 0 <= ack.durable_pos <= ack.received_pos:
            raise RemoteProtocolError(f"{_DOUBT}: {ack.durable_pos} of {ack.received_pos} durable")
        if ack.received_pos > self.sent_pos:
            # As RocketMQ #1155, #3015: a master believed that it was replicated.
            raise RemoteProtocolError(f"{_DOUBT}: {ack.received_pos}, sent is {self.sent_pos}")
        if ack.received_pos < self.received_pos or ack.durable_pos < self.durable_pos:
            raise RemoteProtocolError(f"{_DOUBT}: it moves back")
        assert self._beat is not None
        if not self._acked_time_ms <= ack.time_ms <= self._beat.time_ms:
            raise RemoteProtocolError(f"{_DOUBT}: no BEAT has the time {ack.time_ms}")
        self._walk.go(Event.ACK)
        self.received_pos, self.durable_pos = ack.received_pos, ack.durable_pos
        self.acked_ms = now_ms
        if ack.time_ms:
            self._acked_time_ms = self.proved_ms = ack.time_ms
        catch_up = self._catch_up
        if catch_up is not None and catch_up.is_reached(
            acked_pos=ack.durable_pos, committed_pos=self._log.committed_pos, now_ms=now_ms
        ):
            self._catch_up = None
            self._walk.go(Event.CAUGHT_UP)

    def _next_beat_ms(self) -> int:
        assert self._beat is not None
        return self._beat.time_ms + self._limits.beat_ms

    def _make_beat(self, time_ms: int) -> Beat:
        log = self._log
        return Beat(
            start_pos=log.start_pos,
            committed_pos=log.committed_pos,
            flushed_pos=log.flushed_pos,
            visible_pos=log.visible_pos,
            epoch=log.epoch,
            time_ms=time_ms,
        )

    def _send_beat(self, now_ms: int) -> None:
        self._beat = self._make_beat(now_ms)
        self._output.append(wire.encode_beat(self._beat))

    def _lose(self, event: Event, reason: str) -> None:
        if not self._walk.is_lost:
            self._walk.go(event, reason)
