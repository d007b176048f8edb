"""The consumer groups of this broker: implements JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

The caller drives the coordinator: requests are calls with the current time, answers that must wait
complete a deferred response, and the caller calls `expire` at `next_deadline_ms`. All times are
monotonic ms unless they are described as wall-clock time.

Settings bound the memory: groups, members of a group, and bytes of one and of all groups. One
address may have half of what the others leave of the groups, of these bytes, and of what committed
offsets may take. A group counts for the address that created it; one that a start has found, for
the address that uses it next. Requests beyond the bounds get GROUP_MAX_SIZE_REACHED, which stops a
consumer with an error that names the cause. Layer 3; does no I/O.
"""

import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

from appliance.allowance import share_max
from appliance.config.config import Config
from appliance.errors import RequestError
from appliance.log_text import quoted
from appliance.store.state.group_frames import (
    GROUP_CLASSIC,
    GROUP_DELETED,
    STATE_EMPTY,
    GroupFrame,
)
from appliance.store.state.group_store import GroupStore
from appliance.system.clock import Clock
from compat.kafka.groups.deadlines import Deadline, DeadlineQueue
from compat.kafka.groups.group import STATES_OF_FRAMES, Group, GroupState, Usage
from compat.kafka.groups.member import (
    JoinAnswer,
    JoinRequest,
    Member,
    SyncAnswer,
    SyncRequest,
    member_size,
)
from compat.kafka.groups.rebalance import SAVE_RETRY_MS, Rebalancer
from compat.kafka.protocol.deferred import DeferredResponse
from compat.kafka.protocol.error_codes import ErrorCode

_log = logging.getLogger(__name__)

NAMES_LOGGED_MAX: Final = 10
"""Groups that one line of the log names."""


class GroupCoordinator:
    """All groups and their members.

    Args:
        store: keeps the groups.
        config: the limits.
    """

    def __init__(self, store: GroupStore, clock: Clock, config: Config) -> None:
        self._store = store
        self._clock = clock
        self._config = config
        self._groups: dict[str, Group] = {}
        self._usage = Usage()
        self._deadlines = DeadlineQueue()
        self._rebalancer = Rebalancer(
            store, clock, self._deadlines, initial_delay_ms=config.initial_rebalance_delay_ms
        )

    # Time

    def next_deadline_ms(self) -> int | None:
        """Return when to call `expire`, None if no deadline is set; it may be too early."""
        return self._deadlines.next_ms()

    def expire(self, now_ms: int) -> None:
        """Handle all deadlines that are due. O(log n) for each."""
        self._deadlines.expire(now_ms)

    @property
    def size_bytes(self) -> int:
        """The memory of all groups, bytes."""
        return self._usage.size_bytes

    # Members

    def join(
        self, request: JoinRequest, deferred: DeferredResponse[JoinAnswer], now_ms: int
    ) -> None:
        """Handle JoinGroup; `deferred` usually completes when all members of the group have joined.

        The rebalance time-out of the request must be 0 or more.
        """
        error = self._check_join(request)
        group = self._groups.get(request.group_id)
        if error is ErrorCode.none and group is None:
            group = self._make_group(request.group_id, request.client_host)
            # There is nothing to record yet. If a commit arrives but no member ever joins, the
            # group stays and is checked like a simple group.
            group.is_saved = True
            self._rebalancer.save_again(group, now_ms)
        if error is not ErrorCode.none or group is None:
            deferred.complete(JoinAnswer(error=error, member_id=request.member_id))
        elif not self._has_place(group, request):
            deferred.complete(JoinAnswer(error=ErrorCode.group_max_size_reached))
            member = self._find_member(group, request)
            if member is not None:
                # The client gives up, so the others must not wait for it.
                self._rebalancer.remove(group, (member,), now_ms, "a member does not fit")
            self._forget_unused(group)
        elif not group.supports(request.protocol_type, request.protocols):
            error = ErrorCode.inconsistent_group_protocol
            deferred.complete(JoinAnswer(error=error, member_id=request.member_id))
            self._forget_unused(group)
        else:
            self._claim(group, request.client_host)
            if request.member_id:
                self._join_with_id(group, request, deferred, now_ms)
            else:
                self._join_without_id(group, request, deferred, now_ms)

    def _check_join(self, request: JoinRequest) -> ErrorCode:
        config = self._config
        low, high = config.session_timeout_min_ms, config.session_timeout_max_ms
        if not request.group_id:
            return ErrorCode.invalid_group_id
        if not low <= request.session_timeout_ms <= high:
            return ErrorCode.invalid_session_timeout
        if request.group_id not in self._groups:
            if request.member_id:
                return ErrorCode.unknown_member_id
            if not self._has_room_for_group(request.client_host):
                return ErrorCode.group_max_size_reached
        return ErrorCode.none

    def _has_place(self, group: Group, request: JoinRequest) -> bool:
        """Return whether the limits allow this member as the request describes it."""
        count_max = self._config.group_member_count_max
        member = self._find_member(group, request)
        if member is not None:
            # If the limit was lowered, the members that join first stay.
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
        # Its id may have to be generated, and begins with one of its names.
        needed += len(request.client_id) + len(request.protocol_type)
        return self._has_room(group, needed - (0 if member is None else member.size_bytes))

    @staticmethod
    def _find_member(group: Group, request: JoinRequest) -> Member | None:
        """Return the existing member that a request belongs to, None for a new one."""
        member_id = request.member_id
        if not member_id and request.instance_id is not None:
            member_id = group.static_ids.get(request.instance_id, "")
        return group.members.get(member_id)

    def _has_room(self, group: Group, size_bytes: int) -> bool:
        config = self._config
        total_max = config.group_total_size_max_bytes
        own = self._usage.share_of(group.address).size_bytes
        others = self._usage.size_bytes - own
        # What others take meanwhile is no reason to refuse a member that does not grow.
        fits_share = size_bytes <= 0 or own + size_bytes <= share_max(total_max, others)
        return (
            group.size_bytes + size_bytes <= config.group_size_max_bytes
            and self._usage.size_bytes + size_bytes <= total_max
            and fits_share
        )

    def _claim(self, group: Group, address: str) -> None:
        """Count a group that a start has found for the address that uses it, from now on."""
        if address and not group.address:
            group.charge_to(address)
            self._store.note_address(group.group_id, address)

    def _join_without_id(
        self,
        group: Group,
        request: JoinRequest,
        deferred: DeferredResponse[JoinAnswer],
        now_ms: int,
    ) -> None:
        member_id = group.make_member_id(request.client_id, request.instance_id)
        if request.instance_id is not None:
            old_id = group.static_ids.get(request.instance_id)
            if old_id is None:
                self._rebalancer.add(group, request, member_id, deferred, now_ms=now_ms)
            else:
                member = group.members[old_id]
                self._rebalancer.replace(group, member, request, member_id, deferred, now_ms=now_ms)
        elif request.is_member_id_required:
            deadline = Deadline(self._deadlines)
            deadline.expired = partial(self._expire_pending, group, member_id)
            deadline.set(now_ms + request.session_timeout_ms)
            group.expect(member_id, deadline)
            deferred.complete(JoinAnswer(error=ErrorCode.member_id_required, member_id=member_id))
        else:
            self._rebalancer.add(group, request, member_id, deferred, now_ms=now_ms)

    def _join_with_id(
        self,
        group: Group,
        request: JoinRequest,
        deferred: DeferredResponse[JoinAnswer],
        now_ms: int,
    ) -> None:
        member_id = request.member_id
        if member_id in group.pending and request.instance_id is None:
            group.stop_expecting(member_id)
            self._rebalancer.add(group, request, member_id, deferred, now_ms=now_ms)
            return
        error = group.check_member(member_id, request.instance_id)
        if error is ErrorCode.none:
            member = group.members[member_id]
            self._rebalancer.rejoin(group, member, request, deferred, now_ms=now_ms)
        else:
            deferred.complete(JoinAnswer(error=error, member_id=member_id))

    def _expire_pending(self, group: Group, member_id: str, now_ms: int) -> None:
        self._rebalancer.stop_expecting(group, member_id, now_ms)
        self._forget_unused(group)

    def sync(
        self, request: SyncRequest, deferred: DeferredResponse[SyncAnswer], now_ms: int
    ) -> None:
        """Handle SyncGroup; `deferred` completes when the leader has sent the assignment."""
        group = self._groups.get(request.group_id)
        error = self._check_sync(group, request)
        if error is not ErrorCode.none or group is None:
            deferred.complete(SyncAnswer(error=error))
            return
        member = group.members[request.member_id]
        if group.state is GroupState.STABLE:
            self._rebalancer.note_synced(group, member)
            self._rebalancer.restart_session(member, now_ms)
            deferred.complete(self._rebalancer.assignment_of(group, member))
            return
        assert group.state is GroupState.COMPLETING_REBALANCE
        size = sum(len(request.assignments.get(member_id, b"")) for member_id in group.members)
        has_room = self._has_room(group, size)
        self._rebalancer.sync(group, member, request, deferred, has_room=has_room, now_ms=now_ms)

    @staticmethod
    def _check_sync(group: Group | None, request: SyncRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.invalid_group_id
        if group is None:
            return ErrorCode.unknown_member_id
        error = group.check_member(request.member_id, request.instance_id)
        if error is not ErrorCode.none:
            return error
        if request.generation != group.generation:
            return ErrorCode.illegal_generation
        is_same_type = request.protocol_type in (None, group.protocol_type)
        # A group without a completed rebalance has no protocol yet.
        is_same = group.protocol is None or request.protocol in (None, group.protocol)
        if not (is_same_type and is_same):
            return ErrorCode.inconsistent_group_protocol
        return ErrorCode.rebalance_in_progress if group.is_rebalancing else ErrorCode.none

    def heartbeat(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
        *,
        address: str = "",
    ) -> ErrorCode:
        """Restart a member's session. REBALANCE_IN_PROGRESS asks the member to rejoin."""
        if not group_id:
            return ErrorCode.invalid_group_id
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.unknown_member_id
        error = group.check_member(member_id, instance_id)
        if error is not ErrorCode.none:
            return error
        if generation != group.generation:
            return ErrorCode.illegal_generation
        self._claim(group, address)
        self._rebalancer.restart_session(group.members[member_id], now_ms)
        return ErrorCode.rebalance_in_progress if group.is_rebalancing else ErrorCode.none

    def leave(
        self, group_id: str, leaving: Iterable[tuple[str, str | None]], now_ms: int
    ) -> list[ErrorCode]:
        """Remove members.

        Args:
            group_id: their group.
            leaving: member and instance id of each; a static member needs only the instance id.
            now_ms: monotonic.

        Returns:
            One code for each, in the same order.
        """
        group = self._groups.get(group_id)
        if group is None:
            error = ErrorCode.unknown_member_id if group_id else ErrorCode.invalid_group_id
            return [error for _ in leaving]
        errors: list[ErrorCode] = []
        gone: dict[str, Member] = {}
        unwanted = set()
        for named_id, instance_id in leaving:
            is_known_static = not named_id and instance_id in group.static_ids
            member_id = group.static_ids[instance_id or ""] if is_known_static else named_id
            error = ErrorCode.none
            if member_id in group.pending:
                unwanted.add(member_id)
            else:
                error = group.check_member(member_id, instance_id)
                if error is ErrorCode.none and member_id in gone:
                    error = ErrorCode.unknown_member_id
                elif error is ErrorCode.none:
                    gone[member_id] = group.members[member_id]
            errors.append(error)
        for member_id in unwanted:
            self._rebalancer.stop_expecting(group, member_id, now_ms)
        if gone:
            self._rebalancer.remove(group, gone.values(), now_ms, "a member leaves")
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
        *,
        address: str = "",
    ) -> ErrorCode:
        """Return whether offsets may be committed; a commit restarts the member's session.

        Without a member id and a generation (-1) the group must have no members; a
        missing group is created, and counts for the address of the client, if it is known.
        """
        error = self._check_commit(
            group_id, member_id, instance_id, generation, now_ms, address=address
        )
        if error is ErrorCode.none:
            self._claim(self._groups[group_id], address)
        return error

    def _check_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
        *,
        address: str,
    ) -> ErrorCode:
        group = self._groups.get(group_id)
        is_simple = generation < 0 and not member_id and instance_id is None
        if group is None:
            # A member of a deleted group learns of the deletion at its next heartbeat.
            return self._begin_simple(group_id, now_ms, address) if generation < 0 else _ILLEGAL
        if is_simple:
            is_empty = group.state is GroupState.EMPTY
            return ErrorCode.none if is_empty else ErrorCode.unknown_member_id
        if generation < 0 and group.state is GroupState.EMPTY:
            return ErrorCode.none
        error = group.check_member(member_id, instance_id)
        if error is not ErrorCode.none:
            return error
        if generation != group.generation:
            return _ILLEGAL
        self._rebalancer.restart_session(group.members[member_id], now_ms)
        if group.state is GroupState.COMPLETING_REBALANCE:
            # The member has already lost its previous assignment.
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def _begin_simple(self, group_id: str, now_ms: int, address: str) -> ErrorCode:
        """Create a group with offsets and without members."""
        if not self._has_room_for_group(address):
            return ErrorCode.group_max_size_reached
        self._rebalancer.save_again(self._make_simple_group(group_id, address), now_ms)
        return ErrorCode.none

    def _make_simple_group(self, group_id: str, address: str = "") -> Group:
        group = self._make_group(group_id, address)
        # The group has only offsets, which have their own times.
        group.state_ms = 0
        group.is_saved = True
        return group

    def is_subscribed(self, group_id: str, topic_name: str) -> bool:
        """Return whether a member consumes a topic; also True if that is unknown."""
        group = self._groups.get(group_id)
        topics = frozenset[str]() if group is None else group.subscribed_topics()
        return topics is None or topic_name in topics

    # Groups

    def find(self, group_id: str) -> Group | None:
        """Return a group; the caller must not change it."""
        return self._groups.get(group_id)

    def groups(self) -> Iterable[Group]:
        """Return all groups; the caller must not change them."""
        return self._groups.values()

    def delete(self, group_id: str) -> ErrorCode:
        """Delete a group without members, and its offsets."""
        if not group_id:
            return ErrorCode.invalid_group_id
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.group_id_not_found
        if group.state is not GroupState.EMPTY:
            return ErrorCode.non_empty_group
        try:
            self._store.save_group(GroupFrame(op=GROUP_DELETED, group=group_id))
        except RequestError:
            return ErrorCode.coordinator_not_available
        self._drop(group, "it is deleted")
        return ErrorCode.none

    def _has_room_for_group(self, address: str) -> bool:
        """Return whether an address may create a group; "" for one that is not known."""
        config, usage = self._config, self._usage
        share = usage.share_of(address)
        count, size_bytes = len(self._groups), usage.size_bytes
        count_max, size_max_bytes = config.group_count_max, config.group_total_size_max_bytes
        return (
            count < count_max
            and size_bytes < size_max_bytes
            and share.count < share_max(count_max, count - share.count)
            and share.size_bytes < share_max(size_max_bytes, size_bytes - share.size_bytes)
        )

    def _make_group(self, group_id: str, address: str = "") -> Group:
        group = Group(
            group_id,
            join_deadline=Deadline(self._deadlines),
            sync_deadline=Deadline(self._deadlines),
            upkeep=Deadline(self._deadlines),
            usage=self._usage,
            state_ms=self._clock.wall_ms(),
            address=address,
        )
        group.generation = self._store.generation_floor
        group.join_deadline.expired = partial(self._rebalancer.expire_join, group)
        group.sync_deadline.expired = partial(self._rebalancer.expire_sync, group)
        group.upkeep.expired = partial(self._keep_up, group)
        self._groups[group_id] = group
        if address:
            self._store.note_address(group_id, address)
        return group

    def _drop(self, group: Group, reason: str) -> None:
        assert not group.members
        for member_id in list(group.pending):
            group.stop_expecting(member_id)
        for deadline in (group.join_deadline, group.sync_deadline, group.upkeep):
            deadline.cancel()
        self._rebalancer.log_transition(group, group.state, GroupState.DEAD, reason)
        group.state = GroupState.DEAD
        group.give_back()
        self._store.note_address(group.group_id, "")
        del self._groups[group.group_id]

    def _forget_unused(self, group: Group) -> None:
        """Drop a group that never had a generation and has no offsets."""
        is_unused = group.state is GroupState.EMPTY and not group.pending
        # A group that had a generation is kept for a while, so that its generations keep rising.
        has_begun = group.generation > self._store.generation_floor
        is_kept = has_begun or bool(self._store.offsets(group.group_id))
        if is_unused and not is_kept:
            self._drop(group, "nobody got into it")

    def _keep_up(self, group: Group, now_ms: int) -> None:
        """Retry to record a group in the log, and delete an empty group without offsets."""
        if group.is_rebalancing:
            return  # The end of the rebalance records it.
        is_used = group.state is not GroupState.EMPTY or bool(group.pending)
        has_offsets = bool(self._store.offsets(group.group_id))
        if is_used or has_offsets or not group.is_saved:
            self._rebalancer.save_again(group, now_ms)
        elif group.group_id not in self._store.groups:
            self._drop(group, "it has neither members nor offsets")
        elif self.delete(group.group_id) is not ErrorCode.none:
            group.upkeep.set(now_ms + SAVE_RETRY_MS)

    # After a start

    def restore(self, now_ms: int) -> None:
        """Restore the groups from the log, so that their members continue without a rebalance.

        Sessions and sync time-outs restart. A group whose members are lost with a damaged frame of
        the log is empty now, and its offsets begin to expire; its members learn at their next
        request that they have to join. Call it once, before any request.
        """
        saved = self._store.groups
        lost: list[str] = []
        for name in self._store.names:
            frame = saved.get(name)
            if frame is None:
                self._rebalancer.save_again(self._make_simple_group(name), now_ms)
            elif frame.group_type == GROUP_CLASSIC:
                group = self._make_group(frame.group)
                group.generation = max(frame.generation, 0)
                if frame.members or frame.state == STATE_EMPTY:
                    self._restore_group(group, frame, now_ms)
                else:
                    lost.append(name)
                    self._rebalancer.save_again(group, now_ms)
        if lost:
            _log.warning(
                "the members of %d groups are lost with a damaged part of the log, and have to "
                "join again: %s",
                len(lost),
                ", ".join(map(quoted, lost[:NAMES_LOGGED_MAX])),
            )

    def _restore_group(self, group: Group, frame: GroupFrame, now_ms: int) -> None:
        group.state_ms = frame.state_ms
        for kept in frame.members:
            member = Member(
                member_id=kept.member_id,
                instance_id=kept.instance_id,
                client_id=kept.client_id,
                client_host=kept.client_host,
                session_timeout_ms=kept.session_timeout_ms,
                rebalance_timeout_ms=kept.rebalance_timeout_ms,
                protocols={} if frame.protocol is None else {frame.protocol: kept.metadata},
                session=Deadline(self._deadlines),
                is_restored=True,
            )
            group.add(self._rebalancer.make_member(group, member), frame.protocol_type or "")
            group.assign(member, kept.assignment)
            self._rebalancer.restart_session(member, now_ms)
        group.protocol_type, group.protocol = frame.protocol_type, frame.protocol
        group.leader_id = frame.leader
        group.state = STATES_OF_FRAMES[frame.state]
        self._rebalancer.log_transition(group, GroupState.DEAD, group.state, "the broker starts")
        group.is_saved = True
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._rebalancer.await_assignment(group, now_ms)
        elif group.state is GroupState.EMPTY:
            self._rebalancer.save_again(group, now_ms)


_ILLEGAL: Final = ErrorCode.illegal_generation
