"""Both sessions, without a network and in virtual time: what they do, and what they reject."""

import random
from dataclasses import replace

import pytest

from appliance.replication import wire
from appliance.replication.common_point import Relation
from appliance.replication.facts import Facts, Role
from appliance.replication.link_limits import CatchUp, LinkLimits
from appliance.replication.message_reader import MessageReader
from appliance.replication.states import State
from appliance.replication.wire import Ack, Beat, RefusalCode, Refused
from tests.support.harness.replica_logs import MemoryLog, make_frame
from tests.support.harness.replica_sessions import LIMITS, SECRET, SessionPair


def filled(node: int, *epochs: int, count: int = 10, size: int = 1_000) -> MemoryLog:
    """A log with `count` frames in each epoch; logs with the same epochs are equal."""
    log = MemoryLog(node)
    for epoch in epochs:
        chance = random.Random(epoch)
        log.write(epoch, *(chance.randbytes(size) for _ in range(count)))
    return log


def streaming(source: MemoryLog | None = None, **options: LinkLimits) -> SessionPair:
    pair = SessionPair(source or filled(1, 11), MemoryLog(2), **options)
    pair.settle()
    assert pair.master.state is pair.slave.state is State.STREAMING, pair.slave.reason
    return pair


def test_an_empty_slave_gets_all_and_then_what_is_new() -> None:
    pair = streaming(filled(1, 11, 13, count=100))
    assert pair.replica.data == pair.source.data
    assert pair.replica.calls == ["restart 0"]
    pair.source.write(13, b"new")
    pair.master.moved(pair.now_ms)
    pair.settle()
    assert pair.replica.data == pair.source.data
    assert pair.master.durable_pos == pair.source.committed_pos
    assert pair.slave.beat is not None
    assert pair.slave.beat.committed_pos == pair.source.committed_pos


@pytest.mark.parametrize(
    ("slave_epochs", "relation", "call"),
    [
        ((11, 13), Relation.FOLLOWS, None),
        ((11,), Relation.FOLLOWS, None),
        ((11, 12), Relation.DIVERGED, "truncate 10120"),
        ((12,), Relation.ANEW, "restart 0"),
    ],
)
def test_a_slave_keeps_what_is_common_and_gets_the_rest(
    slave_epochs: tuple[int, ...], relation: Relation, call: str | None
) -> None:
    source, replica = filled(1, 11, 13), filled(2, *slave_epochs)
    diverged = replica.data[10_120:] if relation is Relation.DIVERGED else b""
    pair = SessionPair(source, replica)
    pair.settle()
    assert pair.master.relation is relation
    assert replica.data == source.data
    assert replica.calls == ([call] if call else [])
    assert replica.diverged == diverged
    assert pair.slave.state is State.STREAMING


def test_a_slave_below_the_start_of_the_log_starts_anew_there() -> None:
    source, replica = filled(1, 11, 13), filled(2, 11, count=3)
    source.free(source.epochs()[1][1])
    pair = SessionPair(source, replica)
    pair.settle()
    assert replica.calls == ["restart 10120"]
    assert replica.data == source.data


def other_slave(code: RefusalCode) -> tuple[MemoryLog, MemoryLog]:
    """Logs of a master and a slave that do not go together."""
    source, replica = filled(1, 11, 13), filled(2, 11)
    match code:
        case RefusalCode.OTHER_FORMAT:
            replica.format_version = 2
        case RefusalCode.OTHER_CLUSTER:
            replica.cluster = bytes([9]) * 16
        case RefusalCode.OTHER_SEGMENT_SIZE:
            replica.segment_size_bytes *= 2
        case RefusalCode.SAME_NODE:
            replica.node = 1
        case RefusalCode.AHEAD:
            replica = filled(2, 11, 13, count=10)
            replica.write(13, b"the master lost this")
        case _:
            pass
    return source, replica


@pytest.mark.parametrize("code", sorted(set(RefusalCode) - wire.OPEN_CODES))
def test_a_slave_that_does_not_fit_is_refused_with_the_reason(code: RefusalCode) -> None:
    source, replica = other_slave(code)
    before = replica.data
    pair = SessionPair(
        source,
        replica,
        terms=(1, 2 if code is RefusalCode.NEWER_TERM else 1),
        leases_ms=(2_000, 1_999 if code is RefusalCode.SHORT_LEASE else 2_000),
    )
    if code is RefusalCode.OTHER_SLAVE:
        pair.refused = Refused(code, "has a slave at 10.0.0.3:7")
    pair.settle()
    assert pair.master.refused is not None
    assert pair.master.refused.code == code
    assert pair.master.refused.text
    assert pair.slave.state is State.LOST
    assert code.name.lower().replace("_", " ") in pair.slave.reason
    assert replica.data == before
    assert not replica.calls


def test_an_old_master_that_began_one_more_epoch_follows_the_master_of_the_newer_term() -> None:
    master = filled(2, 11, 14)
    old = filled(1, 11, 15)
    pair = SessionPair(master, old, terms=(2, 1))
    pair.settle()
    assert pair.slave.state is State.STREAMING
    assert old.data == master.data
    assert old.diverged


def test_a_slave_does_not_follow_a_master_whose_term_has_ended() -> None:
    """The master would refuse it; this one does not know its own term."""
    replica = filled(2, 11, 13)
    before = replica.data
    pair = SessionPair(filled(1, 11, 13), replica, terms=(2, 2))
    pair.master._facts = lambda: Facts(2 if pair.master.hello is None else 1, Role.MASTER)
    pair.master._find_mismatch = lambda _: None  # type: ignore[method-assign]
    pair.settle()
    assert pair.slave.state is State.LOST
    assert "term 1, which ended" in pair.slave.reason
    assert replica.data == before


def test_who_does_not_know_the_secret_learns_nothing() -> None:
    pair = SessionPair(filled(1, 11), MemoryLog(2), slave_secret=b"another secret, as long")
    pair.settle()
    assert pair.slave.reason == "refused: wrong secret"
    assert pair.master.hello is None
    challenge = wire.encode_challenge(bytes([1]) * 32)
    refused = wire.encode_refused(
        Refused(RefusalCode.WRONG_SECRET, ""), secret=SECRET, slave_nonce=b""
    )
    assert pair.to_slave == challenge + refused
    assert SECRET not in pair.to_master


def test_a_recorded_hello_is_of_no_use_for_another_connection() -> None:
    recorded = bytes(streaming().to_master)
    pair = SessionPair(filled(1, 11), MemoryLog(2))
    pair.master._nonce = bytes([7]) * 32
    size = 4 + int.from_bytes(recorded[:4], "big")
    pair.master.received(recorded[:size], pair.now_ms)
    assert pair.master.reason == "refused: wrong secret"


def test_a_slave_of_another_protocol_is_refused_before_anything_else() -> None:
    pair = SessionPair(filled(1, 11), MemoryLog(2))
    hello = wire.Hello(wire.NO_CLUSTER, 2, 1, 4096, 0, 0, -1, 0, ())
    data = wire.encode_hello(
        hello, nonce=bytes(32), secret=b"whatever it may be", master_nonce=bytes(32), version=2
    )
    pair.master.received(data, pair.now_ms)
    assert pair.master.reason == "refused: other version"


def test_a_slave_leaves_a_master_of_another_protocol() -> None:
    pair = SessionPair(filled(1, 11), MemoryLog(2))
    challenge = bytearray(wire.encode_challenge(bytes(32)))
    challenge[10] = 2
    pair.give_slave(bytes(challenge))
    assert pair.slave.state is State.LOST
    assert "version 2" in pair.slave.reason
    assert not pair.slave.take_output()


# Welcomes that a right master never sends


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"cluster": bytes([9]) * 16}, "cluster"),
        ({"segment_size_bytes": 1 << 20}, "does not fit"),
        ({"node": 2}, "does not fit"),
        ({"common_pos": 10_121}, "cannot be equal"),
        ({"start_pos": 10_130, "common_pos": 10_131}, "cannot be equal"),
    ],
    ids=str,
)
def test_a_slave_checks_what_its_master_says_of_the_logs(
    change: dict[str, object], fact: str
) -> None:
    pair = SessionPair(filled(1, 11, 13), filled(2, 11))
    pair.step_master()
    pair.slave.take_output()
    welcome = wire.Welcome(pair.source.cluster, 1, 13, 1 << 16, 0, 20_240, 10_120)
    welcome = replace(welcome, **change)  # type: ignore[arg-type]
    data = wire.encode_welcome(welcome, secret=SECRET, slave_nonce=bytes([2]) * 32)
    pair.give_slave(data)
    assert pair.slave.state is State.LOST
    assert fact in pair.slave.reason
    assert not pair.replica.calls


def test_a_master_that_does_not_know_the_secret_gets_no_say() -> None:
    pair = SessionPair(filled(1, 11), filled(2, 12))
    pair.step_master()
    welcome = wire.Welcome(pair.source.cluster, 1, 13, 1 << 16, 0, 20_240, 0)
    data = wire.encode_welcome(
        welcome, secret=b"not the secret of both", slave_nonce=bytes([2]) * 32
    )
    pair.give_slave(data)
    assert pair.slave.reason == "the master does not know the secret"
    assert not pair.replica.calls


# Acknowledgements


@pytest.mark.parametrize(
    ("received", "durable", "time_ms", "fact"),
    [
        (1, 0, 0, "sent is"),
        (1 << 62, 0, 0, "sent is"),
        (0, 1, 0, "durable"),
        (-1_000, -1_000, 0, "moves back"),
        (0, -1_000, 0, "moves back"),
        (0, 0, 1, "no BEAT"),
        (0, 0, -1, "no BEAT"),
    ],
)
def test_an_acknowledgement_that_cannot_be_ends_the_connection(
    received: int, durable: int, time_ms: int, fact: str
) -> None:
    """As apache/rocketmq #1155, #3015 and #3016: a master believed that it was replicated."""
    pair = streaming()
    end_pos = pair.source.committed_pos
    assert pair.master.durable_pos == end_pos
    assert pair.master.proved_ms is not None
    ack = Ack(end_pos + received, end_pos + durable, pair.master.proved_ms + time_ms)
    pair.master.received(wire.encode_ack(ack), pair.now_ms)
    assert pair.master.state is State.LOST
    assert fact in pair.master.reason
    assert (pair.master.received_pos, pair.master.durable_pos) == (end_pos, end_pos)


def test_a_negative_acknowledgement_ends_the_connection() -> None:
    pair = SessionPair(filled(1, 11), MemoryLog(2))
    pair.step_master()
    pair.step_slave()
    pair.master.received(wire.encode_ack(Ack(0, -1, 0)), pair.now_ms)
    assert pair.master.state is State.LOST
    assert pair.master.durable_pos == 0


def test_a_late_acknowledgement_proves_only_what_it_answers() -> None:
    """A lease that counted from its arrival would last after the slave was promoted."""
    pair = streaming()
    proved_ms = pair.master.proved_ms
    late = wire.encode_ack(
        Ack(pair.slave.received_pos, pair.slave.durable_pos, pair.master.proved_ms or 0)
    )
    for _ in range(3):
        pair.now_ms += LIMITS.beat_ms
        pair.master.tick(pair.now_ms)
    pair.master.received(late, pair.now_ms)
    assert pair.master.state is State.STREAMING
    assert pair.master.acked_ms == pair.now_ms
    assert pair.master.proved_ms == proved_ms


def test_an_idle_pair_proves_itself_at_each_beat() -> None:
    """Else the lease of a master without load would be old by an interval more."""
    pair = streaming()
    for _ in range(100):
        pair.pass_time(50)
        assert pair.master.proved_ms is not None
        assert pair.now_ms - pair.master.proved_ms <= LIMITS.beat_ms
    assert pair.slave.state is State.STREAMING


def test_nothing_is_acknowledged_before_the_flush() -> None:
    pair = SessionPair(filled(1, 11), MemoryLog(2))
    pair.is_flushing = False
    pair.settle()
    pair.pass_time(1_000)
    assert pair.master.received_pos == pair.source.committed_pos
    assert pair.master.durable_pos == 0
    assert pair.master.state is pair.slave.state is State.CATCH_UP
    pair.is_flushing = True
    pair.settle()
    assert pair.master.durable_pos == pair.source.committed_pos
    assert pair.master.state is pair.slave.state is State.STREAMING


# What a slave rejects


@pytest.mark.parametrize("shift", [-1, 1, 1_000])
def test_data_that_does_not_follow_is_rejected(shift: int) -> None:
    pair = streaming()
    end_pos = pair.replica.end_pos
    frame = make_frame(end_pos, 11, b"x")
    pair.give_slave(wire.encode_data_head(end_pos + shift, len(frame)) + frame)
    assert pair.slave.state is State.LOST
    assert f"DATA at {end_pos + shift}" in pair.slave.reason
    assert pair.replica.end_pos == end_pos


@pytest.mark.parametrize(
    "change",
    [
        {"start_pos": -1},
        {"start_pos": 1 << 40},
        {"committed_pos": 10_119},
        {"flushed_pos": 10_119},
        {"flushed_pos": 10_121},
        {"visible_pos": 10_119},
        {"visible_pos": 10_121},
        {"epoch": 10},
        {"time_ms": 999},
    ],
    ids=str,
)
def test_a_beat_that_goes_back_is_rejected(change: dict[str, int]) -> None:
    source = filled(1, 11)
    source.flush()
    pair = streaming(source)
    beat = Beat(0, 10_120, 10_120, 10_120, 11, pair.now_ms)
    assert pair.slave.beat == beat
    pair.give_slave(wire.encode_beat(replace(beat, **change)))
    assert pair.slave.reason == "a BEAT that goes back"
    assert pair.slave.beat == beat


def test_a_beat_below_what_was_sent_is_rejected() -> None:
    pair = streaming()
    beat = pair.slave.beat
    assert beat is not None
    frame = make_frame(pair.replica.end_pos, 11, b"x")
    pair.give_slave(wire.encode_data_head(pair.replica.end_pos, len(frame)) + frame)
    assert pair.slave.state is State.STREAMING
    pair.give_slave(wire.encode_beat(beat))
    assert pair.slave.reason == "a BEAT that goes back"


def test_bytes_that_are_no_frames_end_the_connection_and_stay_out_of_the_log() -> None:
    pair = streaming()
    data = pair.replica.data
    garbage = b"\xff" * 100
    pair.give_slave(wire.encode_data_head(len(data), len(garbage)) + garbage)
    assert pair.slave.reason == f"no frame at {len(data)}"
    assert pair.replica.data == data


# Limits and time


def test_the_master_keeps_its_window_and_goes_on_when_it_opens() -> None:
    pair = SessionPair(filled(1, 11, count=300), MemoryLog(2))
    most = 0
    pair.step_master()
    pair.step_slave()
    while pair.step_master():
        most = max(most, pair.master.sent_pos)
    assert LIMITS.window_bytes - LIMITS.piece_bytes < most <= LIMITS.window_bytes
    assert pair.master.next_read(pair.now_ms) is None
    pair.settle()
    assert pair.replica.data == pair.source.data
    assert max(pair.source.read_sizes) <= LIMITS.piece_bytes


def pass_time(pair: SessionPair, until_ms: int) -> None:
    """Do what the links do, at the deadlines of the sessions."""
    pair.settle()
    while pair.now_ms < until_ms:
        deadlines = (pair.master.next_deadline_ms(), pair.slave.next_deadline_ms())
        due_ms = min(each for each in deadlines if each is not None)
        pair.now_ms = min(max(due_ms, pair.now_ms + 1), until_ms)
        pair.master.tick(pair.now_ms)
        pair.slave.tick(pair.now_ms)
        pair.settle()


def test_a_slave_that_catches_up_gets_no_more_than_it_may_and_then_what_comes_at_once() -> None:
    rate = 100_000
    pair = SessionPair(filled(1, 11, count=1_000), MemoryLog(2), catch_up_rate=rate)
    total = pair.source.committed_pos
    began_ms = pair.now_ms
    for second in range(1, total // rate):
        pass_time(pair, began_ms + 1_000 * second)
        sent = pair.master.sent_pos
        assert 0.95 * rate * second <= sent <= rate * second + 2 * LIMITS.piece_bytes
        assert pair.master.state is State.CATCH_UP, pair.master.reason
    pass_time(pair, began_ms + 1_000 * total // rate + 500)
    assert pair.master.state is pair.slave.state is State.STREAMING
    assert pair.replica.data == pair.source.data
    pair.source.write(11, *(bytes(1_000) for _ in range(3 * rate // 1_000)))
    pair.master.moved(pair.now_ms)
    pair.settle()
    assert pair.replica.data == pair.source.data, "a slave that has caught up is not slowed down"


def test_the_bound_of_a_slave_that_catches_up_is_lifted_when_it_is_waited_for() -> None:
    pair = SessionPair(filled(1, 11, count=1_000), MemoryLog(2), catch_up_rate=10_000)
    pass_time(pair, pair.now_ms + 1_000)
    assert pair.master.sent_pos < 50_000
    pair.catch_up_rate = 0
    pass_time(pair, pair.now_ms + 1_000)
    assert pair.master.state is State.STREAMING
    assert pair.replica.data == pair.source.data


def test_a_paced_master_whose_socket_is_full_does_not_turn_in_circles() -> None:
    """The owner does not ask what to read then; a deadline in the past would be due at once."""
    pair = SessionPair(filled(1, 11, count=1_000), MemoryLog(2), catch_up_rate=10_000)
    pair.settle()
    due_ms = pair.master.next_deadline_ms()
    assert due_ms is not None
    pair.now_ms = due_ms
    pair.master.tick(pair.now_ms)
    after_ms = pair.master.next_deadline_ms()
    assert after_ms is not None
    assert after_ms > pair.now_ms


def test_a_flush_that_takes_long_does_not_close_the_window() -> None:
    pair = SessionPair(filled(1, 11, count=300), MemoryLog(2))
    pair.is_flushing = False
    pair.settle()
    assert pair.master.sent_pos == pair.source.committed_pos > 4 * LIMITS.window_bytes
    assert pair.master.durable_pos == 0


def test_a_segment_that_was_freed_ends_the_connection() -> None:
    pair = SessionPair(filled(1, 11, 13), MemoryLog(2))
    pair.step_master()
    pair.step_slave()
    pair.source.free(pair.source.epochs()[1][1])
    assert pair.master.next_read(pair.now_ms) is None
    assert pair.master.reason == "the slave lacks a segment that was freed"


@pytest.mark.parametrize("is_streaming", [False, True])
def test_silence_ends_the_connection_on_both_ends(is_streaming: bool) -> None:
    pair = streaming() if is_streaming else SessionPair(filled(1, 11), MemoryLog(2))
    for session in (pair.master, pair.slave):
        session.take_output()
        state = session.state
        pair.now_ms = 1_000 + LIMITS.silence_ms - 1
        session.tick(pair.now_ms)
        assert session.state is state
        pair.now_ms += 1
        session.tick(pair.now_ms)
        assert session.reason == f"silent for {LIMITS.silence_ms} ms"
        assert session.next_deadline_ms() is None


def test_bytes_of_a_handshake_that_never_ends_do_not_prolong_it() -> None:
    pair = SessionPair(filled(1, 11), MemoryLog(2))
    hello = wire.encode_challenge(bytes(32))
    for index in range(20):
        pair.now_ms += 100
        pair.give_slave(hello[index : index + 1])
        pair.master.received(b"\0\0\1\0\2"[index : index + 1], pair.now_ms)
    for session in (pair.master, pair.slave):
        session.tick(pair.now_ms)
        assert session.state is State.LOST


def test_a_piece_that_is_long_on_its_way_is_no_silence() -> None:
    pair = streaming()
    frame = make_frame(pair.replica.end_pos, 11, bytes(100))
    data = wire.encode_data_head(pair.replica.end_pos, len(frame)) + frame
    for index in range(len(data)):
        pair.now_ms += LIMITS.silence_ms // 2
        pair.give_slave(data[index : index + 1])
        pair.slave.tick(pair.now_ms)
    assert pair.slave.state is State.STREAMING


def test_a_beat_follows_the_data_that_it_counts() -> None:
    pair = streaming()
    before = len(pair.to_slave)
    for number in range(3):
        pair.source.write(11, b"%d" % number)
        pair.master.moved(pair.now_ms)
    assert not pair.master.take_output()
    pair.settle()
    reader = MessageReader()
    reader.feed(bytes(pair.to_slave[before:]))
    kinds = []
    while message := reader.next_message(tuple(wire.MessageType)):
        kinds.append("DATA" if isinstance(message, wire.Data) else message[0].name)
    assert kinds == ["DATA", "BEAT"]


def test_a_slave_of_a_log_that_grows_catches_up_in_short_rounds() -> None:
    catch_up = CatchUp(committed_pos=1_000, now_ms=0, round_ms=500)

    def is_reached(acked_pos: int, committed_pos: int, now_ms: int) -> bool:
        return catch_up.is_reached(acked_pos=acked_pos, committed_pos=committed_pos, now_ms=now_ms)

    assert not is_reached(999, 2_000, 100)
    assert not is_reached(1_000, 2_000, 501)  # too long; the next round goes to 2,000
    assert not is_reached(1_999, 3_000, 600)
    assert is_reached(2_000, 3_000, 1_001)


def test_a_slave_has_caught_up_when_it_has_all() -> None:
    catch_up = CatchUp(committed_pos=1_000, now_ms=0, round_ms=500)
    assert catch_up.is_reached(acked_pos=1_000, committed_pos=1_000, now_ms=1_000_000)
