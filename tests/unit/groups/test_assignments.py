"""SyncGroup: every member gets what the leader sent for it, and nobody waits for ever."""

import pytest

from compat.kafka.groups.group import GroupState
from compat.kafka.groups.member import JoinAnswer
from compat.kafka.protocol.error_codes import ErrorCode
from tests.unit.groups.harness import DELAY_MS, REBALANCE_MS, SESSION_MS, GroupHarness

A, B = {"client_id": "a"}, {"client_id": "b"}


def two_joined(harness: GroupHarness) -> tuple[JoinAnswer, JoinAnswer]:
    """A leader and a follower of generation 1, which has no assignment yet."""
    waiting = [harness.join(client_id=name) for name in "ab"]
    harness.advance(2 * DELAY_MS)
    leader, follower = (each.answer for each in waiting)
    return leader, follower


def test_who_is_left_out_gets_nothing_and_strangers_are_ignored(harness: GroupHarness) -> None:
    leader, follower = two_joined(harness)
    harness.sync(leader.member_id, 1, {leader.member_id: b"x", "stranger": b"z"})
    assert harness.sync(follower.member_id, 1).answer.assignment == b""
    assert "stranger" not in harness.group().members


def test_a_follower_cannot_assign(harness: GroupHarness) -> None:
    leader, follower = two_joined(harness)
    waiting = harness.sync(follower.member_id, 1, {follower.member_id: b"all"})
    assert not waiting.is_answered
    harness.sync(leader.member_id, 1, {})
    assert waiting.answer.assignment == b""


def test_a_stable_group_keeps_its_assignment(harness: GroupHarness) -> None:
    (leader,) = harness.stable(A)
    again = harness.sync(leader.member_id, 1, {leader.member_id: b"other"})
    assert again.answer.assignment == leader.member_id.encode()


def test_wrong_names_and_generations_are_refused(harness: GroupHarness) -> None:
    leader, follower = two_joined(harness)
    assert harness.sync("x", 1).answer.error is ErrorCode.unknown_member_id
    assert harness.sync(leader.member_id, 1, group="").answer.error is ErrorCode.invalid_group_id
    assert harness.sync(leader.member_id, 1, group="h").answer.error is ErrorCode.unknown_member_id
    for generation in (0, 2, -1):
        error = harness.sync(leader.member_id, generation).answer.error
        assert error is ErrorCode.illegal_generation
    for protocol_type, protocol in (("consumer", "other"), ("connect", "range")):
        refused = harness.sync(
            leader.member_id, 1, protocol=protocol, protocol_type=protocol_type
        ).answer
        assert refused.error is ErrorCode.inconsistent_group_protocol
    fine = harness.sync(follower.member_id, 1, protocol="range", protocol_type="consumer")
    assert not fine.is_answered


def test_a_join_before_the_assignment_sends_all_back(harness: GroupHarness) -> None:
    leader, follower = two_joined(harness)
    waiting = harness.sync(follower.member_id, 1)
    harness.join()
    assert waiting.answer.error is ErrorCode.rebalance_in_progress
    late = harness.sync(leader.member_id, 1, {})
    assert late.answer.error is ErrorCode.rebalance_in_progress


def test_a_second_sync_of_a_member_answers_the_first_one(harness: GroupHarness) -> None:
    leader, follower = two_joined(harness)
    first, second = (harness.sync(follower.member_id, 1) for _ in range(2))
    assert first.answer.error is ErrorCode.rebalance_in_progress
    harness.sync(leader.member_id, 1, {follower.member_id: b"y"})
    assert second.answer.assignment == b"y"


def test_a_leader_that_never_assigns_is_removed(harness: GroupHarness) -> None:
    leader, follower = two_joined(harness)
    waiting = harness.sync(follower.member_id, 1)
    for _ in range(REBALANCE_MS // 5_000):
        assert harness.heartbeat(leader.member_id, 1) is ErrorCode.none
        assert not waiting.is_answered
        harness.advance(5_000)
    assert waiting.answer.error is ErrorCode.rebalance_in_progress
    assert harness.heartbeat(leader.member_id, 1) is ErrorCode.unknown_member_id
    again = harness.join("g", follower.member_id).answer
    assert (again.generation, again.leader_id) == (2, follower.member_id)


def test_a_follower_that_never_asks_is_removed(harness: GroupHarness) -> None:
    leader, follower = two_joined(harness)
    harness.sync(leader.member_id, 1, {})
    for _ in range(REBALANCE_MS // 5_000):
        assert harness.heartbeat(leader.member_id, 1) is ErrorCode.none
        assert harness.heartbeat(follower.member_id, 1) is ErrorCode.none
        harness.advance(5_000)
    assert harness.heartbeat(follower.member_id, 1) is ErrorCode.unknown_member_id
    assert harness.heartbeat(leader.member_id, 1) is ErrorCode.rebalance_in_progress


def test_assignments_beyond_the_limit_are_an_error_for_all(harness: GroupHarness) -> None:
    leader, follower = two_joined(harness)
    waiting = harness.sync(follower.member_id, 1)
    large = harness.sync(leader.member_id, 1, {follower.member_id: bytes(16 << 10)})
    assert large.answer.error is ErrorCode.unknown_server_error
    assert waiting.answer.error is ErrorCode.unknown_server_error
    assert harness.group().state is GroupState.PREPARING_REBALANCE


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_who_leaves_while_it_waits_is_answered(harness: GroupHarness, who: str) -> None:
    leader, follower = two_joined(harness)
    waiting = harness.sync(follower.member_id, 1)
    harness.leave(leader.member_id if who == "leader" else follower.member_id)
    expected = ErrorCode.rebalance_in_progress if who == "leader" else ErrorCode.unknown_member_id
    assert waiting.answer.error is expected


def test_an_assignment_begins_the_session_again(harness: GroupHarness) -> None:
    leader, follower = two_joined(harness)
    harness.sync(follower.member_id, 1)
    harness.advance(SESSION_MS - 1)
    harness.heartbeat(leader.member_id, 1)
    harness.advance(SESSION_MS - 1)
    harness.sync(leader.member_id, 1, {})
    harness.advance(SESSION_MS - 1)
    assert set(harness.group().members) == {leader.member_id, follower.member_id}
