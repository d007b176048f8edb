"""A master that compares answers a slave, or a question, and streams nothing."""

import asyncio
import random
import struct

import pytest

from appliance.errors import RemoteProtocolError
from appliance.replication import wire
from appliance.replication.common_point import Relation
from appliance.replication.facts import Facts, Role
from appliance.replication.logs import NO_CLUSTER
from appliance.replication.question import Asker, Question, ask
from appliance.replication.states import State
from appliance.replication.wire import RefusalCode, Welcome
from tests.support.harness.replica_logs import CLUSTER, MemoryLog
from tests.support.harness.replica_pair import Pair, running, until
from tests.support.harness.replica_sessions import LIMITS, SECRET, SessionPair
from tests.unit.replication.test_sessions import filled


def compared(source: MemoryLog, replica: MemoryLog, terms: tuple[int, int] = (1, 1)) -> SessionPair:
    pair = SessionPair(source, replica, terms=terms, compares=True)
    before = replica.data
    pair.settle()
    assert pair.master.state is State.LOST
    assert pair.slave.state is (State.LOST if pair.master.refused else State.COMPARING)
    assert replica.data == before
    assert not replica.calls
    return pair


@pytest.mark.parametrize(
    ("replica", "relation"),
    [
        (filled(2, 11), Relation.FOLLOWS),
        (filled(2, 11, 13), Relation.FOLLOWS),
        (MemoryLog(2), Relation.ANEW),
    ],
)
def test_slave_that_has_no_more_fits_and_comes_again(
    replica: MemoryLog, relation: Relation
) -> None:
    pair = compared(filled(1, 11, 13), replica)
    assert pair.master.compared is not None
    assert pair.master.compared.relation is relation
    assert pair.slave.was_compared


def test_what_this_master_wrote_and_lost_is_taken_from_the_slave() -> None:
    longer = filled(2, 11, 13)
    longer.write(13, b"lost by the master", bytes(200_000), b"and more")
    longest = filled(2, 11, 13, 15, 17)
    longest.write(17, *(bytes(1_000) for _ in range(500)))
    for replica in (longer, filled(2, 11, 13, 15), longest):
        source = filled(1, 11, 13)
        pair = compared(source, replica)
        assert pair.master.compared is not None
        assert source.data == replica.data
        assert pair.slave.was_compared


def test_damaged_parts_are_asked_for_if_the_slave_has_them() -> None:
    source, replica = filled(1, 11, 13, size=10_000), filled(2, 11, 13, size=10_000)
    replica.write(13, b"lost by the master")
    end = source.committed_pos
    parts = ((100, 200), (1_000, 150_000), (end - 10, end + 10))
    pair = SessionPair(source, replica, terms=(1, 1), compares=True, damaged=parts)
    pair.settle()
    assert pair.master.compared is not None
    assert source.data == replica.data, "and the end"
    repaired = sorted(pair.repaired.items())
    assert repaired[0] == (100, replica.data[100:200])
    assert b"".join(data for _, data in repaired[1:]) == replica.data[1_000:150_000]


def in_taking() -> SessionPair:
    """The master waits for the first bytes of what it lost."""
    pair = SessionPair(filled(1, 11), filled(2, 11, 13), terms=(1, 1), compares=True)
    pair.step_master()
    pair.master.received(b"".join(pair.slave.take_output()), pair.now_ms)
    assert pair.master.state is State.COMPARING
    return pair


@pytest.mark.parametrize(
    ("shift", "size"), [(1, 10), (-1, 10), (0, wire.READ_SIZE_MAX_BYTES)], ids=str
)
def test_bytes_that_were_not_asked_for_end_the_connection(shift: int, size: int) -> None:
    pair = in_taking()
    before = pair.source.data
    pos = pair.source.committed_pos + shift
    pair.master.received(wire.encode_bytes(pos, bytes(size)), pair.now_ms)
    assert pair.master.state is State.LOST
    assert pair.master.found is None
    assert pair.source.data == before


def test_second_answer_to_one_question_ends_the_connection() -> None:
    pair = in_taking()
    data = wire.encode_bytes(pair.source.committed_pos, bytes(10))
    pair.master.received(data, pair.now_ms)
    assert pair.master.found is not None
    pair.master.received(data, pair.now_ms)
    assert pair.master.state is State.LOST


def test_slave_that_falls_silent_in_the_middle_is_given_up() -> None:
    pair = in_taking()
    pair.master.tick(pair.now_ms + LIMITS.silence_ms)
    assert pair.master.state is State.LOST
    assert pair.master.compared is None


@pytest.mark.parametrize("size", [0, wire.READ_SIZE_MAX_BYTES + 1, 1 << 31])
def test_master_that_asks_for_too_much_gets_nothing(size: int) -> None:
    pair = in_taking()
    pair.settle()
    pair = in_taking()
    pair.give_slave(b"".join(pair.master.take_output()))
    pair.slave.take_output()
    pair.give_slave(struct.pack(">IBqI", 13, wire.MessageType.READ, 0, size))
    assert pair.slave.state is State.LOST
    assert not pair.slave.take_output()


def test_old_master_that_has_more_of_an_older_term_fits() -> None:
    """It is cut when it follows: it was not the master when it wrote that, or nobody had it."""
    longer = filled(1, 11)
    longer.write(11, b"nobody has it")
    source = filled(2, 11)
    pair = compared(source, longer, terms=(2, 1))
    assert pair.master.compared is not None
    assert source.data == filled(2, 11).data, "nothing of that is taken"


def test_slave_of_a_higher_term_does_not_fit() -> None:
    pair = compared(filled(1, 11), filled(2, 11), terms=(1, 2))
    assert pair.master.compared is None
    assert pair.master.refused is not None
    assert pair.master.refused.code == RefusalCode.NEWER_TERM


def test_master_without_a_log_does_not_fit_a_slave_with_one() -> None:
    pair = compared(MemoryLog(1), filled(2, 11), terms=(0, 0))
    assert pair.master.compared is None
    assert pair.master.refused is not None
    assert pair.master.refused.code == RefusalCode.OTHER_CLUSTER


def test_two_logs_that_are_both_empty_fit() -> None:
    assert compared(MemoryLog(1), MemoryLog(2), terms=(0, 0)).master.compared is not None


def asker(facts: Facts, *, node: int = 2, cluster: bytes = CLUSTER) -> Asker:
    return Asker(cluster, node, 1, MemoryLog(2).segment_size_bytes, facts)


async def question(pair: Pair, facts: Facts, secret: bytes | None = None) -> Welcome:
    known = secret or b"0123456789abcdef"
    return await ask(pair.address, asker(facts), known, limit_s=10)


def test_question_is_answered_and_the_stream_to_the_slave_goes_on() -> None:
    async def play() -> None:
        async with running(filled(1, 11), MemoryLog(2)) as pair:
            pair.follow()
            await until(pair.is_streaming)
            for role in (Role.MASTER, Role.COMPARING):
                found = await question(pair, Facts(4, role))
                assert found.cluster == CLUSTER
                assert found.node == 1
            assert pair.is_streaming()
            with pytest.raises(RemoteProtocolError, match="wrong secret"):
                await question(pair, Facts(4, Role.MASTER), b"another secret of a node")

    asyncio.run(play())


def test_question_checks_who_answers() -> None:
    nonce, secret = bytes(32), SECRET
    answers = {
        "as well": Welcome(CLUSTER, 2, 11, 1 << 16, 0, 9, 0),
        "of cluster": Welcome(bytes([9]) * 16, 1, 11, 1 << 16, 0, 9, 0),
    }
    for fault, welcome in answers.items():
        asked = Question(asker(Facts(1, Role.MASTER)), secret, nonce)
        output, found = asked.received(wire.encode_challenge(bytes(32)))
        assert output
        assert found is None
        with pytest.raises(RemoteProtocolError, match=fault):
            asked.received(wire.encode_welcome(welcome, secret=secret, slave_nonce=nonce))
    asked = Question(asker(Facts(1, Role.MASTER), cluster=NO_CLUSTER), secret, nonce)
    asked.received(wire.encode_challenge(bytes(32)))
    right = Welcome(CLUSTER, 1, 11, 1 << 16, 0, 9, 0, facts=Facts(3, Role.MASTER))
    data = wire.encode_welcome(right, secret=secret, slave_nonce=nonce)
    for byte in range(len(data) - 1):
        assert asked.received(data[byte : byte + 1]) == (b"", None)
    assert asked.received(data[-1:]) == (b"", right)


def give_all(asked: Question, pieces: list[bytes]) -> None:
    for piece in pieces:
        assert asked.received(piece)[1] is None


def test_garbage_in_place_of_an_answer_is_an_error_and_nothing_else() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        asked = Question(asker(Facts(1, Role.MASTER)), SECRET, bytes(32))
        pieces = [rng.randbytes(rng.randrange(1, 100)) for _ in range(20)]
        if seed % 2:
            pieces.insert(0, wire.encode_challenge(bytes(32)))
        with pytest.raises(RemoteProtocolError):
            give_all(asked, pieces)
