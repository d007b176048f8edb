"""JoinGroup: who gets into which generation, with which protocol, and what is refused."""

from typing import Any

import pytest

from compat.kafka.groups.group import GroupState
from compat.kafka.protocol.error_codes import ErrorCode
from tests.unit.groups.harness import DELAY_MS, REBALANCE_MS, SESSION_MS, GroupHarness

A, B = {"client_id": "a"}, {"client_id": "b"}


def test_an_empty_group_waits_a_moment_and_again_for_each_that_comes(harness: GroupHarness) -> None:
    first = harness.join()
    harness.advance(DELAY_MS - 1)
    second = harness.join()
    harness.advance(DELAY_MS)
    assert not first.is_answered
    harness.advance(1)
    assert {first.answer.generation, second.answer.generation} == {1}
    assert harness.group().state is GroupState.COMPLETING_REBALANCE


def test_an_empty_group_waits_no_longer_than_the_rebalance_timeout(harness: GroupHarness) -> None:
    first = harness.join(rebalance_timeout_ms=3 * DELAY_MS, client_id="first")
    for _ in range(5):
        harness.advance(DELAY_MS // 2)
        harness.join(rebalance_timeout_ms=0)
    harness.advance(DELAY_MS // 2 - 1)
    assert not first.is_answered
    harness.advance(1)
    assert first.answer.generation == 1
    assert len(first.answer.members) == 6


def test_without_a_delay_the_first_one_is_alone() -> None:
    harness = GroupHarness(initial_rebalance_delay_ms=0)
    first = harness.join()
    harness.advance(0)
    assert [member_id for member_id, _, _ in first.answer.members] == [first.answer.member_id]


def test_the_leader_alone_learns_who_is_in_it(harness: GroupHarness) -> None:
    leader, follower = harness.stable(A | {"protocols": {"range": b"x"}}, B | {"instance_id": "i"})
    assert leader.leader_id == follower.leader_id == leader.member_id
    assert leader.members == ((leader.member_id, None, b"x"), (follower.member_id, "i", b"m"))
    assert follower.members == ()
    assert (leader.protocol_type, leader.protocol) == ("consumer", "range")


def test_member_ids_begin_with_the_clients_name_and_are_never_the_same(
    harness: GroupHarness,
) -> None:
    ids = [harness.join("g", is_member_id_required=True).answer.member_id for _ in range(3)]
    assert len(set(ids)) == 3
    assert all(each.startswith("c-") and len(each) == 2 + 36 for each in ids)
    harness.join("h", instance_id="i" * 300)
    (static_id,) = harness.group("h").members
    assert static_id.startswith("i" * 255 + "-")
    assert len(static_id) == 255 + 1 + 36


def test_an_id_that_is_not_used_in_time_is_worth_nothing(harness: GroupHarness) -> None:
    member_id = harness.join(is_member_id_required=True).answer.member_id
    harness.advance(SESSION_MS)
    assert harness.join_error("g", member_id) is ErrorCode.unknown_member_id
    assert harness.groups.find("g") is None


def test_a_generation_waits_for_those_that_were_given_an_id(harness: GroupHarness) -> None:
    (old,) = harness.stable(A)
    pending = harness.join(is_member_id_required=True).answer.member_id
    harness.join()  # makes all join again
    rejoined = harness.join("g", old.member_id)
    assert not rejoined.is_answered
    harness.join("g", pending)
    assert len(rejoined.answer.members) == 3


def test_a_generation_stops_waiting_for_an_id_that_is_over(harness: GroupHarness) -> None:
    (old,) = harness.stable(A)
    harness.join(is_member_id_required=True)
    harness.join()
    rejoined = harness.join("g", old.member_id)
    harness.advance(SESSION_MS - 1)
    assert not rejoined.is_answered
    harness.advance(1)
    assert len(rejoined.answer.members) == 2


def test_the_protocol_with_most_votes_among_the_common_ones_wins(harness: GroupHarness) -> None:
    votes = (["a", "b", "c"], ["d", "b", "c"], ["c", "b"])
    answers = harness.stable(*({"protocols": dict.fromkeys(each, b"m")} for each in votes))
    assert {each.protocol for each in answers} == {"b"}


def test_of_equal_protocols_the_first_one_voted_for_wins(harness: GroupHarness) -> None:
    answers = harness.stable(
        {"protocols": {"b": b"", "a": b""}}, {"protocols": {"a": b"", "b": b""}}
    )
    assert answers[0].protocol == "b"


@pytest.mark.parametrize(
    "given",
    [
        {"protocols": {"other": b""}},
        {"protocol_type": "connect"},
        {"protocols": {}},
        {"protocol_type": ""},
    ],
)
def test_who_has_nothing_in_common_is_refused(harness: GroupHarness, given: dict[str, Any]) -> None:
    (member,) = harness.stable(A)
    assert harness.join_error(**given) is ErrorCode.inconsistent_group_protocol
    assert (
        harness.join_error("g", member.member_id, **given) is ErrorCode.inconsistent_group_protocol
    )
    assert harness.group().state is GroupState.STABLE


def test_an_empty_group_takes_any_kind_of_members_but_not_none(harness: GroupHarness) -> None:
    (member,) = harness.stable(A)
    harness.leave(member.member_id)
    assert harness.join_error(protocols={}) is ErrorCode.inconsistent_group_protocol
    (other,) = harness.stable({"protocol_type": "connect", "protocols": {"x": b""}})
    assert (other.generation, other.protocol_type) == (3, "connect")
    assert harness.join_error("new", protocols={}) is ErrorCode.inconsistent_group_protocol
    assert harness.groups.find("new") is None


def test_bad_names_and_timeouts_are_refused(harness: GroupHarness) -> None:
    assert harness.join_error("") is ErrorCode.invalid_group_id
    for timeout_ms in (5_999, 1_800_001, -1):
        error = harness.join_error(session_timeout_ms=timeout_ms)
        assert error is ErrorCode.invalid_session_timeout
    assert harness.join_error("g", "nobody") is ErrorCode.unknown_member_id
    assert harness.groups.find("g") is None
    harness.stable(A)
    assert harness.join_error("g", "nobody") is ErrorCode.unknown_member_id
    assert harness.join_error("g", "nobody", instance_id="i") is ErrorCode.unknown_member_id


def test_a_follower_that_has_not_changed_gets_the_present_generation_back(
    harness: GroupHarness,
) -> None:
    leader, follower = harness.stable(A, B)
    again = harness.join("g", follower.member_id).answer
    assert (again.generation, again.leader_id) == (1, leader.member_id)
    assert (again.members, again.protocol) == ((), "range")
    assert harness.group().state is GroupState.STABLE
    assert harness.sync(follower.member_id, 1).answer.assignment == follower.member_id.encode()


def test_a_member_that_has_changed_makes_all_join_again(harness: GroupHarness) -> None:
    leader, follower = harness.stable(A, B)
    again = harness.join("g", follower.member_id, protocols={"range": b"n"})
    assert harness.heartbeat(leader.member_id, 1) is ErrorCode.rebalance_in_progress
    members = harness.join("g", leader.member_id).answer.members
    assert again.answer.generation == 2
    assert [metadata for _, _, metadata in members] == [b"m", b"n"]


def test_another_order_of_protocols_is_a_change(harness: GroupHarness) -> None:
    both = {"a": b"", "b": b""}
    _, follower = harness.stable(A | {"protocols": both}, B | {"protocols": both})
    again = harness.join("g", follower.member_id, protocols={"b": b"", "a": b""})
    assert not again.is_answered


def test_who_missed_the_answer_gets_it_again_while_the_assignment_is_made(
    harness: GroupHarness,
) -> None:
    waiting = [harness.join(client_id=name) for name in "ab"]
    harness.advance(2 * DELAY_MS)
    for first in (each.answer for each in waiting):
        again = harness.join("g", first.member_id).answer
        assert again == first
    changed = harness.join("g", waiting[1].answer.member_id, protocols={"range": b"n"})
    assert not changed.is_answered
    assert harness.group().state is GroupState.PREPARING_REBALANCE


def test_a_second_join_of_a_member_answers_the_first_one(harness: GroupHarness) -> None:
    leader, follower = harness.stable(A, B)
    first = harness.join("g", leader.member_id)
    second = harness.join("g", leader.member_id)
    assert first.answer.error is ErrorCode.unknown_member_id
    assert not second.is_answered
    harness.join("g", follower.member_id)
    assert second.answer.generation == 2


def test_who_does_not_join_in_time_is_left_behind(harness: GroupHarness) -> None:
    leader, follower = harness.stable(A, B, session_timeout_ms=60_000)
    again = harness.join("g", follower.member_id, protocols={"range": b"n"})
    harness.advance(REBALANCE_MS - 1)
    assert not again.is_answered
    harness.advance(1)
    assert (again.answer.generation, again.answer.leader_id) == (2, follower.member_id)
    assert harness.heartbeat(leader.member_id, 1) is ErrorCode.unknown_member_id


def test_the_slowest_member_says_how_long_to_wait(harness: GroupHarness) -> None:
    slow = A | {"rebalance_timeout_ms": 50_000, "session_timeout_ms": 100_000}
    _, follower = harness.stable(slow, B, session_timeout_ms=100_000)
    again = harness.join("g", follower.member_id, protocols={"range": b"n"})
    harness.advance(49_999)
    assert not again.is_answered
    harness.advance(1)
    assert again.answer.generation == 2


def test_a_new_member_whose_connection_is_gone_is_not_waited_for(harness: GroupHarness) -> None:
    gone, here = harness.join(client_id="gone"), harness.join()
    gone.is_abandoned = True
    harness.advance(2 * DELAY_MS)
    assert [each for each, _, _ in here.answer.members] == [here.answer.member_id]
    assert gone.answer.error is ErrorCode.unknown_member_id


def test_generations_begin_again_at_the_end_of_numbers(harness: GroupHarness) -> None:
    (member,) = harness.stable(A)
    harness.group().generation = (1 << 31) - 1
    again = harness.join("g", member.member_id)
    assert again.answer.generation == 1
