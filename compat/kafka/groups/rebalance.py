"""How a group comes to agree on who consumes what: Kafka's classic rebalance, step by step.

    EMPTY -> PREPARING_REBALANCE     somebody joins; others may follow for a moment
    PREPARING -> COMPLETING          all have joined or their time is over: a generation begins,
                                     its leader learns who is in it
    COMPLETING -> STABLE             the leader's assignment is there; everybody gets his part
    COMPLETING, STABLE -> PREPARING  somebody joins, leaves, is silent for too long, or changes
                                     what it supports
    PREPARING -> EMPTY               nobody is left

A generation is told to the log when it begins, when it has its assignment and when it is empty. So
the next broker on this log knows every generation that a client may know, and goes on with it: the
members find their group as it was, and nobody has to join again. If the disk is full the group goes
on in memory and is told later.
Layer 3; does no I/O.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from appliance.errors import RequestError
from appliance.units import MS_PER_MINUTE
from compat.kafka.error_codes import ErrorCode
from compat.kafka.groups.deadlines import Deadline, DeadlineQueue
from compat.kafka.groups.group import GENERATION_MAX, Group, GroupState
from compat.kafka.groups.group_log import GroupLog
from compat.kafka.groups.member import (
    JoinAnswer,
    JoinRequest,
    Member,
    Reply,
    SyncAnswer,
    SyncRequest,
)

NEW_MEMBER_TIMEOUT_MS: Final = 5 * MS_PER_MINUTE
"""So long a member that waits for its first generation is kept. It cannot send heartbeats; if its
connection is lost it comes again under another name. Kafka's number."""

EMPTY_CHECK_MS: Final = 10 * MS_PER_MINUTE
"""How often an empty group is looked at: without offsets it is forgotten. Kafka's number."""

TELL_RETRY_MS: Final = 10_000
"""How soon a group is told again that the log had no room for."""


class Rebalancer:
    """Moves groups from state to state.

    Args:
        log: where groups are told.
        deadlines: everything that happens by itself.
        initial_delay_ms: how long an empty group waits for further members.
    """

    def __init__(self, log: GroupLog, deadlines: DeadlineQueue, *, initial_delay_ms: int) -> None:
        self._log = log
        self._deadlines = deadlines
        self._initial_delay_ms = initial_delay_ms

    # Joining

    def add(
        self,
        group: Group,
        request: JoinRequest,
        member_id: str,
        reply: Reply[JoinAnswer],
        *,
        now_ms: int,
    ) -> None:
        """Take a new member in; it is answered when the next generation begins."""
        member = self.make_member(
            group,
            Member(
                member_id=member_id,
                instance_id=request.instance_id,
                client_id=request.client_id,
                client_host=request.client_host,
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                protocols=request.protocols,
                session=Deadline(self._deadlines),
                is_new=True,
            ),
        )
        group.add(member, request.protocol_type)
        group.has_grown = group.is_rebalancing and group.is_initial
        group.await_join(member, reply)
        member.session.set(now_ms + NEW_MEMBER_TIMEOUT_MS)
        self._prepare_or_complete(group, now_ms)

    def rejoin(
        self,
        group: Group,
        member: Member,
        request: JoinRequest,
        reply: Reply[JoinAnswer],
        *,
        now_ms: int,
    ) -> None:
        """Answer a member that joins again: with the present generation if nothing has changed."""
        is_same = member.matches(request.protocols)
        is_leader = group.leader_id == member.member_id
        is_current = is_same and (
            group.state is GroupState.COMPLETING_REBALANCE
            # A leader that joins again has seen something that calls for another assignment.
            or (group.state is GroupState.STABLE and not is_leader)
        )
        self._update(group, member, request)
        if is_current:
            self.restart_session(member, now_ms)
            reply.complete(self._describe_generation(group, member, is_leader=is_leader))
            return
        group.await_join(member, reply)
        self._prepare_or_complete(group, now_ms)

    def replace(
        self,
        group: Group,
        member: Member,
        request: JoinRequest,
        member_id: str,
        reply: Reply[JoinAnswer],
        *,
        now_ms: int,
    ) -> None:
        """Let a static member that has lost its id come back under a new one.

        In a stable group it gets its assignment back, and nobody else notices.
        """
        known_leader_id = group.leader_id or ""
        # Somebody else has the same instance id.
        group.fail(member, ErrorCode.FENCED_INSTANCE_ID)
        group.rename(member, member_id, request.client_id, request.client_host)
        self._update(group, member, request)
        if member.is_new:
            member.session.set(now_ms + NEW_MEMBER_TIMEOUT_MS)
        else:
            self.restart_session(member, now_ms)
        is_same_protocol = (
            group.state is GroupState.STABLE and group.choose_protocol() == group.protocol
        )
        if not is_same_protocol:
            group.await_join(member, reply)
            self._prepare_or_complete(group, now_ms)
            return
        self.tell(group, now_ms)
        is_leader = group.leader_id == member_id
        if request.can_skip_assignment:
            answer = self._describe_generation(
                group, member, is_leader=is_leader, skip_assignment=is_leader
            )
        else:
            # Under its old id as leader it takes itself for a follower, and does not assign: what
            # it would send is not looked at in a stable group.
            answer = self._describe_generation(
                group, member, is_leader=False, leader_id=known_leader_id
            )
        reply.complete(answer)

    def _update(self, group: Group, member: Member, request: JoinRequest) -> None:
        group.update(member, request.protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms

    def make_member(self, group: Group, member: Member) -> Member:
        """Have a member removed when its session is over."""
        member.session.expired = partial(self._expire_session, group, member)
        return member

    @staticmethod
    def _describe_generation(
        group: Group,
        member: Member,
        *,
        is_leader: bool,
        skip_assignment: bool = False,
        leader_id: str | None = None,
    ) -> JoinAnswer:
        assert group.leader_id is not None
        members: tuple[tuple[str, str | None, bytes], ...] = ()
        if is_leader:
            members = tuple(
                (each.member_id, each.instance_id, group.metadata_of(each))
                for each in group.members.values()
            )
        return JoinAnswer(
            member_id=member.member_id,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            leader_id=group.leader_id if leader_id is None else leader_id,
            skip_assignment=skip_assignment,
            members=members,
        )

    # From state to state

    def _enter(self, group: Group, state: GroupState) -> None:
        group.state = state
        group.state_ms = self._log.clock.wall_ms()

    def _prepare_or_complete(self, group: Group, now_ms: int) -> None:
        if not group.is_rebalancing:
            self._prepare(group, now_ms)
        elif not group.is_initial and group.have_all_joined:
            self.complete_join(group, now_ms)

    def _prepare(self, group: Group, now_ms: int) -> None:
        """Have all members join again."""
        assert not group.is_rebalancing
        self._forget_assignments(group, ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        group.unsynced.clear()
        group.sync_deadline.cancel()
        group.upkeep.cancel()
        group.is_initial = group.state is GroupState.EMPTY
        group.has_grown = False
        self._enter(group, GroupState.PREPARING_REBALANCE)
        if group.is_initial:
            group.initial_end_ms = now_ms + max(group.rebalance_timeout_ms, self._initial_delay_ms)
            group.join_deadline.set(now_ms + self._initial_delay_ms)
        elif group.have_all_joined:
            self.complete_join(group, now_ms)
        else:
            group.join_deadline.set(now_ms + group.rebalance_timeout_ms)

    def expire_join(self, group: Group, now_ms: int) -> None:
        """The time to join is over, unless more members came to an empty group meanwhile."""
        assert group.is_rebalancing
        if group.is_initial and group.has_grown and now_ms < group.initial_end_ms:
            group.has_grown = False
            until_ms = min(now_ms + self._initial_delay_ms, group.initial_end_ms)
            group.join_deadline.set(until_ms)
            return
        self.complete_join(group, now_ms)

    def complete_join(self, group: Group, now_ms: int) -> None:
        """Begin the next generation with those that have joined."""
        assert group.is_rebalancing
        group.join_deadline.cancel()
        for member in list(group.members.values()):
            if _has_gone(member):
                group.remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if group.members and not self._elect(group):
            # Static members alone, none of which is back. Their sessions decide.
            group.join_deadline.set(now_ms + group.rebalance_timeout_ms)
            return
        group.generation = 1 if group.generation == GENERATION_MAX else group.generation + 1
        if not group.members:
            group.protocol = None
            self._enter(group, GroupState.EMPTY)
            self.tell(group, now_ms)
            return
        group.protocol = group.choose_protocol()
        self._enter(group, GroupState.COMPLETING_REBALANCE)
        self.await_assignment(group, now_ms)
        self.tell(group, now_ms)
        for member in list(group.members.values()):
            is_leader = group.leader_id == member.member_id
            answer = self._describe_generation(group, member, is_leader=is_leader)
            if group.answer_join(member, answer):
                member.is_new = False
                self.restart_session(member, now_ms)

    def _elect(self, group: Group) -> bool:
        """Make sure that the leader is a member that has joined; False if nobody has."""
        if group.leader_id is not None and group.members[group.leader_id].awaiting_join is not None:
            return True
        joined = (each for each in group.members.values() if each.awaiting_join is not None)
        elected = next(joined, None)
        if elected is not None:
            group.leader_id = elected.member_id
        return elected is not None

    def await_assignment(self, group: Group, now_ms: int) -> None:
        """Give the members of a generation the time to ask for their assignment."""
        group.unsynced = set(group.members)
        group.sync_deadline.set(now_ms + group.rebalance_timeout_ms)

    def expire_sync(self, group: Group, now_ms: int) -> None:
        """Go on without those that have joined and never asked for their assignment."""
        for member_id in group.unsynced.copy():
            group.remove(group.members[member_id], ErrorCode.UNKNOWN_MEMBER_ID)
        self._prepare(group, now_ms)

    # The assignment

    def sync(
        self,
        group: Group,
        member: Member,
        request: SyncRequest,
        reply: Reply[SyncAnswer],
        *,
        has_room: bool,
        now_ms: int,
    ) -> None:
        """Take the leader's assignment, or keep a member until it is there.

        Args:
            group: in COMPLETING_REBALANCE.
            member: one of its members.
            request: checked.
            reply: where its assignment goes.
            has_room: the assignment fits into the limits.
            now_ms: monotonic.
        """
        member.answer_sync(SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = reply
        self.note_synced(group, member)
        if group.leader_id != member.member_id:
            return
        if not has_room:
            # What Kafka answers if the group is too large for its log.
            self._forget_assignments(group, ErrorCode.UNKNOWN_SERVER_ERROR, now_ms)
            self._prepare(group, now_ms)
            return
        self._assign(group, request.assignments)
        self._enter(group, GroupState.STABLE)
        self.tell(group, now_ms)
        for each in list(group.members.values()):
            if each.answer_sync(self.assignment_of(group, each)):
                self.restart_session(each, now_ms)

    @staticmethod
    def _assign(group: Group, assignments: Mapping[str, bytes]) -> None:
        for member_id, member in group.members.items():
            group.assign(member, assignments.get(member_id, b""))

    @staticmethod
    def assignment_of(group: Group, member: Member) -> SyncAnswer:
        """What a member of a stable group is to consume."""
        return SyncAnswer(
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            assignment=member.assignment,
        )

    def note_synced(self, group: Group, member: Member) -> None:
        """A member has asked for its assignment."""
        group.unsynced.discard(member.member_id)
        if not group.unsynced:
            group.sync_deadline.cancel()

    def _forget_assignments(self, group: Group, error: ErrorCode, now_ms: int) -> None:
        for member in group.members.values():
            group.assign(member, b"")
            if member.answer_sync(SyncAnswer(error=error)):
                self.restart_session(member, now_ms)

    # Leaving

    def remove(self, group: Group, members: Iterable[Member], now_ms: int) -> None:
        """Let members go, and have the others share what they had."""
        for member in members:
            group.remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._prepare_or_complete(group, now_ms)

    def stop_expecting(self, group: Group, member_id: str, now_ms: int) -> None:
        """Do not wait any longer for a client that was given this id."""
        group.stop_expecting(member_id)
        if group.is_rebalancing:
            self._prepare_or_complete(group, now_ms)

    def restart_session(self, member: Member, now_ms: int) -> None:
        """Something was heard of a member, or is told to it."""
        member.session.set(now_ms + member.session_timeout_ms)

    def _expire_session(self, group: Group, member: Member, now_ms: int) -> None:
        is_waiting = member.awaiting_join is not None or member.awaiting_sync is not None
        if is_waiting and not member.is_new:
            return  # It cannot send heartbeats meanwhile; the answer begins a new session.
        self.remove(group, (member,), now_ms)

    # The log

    def tell(self, group: Group, now_ms: int) -> None:
        """Write a group into the log as it is; if there is no room, try again later."""
        try:
            self._log.tell_group(group.to_frame())
            group.is_told = True
        except RequestError:
            group.is_told = False
        self._plan_upkeep(group, now_ms)

    def keep_told(self, group: Group, now_ms: int) -> None:
        """Tell a group that is not told as it is, and look at it again if that will be needed."""
        if group.is_told:
            self._plan_upkeep(group, now_ms)
        else:
            self.tell(group, now_ms)

    @staticmethod
    def _plan_upkeep(group: Group, now_ms: int) -> None:
        if not group.is_told:
            group.upkeep.set(now_ms + TELL_RETRY_MS)
        elif group.state is GroupState.EMPTY:
            group.upkeep.set(now_ms + EMPTY_CHECK_MS)


def _has_gone(member: Member) -> bool:
    """Tell whether a generation is not to wait for this member."""
    if member.awaiting_join is None:
        return member.instance_id is None
    # Nobody there knows its name yet, so that nobody would sync or send heartbeats.
    return member.is_new and member.awaiting_join.is_abandoned
