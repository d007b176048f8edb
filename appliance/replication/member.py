"""What a node of a pair is, and what makes it something else, as a table.

docs/REPLICATION.md shows the table; `Member` walks it. Each step returns the record that must be on
the disk before the new state counts: a node that is killed at any moment goes on from the state
that its role file says. Layer 3; does no I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from appliance.config.setting import Address
from appliance.replication.facts import Facts, Role
from appliance.store.role_file import RoleRecord, next_term


class MemberState(Enum):
    """What a node is."""

    COMPARING = "comparing"
    SERVING = "serving"
    HANDING_OVER = "handing over"
    YIELDED = "yielded"
    FOLLOWING = "following"


class MemberEvent(Enum):
    """What happens to it."""

    SLAVE_FITS = "a slave's log goes together with this one"
    ALONE = "an operator says `alone`"
    GRANTED = "the coordinator says to go on"
    NEWER_MASTER = "the other node is the master of a higher term"
    FENCED = "the other node knows a higher term"
    PROMOTED = "an operator, or the coordinator, promotes it"
    STARTED = "it is started"
    HANDOVER = "an operator says `handover`, and the slave is ready"
    KEPT = "the slave is lost, or too slow"
    YIELDS = "the slave has all of the log on its disk"
    TAKEN = "the slave says that it took over"
    YIELDED_TO = "the master yields"


class Write(Enum):
    """What the role file says before the new state counts."""

    NOTHING = ""
    FOLLOWS = "slave, in the term of the master"
    NEW_TERM = "master, in a new term"
    YIELDS = "yielded, in the next term of the other node"


@dataclass(frozen=True, slots=True)
class Step:
    """One row of the table."""

    state: MemberState
    write: Write = Write.NOTHING


Steps = Mapping[tuple[MemberState, MemberEvent], Step]

MEMBER_STEPS: Final[Steps] = {
    (MemberState.COMPARING, MemberEvent.SLAVE_FITS): Step(MemberState.SERVING),
    (MemberState.COMPARING, MemberEvent.ALONE): Step(MemberState.SERVING),
    (MemberState.COMPARING, MemberEvent.GRANTED): Step(MemberState.SERVING),
    (MemberState.COMPARING, MemberEvent.NEWER_MASTER): Step(MemberState.FOLLOWING, Write.FOLLOWS),
    (MemberState.COMPARING, MemberEvent.STARTED): Step(MemberState.COMPARING),
    (MemberState.SERVING, MemberEvent.STARTED): Step(MemberState.COMPARING),
    (MemberState.SERVING, MemberEvent.FENCED): Step(MemberState.COMPARING),
    (MemberState.SERVING, MemberEvent.HANDOVER): Step(MemberState.HANDING_OVER),
    (MemberState.HANDING_OVER, MemberEvent.KEPT): Step(MemberState.SERVING),
    (MemberState.HANDING_OVER, MemberEvent.YIELDS): Step(MemberState.YIELDED, Write.YIELDS),
    (MemberState.HANDING_OVER, MemberEvent.STARTED): Step(MemberState.COMPARING),
    (MemberState.YIELDED, MemberEvent.TAKEN): Step(MemberState.FOLLOWING, Write.FOLLOWS),
    (MemberState.YIELDED, MemberEvent.NEWER_MASTER): Step(MemberState.FOLLOWING, Write.FOLLOWS),
    (MemberState.YIELDED, MemberEvent.SLAVE_FITS): Step(MemberState.SERVING, Write.NEW_TERM),
    (MemberState.YIELDED, MemberEvent.ALONE): Step(MemberState.SERVING, Write.NEW_TERM),
    (MemberState.YIELDED, MemberEvent.STARTED): Step(MemberState.YIELDED),
    (MemberState.FOLLOWING, MemberEvent.YIELDED_TO): Step(MemberState.SERVING, Write.NEW_TERM),
    (MemberState.FOLLOWING, MemberEvent.PROMOTED): Step(MemberState.SERVING, Write.NEW_TERM),
    (MemberState.FOLLOWING, MemberEvent.STARTED): Step(MemberState.FOLLOWING),
}


class Member:
    """One node.

    Attributes:
        state: where it is.
        record: what its role file says.
    """

    def __init__(self, record: RoleRecord, node: int) -> None:
        """Begin at a start.

        Args:
            record: what the role file says.
            node: 1 or 2.
        """
        self._node = node
        self.record = record
        self.state = MemberState.FOLLOWING
        if record.is_master:
            self.state = MemberState.COMPARING
        elif record.has_yielded:
            self.state = MemberState.YIELDED

    def has_step(self, event: MemberEvent) -> bool:
        """Return whether the table has a row for an event in the present state."""
        return (self.state, event) in MEMBER_STEPS

    def go(
        self, event: MemberEvent, *, term: int = 0, peer: Address | None = None
    ) -> RoleRecord | None:
        """Take the step that the table has for an event.

        Args:
            event: it has a row in the present state.
            term, peer: of the master that this node follows from now on.

        Returns:
            What the role file must say, durably, before the owner acts; None if it stays.
        """
        assert self.has_step(event), f"{event} in {self.state}"
        step = MEMBER_STEPS[self.state, event]
        self.state = step.state
        before = self.record
        match step.write:
            case Write.FOLLOWS:
                assert term >= before.term
                self.record = RoleRecord(term, is_master=False, peer=peer or before.peer)
            case Write.NEW_TERM:
                term = next_term(before.term, self._node)
                self.record = RoleRecord(term, is_master=True, peer=before.peer)
            case Write.YIELDS:
                term = next_term(before.term, other_node(self._node))
                self.record = RoleRecord(
                    term, is_master=False, peer=peer or before.peer, has_yielded=True
                )
            case Write.NOTHING:
                pass
        return self.record if self.record != before else None


def other_node(node: int) -> int:
    """Return the number of the other node of a pair."""
    return 3 - node


def judge_master(record: RoleRecord, said: Facts) -> MemberEvent | None:
    """Return what follows for a node that serves nobody from what the other one says of itself.

    Args:
        record: what the role file of this node says. If it yielded, the term is the other node's.
        said: in WELCOME.
    """
    is_master = said.role in (Role.MASTER, Role.COMPARING)
    is_newer = said.term > record.term or (record.has_yielded and said.term == record.term)
    return MemberEvent.NEWER_MASTER if is_master and is_newer else None
