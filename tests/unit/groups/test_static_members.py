"""Members with an instance id: they come back without a rebalance, and keep others out."""

import pytest

from compat.kafka.groups.group import GroupState
from compat.kafka.protocol.error_codes import ErrorCode
from tests.unit.groups.harness import DELAY_MS, REBALANCE_MS, SESSION_MS, GroupHarness

A, B = {"instance_id": "a"}, {"instance_id": "b"}


def test_a_follower_that_comes_back_gets_its_assignment_and_nobody_notices(
    harness: GroupHarness,
) -> None:
    leader, follower = harness.stable(A, B)
    back = harness.join("g", **B).answer
    assert (back.error, back.generation) == (ErrorCode.none, 1)
    assert back.member_id != follower.member_id
    assert (back.leader_id, back.skip_assignment, back.members) == (leader.member_id, False, ())
    assert harness.group().state is GroupState.STABLE
    assert harness.heartbeat(leader.member_id, 1, "a") is ErrorCode.none
    reply = harness.sync(back.member_id, 1, instance_id="b")
    assert reply.answer.assignment == follower.member_id.encode()


def test_what_did_not_change_of_a_group_is_not_made_again_for_the_log(
    harness: GroupHarness,
) -> None:
    """In a group of 1,000 members, that took 2 ms for each that came back."""
    harness.stable(A, B)
    before = harness.group().to_frame().members
    harness.join("g", **B)
    after = harness.group().to_frame().members
    assert [new is old for new, old in zip(after, before, strict=True)] == [True, False]


def test_a_leader_that_comes_back_leaves_the_assignment_as_it_is(harness: GroupHarness) -> None:
    leader, follower = harness.stable(A, B)
    back = harness.join("g", **A).answer
    assert back.skip_assignment
    assert back.leader_id == back.member_id
    assert [each for each, _, _ in back.members] == [back.member_id, follower.member_id]
    reply = harness.sync(back.member_id, 1, {}, instance_id="a")
    assert reply.answer.assignment == leader.member_id.encode()


def test_an_old_client_that_led_takes_itself_for_a_follower(harness: GroupHarness) -> None:
    """It would assign otherwise, and nobody would listen."""
    leader, _ = harness.stable(A, B)
    back = harness.join("g", **A, can_skip_assignment=False).answer
    assert (back.leader_id, back.skip_assignment, back.members) == (leader.member_id, False, ())
    assert harness.group().leader_id == back.member_id


def test_the_old_id_of_a_static_member_is_fenced(harness: GroupHarness) -> None:
    _, follower = harness.stable(A, B)
    harness.join("g", **B)
    old = follower.member_id
    assert harness.heartbeat(old, 1, "b") is ErrorCode.fenced_instance_id
    assert harness.sync(old, 1, instance_id="b").answer.error is ErrorCode.fenced_instance_id
    assert harness.join_error("g", old, instance_id="b") is ErrorCode.fenced_instance_id
    assert harness.leave((old, "b")) == [ErrorCode.fenced_instance_id]
    assert harness.heartbeat(old, 1) is ErrorCode.unknown_member_id


def test_two_with_one_instance_id_cannot_both_be_in(harness: GroupHarness) -> None:
    first, second = harness.join(**A), harness.join(**A)
    assert first.answer.error is ErrorCode.fenced_instance_id
    harness.advance(2 * DELAY_MS)
    assert len(second.answer.members) == 1


def test_a_waiting_sync_of_the_old_id_is_fenced(harness: GroupHarness) -> None:
    waiting = [harness.join(**each) for each in (A, B)]
    harness.advance(2 * DELAY_MS)
    leader, follower = (each.answer for each in waiting)
    old = harness.sync(follower.member_id, 1, instance_id="b")
    back = harness.join("g", **B)
    assert old.answer.error is ErrorCode.fenced_instance_id
    # The leader knows the old id, so it would assign nothing to the new one.
    assert not back.is_answered
    harness.join("g", leader.member_id, instance_id="a")
    assert back.answer.generation == 2


def test_coming_back_with_another_protocol_makes_all_join_again(harness: GroupHarness) -> None:
    both = {"protocols": {"x": b"", "y": b""}}
    _, _, _ = harness.stable(A | both, B | both, {"instance_id": "c"} | both)
    only_y = harness.join("g", **B, protocols={"y": b""})
    assert not only_y.is_answered
    assert harness.group().state is GroupState.PREPARING_REBALANCE


def test_coming_back_with_another_subscription_is_no_reason_to_join_again(
    harness: GroupHarness,
) -> None:
    """As in Kafka: the leader learns of it at the next rebalance."""
    harness.stable(A, B)
    assert harness.join("g", **B, protocols={"range": b"n"}).answer.generation == 1
    assert (
        harness.group().metadata_of(harness.group().members[harness.group().static_ids["b"]])
        == b"n"
    )


def test_a_static_member_that_is_away_stays_through_a_rebalance(harness: GroupHarness) -> None:
    long = {"session_timeout_ms": 100_000}
    away, here = harness.stable(A | long, B | long)
    again = harness.join("g", here.member_id, instance_id="b", protocols={"range": b"n"}, **long)
    harness.advance(REBALANCE_MS)
    assert again.answer.generation == 2
    assert [each for each, _, _ in again.answer.members] == [away.member_id, here.member_id]
    assert again.answer.leader_id == here.member_id


def test_a_rebalance_of_members_that_are_all_away_waits_for_their_sessions(
    harness: GroupHarness,
) -> None:
    long = {"session_timeout_ms": 100_000}
    away, _ = harness.stable(A | long, B)
    harness.advance(SESSION_MS)
    assert harness.group().state is GroupState.PREPARING_REBALANCE
    harness.advance(2 * REBALANCE_MS)
    assert harness.group().state is GroupState.PREPARING_REBALANCE
    assert set(harness.group().members) == {away.member_id}
    harness.advance(REBALANCE_MS)
    assert harness.group().state is GroupState.EMPTY


def test_a_static_member_does_not_get_its_id_first(harness: GroupHarness) -> None:
    waiting = harness.join(**A, is_member_id_required=True)
    harness.advance(DELAY_MS)
    assert waiting.answer.error is ErrorCode.none
    assert waiting.answer.member_id.startswith("a-")


@pytest.mark.parametrize("state", [GroupState.PREPARING_REBALANCE, GroupState.STABLE])
def test_a_name_that_is_not_in_the_group_is_unknown(
    harness: GroupHarness, state: GroupState
) -> None:
    (member,) = harness.stable(A)
    if state is GroupState.PREPARING_REBALANCE:
        harness.join()
    assert harness.group().state is state
    for instance_id in ("x", ""):
        error = harness.heartbeat(member.member_id, 1, instance_id)
        assert error is ErrorCode.unknown_member_id
