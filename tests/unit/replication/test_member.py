"""What a node of a pair becomes: each row of the table, and what its role file says before."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

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
    other_node,
)
from appliance.store.role_file import RoleRecord

PEER = Address("10.0.0.2", 9292)


def member_in(state: MemberState) -> Member:
    is_master = state not in (MemberState.FOLLOWING, MemberState.YIELDED)
    has_yielded = state is MemberState.YIELDED
    member = Member(RoleRecord(1, is_master=is_master, has_yielded=has_yielded), 1)
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
        case Write.YIELDS:
            assert record == RoleRecord(2, is_master=False, peer=PEER, has_yielded=True)
    assert member.record == (record or before)


def test_node_that_is_killed_in_any_state_starts_as_its_role_file_says() -> None:
    for state in MemberState:
        member = member_in(state)
        after = Member(member.record, 1).state
        kept = (MemberState.FOLLOWING, MemberState.YIELDED)
        assert after is (state if state in kept else MemberState.COMPARING)
        assert MEMBER_STEPS[state, MemberEvent.STARTED].state is after


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
    assert judge_master(RoleRecord(1, is_master=True), said) is event


def test_node_that_yielded_follows_the_master_of_the_term_that_it_gave_away() -> None:
    yielded = RoleRecord(2, is_master=False, has_yielded=True)
    for role in (Role.MASTER, Role.COMPARING):
        assert judge_master(yielded, Facts(2, role)) is MemberEvent.NEWER_MASTER
        assert judge_master(yielded, Facts(1, role)) is None
    assert judge_master(yielded, Facts(2, Role.SLAVE)) is None


# Every life of two nodes: whatever is sent, lost and killed during a hand-over, in any order.

Node = tuple[RoleRecord, MemberState]
Message = tuple[str, int]


@dataclass(frozen=True)
class Pair:
    """Both nodes and what is on its way between them, over the one connection that there is.

    Attributes:
        nodes: of numbers 1 and 2.
        sent: a YIELD or a TAKEN, and who it is for.
    """

    nodes: tuple[Node, Node]
    sent: frozenset[Message] = frozenset()

    def step(self, number: int, event: MemberEvent, *, term: int = 0) -> "Pair":
        """Let a node take a step of its table; a role file that it needs is on its disk then."""
        record, state = self.nodes[number - 1]
        member = Member(record, number)
        member.state = state
        member.go(event, term=term)
        return self.put(number, (member.record, member.state))

    def put(self, number: int, node: Node) -> "Pair":
        nodes = (node, self.nodes[1]) if number == 1 else (self.nodes[0], node)
        return replace(self, nodes=nodes)


def lives(pair: Pair) -> Iterator[Pair]:
    """Yield what can happen next."""
    if pair.sent:
        yield replace(pair, sent=frozenset())  # the connection is lost
    for number in (1, 2):
        other = other_node(number)
        (record, state), (far, far_state) = pair.nodes[number - 1], pair.nodes[other - 1]
        # Killed, and started again. What it sent may arrive still; what it was sent does not.
        sent = frozenset(each for each in pair.sent if each[1] != number)
        yield replace(pair.step(number, MemberEvent.STARTED), sent=sent)
        is_connected = far_state is MemberState.FOLLOWING and far.term == record.term
        if state is MemberState.SERVING and is_connected:
            yield pair.step(number, MemberEvent.HANDOVER)
        if state is MemberState.HANDING_OVER:
            yield pair.step(number, MemberEvent.KEPT)
            if is_connected:
                after = pair.step(number, MemberEvent.YIELDS)
                yield after
                yield replace(after, sent=frozenset({("YIELD", other)}))
        if ("YIELD", number) in pair.sent and state is MemberState.FOLLOWING:
            after = replace(pair.step(number, MemberEvent.YIELDED_TO), sent=frozenset())
            yield after
            yield replace(after, sent=frozenset({("TAKEN", other)}))
        if ("TAKEN", number) in pair.sent and state is MemberState.YIELDED:
            after = pair.step(number, MemberEvent.TAKEN, term=record.term)
            yield replace(after, sent=frozenset())
        if state in (MemberState.COMPARING, MemberState.YIELDED):
            # It asks; the other one listens unless it follows.
            role = Role.MASTER if far_state is MemberState.SERVING else Role.COMPARING
            is_heard = far_state is not MemberState.FOLLOWING
            said = Facts(far.term, role)
            if is_heard and judge_master(record, said) is not None and not far.has_yielded:
                yield pair.step(number, MemberEvent.NEWER_MASTER, term=far.term)
            # The other one connects, which ends its old connection.
            if far_state is MemberState.FOLLOWING and far.term <= record.term:
                yield replace(pair.step(number, MemberEvent.SLAVE_FITS), sent=frozenset())
        is_older = record.term < far.term
        if state is MemberState.FOLLOWING and far_state is MemberState.SERVING and is_older:
            # It connects, and takes over the term.
            adopted = replace(record, term=far.term)
            yield replace(pair.put(number, (adopted, state)), sent=frozenset())


def is_whole(pair: Pair) -> bool:
    states = sorted(state.value for _, state in pair.nodes)
    return states == sorted([MemberState.SERVING.value, MemberState.FOLLOWING.value])


def test_any_hand_over_that_fails_anywhere_ends_with_exactly_one_master() -> None:
    first = Pair(
        (
            (RoleRecord(1, is_master=True), MemberState.SERVING),
            (RoleRecord(1, is_master=False), MemberState.FOLLOWING),
        )
    )
    term_max = 6
    known: dict[Pair, list[Pair]] = {}
    queue = [first]
    while queue:
        pair = queue.pop()
        if pair in known:
            continue
        known[pair] = [each for each in lives(pair) if each.nodes[0][0].term <= term_max]
        queue += known[pair]
        masters = [record for record, _ in pair.nodes if record.is_master]
        serving = [state for _, state in pair.nodes if state is MemberState.SERVING]
        assert len(serving) <= 1, pair
        for record, state in pair.nodes:
            assert record.is_master or state is not MemberState.SERVING, pair
        assert len({record.term for record in masters}) == len(masters), pair
    assert len(known) > 50
    # From everywhere the pair becomes whole again, without an operator.
    good = {pair for pair in known if is_whole(pair)}
    while more := {pair for pair, then in known.items() if pair not in good and good & set(then)}:
        good |= more
    lost = [pair for pair in known if pair not in good and pair.nodes[0][0].term < term_max - 1]
    assert not lost, lost[0]
