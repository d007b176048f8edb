"""Kafka's classic rebalance: the state machine by which a group agrees on an assignment.

    EMPTY -> PREPARING_REBALANCE     a member joins; others may follow for a moment
    PREPARING -> COMPLETING          all have joined or the time is over: a generation begins, and
                                     its leader receives the list of members
    COMPLETING -> STABLE             the leader has sent the assignment; each member gets its part
    COMPLETING, STABLE -> PREPARING  a member joins, leaves, times out, or changes its protocols
    PREPARING -> EMPTY               no member is left

The log records a generation when it begins, when it has its assignment, and when it is empty. The
next broker on this log therefore knows every generation that a client may know, and continues it:
the members find their group unchanged and need not rejoin. If the disk is full, the group continues
in memory and is recorded later.
Layer 3; does no I/O.
"""

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from appliance.errors import RequestError
from appliance.log_text import quoted
from appliance.store.state.group_store import GroupStore
from appliance.system.clock import Clock
from appliance.units import MIB, MS_PER_MINUTE, MS_PER_SECOND
from compat.kafka.groups.deadlines import Deadline, DeadlineQueue
from compat.kafka.groups.group import GENERATION_MAX, Group, GroupState
from compat.kafka.groups.member import (
    JoinAnswer,
    JoinRequest,
    Member,
    SyncAnswer,
    SyncRequest,
)
from compat.kafka.protocol.deferred import DeferredResponse
from compat.kafka.protocol.error_codes import ErrorCode

NEW_MEMBER_TIMEOUT_MS: Final = 5 * MS_PER_MINUTE
"""How long a member that waits for its first generation is kept. It cannot send heartbeats, and if
its connection is lost it rejoins under another id. Kafka's number."""

EMPTY_CHECK_MS: Final = 10 * MS_PER_MINUTE
"""Interval of the check of an empty group: without offsets it is deleted. Kafka's number."""

REWRITE_BYTES_PER_S: Final = MIB
"""The size of a group is made up for at this rate before it may change its protocol again."""

SAVE_RETRY_MS: Final = 10_000
"""Delay before a group is recorded again after the log had no room for it."""

_log = logging.getLogger(__name__)


class Rebalancer:
    """Moves groups from state to state.

    Args:
        store: keeps the groups.
        deadlines: the queue for all time-outs.
        initial_delay_ms: how long an empty group waits for further members.
    """

    def __init__(
        self, store: GroupStore, clock: Clock, deadlines: DeadlineQueue, *, initial_delay_ms: int
    ) -> None:
        self._store = store
        self._clock = clock
        self._deadlines = deadlines
        self._initial_delay_ms = initial_delay_ms
        self._is_debug = _log.isEnabledFor(logging.DEBUG)

    # Joining

    def add(
        self,
        group: Group,
        request: JoinRequest,
        member_id: str,
        deferred: DeferredResponse[JoinAnswer],
        *,
        now_ms: int,
    ) -> None:
        """Add a new member; `deferred` completes when the next generation begins."""
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
        group.await_join(member, deferred)
        member.session.set(now_ms + NEW_MEMBER_TIMEOUT_MS)
        self._prepare_or_complete(group, now_ms, "a member joins", member)

    def rejoin(
        self,
        group: Group,
        member: Member,
        request: JoinRequest,
        deferred: DeferredResponse[JoinAnswer],
        *,
        now_ms: int,
    ) -> None:
        """Handle the rejoin of a member; if nothing changed, it gets the current generation."""
        is_same = member.matches(request.protocols)
        is_leader = group.leader_id == member.member_id
        is_current = is_same and (
            group.state is GroupState.COMPLETING_REBALANCE
            # A leader rejoins because it has noticed a change that needs a new assignment.
            or (group.state is GroupState.STABLE and not is_leader)
        )
        group.update(member, request)
        if is_current:
            self.restart_session(member, now_ms)
            deferred.complete(self._describe_generation(group, member, is_leader=is_leader))
            return
        group.await_join(member, deferred)
        self._prepare_or_complete(group, now_ms, "a member joins again", member)

    def replace(
        self,
        group: Group,
        member: Member,
        request: JoinRequest,
        member_id: str,
        deferred: DeferredResponse[JoinAnswer],
        *,
        now_ms: int,
    ) -> None:
        """Let a static member that has lost its member id rejoin under a new one.

        In a stable group it keeps its assignment, and the other members do not notice.
        """
        known_leader_id = group.leader_id or ""
        # A client that still waits under the old id has the same instance id.
        group.fail(member, ErrorCode.fenced_instance_id)
        group.rename(member, member_id, request.client_id, request.client_host)
        group.update(member, request)
        if member.is_new:
            member.session.set(now_ms + NEW_MEMBER_TIMEOUT_MS)
        else:
            self.restart_session(member, now_ms)
        is_same_protocol = (
            group.state is GroupState.STABLE and group.choose_protocol() == group.protocol
        )
        if not is_same_protocol:
            group.await_join(member, deferred)
            self._prepare_or_complete(group, now_ms, "a static member is replaced", member)
            return
        self.tell(group, now_ms)
        is_leader = group.leader_id == member_id
        if request.can_skip_assignment:
            answer = self._describe_generation(
                group, member, is_leader=is_leader, skip_assignment=is_leader
            )
        else:
            # The old id as leader id makes it act as a follower, which sends no assignment: a
            # stable group would ignore one.
            answer = self._describe_generation(
                group, member, is_leader=False, leader_id=known_leader_id
            )
        deferred.complete(answer)

    def make_member(self, group: Group, member: Member) -> Member:
        """Remove the member when its session expires; returns the member."""
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

    def _enter(
        self, group: Group, state: GroupState, reason: str, member: Member | None = None
    ) -> None:
        self.log_transition(group, group.state, state, reason, member)
        group.state = state
        group.state_ms = self._clock.wall_ms()
        if state is not GroupState.EMPTY:
            self._store.note_members(group.group_id)

    def log_transition(
        self,
        group: Group,
        old: GroupState,
        new: GroupState,
        reason: str,
        member: Member | None = None,
    ) -> None:
        """Say in the debug log, if it is on, from which state to which a group goes, and why."""
        if self._is_debug:
            _log.debug(
                "group %s: %s -> %s generation=%d members=%d reason=%s%s",
                quoted(group.group_id),
                old.value,
                new.value,
                group.generation,
                len(group.members),
                quoted(reason),
                "" if member is None else f" member={quoted(member.member_id)}",
            )

    def _prepare_or_complete(
        self, group: Group, now_ms: int, reason: str, member: Member | None = None
    ) -> None:
        if not group.is_rebalancing:
            self._prepare(group, now_ms, reason, member)
        elif not group.is_initial and group.have_all_joined:
            self.complete_join(group, now_ms, _ALL_JOINED)

    def _prepare(
        self, group: Group, now_ms: int, reason: str, member: Member | None = None
    ) -> None:
        """Start a rebalance: all members must rejoin."""
        assert not group.is_rebalancing
        self._forget_assignments(group, ErrorCode.rebalance_in_progress, now_ms)
        group.unsynced.clear()
        group.sync_deadline.cancel()
        group.upkeep.cancel()
        group.is_initial = group.state is GroupState.EMPTY
        group.has_grown = False
        self._enter(group, GroupState.PREPARING_REBALANCE, reason, member)
        if group.is_initial:
            group.initial_end_ms = now_ms + max(group.rebalance_timeout_ms, self._initial_delay_ms)
            group.join_deadline.set(now_ms + self._initial_delay_ms)
        elif group.have_all_joined:
            self.complete_join(group, now_ms, _ALL_JOINED)
        else:
            group.join_deadline.set(now_ms + group.rebalance_timeout_ms)

    def expire_join(self, group: Group, now_ms: int) -> None:
        """End the join phase, unless more members have joined an initially empty group."""
        assert group.is_rebalancing
        if group.is_initial and group.has_grown and now_ms < group.initial_end_ms:
            group.has_grown = False
            until_ms = min(now_ms + self._initial_delay_ms, group.initial_end_ms)
            group.join_deadline.set(until_ms)
            return
        self.complete_join(group, now_ms, "the time to join is over")

    def complete_join(self, group: Group, now_ms: int, reason: str) -> None:
        """Begin the next generation with the members that have joined."""
        assert group.is_rebalancing
        group.join_deadline.cancel()
        for member in list(group.members.values()):
            if _has_gone(member):
                group.remove(member, ErrorCode.unknown_member_id)
        if group.members and not self._elect(group):
            # Only static members are left, and none has rejoined. Wait until one does or their
            # sessions expire.
            group.join_deadline.set(now_ms + group.rebalance_timeout_ms)
            return
        if self._must_wait(group, now_ms):
            return
        group.generation = 1 if group.generation == GENERATION_MAX else group.generation + 1
        if not group.members:
            group.protocol = None
            self._enter(group, GroupState.EMPTY, "no member is left")
            self.tell(group, now_ms)
            return
        protocol = group.choose_protocol()
        if group.protocol not in (None, protocol):
            group.protocol_until_ms = (
                now_ms + group.size_bytes * MS_PER_SECOND // REWRITE_BYTES_PER_S
            )
        group.protocol = protocol
        self._enter(group, GroupState.COMPLETING_REBALANCE, reason)
        self.await_assignment(group, now_ms)
        self.tell(group, now_ms)
        for member in list(group.members.values()):
            is_leader = group.leader_id == member.member_id
            answer = self._describe_generation(group, member, is_leader=is_leader)
            if group.answer_join(member, answer):
                member.is_new = False
                self.restart_session(member, now_ms)

    @staticmethod
    def _must_wait(group: Group, now_ms: int) -> bool:
        """Return whether the group may not change its protocol yet; if so, it waits for that time.

        A small request can cause such a change, and the log then gets the metadata of all members.
        """
        if now_ms >= group.protocol_until_ms or not group.members:
            return False
        if group.choose_protocol() == group.protocol:
            return False
        group.join_deadline.set(group.protocol_until_ms)
        return True

    def _elect(self, group: Group) -> bool:
        """Ensure that the leader is a member that has joined; return False if none has."""
        if group.leader_id is not None and group.members[group.leader_id].awaiting_join is not None:
            return True
        joined = (each for each in group.members.values() if each.awaiting_join is not None)
        elected = next(joined, None)
        if elected is not None:
            group.leader_id = elected.member_id
        return elected is not None

    def await_assignment(self, group: Group, now_ms: int) -> None:
        """Start the time-out for the SyncGroup requests of a generation."""
        group.unsynced = set(group.members)
        group.sync_deadline.set(now_ms + group.rebalance_timeout_ms)

    def expire_sync(self, group: Group, now_ms: int) -> None:
        """Remove the members that have joined but sent no SyncGroup, and rebalance."""
        for member_id in group.unsynced.copy():
            group.remove(group.members[member_id], ErrorCode.unknown_member_id)
        self._prepare(group, now_ms, "the time to ask for the assignment is over")

    # The assignment

    def sync(
        self,
        group: Group,
        member: Member,
        request: SyncRequest,
        deferred: DeferredResponse[SyncAnswer],
        *,
        has_room: bool,
        now_ms: int,
    ) -> None:
        """Apply the leader's assignment, or let another member wait for it.

        Args:
            group: in COMPLETING_REBALANCE.
            member: one of its members.
            request: the checked request.
            deferred: completes with the member's assignment.
            has_room: the assignment is within the limits.
            now_ms: monotonic.
        """
        member.answer_sync(SyncAnswer(error=ErrorCode.rebalance_in_progress))
        member.awaiting_sync = deferred
        self.note_synced(group, member)
        if group.leader_id != member.member_id:
            return
        if not has_room:
            # Kafka's answer if the group is too large for its log.
            self._forget_assignments(group, ErrorCode.unknown_server_error, now_ms)
            self._prepare(group, now_ms, "the assignment is too large", member)
            return
        self._assign(group, request.assignments)
        self._enter(group, GroupState.STABLE, "the leader has assigned", member)
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
        """Return the assignment of a member of a stable group."""
        return SyncAnswer(
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            assignment=member.assignment,
        )

    def note_synced(self, group: Group, member: Member) -> None:
        """Note that a member has sent SyncGroup."""
        group.unsynced.discard(member.member_id)
        if not group.unsynced:
            group.sync_deadline.cancel()

    def _forget_assignments(self, group: Group, error: ErrorCode, now_ms: int) -> None:
        for member in group.members.values():
            group.assign(member, b"")
            if member.answer_sync(SyncAnswer(error=error)):
                self.restart_session(member, now_ms)

    # Leaving

    def remove(self, group: Group, members: Iterable[Member], now_ms: int, reason: str) -> None:
        """Remove members, and rebalance the others."""
        last = None
        for member in members:
            group.remove(member, ErrorCode.unknown_member_id)
            last = member
        self._prepare_or_complete(group, now_ms, reason, last)

    def stop_expecting(self, group: Group, member_id: str, now_ms: int) -> None:
        """Stop waiting for the client that was given this id."""
        group.stop_expecting(member_id)
        if group.is_rebalancing:
            self._prepare_or_complete(group, now_ms, _ALL_JOINED)

    def restart_session(self, member: Member, now_ms: int) -> None:
        """Restart the session time-out, after a request from the member or an answer to it."""
        member.session.set(now_ms + member.session_timeout_ms)

    def _expire_session(self, group: Group, member: Member, now_ms: int) -> None:
        is_waiting = member.awaiting_join is not None or member.awaiting_sync is not None
        if is_waiting and not member.is_new:
            return  # It cannot send heartbeats while it waits; the answer restarts the session.
        self.remove(group, (member,), now_ms, "the session of a member is over")

    # The log

    def tell(self, group: Group, now_ms: int) -> None:
        """Record the state of a group in the log; if there is no room, retry later."""
        try:
            self._store.save_group(group.to_frame())
            group.is_saved = True
        except RequestError:
            group.is_saved = False
        self._plan_upkeep(group, now_ms)

    def save_again(self, group: Group, now_ms: int) -> None:
        """Record a group if the log does not have its state, and schedule its next check."""
        if group.is_saved:
            self._plan_upkeep(group, now_ms)
        else:
            self.tell(group, now_ms)

    @staticmethod
    def _plan_upkeep(group: Group, now_ms: int) -> None:
        if not group.is_saved:
            group.upkeep.set(now_ms + SAVE_RETRY_MS)
        elif group.state is GroupState.EMPTY:
            group.upkeep.set(now_ms + EMPTY_CHECK_MS)


_ALL_JOINED: Final = "all members have joined"


def _has_gone(member: Member) -> bool:
    """Return whether a generation begins without this member."""
    if member.awaiting_join is None:
        return member.instance_id is None
    # The client has not received its id, so it would neither sync nor send heartbeats.
    return member.is_new and member.awaiting_join.is_abandoned
