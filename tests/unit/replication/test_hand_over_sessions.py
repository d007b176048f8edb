"""A hand-over between two sessions: each message may be lost, and no step comes before its time."""

import pytest

from appliance.replication import wire
from appliance.replication.slave_session import Prepare, Take
from appliance.replication.states import State
from appliance.replication.wire import MessageType
from tests.support.harness.replica_logs import MemoryLog
from tests.support.harness.replica_sessions import SessionPair
from tests.unit.replication.test_sessions import filled, streaming

TERM = 2


def prepared() -> SessionPair:
    """The slave has said READY."""
    pair = streaming()
    pair.master.prepare(TERM)
    pair.settle()
    assert pair.orders == [Prepare(TERM)]
    assert not pair.master.is_ready
    pair.slave.ready()
    pair.settle()
    assert pair.master.is_ready
    assert pair.master.state is pair.slave.state is State.HANDING_OVER
    return pair


def test_slave_takes_over_what_it_has_on_its_disk() -> None:
    pair = prepared()
    pair.source.write(11, b"the last record")
    pair.master.moved(pair.now_ms)
    pair.settle()
    assert pair.replica.data == pair.source.data
    pair.master.give_up_mastery(pair.source.committed_pos)
    pair.settle()
    assert pair.orders == [Prepare(TERM), Take(TERM)]
    assert not pair.master.is_taken
    pair.slave.taken()
    pair.settle()
    assert pair.master.is_taken
    assert pair.master.state is pair.slave.state is State.LOST


def test_stream_goes_on_while_the_slave_ends_a_checkpoint() -> None:
    pair = streaming()
    pair.master.prepare(TERM)
    for _ in range(30):
        pair.source.write(11, b"a record")
        pair.pass_time(500)
    assert pair.replica.data == pair.source.data
    assert pair.master.state is State.HANDING_OVER


@pytest.mark.parametrize(
    ("term", "shift", "is_ready"), [(TERM + 2, 0, True), (TERM, 8, True), (TERM, 0, False)]
)
def test_yield_that_does_not_fit_is_not_taken(term: int, shift: int, *, is_ready: bool) -> None:
    """Of another term, at another position, or before the slave is ready."""
    pair = streaming()
    pair.master.prepare(TERM)
    pair.settle()
    if is_ready:
        pair.slave.ready()
        pair.settle()
    order = wire.Yield(term, pair.source.committed_pos + shift)
    pair.give_slave(wire.encode_yield(order))
    assert pair.slave.state is State.LOST
    assert pair.orders == [Prepare(TERM)]


def test_yield_is_not_taken_while_something_is_not_on_the_disk() -> None:
    pair = prepared()
    pair.is_flushing = False
    pair.source.write(11, b"only in memory")
    pair.master.moved(pair.now_ms)
    pair.settle()
    pair.give_slave(wire.encode_yield(wire.Yield(TERM, pair.source.committed_pos)))
    assert pair.slave.state is State.LOST
    assert pair.orders == [Prepare(TERM)]


@pytest.mark.parametrize("kind", [MessageType.READY, MessageType.TAKEN])
def test_answer_about_another_term_is_not_believed(kind: MessageType) -> None:
    pair = prepared()
    if kind is MessageType.TAKEN:
        pair.master.give_up_mastery(pair.source.committed_pos)
    pair.master.received(wire.encode_term(kind, TERM + 2), pair.now_ms)
    assert pair.master.state is State.LOST
    assert not pair.master.is_taken


def test_slave_says_nothing_of_a_hand_over_that_is_over() -> None:
    pair = SessionPair(filled(1, 11), MemoryLog(2))
    pair.settle()
    pair.slave.ready()
    pair.slave.taken()
    assert not pair.slave.take_output()
    pair = prepared()
    pair.slave.closed("cut")
    pair.slave.taken()
    assert not pair.slave.take_output()
