"""What a node of a pair is, and what makes it something else, as a table.

docs/REPLICATION.md shows the table; `Member` walks it. Each step returns the record that must be on
the disk before the new state counts: a node that is killed at any moment goes on from the state
that its role file says. Layer 3; does no I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from appliance.config.setting import Address
from appliance.replication.facts import Facts, Role
from appliance.store.role_file import RoleRecord, next_term


class MemberState(Enum):
    """What a node is."""

    COMPARING = "comparing"
    SERVING = "serving"
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


class Write(Enum):
    """What the role file says before the new state counts."""

    NOTHING = ""
    FOLLOWS = "slave, in the term of the master"
    NEW_TERM = "master, in a new term"


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
    (MemberState.SERVING, MemberEvent.STARTED): Step(MemberState.COMPARING),
    (MemberState.SERVING, MemberEvent.FENCED): Step(MemberState.COMPARING),
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
        self.state = MemberState.COMPARING if record.is_master else MemberState.FOLLOWING

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
        assert (self.state, event) in MEMBER_STEPS, f"{event} in {self.state}"
        step = MEMBER_STEPS[self.state, event]
        self.state = step.state
        before = self.record
        match step.write:
            case Write.FOLLOWS:
                assert term >= before.term
                self.record = replace(before, term=term, is_master=False, peer=peer or before.peer)
            case Write.NEW_TERM:
                self.record = replace(
                    before, term=next_term(before.term, self._node), is_master=True
                )
            case Write.NOTHING:
                pass
        return self.record if self.record != before else None


def judge_master(term: int, said: Facts) -> MemberEvent | None:
    """Return what follows for a comparing node from what the other one says of itself.

    Args:
        term: of this node.
        said: in WELCOME.
    """
    is_master = said.role in (Role.MASTER, Role.COMPARING)
    return MemberEvent.NEWER_MASTER if is_master and said.term > term else None
