"""The sessions do what the tables say: every message in every state, and every way out."""

import random

import pytest

from appliance.replication import wire
from appliance.replication.facts import Facts, Role
from appliance.replication.slave_session import introduce
from appliance.replication.states import (
    ARRIVALS,
    MASTER_READS,
    MASTER_STATES,
    SLAVE_READS,
    SLAVE_STATES,
    Event,
    State,
    States,
)
from appliance.replication.wire import Ack, Beat, MessageType, RefusalCode, Refused, Welcome
from tests.support.harness.replica_logs import MemoryLog, make_frame
from tests.support.harness.replica_sessions import LIMITS, SECRET, SessionPair

TERM = 2
SLAVE_NONCE = bytes([2]) * 32
MASTER_NONCE = bytes([1]) * 32


def pair_in(state: State) -> SessionPair:
    """Both sessions in a state; a slave in HANDSHAKE has said HELLO."""
    source = MemoryLog(1)
    source.write(11, *(bytes(1_000) for _ in range(20)))
    pair = SessionPair(source, MemoryLog(2))
    pair.step_master()
    pair.slave.take_output()
    if state is State.HANDSHAKE:
        return pair
    if state is State.COMPARING:
        return comparing(source)
    if state is State.REPAIRING:
        return repairing(source)
    pair = SessionPair(source, MemoryLog(2))
    pair.is_flushing = state is not State.CATCH_UP
    pair.settle()
    if state in (State.HANDING_OVER, State.YIELDED):
        pair.master.prepare(TERM)
        pair.settle()
    if state is State.YIELDED:
        pair.slave.ready()
        pair.settle()
        pair.master.give_up_mastery(pair.source.committed_pos)
        pair.settle()
    if state is State.LOST:
        pair.master.closed("the end")
        pair.slave.closed("the end")
    assert pair.master.state is pair.slave.state is state
    return pair


def comparing(replica: MemoryLog) -> SessionPair:
    """A master that lost all but the first frames, and has asked for the next ones."""
    replica.node = 2
    source = MemoryLog(1)
    source.write(11, *(bytes(1_000) for _ in range(5)))
    pair = SessionPair(source, replica, compares=True)
    pair.step_master()
    pair.master.received(b"".join(pair.slave.take_output()), pair.now_ms)
    pair.slave.received(b"".join(pair.master.take_output()), pair.now_ms)
    assert pair.master.state is pair.slave.state is State.COMPARING
    return pair


def repairing(source: MemoryLog) -> SessionPair:
    """A master whose slave has a damaged log, and a slave of another connection."""
    pair = SessionPair(source, MemoryLog(2))
    replica = MemoryLog(2)
    replica.append(source.start_pos, source.data)
    replica.cluster = source.cluster
    pair.step_master()
    hello = introduce(replica, Facts(role=Role.REPAIRING))
    pair.master.received(
        wire.encode_hello(hello, nonce=SLAVE_NONCE, secret=SECRET, master_nonce=MASTER_NONCE),
        pair.now_ms,
    )
    pair.slave.take_output()
    assert pair.master.state is State.REPAIRING
    return pair


def valid_message(kind: MessageType, pair: SessionPair) -> bytes:
    """A message that a right peer could send, as far as the state allows any."""
    source, end_pos = pair.source, pair.replica.end_pos
    match kind:
        case MessageType.CHALLENGE:
            return wire.encode_challenge(MASTER_NONCE)
        case MessageType.HELLO:
            hello = wire.Hello(wire.NO_CLUSTER, 2, 1, source.segment_size_bytes, 0, 0, -1, 0, ())
            return wire.encode_hello(
                hello, nonce=SLAVE_NONCE, secret=SECRET, master_nonce=MASTER_NONCE
            )
        case MessageType.WELCOME:
            welcome = Welcome(
                source.cluster, 1, 11, source.segment_size_bytes, 0, source.committed_pos, 0
            )
            return wire.encode_welcome(welcome, secret=SECRET, slave_nonce=SLAVE_NONCE)
        case MessageType.REFUSED:
            refused = Refused(RefusalCode.OTHER_SLAVE, "has one")
            return wire.encode_refused(refused, secret=SECRET, slave_nonce=SLAVE_NONCE)
        case MessageType.DATA:
            frame = make_frame(end_pos, 11, b"x")
            return wire.encode_data_head(end_pos, len(frame)) + frame
        case MessageType.BEAT:
            return wire.encode_beat(Beat(0, source.committed_pos + 999, 0, 0, 11, pair.now_ms))
        case MessageType.PREPARE | MessageType.READY | MessageType.TAKEN:
            return wire.encode_term(kind, TERM)
        case MessageType.READ | MessageType.REQUEST:
            return wire.encode_read(0, 100, kind)
        case MessageType.BYTES | MessageType.SUPPLY:
            return wire.encode_bytes(source.committed_pos, bytes(100), kind)
        case MessageType.YIELD:
            return wire.encode_yield(wire.Yield(TERM, end_pos))
        case MessageType.ACK:
            master = pair.master
            return wire.encode_ack(
                Ack(master.received_pos, master.durable_pos, master.proved_ms or 0)
            )


ROLES = (("master", MASTER_STATES), ("slave", SLAVE_STATES))

ENDS = [
    pytest.param(role, table, state, id=f"{role}, {state.value}")
    for role, table in ROLES
    for state in State
    # A slave that repairs has a session of its own: test_repair_sessions.py.
    if (role, state) != ("slave", State.REPAIRING)
]
"""Each end of a connection in each of its states."""


@pytest.mark.parametrize("kind", MessageType)
@pytest.mark.parametrize(("role", "states", "state"), ENDS)
def test_each_message_in_each_state_does_what_the_table_says(
    role: str, states: States, state: State, kind: MessageType
) -> None:
    reads = MASTER_READS if role == "master" else SLAVE_READS
    pair = pair_in(state)
    session = getattr(pair, role)
    data = valid_message(kind, pair)
    if role == "slave" and kind is MessageType.CHALLENGE and state is State.HANDSHAKE:
        pair = SessionPair(pair.source, pair.replica)  # one that has heard none
        session = pair.slave
    if role == "slave" and kind is MessageType.YIELD and state is State.HANDING_OVER:
        session.ready()
    session.received(data, pair.now_ms)
    expected = states.get((state, ARRIVALS[kind])) if kind in reads else None
    assert session.state is (expected or State.LOST)
    if expected is None and state is not State.LOST:
        assert f"a message of type {kind.value} in place of" in session.reason


@pytest.mark.parametrize(("role", "states", "state"), ENDS)
def test_each_state_ends_by_fault_silence_and_close(
    role: str, states: States, state: State
) -> None:
    for event in (Event.FAULT, Event.SILENCE, Event.CLOSED):
        pair = pair_in(state)
        session = getattr(pair, role)
        if event is Event.FAULT:
            session.fail("the log")
        elif event is Event.SILENCE:
            session.tick(pair.now_ms + LIMITS.silence_ms)
        else:
            session.closed("no more")
        assert session.state is states.get((state, event), State.LOST) is State.LOST
        assert ((state, event) in states) == (state is not State.LOST)
        assert (session.reason == "the end") == (state is State.LOST)


def test_the_tables_have_no_row_that_no_test_reaches() -> None:
    """Those of arrivals and ends are above; what is left are the two that tests name."""
    ends = {Event.FAULT, Event.SILENCE, Event.CLOSED}
    for states, reads in ((MASTER_STATES, MASTER_READS), (SLAVE_STATES, SLAVE_READS)):
        arrivals = {ARRIVALS[kind] for kind in reads}
        rest = {event for _, event in states if event not in ends | arrivals}
        begun = {Event.CAUGHT_UP, Event.REFUSED, Event.ANSWERED, Event.NO_STREAM}
        handed = {Event.PREPARE, Event.READY, Event.YIELD, Event.TAKEN}
        lent = {Event.DAMAGED, Event.SUPPLY}
        assert rest <= begun | handed | lent | {Event.LACKS, Event.READ, Event.BYTES}
        assert all(state is not State.LOST for state, _ in states)


@pytest.mark.parametrize("role", ["master", "slave"])
@pytest.mark.parametrize("state", [State.HANDSHAKE, State.CATCH_UP, State.STREAMING])
def test_garbage_ends_a_session_and_never_changes_a_log(role: str, state: State) -> None:
    """Seeded: messages that are cut, changed, repeated and mixed, and plain random bytes."""
    for seed in range(60):
        chance = random.Random(seed)
        pair = pair_in(state)
        session = getattr(pair, role)
        good = bytes(pair.to_slave if role == "slave" else pair.to_master)
        for _ in range(30):
            data = bytearray(
                chance.choice(
                    [
                        chance.randbytes(chance.randrange(1, 200)),
                        good[chance.randrange(len(good) + 1) :][:2_000] or b"?",
                        valid_message(chance.choice(list(MessageType)), pair),
                    ]
                )
            )
            for _ in range(chance.choice((0, 0, 1, 5))):
                data[chance.randrange(len(data))] = chance.randrange(256)
            before = pair.replica.data
            if role == "slave":
                pair.give_slave(bytes(data))
            else:
                session.received(bytes(data), pair.now_ms)
            assert pair.replica.data.startswith(before), seed
            assert pair.master.durable_pos <= pair.master.received_pos <= pair.master.sent_pos
            assert pair.master.sent_pos <= pair.source.committed_pos
            session.take_output()
