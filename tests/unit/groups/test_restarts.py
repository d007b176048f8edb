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


def test_members_of_a_stable_group_go_on_without_a_rebalance() -> None:
    members = GroupHarness()
    leader, follower = members.stable(A, B)
    before = essence(members.group())
    members.advance(SESSION_MS - 1)
    members.restart()
    assert essence(members.group()) == before
    members.advance(SESSION_MS - 1)
    assert members.heartbeat(leader.member_id, 1) is ErrorCode.NONE
    reply = members.sync(follower.member_id, 1, instance_id="i")
    assert reply.answer.assignment == follower.member_id.encode()
    assert members.join("g", follower.member_id, instance_id="i").answer.generation == 1
    assert members.group().state is GroupState.STABLE


def test_members_that_do_not_come_back_are_removed() -> None:
    members = GroupHarness()
    members.stable(A, B)
    members.restart()
    members.advance(SESSION_MS)
    assert (members.group().state, members.group().generation) == (GroupState.EMPTY, 2)


def test_a_generation_without_its_assignment_gets_it_after_the_restart() -> None:
    members = GroupHarness()
    waiting = [members.join(**each) for each in (A, B)]
    members.advance(2 * DELAY_MS)
    answers = [each.answer for each in waiting]
    members.sync(answers[1].member_id, 1)
    before = essence(members.group())
    members.restart()
    assert essence(members.group()) == before
    members.share(answers)
    assert members.group().state is GroupState.STABLE


def test_a_generation_that_nobody_comes_back_to_does_not_stay() -> None:
    members = GroupHarness()
    waiting = [members.join(client_id=name) for name in "ab"]
    members.advance(2 * DELAY_MS)
    members.restart()
    member_id = waiting[1].answer.member_id
    waiting_again = members.sync(member_id, 1)
    members.advance(SESSION_MS)
    assert waiting_again.answer.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert members.join("g", member_id).answer.generation == 2


def test_a_rebalance_that_is_cut_off_begins_again() -> None:
    members = GroupHarness()
    leader, follower = members.stable(A, B)
    members.join("g", leader.member_id)
    members.restart()
    assert members.heartbeat(follower.member_id, 1, "i") is ErrorCode.NONE
    waiting = members.join("g", leader.member_id)
    members.join("g", follower.member_id, instance_id="i")
    assert waiting.answer.generation == 2


def test_numbers_go_on_after_a_restart() -> None:
    members = GroupHarness()
    (member,) = members.stable(A)
    members.leave(member.member_id)
    members.restart()
    (again,) = members.stable(A)
    assert again.generation == 3
    assert again.member_id != member.member_id


def test_a_group_that_damage_took_begins_above_all_generations_that_were_given() -> None:
    members = GroupHarness()
    members.log.generation_floor = 7
    (member,) = members.stable(A)
    assert member.generation == 8
    members.leave(member.member_id)
    members.restart()
    (again,) = members.stable(A)
    assert again.generation == 10


def test_above_a_floor_too_a_group_that_nobody_got_into_is_let_go() -> None:
    members = GroupHarness()
    members.log.generation_floor = 7
    refused = members.join("g", protocols={})
    assert refused.answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert members.groups.find("g") is None


def test_after_a_restart_a_member_that_changed_is_noticed() -> None:
    members = GroupHarness()
    _, follower = members.stable(A, B)
    members.restart()
    changed = members.join("g", follower.member_id, instance_id="i", protocols={"range": b"n"})
    assert not changed.is_answered


def test_after_a_restart_other_protocols_are_learned_again() -> None:
    members = GroupHarness()
    both = {"range": b"m", "sticky": b"s"}
    _, follower = members.stable(A | {"protocols": both}, B | {"protocols": both})
    members.restart()
    again = members.join("g", follower.member_id, instance_id="i", protocols=both)
    assert again.answer.generation == 1
    assert dict(members.group().members[follower.member_id].protocols) == both


def test_a_static_member_comes_back_to_a_broker_that_came_back() -> None:
    members = GroupHarness()
    _, follower = members.stable(A, B)
    members.restart()
    back = members.join("g", **B).answer
    members.restart()
    reply = members.sync(back.member_id, 1, instance_id="i")
    assert reply.answer.assignment == follower.member_id.encode()


def test_a_group_of_offsets_alone_is_there_again() -> None:
    members = GroupHarness()
    assert members.groups.check_commit("g", "", None, -1, 0) is ErrorCode.NONE
    members.log.commit("g")
    members.restart()
    assert members.group().state is GroupState.EMPTY
    assert members.groups.empty_since_ms("g") == 0
    assert members.log.saved_count == 0
    assert members.groups.delete("g") is ErrorCode.NONE
    assert members.log.names == []


def test_an_empty_group_is_forgotten_when_it_has_no_offsets() -> None:
    members = GroupHarness()
    (member,) = members.stable(A)
    members.log.commit("g")
    members.leave(member.member_id)
    members.advance(EMPTY_CHECK_MS)
    assert members.groups.find("g") is not None
    members.restart()
    members.log.expire_offsets("g")
    members.advance(EMPTY_CHECK_MS)
    assert members.groups.find("g") is None
    assert members.log.names == []
    assert members.groups.next_deadline_ms() is None


def test_a_group_that_is_full_of_life_is_not_forgotten() -> None:
    members = GroupHarness()
    (member,) = members.stable(A)
    members.leave(member.member_id)
    members.advance(EMPTY_CHECK_MS - DELAY_MS)
    waiting = members.join()
    members.advance(DELAY_MS)
    assert waiting.answer.generation == 3
    assert members.groups.find("g") is not None


def test_an_id_that_was_given_keeps_the_group_until_it_is_over() -> None:
    members = GroupHarness()
    (member,) = members.stable(A)
    members.leave(member.member_id)
    members.advance(EMPTY_CHECK_MS - 1)
    pending = members.join(is_member_id_required=True).answer.member_id
    members.advance(1)
    waiting = members.join("g", pending)
    members.advance(DELAY_MS)
    assert waiting.answer.error is ErrorCode.NONE


def test_a_simple_group_without_offsets_is_forgotten_without_a_trace() -> None:
    members = GroupHarness()
    members.groups.check_commit("g", "", None, -1, 0)
    members.advance(EMPTY_CHECK_MS)
    assert members.groups.find("g") is None
    assert members.log.saved_count == 0


def test_without_room_in_the_log_a_group_goes_on_and_is_recorded_later() -> None:
    members = GroupHarness()
    members.log.is_full = True
    (member,) = members.stable(A, session_timeout_ms=2 * SAVE_RETRY_MS)
    assert members.log.groups == {}
    members.advance(SAVE_RETRY_MS - 1)
    members.log.is_full = False
    assert members.log.saved_count == 0
    members.advance(1)
    assert members.log.groups["g"] == members.group().to_frame()
    members.restart()
    assert members.heartbeat(member.member_id, 1) is ErrorCode.NONE


def test_without_room_in_the_log_nothing_is_deleted() -> None:
    members = GroupHarness()
    (member,) = members.stable(A)
    members.leave(member.member_id)
    members.log.is_full = True
    assert members.groups.delete("g") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    members.advance(EMPTY_CHECK_MS)
    assert members.groups.find("g") is not None
    members.log.is_full = False
    members.advance(SAVE_RETRY_MS)
    assert members.groups.find("g") is None
    assert members.log.groups == {}


def test_a_generation_is_recorded_twice_and_heartbeats_never() -> None:
    """Once when it begins and once when it has its assignment."""
    members = GroupHarness()
    leader, _ = members.stable(A, B)
    assert members.log.saved_count == 2
    for _ in range(10):
        members.heartbeat(leader.member_id, 1)
    members.sync(leader.member_id, 1)
    assert members.log.saved_count == 2


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
    assert members.heartbeat(leader.member_id, 1) is ErrorCode.NONE
    members.advance(REBALANCE_MS)
