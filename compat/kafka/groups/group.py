"""One group: its members, their common protocols, and its frame in the log.

compat.kafka.groups.rebalance controls the state transitions. Layer 3; does no I/O.
"""

import enum
import secrets
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Final

from appliance.errors import RemoteProtocolError
from appliance.store.state.group_frames import (
    GROUP_SAVED,
    STATE_COMPLETING_REBALANCE,
    STATE_EMPTY,
    STATE_PREPARING_REBALANCE,
    STATE_STABLE,
    GroupFrame,
    GroupMember,
)
from compat.kafka.groups.deadlines import Deadline
from compat.kafka.groups.member import (
    MEMBER_OVERHEAD_BYTES,
    JoinAnswer,
    JoinRequest,
    Member,
    Protocols,
    SyncAnswer,
)
from compat.kafka.protocol.deferred import DeferredResponse
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.wire import Reader

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
"""The protocol type of consumers, whose metadata names the topics. Kafka Connect has another."""

GENERATION_MAX: Final = (1 << 31) - 1

ID_PREFIX_CHAR_COUNT_MAX: Final = 255
"""Limit of a member id before its random part: a client id may already have 32,767 bytes, the
maximum of a string in a response."""

GROUP_OVERHEAD_BYTES: Final = 1024


class GroupState(enum.Enum):
    """The state of a group; the values are Kafka's names."""

    EMPTY = "Empty"
    """Without members; it may have offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waits until all members have rejoined."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """A generation has begun; waits for its leader's assignment."""
    STABLE = "Stable"
    """Every member can get its assignment."""
    DEAD = "Dead"
    """Deleted; no lookup returns the group any more."""


_STATES_IN_FRAMES: Final = {
    GroupState.EMPTY: STATE_EMPTY,
    GroupState.PREPARING_REBALANCE: STATE_PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE: STATE_COMPLETING_REBALANCE,
    GroupState.STABLE: STATE_STABLE,
}
STATES_OF_FRAMES: Final = {number: state for state, number in _STATES_IN_FRAMES.items()}


@dataclass(slots=True)
class Share:
    """What the groups take that count for one address.

    Attributes:
        count: how many they are.
        size_bytes: their memory.
    """

    count: int = 0
    size_bytes: int = 0


class Usage:
    """The memory of all groups together.

    Attributes:
        size_bytes: names, subscriptions, assignments and overhead.
        shares: by IP address, of those that have groups; a group that a start has restored is
            nobody's until somebody uses it.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self.shares: dict[str, Share] = {}

    def grow(self, address: str, size_bytes: int, count: int = 0) -> None:
        """Count memory, and perhaps a group, of an address; "" is nobody's."""
        self.size_bytes += size_bytes
        if address:
            share = self.shares.setdefault(address, Share())
            share.count += count
            share.size_bytes += size_bytes
            if not share.count:
                del self.shares[address]

    def share_of(self, address: str) -> Share:
        """Return what an address has; the caller must not change it."""
        return self.shares.get(address, Share())


class Group:
    """One group.

    Attributes:
        group_id: its name.
        address: IP address of the client that created it or was the first to use it since the
            start, "" if there is none.
        state: its state.
        state_ms: when it entered the state, wall-clock time.
        generation: counts the completed joins, from 1 on.
        protocol_type: of all its members; kept while it is empty; None before the first member.
        protocol: the protocol chosen for this generation; None while it is empty.
        leader_id: the member that makes the assignment; None without members.
        members: by member id, in order of arrival.
        static_ids: the member id of each instance id.
        pending: ids given to clients that have not joined yet, with their deadlines.
        unsynced: members that have not sent SyncGroup in this generation.
        awaiting_join_count: how many members have joined the next generation.
        size_bytes: its memory.
        is_initial: it was empty before this rebalance, so it waits a while for further members.
        initial_end_ms: the end of that wait, monotonic.
        has_grown: a member has joined since the last check in an initial rebalance.
        join_deadline, sync_deadline: the ends of the two phases of a rebalance.
        protocol_until_ms: the protocol does not change again before, monotonic.
        upkeep: when to check whether the group is still needed, or to record it again.
        is_saved: the log has its current state.
    """

    def __init__(
        self,
        group_id: str,
        *,
        join_deadline: Deadline,
        sync_deadline: Deadline,
        upkeep: Deadline,
        usage: Usage,
        state_ms: int,
        address: str = "",
    ) -> None:
        self.group_id = group_id
        self.address = address
        self.state = GroupState.EMPTY
        self.state_ms = state_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_ids: dict[str, str] = {}
        self.pending: dict[str, Deadline] = {}
        self.unsynced: set[str] = set()
        self.awaiting_join_count = 0
        self.size_bytes = 0
        self.is_initial = False
        self.initial_end_ms = 0
        self.has_grown = False
        self.protocol_until_ms = 0
        self.join_deadline = join_deadline
        self.sync_deadline = sync_deadline
        self.upkeep = upkeep
        self.is_saved = False
        self._framed_protocol: str | None = None
        """That of the members' frames."""

        self._support: Counter[str] = Counter()
        self._subscribed: tuple[int, frozenset[str] | None] | None = None
        self._usage = usage
        self._grow(GROUP_OVERHEAD_BYTES + len(group_id.encode()), count=1)

    def _grow(self, size_bytes: int, count: int = 0) -> None:
        self.size_bytes += size_bytes
        self._usage.grow(self.address, size_bytes, count)

    def charge_to(self, address: str) -> None:
        """Count it for an address, and for no other."""
        self._usage.grow(self.address, -self.size_bytes, count=-1)
        self.address = address
        self._usage.grow(address, self.size_bytes, count=1)

    def give_back(self) -> None:
        """Stop counting it, because it is deleted."""
        self._grow(-self.size_bytes, count=-1)

    # Questions

    @property
    def is_rebalancing(self) -> bool:
        """It waits for its members to join."""
        return self.state is GroupState.PREPARING_REBALANCE

    @property
    def have_all_joined(self) -> bool:
        """All members, and all clients with a pending id, have joined."""
        return not self.pending and self.awaiting_join_count == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance time-out of its members, ms. O(members)."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return the error for the ids in a member's request, or NONE."""
        if instance_id is not None:
            current = self.static_ids.get(instance_id)
            if current is None:
                return ErrorCode.unknown_member_id
            if current != member_id:
                return ErrorCode.fenced_instance_id
        elif member_id not in self.members:
            return ErrorCode.unknown_member_id
        return ErrorCode.none

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return whether a member with these protocols can be in the group. O(protocols)."""
        if not protocol_type or not protocols:
            return False
        if not self.members:
            return True
        return protocol_type == self.protocol_type and any(
            self._support[name] == len(self.members) for name in protocols
        )

    def choose_protocol(self) -> str:
        """Return the protocol with the most votes among those that all members support.

        Each member votes for the one of them that it prefers; the first vote decides a tie.
        O(protocols) if only one of them has the support of all, else O(members * protocols).
        """
        count = len(self.members)
        common = [name for name, support in self._support.items() if support == count]
        if len(common) == 1:
            return common[0]
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[self._vote(member)] += 1
        return max(votes, key=lambda name: votes[name])

    def _vote(self, member: Member) -> str:
        count = len(self.members)
        return next(name for name in member.protocols if self._support[name] == count)

    def metadata_of(self, member: Member) -> bytes:
        """Return a member's metadata for the chosen protocol."""
        return b"" if self.protocol is None else member.protocols.get(self.protocol, b"")

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that the members consume, None if they are unknown.

        O(metadata) the first time in a generation.
        """
        if self._subscribed is None or self._subscribed[0] != self.generation:
            self._subscribed = (self.generation, self._read_subscriptions())
        return self._subscribed[1]

    def _read_subscriptions(self) -> frozenset[str] | None:
        if not self.members:
            return frozenset()
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or self.protocol is None:
            return None
        try:
            return frozenset(
                topic
                for member in self.members.values()
                for topic in read_subscription(self.metadata_of(member))
            )
        except RemoteProtocolError:
            return None

    # Members

    def make_member_id(self, client_id: str, instance_id: str | None) -> str:
        """Return a new member id that is unique and cannot be guessed."""
        prefix = (client_id if instance_id is None else instance_id)[:ID_PREFIX_CHAR_COUNT_MAX]
        return f"{prefix}-{uuid.UUID(bytes=secrets.token_bytes(16), version=4)}"

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member; the first one becomes the leader."""
        assert member.member_id not in self.members
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id
        self._support.update(member.protocols.keys())
        self._grow(member.size_bytes)

    def expect(self, member_id: str, deadline: Deadline) -> None:
        """Add a pending id, with which a client is expected to join."""
        self.pending[member_id] = deadline
        self._grow(MEMBER_OVERHEAD_BYTES + len(member_id.encode()))

    def stop_expecting(self, member_id: str) -> None:
        """Remove a pending id, after the client has joined or did not in time."""
        self.pending.pop(member_id).cancel()
        self._grow(-MEMBER_OVERHEAD_BYTES - len(member_id.encode()))

    def await_join(self, member: Member, deferred: DeferredResponse[JoinAnswer]) -> None:
        """Note that a member has joined; `deferred` completes with the next generation."""
        # If it already waits, it has reconnected, or two clients use the same id.
        self.answer_join(member, JoinAnswer(error=ErrorCode.unknown_member_id))
        member.awaiting_join = deferred
        self.awaiting_join_count += 1

    def answer_join(self, member: Member, answer: JoinAnswer) -> bool:
        """Complete the waiting JoinGroup of a member; returns whether there was one."""
        waiting, member.awaiting_join = member.awaiting_join, None
        if waiting is None:
            return False
        self.awaiting_join_count -= 1
        waiting.complete(answer)
        return True

    def remove(self, member: Member, error: ErrorCode) -> None:
        """Remove a member; its waiting requests get the error."""
        member.session.cancel()
        self._grow(-member.size_bytes)
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self.static_ids[member.instance_id]
        self._remove_protocols(member.protocols)
        self.unsynced.discard(member.member_id)
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)
        self.fail(member, error)

    def fail(self, member: Member, error: ErrorCode) -> None:
        """Complete the waiting requests of a member with an error."""
        self.answer_join(member, JoinAnswer(error=error))
        member.answer_sync(SyncAnswer(error=error))

    def rename(self, member: Member, member_id: str, client_id: str, client_host: str) -> None:
        """Give a static member a new id; it keeps its position, assignment and leadership."""
        assert member.instance_id is not None
        old_id = member.member_id
        self._grow(-member.size_bytes)
        member.member_id, member.client_id, member.client_host = member_id, client_id, client_host
        member.frame = None
        self._grow(member.size_bytes)
        # Rebuilt in the same order, because the first vote decides a tie.
        self.members = {each.member_id: each for each in self.members.values()}
        self.static_ids[member.instance_id] = member_id
        if old_id in self.unsynced:
            self.unsynced.remove(old_id)
            self.unsynced.add(member_id)
        if self.leader_id == old_id:
            self.leader_id = member_id

    def update(self, member: Member, request: JoinRequest) -> None:
        """Give a member the protocols and the time-outs with which it joins again."""
        protocols = request.protocols
        self._remove_protocols(member.protocols)
        self._grow(-member.size_bytes)
        member.protocols = protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.is_restored = False
        member.frame = None
        self._grow(member.size_bytes)
        self._support.update(protocols.keys())

    def _remove_protocols(self, protocols: Protocols) -> None:
        for name in protocols:
            self._support[name] -= 1
            if not self._support[name]:
                del self._support[name]

    def assign(self, member: Member, assignment: bytes) -> None:
        """Set the assignment of a member."""
        self._grow(len(assignment) - len(member.assignment))
        member.assignment = assignment
        member.frame = None

    # The log

    def to_frame(self) -> GroupFrame:
        """Return the frame that records the current state of the group.

        A member that did not change is the same object as in the frame before: so a small change of
        a large group is found by a short look at each. O(members).
        """
        if self.protocol != self._framed_protocol:
            self._framed_protocol = self.protocol
            for member in self.members.values():
                member.frame = None
        return GroupFrame(
            op=GROUP_SAVED,
            group=self.group_id,
            state=_STATES_IN_FRAMES[self.state],
            generation=self.generation,
            state_ms=self.state_ms,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader_id,
            members=tuple([each.frame or self._frame(each) for each in self.members.values()]),
        )

    def _frame(self, member: Member) -> GroupMember:
        """Note what a frame has of a member that has changed, and return it."""
        member.frame = GroupMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            session_timeout_ms=member.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            metadata=self.metadata_of(member),
            assignment=member.assignment,
        )
        return member.frame


def read_subscription(metadata: bytes) -> list[str]:
    """Return the topics in the metadata with which a consumer joins.

    Args:
        metadata: int16 version, int32 count, and that many strings; more fields may follow.

    Raises:
        RemoteProtocolError: the metadata has another format.
    """
    reader = Reader(metadata)
    reader.int16()
    count = reader.array_count(is_compact=False, is_nullable=False)
    assert count is not None
    topics = [reader.string(is_compact=False, is_nullable=False) for _ in range(count)]
    return [topic for topic in topics if topic is not None]
