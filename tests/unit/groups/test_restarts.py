"""What the log has of groups, and that a broker which begins with it goes on as if nothing were."""

import random
from typing import Any

import pytest

from compat.kafka.groups.group import Group, GroupState
from compat.kafka.groups.rebalance import EMPTY_CHECK_MS, SAVE_RETRY_MS
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.simulator.sim_fs import CrashMode
from tests.unit.groups.harness import DELAY_MS, REBALANCE_MS, SESSION_MS, GroupHarness

A, B = {"client_id": "a"}, {"client_id": "b", "instance_id": "i"}


def essence(group: Group) -> tuple[Any, ...]:
    """All of a group that a restart must not change."""
    return group.to_frame(), dict(group.static_ids), group.size_bytes


def test_members_of_a_stable_group_go_on_without_a_rebalance(harness: GroupHarness) -> None:
    leader, follower = harness.stable(A, B)
    before = essence(harness.group())
    harness.advance(SESSION_MS - 1)
    harness.restart()
    assert essence(harness.group()) == before
    harness.advance(SESSION_MS - 1)
    assert harness.heartbeat(leader.member_id, 1) is ErrorCode.none
    reply = harness.sync(follower.member_id, 1, instance_id="i")
    assert reply.answer.assignment == follower.member_id.encode()
    assert harness.join("g", follower.member_id, instance_id="i").answer.generation == 1
    assert harness.group().state is GroupState.STABLE


def test_a_generation_without_its_assignment_gets_it_after_the_restart(
    harness: GroupHarness,
) -> None:
    waiting = [harness.join(**each) for each in (A, B)]
    harness.advance(2 * DELAY_MS)
    answers = [each.answer for each in waiting]
    harness.sync(answers[1].member_id, 1)
    before = essence(harness.group())
    harness.restart()
    assert essence(harness.group()) == before
    harness.share(answers)
    assert harness.group().state is GroupState.STABLE


def test_a_generation_that_nobody_comes_back_to_does_not_stay(harness: GroupHarness) -> None:
    waiting = [harness.join(client_id=name) for name in "ab"]
    harness.advance(2 * DELAY_MS)
    harness.restart()
    member_id = waiting[1].answer.member_id
    waiting_again = harness.sync(member_id, 1)
    harness.advance(SESSION_MS)
    assert waiting_again.answer.error is ErrorCode.rebalance_in_progress
    assert harness.join("g", member_id).answer.generation == 2


def test_a_rebalance_that_is_cut_off_begins_again(harness: GroupHarness) -> None:
    leader, follower = harness.stable(A, B)
    harness.join("g", leader.member_id)
    harness.restart()
    assert harness.heartbeat(follower.member_id, 1, "i") is ErrorCode.none
    waiting = harness.join("g", leader.member_id)
    harness.join("g", follower.member_id, instance_id="i")
    assert waiting.answer.generation == 2


def test_numbers_go_on_after_a_restart(harness: GroupHarness) -> None:
    (member,) = harness.stable(A)
    harness.leave(member.member_id)
    harness.restart()
    (again,) = harness.stable(A)
    assert again.generation == 3
    assert again.member_id != member.member_id


def test_a_group_that_damage_took_begins_above_all_generations_that_were_given(
    harness: GroupHarness,
) -> None:
    harness.log.generation_floor = 7
    (member,) = harness.stable(A)
    assert member.generation == 8
    harness.leave(member.member_id)
    harness.restart()
    (again,) = harness.stable(A)
    assert again.generation == 10


def test_above_a_floor_too_a_group_that_nobody_got_into_is_let_go(harness: GroupHarness) -> None:
    harness.log.generation_floor = 7
    refused = harness.join("g", protocols={})
    assert refused.answer.error is ErrorCode.inconsistent_group_protocol
    assert harness.groups.find("g") is None


def test_after_a_restart_a_member_that_changed_is_noticed(harness: GroupHarness) -> None:
    _, follower = harness.stable(A, B)
    harness.restart()
    changed = harness.join("g", follower.member_id, instance_id="i", protocols={"range": b"n"})
    assert not changed.is_answered


def test_after_a_restart_other_protocols_are_learned_again(harness: GroupHarness) -> None:
    both = {"range": b"m", "sticky": b"s"}
    _, follower = harness.stable(A | {"protocols": both}, B | {"protocols": both})
    harness.restart()
    again = harness.join("g", follower.member_id, instance_id="i", protocols=both)
    assert again.answer.generation == 1
    assert dict(harness.group().members[follower.member_id].protocols) == both


def test_a_static_member_comes_back_to_a_broker_that_came_back(harness: GroupHarness) -> None:
    _, follower = harness.stable(A, B)
    harness.restart()
    back = harness.join("g", **B).answer
    harness.restart()
    reply = harness.sync(back.member_id, 1, instance_id="i")
    assert reply.answer.assignment == follower.member_id.encode()


def test_a_group_of_offsets_alone_is_there_again(harness: GroupHarness) -> None:
    assert harness.groups.check_commit("g", "", None, -1, 0) is ErrorCode.none
    harness.log.commit("g")
    harness.restart()
    assert harness.group().state is GroupState.EMPTY
    assert harness.group().state_ms == 0
    assert harness.log.saved_count == 0
    assert harness.groups.delete("g") is ErrorCode.none
    assert harness.log.names == []


def test_an_empty_group_is_forgotten_when_it_has_no_offsets(harness: GroupHarness) -> None:
    (member,) = harness.stable(A)
    harness.log.commit("g")
    harness.leave(member.member_id)
    harness.advance(EMPTY_CHECK_MS)
    assert harness.groups.find("g") is not None
    harness.restart()
    harness.log.expire_offsets("g")
    harness.advance(EMPTY_CHECK_MS)
    assert harness.groups.find("g") is None
    assert harness.log.names == []
    assert harness.groups.next_deadline_ms() is None


def test_a_group_that_is_full_of_life_is_not_forgotten(harness: GroupHarness) -> None:
    (member,) = harness.stable(A)
    harness.leave(member.member_id)
    harness.advance(EMPTY_CHECK_MS - DELAY_MS)
    waiting = harness.join()
    harness.advance(DELAY_MS)
    assert waiting.answer.generation == 3
    assert harness.groups.find("g") is not None


def test_an_id_that_was_given_keeps_the_group_until_it_is_over(harness: GroupHarness) -> None:
    (member,) = harness.stable(A)
    harness.leave(member.member_id)
    harness.advance(EMPTY_CHECK_MS - 1)
    pending = harness.join(is_member_id_required=True).answer.member_id
    harness.advance(1)
    waiting = harness.join("g", pending)
    harness.advance(DELAY_MS)
    assert waiting.answer.error is ErrorCode.none


def test_a_simple_group_without_offsets_is_forgotten_without_a_trace(harness: GroupHarness) -> None:
    harness.groups.check_commit("g", "", None, -1, 0)
    harness.advance(EMPTY_CHECK_MS)
    assert harness.groups.find("g") is None
    assert harness.log.saved_count == 0


def test_without_room_in_the_log_a_group_goes_on_and_is_recorded_later(
    harness: GroupHarness,
) -> None:
    harness.log.is_full = True
    (member,) = harness.stable(A, session_timeout_ms=2 * SAVE_RETRY_MS)
    assert harness.log.groups == {}
    harness.advance(SAVE_RETRY_MS - 1)
    harness.log.is_full = False
    assert harness.log.saved_count == 0
    harness.advance(1)
    assert harness.log.groups["g"] == harness.group().to_frame()
    harness.restart()
    assert harness.heartbeat(member.member_id, 1) is ErrorCode.none


def test_without_room_in_the_log_nothing_is_deleted(harness: GroupHarness) -> None:
    (member,) = harness.stable(A)
    harness.leave(member.member_id)
    harness.log.is_full = True
    assert harness.groups.delete("g") is ErrorCode.coordinator_not_available
    harness.advance(EMPTY_CHECK_MS)
    assert harness.groups.find("g") is not None
    harness.log.is_full = False
    harness.advance(SAVE_RETRY_MS)
    assert harness.groups.find("g") is None
    assert harness.log.groups == {}


def test_a_generation_is_recorded_twice_and_heartbeats_never(harness: GroupHarness) -> None:
    """Once when it begins and once when it has its assignment."""
    leader, _ = harness.stable(A, B)
    assert harness.log.saved_count == 2
    for _ in range(10):
        harness.heartbeat(leader.member_id, 1)
    harness.sync(leader.member_id, 1)
    assert harness.log.saved_count == 2


@pytest.mark.parametrize("mode", ["dropped", "kept"])
def test_a_group_survives_the_end_of_a_real_broker(mode: CrashMode) -> None:
    harness = BrokerHarness()
    members = GroupHarness()
    members.log, members.clock = harness.broker.groups, harness.clock  # type: ignore[assignment]
    members.restart()
    leader, _ = members.stable(A, B)
    before = essence(members.group())
    harness.flush()
    harness = harness.crash(mode, random.Random(1))
    members.log, members.clock = harness.broker.groups, harness.clock  # type: ignore[assignment]
    members.restart()
    assert essence(members.group()) == before
    assert members.heartbeat(leader.member_id, 1) is ErrorCode.none
    members.advance(REBALANCE_MS)
