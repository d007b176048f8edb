"""All consumer groups of this broker: what JoinGroup, SyncGroup, Heartbeat, LeaveGroup mean.

The coordinator is driven from outside: requests come in as calls with the present time, answers
that must wait go into a Reply, and `expire` is to be called when `next_deadline_ms` has come. All
times are monotonic ms, but for what is said to be wall-clock time.

Memory is bounded by settings: groups, members of a group, and bytes of one and of all groups. What
goes beyond is refused with GROUP_MAX_SIZE_REACHED, which ends a consumer with a word that says why.
Layer 3; does no I/O.
"""

from collections.abc import Iterable
from functools import partial
from typing import Final

from appliance.config import Config
from appliance.errors import RequestError
from appliance.store.group_frames import GROUP_CLASSIC, GROUP_DELETED, GroupFrame
from compat.kafka.error_codes import ErrorCode
from compat.kafka.groups.deadlines import Deadline, DeadlineQueue
from compat.kafka.groups.group import STATES_OF_FRAMES, Group, GroupState, Usage
from compat.kafka.groups.group_log import GroupLog
from compat.kafka.groups.member import (
    JoinAnswer,
    JoinRequest,
    Member,
    Reply,
    SyncAnswer,
    SyncRequest,
    member_size,
)
from compat.kafka.groups.rebalance import TELL_RETRY_MS, Rebalancer

NO_GENERATION: Final = -1
"""Of a commit that no member makes."""


class GroupCoordinator:
    """Knows every group and its members.

    Args:
        log: keeps the groups.
        config: what is allowed.
    """

    def __init__(self, log: GroupLog, config: Config) -> None:
        self._log = log
        self._config = config
        self._groups: dict[str, Group] = {}
        self._usage = Usage()
        self._deadlines = DeadlineQueue()
        self._rebalancer = Rebalancer(
            log, self._deadlines, initial_delay_ms=config.initial_rebalance_delay_ms
        )

    # Time

    def next_deadline_ms(self) -> int | None:
        """When to call `expire`; None while nothing is waited for. May come too early."""
        return self._deadlines.next_ms()

    def expire(self, now_ms: int) -> None:
        """Let happen what was to happen by now. O(log n) for each."""
        self._deadlines.expire(now_ms)

    @property
    def deadline_count(self) -> int:
        """How many deadlines are kept, also such as were cancelled or put off."""
        return len(self._deadlines)

    @property
    def size_bytes(self) -> int:
        """What all groups take."""
        return self._usage.size_bytes

    # Members

    def join(self, request: JoinRequest, reply: Reply[JoinAnswer], now_ms: int) -> None:
        """Answer JoinGroup: most often when all members of the group have sent one.

        The rebalance time-out of the request is 0 or more.
        """
        error = self._check_join(request)
        group = self._groups.get(request.group_id)
        if error is ErrorCode.NONE and group is None:
            group = self._make_group(request.group_id)
            # There is nothing to tell yet. If somebody commits before a member is in, it stays
            # when nobody comes, and then is looked at as a simple one is.
            group.is_told = True
            self._rebalancer.keep_told(group, now_ms)
        if error is not ErrorCode.NONE or group is None:
            reply.complete(JoinAnswer(error=error, member_id=request.member_id))
        elif not self._has_place(group, request):
            reply.complete(JoinAnswer(error=ErrorCode.GROUP_MAX_SIZE_REACHED))
            member = self._find_member(group, request)
            if member is not None:
                # It gives up, so that nobody has to wait for it.
                self._rebalancer.remove(group, (member,), now_ms)
            self._forget_unused(group)
        elif not group.supports(request.protocol_type, request.protocols):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            reply.complete(JoinAnswer(error=error, member_id=request.member_id))
            self._forget_unused(group)
        elif request.member_id:
            self._join_with_id(group, request, reply, now_ms)
        else:
            self._join_without_id(group, request, reply, now_ms)

    def _check_join(self, request: JoinRequest) -> ErrorCode:
        config = self._config
        low, high = config.session_timeout_min_ms, config.session_timeout_max_ms
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if not low <= request.session_timeout_ms <= high:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if request.group_id not in self._groups:
            if request.member_id:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if not self._has_room_for_group():
                return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE

    def _has_place(self, group: Group, request: JoinRequest) -> bool:
        """Tell whether a group may have this member as the request describes it."""
        count_max = self._config.group_member_count_max
        member = self._find_member(group, request)
        if member is not None:
            # After the limit was lowered those that join first stay.
            is_late = member.awaiting_join is None and group.awaiting_join_count >= count_max
            if group.is_rebalancing and is_late:
                return False
        elif (
            request.member_id not in group.pending
            and len(group.members) + len(group.pending) >= count_max
        ):
            return False
        needed = member_size(
            request.member_id, request.instance_id, request.client_id, request.protocols
        )
        # Its id may have to be made, and begins with one of its names.
        needed += len(request.client_id) + len(request.protocol_type)
        return self._has_room(group, needed - (0 if member is None else member.size_bytes))

    @staticmethod
    def _find_member(group: Group, request: JoinRequest) -> Member | None:
        """Return the member whose place a request is for, if there is one."""
        member_id = request.member_id
        if not member_id and request.instance_id is not None:
            member_id = group.static_ids.get(request.instance_id, "")
        return group.members.get(member_id)

    def _has_room(self, group: Group, size_bytes: int) -> bool:
        config = self._config
        return (
            group.size_bytes + size_bytes <= config.group_size_max_bytes
            and self._usage.size_bytes + size_bytes <= config.group_total_size_max_bytes
        )

    def _join_without_id(
        self, group: Group, request: JoinRequest, reply: Reply[JoinAnswer], now_ms: int
    ) -> None:
        member_id = group.make_member_id(request.client_id, request.instance_id)
        if request.instance_id is not None:
            old_id = group.static_ids.get(request.instance_id)
            if old_id is None:
                self._rebalancer.add(group, request, member_id, reply, now_ms=now_ms)
            else:
                member = group.members[old_id]
                self._rebalancer.replace(group, member, request, member_id, reply, now_ms=now_ms)
        elif request.is_member_id_required:
            deadline = Deadline(self._deadlines)
            deadline.expired = partial(self._expire_pending, group, member_id)
            deadline.set(now_ms + request.session_timeout_ms)
            group.expect(member_id, deadline)
            reply.complete(JoinAnswer(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
        else:
            self._rebalancer.add(group, request, member_id, reply, now_ms=now_ms)

    def _join_with_id(
        self, group: Group, request: JoinRequest, reply: Reply[JoinAnswer], now_ms: int
    ) -> None:
        member_id = request.member_id
        if member_id in group.pending and request.instance_id is None:
            group.stop_expecting(member_id)
            self._rebalancer.add(group, request, member_id, reply, now_ms=now_ms)
            return
        error = group.check_member(member_id, request.instance_id)
        if error is ErrorCode.NONE:
            member = group.members[member_id]
            self._rebalancer.rejoin(group, member, request, reply, now_ms=now_ms)
        else:
            reply.complete(JoinAnswer(error=error, member_id=member_id))

    def _expire_pending(self, group: Group, member_id: str, now_ms: int) -> None:
        self._rebalancer.stop_expecting(group, member_id, now_ms)
        self._forget_unused(group)

    def sync(self, request: SyncRequest, reply: Reply[SyncAnswer], now_ms: int) -> None:
        """Answer SyncGroup: when the leader's assignment is there."""
        group = self._groups.get(request.group_id)
        error = self._check_sync(group, request)
        if error is not ErrorCode.NONE or group is None:
            reply.complete(SyncAnswer(error=error))
            return
        member = group.members[request.member_id]
        if group.state is GroupState.STABLE:
            self._rebalancer.note_synced(group, member)
            self._rebalancer.restart_session(member, now_ms)
            reply.complete(self._rebalancer.assignment_of(group, member))
            return
        assert group.state is GroupState.COMPLETING_REBALANCE
        size = sum(len(request.assignments.get(member_id, b"")) for member_id in group.members)
        has_room = self._has_room(group, size)
        self._rebalancer.sync(group, member, request, reply, has_room=has_room, now_ms=now_ms)

    @staticmethod
    def _check_sync(group: Group | None, request: SyncRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.check_member(request.member_id, request.instance_id)
        if error is not ErrorCode.NONE:
            return error
        if request.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        is_same_type = request.protocol_type in (None, group.protocol_type)
        # A group that has never been through a rebalance has no protocol yet.
        is_same = group.protocol is None or request.protocol in (None, group.protocol)
        if not (is_same_type and is_same):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.REBALANCE_IN_PROGRESS if group.is_rebalancing else ErrorCode.NONE

    def heartbeat(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
    ) -> ErrorCode:
        """Note that a member is alive. REBALANCE_IN_PROGRESS asks it to join again."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.check_member(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._rebalancer.restart_session(group.members[member_id], now_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS if group.is_rebalancing else ErrorCode.NONE

    def leave(
        self, group_id: str, leaving: Iterable[tuple[str, str | None]], now_ms: int
    ) -> list[ErrorCode]:
        """Let members go.

        Args:
            group_id: their group.
            leaving: member and instance id of each; the instance id is enough of a static one.
            now_ms: monotonic.

        Returns:
            One code for each, in their order.
        """
        group = self._groups.get(group_id)
        if group is None:
            error = ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID
            return [error for _ in leaving]
        errors: list[ErrorCode] = []
        gone: dict[str, Member] = {}
        unwanted = set()
        for named_id, instance_id in leaving:
            is_known_static = not named_id and instance_id in group.static_ids
            member_id = group.static_ids[instance_id or ""] if is_known_static else named_id
            error = ErrorCode.NONE
            if member_id in group.pending:
                unwanted.add(member_id)
            else:
                error = group.check_member(member_id, instance_id)
                if error is ErrorCode.NONE and member_id in gone:
                    error = ErrorCode.UNKNOWN_MEMBER_ID
                elif error is ErrorCode.NONE:
                    gone[member_id] = group.members[member_id]
            errors.append(error)
        for member_id in unwanted:
            self._rebalancer.stop_expecting(group, member_id, now_ms)
        if gone:
            self._rebalancer.remove(group, gone.values(), now_ms)
        self._forget_unused(group)
        return errors

    # Offsets

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
    ) -> ErrorCode:
        """Tell whether offsets may be committed; a member that commits is alive.

        Without a member and a generation (NO_GENERATION) they may while the group has no members;
        if it does not exist, it does from now on.
        """
        group = self._groups.get(group_id)
        is_simple = generation < 0 and not member_id and instance_id is None
        if group is None:
            # A member of a group that was deleted is to find out at its next heartbeat.
            return self._begin_simple(group_id, now_ms) if generation < 0 else _ILLEGAL
        if is_simple:
            is_empty = group.state is GroupState.EMPTY
            return ErrorCode.NONE if is_empty else ErrorCode.UNKNOWN_MEMBER_ID
        if generation < 0 and group.state is GroupState.EMPTY:
            return ErrorCode.NONE
        error = group.check_member(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation != group.generation:
            return _ILLEGAL
        self._rebalancer.restart_session(group.members[member_id], now_ms)
        if group.state is GroupState.COMPLETING_REBALANCE:
            # What it consumes was taken from it already.
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _begin_simple(self, group_id: str, now_ms: int) -> ErrorCode:
        """Make a group that has offsets and no members."""
        if not self._has_room_for_group():
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        self._rebalancer.keep_told(self._make_simple_group(group_id), now_ms)
        return ErrorCode.NONE

    def _make_simple_group(self, group_id: str) -> Group:
        group = self._make_group(group_id)
        # Its offsets are all that there is of it, and they say themselves since when.
        group.state_ms = 0
        group.is_told = True
        return group

    def is_subscribed(self, group_id: str, topic_name: str) -> bool:
        """Tell whether a member consumes a topic; True as well if that cannot be known."""
        group = self._groups.get(group_id)
        topics = frozenset[str]() if group is None else group.subscribed_topics()
        return topics is None or topic_name in topics

    def empty_since_ms(self, group_id: str) -> int | None:
        """Since when a group has no members, epoch ms; None if it has some or does not exist.

        0 if there never was one.
        """
        group = self._groups.get(group_id)
        if group is None or group.state is not GroupState.EMPTY:
            return None
        return group.state_ms

    # Groups

    def state_of(self, group_id: str) -> GroupState:
        """What a group is doing; DEAD if it does not exist."""
        group = self._groups.get(group_id)
        return GroupState.DEAD if group is None else group.state

    def find(self, group_id: str) -> Group | None:
        """Return a group, to be looked at only."""
        return self._groups.get(group_id)

    def groups(self) -> Iterable[Group]:
        """All groups, to be looked at only."""
        return self._groups.values()

    def delete(self, group_id: str) -> ErrorCode:
        """Delete a group without members, and its offsets."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        try:
            self._log.tell_group(GroupFrame(op=GROUP_DELETED, group=group_id))
        except RequestError:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._drop(group)
        return ErrorCode.NONE

    def _has_room_for_group(self) -> bool:
        config = self._config
        return (
            len(self._groups) < config.group_count_max
            and self._usage.size_bytes < config.group_total_size_max_bytes
        )

    def _make_group(self, group_id: str) -> Group:
        group = Group(
            group_id,
            join_deadline=Deadline(self._deadlines),
            sync_deadline=Deadline(self._deadlines),
            upkeep=Deadline(self._deadlines),
            usage=self._usage,
            state_ms=self._log.clock.wall_ms(),
        )
        group.generation = self._log.generation_floor
        group.join_deadline.expired = partial(self._rebalancer.expire_join, group)
        group.sync_deadline.expired = partial(self._rebalancer.expire_sync, group)
        group.upkeep.expired = partial(self._keep_up, group)
        self._groups[group_id] = group
        return group

    def _drop(self, group: Group) -> None:
        assert not group.members
        for member_id in list(group.pending):
            group.stop_expecting(member_id)
        for deadline in (group.join_deadline, group.sync_deadline, group.upkeep):
            deadline.cancel()
        group.state = GroupState.DEAD
        group.give_back()
        del self._groups[group.group_id]

    def _forget_unused(self, group: Group) -> None:
        """Let go of a group that nobody ever got into."""
        is_unused = group.state is GroupState.EMPTY and not group.pending
        # Those that had a generation are to go on counting for a while.
        has_begun = group.generation > self._log.generation_floor
        is_kept = has_begun or bool(self._log.committed_offsets(group.group_id))
        if is_unused and not is_kept:
            self._drop(group)

    def _keep_up(self, group: Group, now_ms: int) -> None:
        """Tell a group again that could not be told, and forget an empty one without offsets."""
        if group.is_rebalancing:
            return  # It is told as soon as there is something to tell.
        is_used = group.state is not GroupState.EMPTY or bool(group.pending)
        has_offsets = bool(self._log.committed_offsets(group.group_id))
        if is_used or has_offsets or not group.is_told:
            self._rebalancer.keep_told(group, now_ms)
        elif group.group_id not in self._log.groups():
            self._drop(group)
        elif self.delete(group.group_id) is not ErrorCode.NONE:
            group.upkeep.set(now_ms + TELL_RETRY_MS)

    # After a start

    def restore(self, now_ms: int) -> None:
        """Take up the groups as the log has them: their members go on as if nothing had been.

        Sessions and the time to sync begin anew. Call it once, before any request.
        """
        told = self._log.groups()
        for name in self._log.group_names():
            frame = told.get(name)
            if frame is None:
                self._rebalancer.keep_told(self._make_simple_group(name), now_ms)
            elif frame.group_type == GROUP_CLASSIC:
                self._restore_group(frame, now_ms)

    def _restore_group(self, frame: GroupFrame, now_ms: int) -> None:
        group = self._make_group(frame.group)
        group.generation = max(frame.generation, 0)
        group.state_ms = frame.state_ms
        for told in frame.members:
            member = Member(
                member_id=told.member_id,
                instance_id=told.instance_id,
                client_id=told.client_id,
                client_host=told.client_host,
                session_timeout_ms=told.session_timeout_ms,
                rebalance_timeout_ms=told.rebalance_timeout_ms,
                protocols={} if frame.protocol is None else {frame.protocol: told.metadata},
                session=Deadline(self._deadlines),
                is_restored=True,
            )
            group.add(self._rebalancer.make_member(group, member), frame.protocol_type or "")
            group.assign(member, told.assignment)
            self._rebalancer.restart_session(member, now_ms)
        group.protocol_type, group.protocol = frame.protocol_type, frame.protocol
        group.leader_id = frame.leader
        group.state = STATES_OF_FRAMES[frame.state]
        group.is_told = True
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._rebalancer.await_assignment(group, now_ms)
        elif group.state is GroupState.EMPTY:
            self._rebalancer.keep_told(group, now_ms)


_ILLEGAL: Final = ErrorCode.ILLEGAL_GENERATION
