"""What the log has of groups, and that a broker which begins with it goes on as if nothing were."""

import random
from typing import Any

import pytest

from compat.kafka.error_codes import ErrorCode
from compat.kafka.groups.group import Group, GroupState
from compat.kafka.groups.rebalance import EMPTY_CHECK_MS, TELL_RETRY_MS
from tests.groups.hall import DELAY_MS, REBALANCE_MS, SESSION_MS, Hall
from tests.support.broker_rig import BrokerRig
from tests.support.sim_fs import CrashMode

A, B = {"client_id": "a"}, {"client_id": "b", "instance_id": "i"}


def essence(group: Group) -> tuple[Any, ...]:
    """All of a group that a restart must not change."""
    return group.to_frame(), dict(group.static_ids), group.size_bytes


def test_members_of_a_stable_group_go_on_without_a_rebalance() -> None:
    hall = Hall()
    leader, follower = hall.stable(A, B)
    before = essence(hall.group())
    hall.advance(SESSION_MS - 1)
    hall.restart()
    assert essence(hall.group()) == before
    hall.advance(SESSION_MS - 1)
    assert hall.heartbeat(leader.member_id, 1) is ErrorCode.NONE
    reply = hall.sync(follower.member_id, 1, instance_id="i")
    assert reply.answer.assignment == follower.member_id.encode()
    assert hall.join("g", follower.member_id, instance_id="i").answer.generation == 1
    assert hall.group().state is GroupState.STABLE


def test_members_that_do_not_come_back_are_removed() -> None:
    hall = Hall()
    hall.stable(A, B)
    hall.restart()
    hall.advance(SESSION_MS)
    assert (hall.group().state, hall.group().generation) == (GroupState.EMPTY, 2)


def test_a_generation_without_its_assignment_gets_it_after_the_restart() -> None:
    hall = Hall()
    waiting = [hall.join(**each) for each in (A, B)]
    hall.advance(2 * DELAY_MS)
    answers = [each.answer for each in waiting]
    hall.sync(answers[1].member_id, 1)
    before = essence(hall.group())
    hall.restart()
    assert essence(hall.group()) == before
    hall.share(answers)
    assert hall.group().state is GroupState.STABLE


def test_a_generation_that_nobody_comes_back_to_does_not_stay() -> None:
    hall = Hall()
    waiting = [hall.join(client_id=name) for name in "ab"]
    hall.advance(2 * DELAY_MS)
    hall.restart()
    member_id = waiting[1].answer.member_id
    waiting_again = hall.sync(member_id, 1)
    hall.advance(SESSION_MS)
    assert waiting_again.answer.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert hall.join("g", member_id).answer.generation == 2


def test_a_rebalance_that_is_cut_off_begins_again() -> None:
    hall = Hall()
    leader, follower = hall.stable(A, B)
    hall.join("g", leader.member_id)
    hall.restart()
    assert hall.heartbeat(follower.member_id, 1, "i") is ErrorCode.NONE
    waiting = hall.join("g", leader.member_id)
    hall.join("g", follower.member_id, instance_id="i")
    assert waiting.answer.generation == 2


def test_numbers_go_on_after_a_restart() -> None:
    hall = Hall()
    (member,) = hall.stable(A)
    hall.leave(member.member_id)
    hall.restart()
    (again,) = hall.stable(A)
    assert again.generation == 3
    assert again.member_id != member.member_id


def test_a_group_that_damage_took_begins_above_all_generations_that_were_given() -> None:
    hall = Hall()
    hall.log.generation_floor = 7
    (member,) = hall.stable(A)
    assert member.generation == 8
    hall.leave(member.member_id)
    hall.restart()
    (again,) = hall.stable(A)
    assert again.generation == 10


def test_above_a_floor_too_a_group_that_nobody_got_into_is_let_go() -> None:
    hall = Hall()
    hall.log.generation_floor = 7
    refused = hall.join("g", protocols={})
    assert refused.answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert hall.groups.find("g") is None


def test_after_a_restart_a_member_that_changed_is_noticed() -> None:
    hall = Hall()
    _, follower = hall.stable(A, B)
    hall.restart()
    changed = hall.join("g", follower.member_id, instance_id="i", protocols={"range": b"n"})
    assert not changed.is_answered


def test_after_a_restart_other_protocols_are_learned_again() -> None:
    hall = Hall()
    both = {"range": b"m", "sticky": b"s"}
    _, follower = hall.stable(A | {"protocols": both}, B | {"protocols": both})
    hall.restart()
    again = hall.join("g", follower.member_id, instance_id="i", protocols=both)
    assert again.answer.generation == 1
    assert dict(hall.group().members[follower.member_id].protocols) == both


def test_a_static_member_comes_back_to_a_broker_that_came_back() -> None:
    hall = Hall()
    _, follower = hall.stable(A, B)
    hall.restart()
    back = hall.join("g", **B).answer
    hall.restart()
    reply = hall.sync(back.member_id, 1, instance_id="i")
    assert reply.answer.assignment == follower.member_id.encode()


def test_a_group_of_offsets_alone_is_there_again() -> None:
    hall = Hall()
    assert hall.groups.check_commit("g", "", None, -1, 0) is ErrorCode.NONE
    hall.log.commit("g")
    hall.restart()
    assert hall.group().state is GroupState.EMPTY
    assert hall.groups.empty_since_ms("g") == 0
    assert hall.log.told_count == 0
    assert hall.groups.delete("g") is ErrorCode.NONE
    assert hall.log.group_names() == []


def test_an_empty_group_is_forgotten_when_it_has_no_offsets() -> None:
    hall = Hall()
    (member,) = hall.stable(A)
    hall.log.commit("g")
    hall.leave(member.member_id)
    hall.advance(EMPTY_CHECK_MS)
    assert hall.groups.find("g") is not None
    hall.restart()
    hall.log.expire_offsets("g")
    hall.advance(EMPTY_CHECK_MS)
    assert hall.groups.find("g") is None
    assert hall.log.group_names() == []
    assert hall.groups.next_deadline_ms() is None


def test_a_group_that_is_full_of_life_is_not_forgotten() -> None:
    hall = Hall()
    (member,) = hall.stable(A)
    hall.leave(member.member_id)
    hall.advance(EMPTY_CHECK_MS - DELAY_MS)
    waiting = hall.join()
    hall.advance(DELAY_MS)
    assert waiting.answer.generation == 3
    assert hall.groups.find("g") is not None


def test_an_id_that_was_given_keeps_the_group_until_it_is_over() -> None:
    hall = Hall()
    (member,) = hall.stable(A)
    hall.leave(member.member_id)
    hall.advance(EMPTY_CHECK_MS - 1)
    pending = hall.join(is_member_id_required=True).answer.member_id
    hall.advance(1)
    waiting = hall.join("g", pending)
    hall.advance(DELAY_MS)
    assert waiting.answer.error is ErrorCode.NONE


def test_a_simple_group_without_offsets_is_forgotten_without_a_trace() -> None:
    hall = Hall()
    hall.groups.check_commit("g", "", None, -1, 0)
    hall.advance(EMPTY_CHECK_MS)
    assert hall.groups.find("g") is None
    assert hall.log.told_count == 0


def test_without_room_in_the_log_a_group_goes_on_and_is_told_later() -> None:
    hall = Hall()
    hall.log.is_full = True
    (member,) = hall.stable(A, session_timeout_ms=2 * TELL_RETRY_MS)
    assert hall.log.groups() == {}
    hall.advance(TELL_RETRY_MS - 1)
    hall.log.is_full = False
    assert hall.log.told_count == 0
    hall.advance(1)
    assert hall.log.groups()["g"] == hall.group().to_frame()
    hall.restart()
    assert hall.heartbeat(member.member_id, 1) is ErrorCode.NONE


def test_without_room_in_the_log_nothing_is_deleted() -> None:
    hall = Hall()
    (member,) = hall.stable(A)
    hall.leave(member.member_id)
    hall.log.is_full = True
    assert hall.groups.delete("g") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    hall.advance(EMPTY_CHECK_MS)
    assert hall.groups.find("g") is not None
    hall.log.is_full = False
    hall.advance(TELL_RETRY_MS)
    assert hall.groups.find("g") is None
    assert hall.log.groups() == {}


def test_a_generation_is_told_twice_and_heartbeats_never() -> None:
    """Once when it begins and once when it has its assignment."""
    hall = Hall()
    leader, _ = hall.stable(A, B)
    assert hall.log.told_count == 2
    for _ in range(10):
        hall.heartbeat(leader.member_id, 1)
    hall.sync(leader.member_id, 1)
    assert hall.log.told_count == 2


@pytest.mark.parametrize("mode", ["dropped", "kept"])
def test_a_group_survives_the_end_of_a_real_broker(mode: CrashMode) -> None:
    rig = BrokerRig()
    hall = Hall()
    hall.log, hall.clock = rig.broker, rig.clock  # type: ignore[assignment]
    hall.restart()
    leader, _ = hall.stable(A, B)
    before = essence(hall.group())
    rig.flush()
    rig = rig.crash(mode, random.Random(1))
    hall.log, hall.clock = rig.broker, rig.clock  # type: ignore[assignment]
    hall.restart()
    assert essence(hall.group()) == before
    assert hall.heartbeat(leader.member_id, 1) is ErrorCode.NONE
    hall.advance(REBALANCE_MS)
