"""Heartbeats and silence: who is alive, who leaves, and what the others learn of it."""

from typing import Any

import pytest

from compat.kafka.groups.group import GroupState
from compat.kafka.groups.rebalance import NEW_MEMBER_TIMEOUT_MS
from compat.kafka.protocol.error_codes import ErrorCode
from tests.unit.groups.harness import DELAY_MS, REBALANCE_MS, SESSION_MS, GroupHarness

A, B, C = {"client_id": "a"}, {"client_id": "b"}, {"client_id": "c"}


def test_a_heartbeat_is_answered_by_what_the_group_does(harness: GroupHarness) -> None:
    leader, follower = harness.stable(A, B)
    assert harness.heartbeat(leader.member_id, 1) is ErrorCode.none
    assert harness.heartbeat(leader.member_id, 0) is ErrorCode.illegal_generation
    assert harness.heartbeat(leader.member_id, 2) is ErrorCode.illegal_generation
    assert harness.heartbeat("x", 1) is ErrorCode.unknown_member_id
    assert harness.heartbeat(leader.member_id, 1, group="h") is ErrorCode.unknown_member_id
    assert harness.heartbeat(leader.member_id, 1, group="") is ErrorCode.invalid_group_id
    harness.join()
    assert harness.heartbeat(leader.member_id, 1) is ErrorCode.rebalance_in_progress
    for each in (leader, follower):
        harness.join("g", each.member_id)
    assert harness.group().state is GroupState.COMPLETING_REBALANCE
    assert harness.heartbeat(leader.member_id, 1) is ErrorCode.illegal_generation
    assert harness.heartbeat(leader.member_id, 2) is ErrorCode.none


def test_a_silent_member_is_removed_after_its_session(harness: GroupHarness) -> None:
    leader, follower = harness.stable(A, B)
    harness.advance(SESSION_MS - 1)
    assert harness.heartbeat(follower.member_id, 1) is ErrorCode.none
    harness.advance(1)
    assert harness.heartbeat(leader.member_id, 1) is ErrorCode.unknown_member_id
    assert harness.heartbeat(follower.member_id, 1) is ErrorCode.rebalance_in_progress


def test_a_member_that_only_commits_is_alive(harness: GroupHarness) -> None:
    """Also when the time to ask for the assignment would be over."""
    (member,) = harness.stable(A)
    for _ in range(REBALANCE_MS // SESSION_MS + 1):
        harness.advance(SESSION_MS - 1)
        error = harness.groups.check_commit("g", member.member_id, None, 1, harness.now_ms)
        assert error is ErrorCode.none
    assert harness.group().state is GroupState.STABLE


def test_a_member_that_waits_for_the_others_stays(harness: GroupHarness) -> None:
    leader, follower = harness.stable(A, B | {"session_timeout_ms": 100_000})
    waiting = harness.join("g", leader.member_id)
    harness.advance(REBALANCE_MS - 1)
    assert not waiting.is_answered
    assert leader.member_id in harness.group().members
    harness.advance(1)
    assert waiting.answer.generation == 2
    harness.advance(SESSION_MS - 1)
    assert harness.heartbeat(leader.member_id, 2) is ErrorCode.none
    assert harness.heartbeat(follower.member_id, 2) is ErrorCode.unknown_member_id


def test_a_new_member_waits_five_minutes_at_most(harness: GroupHarness) -> None:
    long: Any = {
        "rebalance_timeout_ms": 10 * NEW_MEMBER_TIMEOUT_MS,
        "session_timeout_ms": 1_000_000,
    }
    harness.stable(A, B, **long)
    waiting = harness.join()
    harness.advance(NEW_MEMBER_TIMEOUT_MS)
    assert waiting.answer.error is ErrorCode.unknown_member_id


def test_a_shorter_session_counts_at_once(harness: GroupHarness) -> None:
    leader, follower = harness.stable(A, B, session_timeout_ms=60_000)
    harness.join("g", follower.member_id, session_timeout_ms=SESSION_MS)
    harness.heartbeat(follower.member_id, 1)
    harness.advance(SESSION_MS)
    assert set(harness.group().members) == {leader.member_id}


def test_the_last_one_that_goes_leaves_an_empty_group(harness: GroupHarness) -> None:
    leader, _ = harness.stable(A, B)
    harness.advance(SESSION_MS)
    group = harness.group()
    assert (group.state, group.generation, group.leader_id) == (GroupState.EMPTY, 2, None)
    assert (group.protocol_type, group.protocol) == ("consumer", None)
    assert group.state_ms == harness.clock.wall_ms()
    again = harness.join("g")
    harness.advance(DELAY_MS)
    assert again.answer.generation == 3
    assert harness.heartbeat(leader.member_id, 1) is ErrorCode.unknown_member_id


def test_a_group_that_is_left_while_it_waits_for_more_is_empty_again(harness: GroupHarness) -> None:
    waiting = harness.join(client_id="a")
    (member_id,) = harness.group().members
    assert harness.leave(member_id) == [ErrorCode.none]
    assert waiting.answer.error is ErrorCode.unknown_member_id
    harness.advance(DELAY_MS)
    assert harness.group().state is GroupState.EMPTY


def test_many_leave_at_once_and_each_is_answered(harness: GroupHarness) -> None:
    a, b, c = harness.stable(A, B | {"instance_id": "i"}, C | {"instance_id": "j"})
    pending = harness.join(is_member_id_required=True).answer.member_id
    errors = harness.leave(
        a.member_id, "x", ("", "i"), ("", "nobody"), (a.member_id, "j"), pending, a.member_id, ""
    )
    assert errors == [
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.fenced_instance_id,
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
    ]
    group = harness.group()
    assert set(group.members) == {c.member_id}
    assert not group.pending
    assert harness.leave(b.member_id, group="h") == [ErrorCode.unknown_member_id]
    assert harness.leave(b.member_id, group="") == [ErrorCode.invalid_group_id]


def test_a_generation_begins_when_those_that_are_missing_leave(harness: GroupHarness) -> None:
    leader, follower = harness.stable(A, B)
    waiting = harness.join("g", follower.member_id, protocols={"range": b"n"})
    harness.leave(leader.member_id)
    assert waiting.answer.leader_id == follower.member_id


@pytest.mark.parametrize("is_pending_first", [True, False])
def test_a_commit_is_checked(harness: GroupHarness, is_pending_first: bool) -> None:
    """`is_pending_first` does not change anything but the order of what was heard first."""

    def check(
        member_id: str = "", generation: int = -1, instance_id: str | None = None, group: str = "g"
    ) -> ErrorCode:
        return harness.groups.check_commit(
            group, member_id, instance_id, generation, harness.now_ms
        )

    if is_pending_first:
        harness.join(is_member_id_required=True)
    assert check("m", 1) is (
        ErrorCode.unknown_member_id if is_pending_first else ErrorCode.illegal_generation
    )
    assert check() is ErrorCode.none
    assert check("m") is ErrorCode.none
    assert check(group="") is ErrorCode.none
    harness.advance(SESSION_MS)
    static, other = harness.stable(A | {"instance_id": "i"}, B)
    assert check() is ErrorCode.unknown_member_id
    assert check("m", 1) is ErrorCode.unknown_member_id
    assert check(other.member_id) is ErrorCode.illegal_generation
    assert check(other.member_id, 2) is ErrorCode.illegal_generation
    assert check(other.member_id, 1) is ErrorCode.none
    assert check(other.member_id, 1, "i") is ErrorCode.fenced_instance_id
    assert check(static.member_id, 1, "i") is ErrorCode.none
    assert check("", 1, "i") is ErrorCode.fenced_instance_id
    harness.join("g", static.member_id, instance_id="i")
    assert check(other.member_id, 1) is ErrorCode.none
    harness.join("g", other.member_id)
    assert check(other.member_id, 1) is ErrorCode.illegal_generation
    assert check(other.member_id, 2) is ErrorCode.rebalance_in_progress
