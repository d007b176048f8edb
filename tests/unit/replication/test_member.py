"""What a node of a pair becomes: each row of the table, and what its role file says before."""

import pytest

from appliance.config.setting import Address
from appliance.replication.facts import Facts, Role
from appliance.replication.member import (
    MEMBER_STEPS,
    Member,
    MemberEvent,
    MemberState,
    Write,
    judge_master,
)
from appliance.store.role_file import RoleRecord

PEER = Address("10.0.0.2", 9292)


def member_in(state: MemberState) -> Member:
    member = Member(RoleRecord(1, is_master=state is not MemberState.FOLLOWING), 1)
    member.state = state
    return member


@pytest.mark.parametrize("event", MemberEvent)
@pytest.mark.parametrize("state", MemberState)
def test_each_event_in_each_state_does_what_the_table_says(
    state: MemberState, event: MemberEvent
) -> None:
    member = member_in(state)
    before = member.record
    step = MEMBER_STEPS.get((state, event))
    if step is None:
        with pytest.raises(AssertionError, match="in MemberState"):
            member.go(event, term=2, peer=PEER)
        assert member.state is state
        assert member.record == before
        return
    record = member.go(event, term=2, peer=PEER)
    assert member.state is step.state
    match step.write:
        case Write.NOTHING:
            assert record is None
        case Write.FOLLOWS:
            assert record == RoleRecord(2, is_master=False, peer=PEER)
        case Write.NEW_TERM:
            assert record == RoleRecord(3, is_master=True)
    assert member.record == (record or before)


def test_node_that_is_killed_in_any_state_starts_as_its_role_file_says() -> None:
    for (state, _), step in MEMBER_STEPS.items():
        member = member_in(state)
        after = Member(member.record, 1).state
        is_master = state is not MemberState.FOLLOWING
        assert after is (MemberState.COMPARING if is_master else MemberState.FOLLOWING)
        assert step.state in MemberState
    assert not any(state is MemberState.SERVING for state in (Member(RoleRecord(), 1).state,))


@pytest.mark.parametrize(
    ("said", "event"),
    [
        (Facts(2, Role.MASTER), MemberEvent.NEWER_MASTER),
        (Facts(2, Role.COMPARING), MemberEvent.NEWER_MASTER),
        (Facts(2, Role.SLAVE), None),
        (Facts(1, Role.MASTER), None),
        (Facts(0, Role.COMPARING), None),
    ],
)
def test_only_a_master_of_a_higher_term_is_followed(said: Facts, event: MemberEvent | None) -> None:
    assert judge_master(1, said) is event
