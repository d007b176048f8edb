"""A master that compares answers a slave, or a question, and streams nothing."""

import asyncio
import random

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
from tests.support.harness.replica_sessions import SECRET, SessionPair
from tests.unit.replication.test_sessions import filled


def compared(source: MemoryLog, replica: MemoryLog, terms: tuple[int, int] = (1, 1)) -> SessionPair:
    pair = SessionPair(source, replica, terms=terms, compares=True)
    before = replica.data
    pair.settle()
    assert pair.master.state is pair.slave.state is State.LOST
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


def test_slave_that_has_what_this_master_wrote_and_lost_does_not_fit() -> None:
    longer = filled(2, 11, 13)
    longer.write(13, b"lost by the master")
    for replica in (longer, filled(2, 11, 13, 15)):
        pair = compared(filled(1, 11, 13), replica)
        assert pair.master.compared is None
        assert pair.master.refused is not None
        assert pair.master.refused.code == RefusalCode.AHEAD


def test_old_master_that_has_more_of_an_older_term_fits() -> None:
    """It is cut when it follows: it was not the master when it wrote that, or nobody had it."""
    longer = filled(1, 11)
    longer.write(11, b"nobody has it")
    pair = compared(filled(2, 11), longer, terms=(2, 1))
    assert pair.master.compared is not None


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
