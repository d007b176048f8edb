"""Heartbeats and silence: who is alive, who leaves, and what the others learn of it."""

from typing import Any

import pytest

from compat.kafka.error_codes import ErrorCode
from compat.kafka.groups.group import GroupState
from compat.kafka.groups.rebalance import NEW_MEMBER_TIMEOUT_MS
from tests.groups.hall import DELAY_MS, REBALANCE_MS, SESSION_MS, Hall

A, B, C = {"client_id": "a"}, {"client_id": "b"}, {"client_id": "c"}


def test_a_heartbeat_is_answered_by_what_the_group_does() -> None:
    hall = Hall()
    leader, follower = hall.stable(A, B)
    assert hall.heartbeat(leader.member_id, 1) is ErrorCode.NONE
    assert hall.heartbeat(leader.member_id, 0) is ErrorCode.ILLEGAL_GENERATION
    assert hall.heartbeat(leader.member_id, 2) is ErrorCode.ILLEGAL_GENERATION
    assert hall.heartbeat("x", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert hall.heartbeat(leader.member_id, 1, group="h") is ErrorCode.UNKNOWN_MEMBER_ID
    assert hall.heartbeat(leader.member_id, 1, group="") is ErrorCode.INVALID_GROUP_ID
    hall.join()
    assert hall.heartbeat(leader.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    for each in (leader, follower):
        hall.join("g", each.member_id)
    assert hall.group().state is GroupState.COMPLETING_REBALANCE
    assert hall.heartbeat(leader.member_id, 1) is ErrorCode.ILLEGAL_GENERATION
    assert hall.heartbeat(leader.member_id, 2) is ErrorCode.NONE


def test_a_silent_member_is_removed_after_its_session() -> None:
    hall = Hall()
    leader, follower = hall.stable(A, B)
    hall.advance(SESSION_MS - 1)
    assert hall.heartbeat(follower.member_id, 1) is ErrorCode.NONE
    hall.advance(1)
    assert hall.heartbeat(leader.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert hall.heartbeat(follower.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_only_commits_is_alive() -> None:
    hall = Hall()
    (member,) = hall.stable(A)
    for _ in range(3):
        hall.advance(SESSION_MS - 1)
        error = hall.groups.check_commit("g", member.member_id, None, 1, hall.now_ms)
        assert error is ErrorCode.NONE


def test_a_member_that_waits_for_the_others_stays() -> None:
    hall = Hall()
    leader, follower = hall.stable(A, B | {"session_timeout_ms": 100_000})
    waiting = hall.join("g", leader.member_id)
    hall.advance(REBALANCE_MS - 1)
    assert not waiting.is_answered
    assert leader.member_id in hall.group().members
    hall.advance(1)
    assert waiting.answer.generation == 2
    hall.advance(SESSION_MS - 1)
    assert hall.heartbeat(leader.member_id, 2) is ErrorCode.NONE
    assert hall.heartbeat(follower.member_id, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_new_member_waits_five_minutes_at_most() -> None:
    hall = Hall()
    long: Any = {
        "rebalance_timeout_ms": 10 * NEW_MEMBER_TIMEOUT_MS,
        "session_timeout_ms": 1_000_000,
    }
    hall.stable(A, B, **long)
    waiting = hall.join()
    hall.advance(NEW_MEMBER_TIMEOUT_MS)
    assert waiting.answer.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_shorter_session_counts_at_once() -> None:
    hall = Hall()
    leader, follower = hall.stable(A, B, session_timeout_ms=60_000)
    hall.join("g", follower.member_id, session_timeout_ms=SESSION_MS)
    hall.heartbeat(follower.member_id, 1)
    hall.advance(SESSION_MS)
    assert set(hall.group().members) == {leader.member_id}


def test_the_last_one_that_goes_leaves_an_empty_group() -> None:
    hall = Hall()
    leader, _ = hall.stable(A, B)
    hall.advance(SESSION_MS)
    group = hall.group()
    assert (group.state, group.generation, group.leader_id) == (GroupState.EMPTY, 2, None)
    assert (group.protocol_type, group.protocol) == ("consumer", None)
    assert hall.groups.empty_since_ms("g") == hall.clock.wall_ms()
    again = hall.join("g")
    hall.advance(DELAY_MS)
    assert again.answer.generation == 3
    assert hall.heartbeat(leader.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_that_is_left_while_it_waits_for_more_is_empty_again() -> None:
    hall = Hall()
    waiting = hall.join(client_id="a")
    (member_id,) = hall.group().members
    assert hall.leave(member_id) == [ErrorCode.NONE]
    assert waiting.answer.error is ErrorCode.UNKNOWN_MEMBER_ID
    hall.advance(DELAY_MS)
    assert hall.group().state is GroupState.EMPTY


def test_who_leaves_is_gone_at_once() -> None:
    hall = Hall()
    leader, follower = hall.stable(A, B)
    assert hall.leave(leader.member_id) == [ErrorCode.NONE]
    assert hall.leave(leader.member_id) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert hall.heartbeat(follower.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    again = hall.join("g", follower.member_id).answer
    assert (again.generation, again.leader_id) == (2, follower.member_id)


def test_many_leave_at_once_and_each_is_answered() -> None:
    hall = Hall()
    a, b, c = hall.stable(A, B | {"instance_id": "i"}, C | {"instance_id": "j"})
    pending = hall.join(is_member_id_required=True).answer.member_id
    errors = hall.leave(
        a.member_id, "x", ("", "i"), ("", "nobody"), (a.member_id, "j"), pending, a.member_id, ""
    )
    assert errors == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    group = hall.group()
    assert set(group.members) == {c.member_id}
    assert not group.pending
    assert hall.leave(b.member_id, group="h") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert hall.leave(b.member_id, group="") == [ErrorCode.INVALID_GROUP_ID]


def test_a_generation_begins_when_those_that_are_missing_leave() -> None:
    hall = Hall()
    leader, follower = hall.stable(A, B)
    waiting = hall.join("g", follower.member_id, protocols={"range": b"n"})
    hall.leave(leader.member_id)
    assert waiting.answer.leader_id == follower.member_id


@pytest.mark.parametrize("is_pending_first", [True, False])
def test_a_commit_is_checked(is_pending_first: bool) -> None:
    """`is_pending_first` does not change anything but the order of what was heard first."""
    hall = Hall()

    def check(
        member_id: str = "", generation: int = -1, instance_id: str | None = None, group: str = "g"
    ) -> ErrorCode:
        return hall.groups.check_commit(group, member_id, instance_id, generation, hall.now_ms)

    if is_pending_first:
        hall.join(is_member_id_required=True)
    assert check("m", 1) is (
        ErrorCode.UNKNOWN_MEMBER_ID if is_pending_first else ErrorCode.ILLEGAL_GENERATION
    )
    assert check() is ErrorCode.NONE
    assert check("m") is ErrorCode.NONE
    assert check(group="") is ErrorCode.NONE
    hall.advance(SESSION_MS)
    static, other = hall.stable(A | {"instance_id": "i"}, B)
    assert check() is ErrorCode.UNKNOWN_MEMBER_ID
    assert check("m", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert check(other.member_id) is ErrorCode.ILLEGAL_GENERATION
    assert check(other.member_id, 2) is ErrorCode.ILLEGAL_GENERATION
    assert check(other.member_id, 1) is ErrorCode.NONE
    assert check(other.member_id, 1, "i") is ErrorCode.FENCED_INSTANCE_ID
    assert check(static.member_id, 1, "i") is ErrorCode.NONE
    assert check("", 1, "i") is ErrorCode.FENCED_INSTANCE_ID
    hall.join("g", static.member_id, instance_id="i")
    assert check(other.member_id, 1) is ErrorCode.NONE
    hall.join("g", other.member_id)
    assert check(other.member_id, 1) is ErrorCode.ILLEGAL_GENERATION
    assert check(other.member_id, 2) is ErrorCode.REBALANCE_IN_PROGRESS
