"""Members with an instance id: they come back without a rebalance, and keep others out."""

import pytest

from compat.kafka.error_codes import ErrorCode
from compat.kafka.groups.group import GroupState
from tests.groups.hall import DELAY_MS, REBALANCE_MS, SESSION_MS, Hall

A, B = {"instance_id": "a"}, {"instance_id": "b"}


def test_a_follower_that_comes_back_gets_its_assignment_and_nobody_notices() -> None:
    hall = Hall()
    leader, follower = hall.stable(A, B)
    back = hall.join("g", **B).answer
    assert (back.error, back.generation) == (ErrorCode.NONE, 1)
    assert back.member_id != follower.member_id
    assert (back.leader_id, back.skip_assignment, back.members) == (leader.member_id, False, ())
    assert hall.group().state is GroupState.STABLE
    assert hall.heartbeat(leader.member_id, 1, "a") is ErrorCode.NONE
    reply = hall.sync(back.member_id, 1, instance_id="b")
    assert reply.answer.assignment == follower.member_id.encode()


def test_a_leader_that_comes_back_leaves_the_assignment_as_it_is() -> None:
    hall = Hall()
    leader, follower = hall.stable(A, B)
    back = hall.join("g", **A).answer
    assert back.skip_assignment
    assert back.leader_id == back.member_id
    assert [each for each, _, _ in back.members] == [back.member_id, follower.member_id]
    reply = hall.sync(back.member_id, 1, {}, instance_id="a")
    assert reply.answer.assignment == leader.member_id.encode()


def test_an_old_client_that_led_takes_itself_for_a_follower() -> None:
    """It would assign otherwise, and nobody would listen."""
    hall = Hall()
    leader, _ = hall.stable(A, B)
    back = hall.join("g", **A, can_skip_assignment=False).answer
    assert (back.leader_id, back.skip_assignment, back.members) == (leader.member_id, False, ())
    assert hall.group().leader_id == back.member_id


def test_the_old_id_of_a_static_member_is_fenced() -> None:
    hall = Hall()
    _, follower = hall.stable(A, B)
    hall.join("g", **B)
    old = follower.member_id
    assert hall.heartbeat(old, 1, "b") is ErrorCode.FENCED_INSTANCE_ID
    assert hall.sync(old, 1, instance_id="b").answer.error is ErrorCode.FENCED_INSTANCE_ID
    assert hall.join_error("g", old, instance_id="b") is ErrorCode.FENCED_INSTANCE_ID
    assert hall.leave((old, "b")) == [ErrorCode.FENCED_INSTANCE_ID]
    assert hall.heartbeat(old, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_two_with_one_instance_id_cannot_both_be_in() -> None:
    hall = Hall()
    first, second = hall.join(**A), hall.join(**A)
    assert first.answer.error is ErrorCode.FENCED_INSTANCE_ID
    hall.advance(2 * DELAY_MS)
    assert len(second.answer.members) == 1


def test_a_waiting_sync_of_the_old_id_is_fenced() -> None:
    hall = Hall()
    waiting = [hall.join(**each) for each in (A, B)]
    hall.advance(2 * DELAY_MS)
    leader, follower = (each.answer for each in waiting)
    old = hall.sync(follower.member_id, 1, instance_id="b")
    back = hall.join("g", **B)
    assert old.answer.error is ErrorCode.FENCED_INSTANCE_ID
    # The leader was told the old id, so that it would assign nothing to the new one.
    assert not back.is_answered
    hall.join("g", leader.member_id, instance_id="a")
    assert back.answer.generation == 2


def test_coming_back_with_another_protocol_makes_all_join_again() -> None:
    hall = Hall()
    both = {"protocols": {"x": b"", "y": b""}}
    _, _, _ = hall.stable(A | both, B | both, {"instance_id": "c"} | both)
    only_y = hall.join("g", **B, protocols={"y": b""})
    assert not only_y.is_answered
    assert hall.group().state is GroupState.PREPARING_REBALANCE


def test_coming_back_with_another_subscription_is_no_reason_to_join_again() -> None:
    """As in Kafka: the leader learns of it at the next rebalance."""
    hall = Hall()
    hall.stable(A, B)
    assert hall.join("g", **B, protocols={"range": b"n"}).answer.generation == 1
    assert hall.group().metadata_of(hall.group().members[hall.group().static_ids["b"]]) == b"n"


def test_a_static_member_that_does_not_come_back_is_removed_after_its_session() -> None:
    hall = Hall()
    leader, follower = hall.stable(A, B)
    hall.advance(SESSION_MS - 1)
    hall.heartbeat(leader.member_id, 1, "a")
    assert follower.member_id in hall.group().members
    hall.advance(1)
    assert follower.member_id not in hall.group().members
    assert hall.heartbeat(leader.member_id, 1, "a") is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_static_member_that_is_away_stays_through_a_rebalance() -> None:
    hall = Hall()
    long = {"session_timeout_ms": 100_000}
    away, here = hall.stable(A | long, B | long)
    again = hall.join("g", here.member_id, instance_id="b", protocols={"range": b"n"}, **long)
    hall.advance(REBALANCE_MS)
    assert again.answer.generation == 2
    assert [each for each, _, _ in again.answer.members] == [away.member_id, here.member_id]
    assert again.answer.leader_id == here.member_id


def test_a_rebalance_of_members_that_are_all_away_waits_for_their_sessions() -> None:
    hall = Hall()
    long = {"session_timeout_ms": 100_000}
    away, _ = hall.stable(A | long, B)
    hall.advance(SESSION_MS)
    assert hall.group().state is GroupState.PREPARING_REBALANCE
    hall.advance(2 * REBALANCE_MS)
    assert hall.group().state is GroupState.PREPARING_REBALANCE
    assert set(hall.group().members) == {away.member_id}
    hall.advance(REBALANCE_MS)
    assert hall.group().state is GroupState.EMPTY


def test_a_static_member_is_not_told_its_id_first() -> None:
    hall = Hall()
    waiting = hall.join(**A, is_member_id_required=True)
    hall.advance(DELAY_MS)
    assert waiting.answer.error is ErrorCode.NONE
    assert waiting.answer.member_id.startswith("a-")


@pytest.mark.parametrize("state", [GroupState.PREPARING_REBALANCE, GroupState.STABLE])
def test_a_name_that_is_not_in_the_group_is_unknown(state: GroupState) -> None:
    hall = Hall()
    (member,) = hall.stable(A)
    if state is GroupState.PREPARING_REBALANCE:
        hall.join()
    assert hall.group().state is state
    for instance_id in ("x", ""):
        error = hall.heartbeat(member.member_id, 1, instance_id)
        assert error is ErrorCode.UNKNOWN_MEMBER_ID
