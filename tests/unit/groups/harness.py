"""A coordinator with a log in memory and a clock that a test moves.

    harness = GroupHarness()
    first = harness.join("g")                      # waits
    harness.advance(500)
    assert first.answer.generation == 1

What is written is replayed from its bytes, so that `restart` finds what a broker would find.
"""

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

from _core.bytes.layout import KIND_GROUP, KIND_GROUP_DELTA, KIND_OFFSET
from appliance.errors import DiskFullError
from appliance.store.state.group_deltas import decode_delta
from appliance.store.state.group_frames import (
    OFFSET_COMMITTED,
    OFFSET_DELETED,
    GroupFrame,
    OffsetEntry,
    decode_group,
)
from appliance.store.state.group_store import GroupStore
from appliance.store.state.log_calls import LogCalls
from appliance.units import MIB, NS_PER_MS
from compat.kafka.groups.coordinator import GroupCoordinator
from compat.kafka.groups.group import Group
from compat.kafka.groups.member import JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import small_config
from tests.support.simulator.virtual_clock import VirtualClock

SESSION_MS: Final = 10_000
REBALANCE_MS: Final = 30_000
DELAY_MS: Final = 500
"""The initial delay of a GroupHarness's groups."""

Answer = TypeVar("Answer")


class Waiting(Generic[Answer]):
    """Takes the one answer to a request.

    Attributes:
        is_abandoned: the client has closed its connection.
    """

    def __init__(self) -> None:
        self.is_abandoned = False
        self._answers: list[Answer] = []

    @property
    def is_answered(self) -> bool:
        return bool(self._answers)

    @property
    def answer(self) -> Answer:
        (answer,) = self._answers
        return answer

    def complete(self, answer: Answer) -> None:
        assert not self._answers, "answered twice"
        self._answers.append(answer)


class HarnessLog:
    """Groups and offsets in a log in memory.

    Attributes:
        is_full: nothing can be written.
        saved_count: frames of groups that were written.
        generation_floor: a group that nobody knows begins its generations above it.
        written_bytes: size of the payloads of these frames.
    """

    def __init__(self) -> None:
        self.is_full = False
        self.saved_count = 0
        self.written_bytes = 0
        self.generation_floor = 0
        self._store = self._make_store()
        self._replayed = self._make_store()

    def _make_store(self) -> GroupStore:
        log = LogCalls(
            append=self._append,
            append_topic=lambda _payload, _topic_id: 0,
            end_pos=lambda: -1,
            flushed_pos=lambda: -1,
            check_room=self._check_room,
            begin=lambda: None,
            end=lambda: None,
        )
        size = MIB
        return GroupStore(log, payload_size_max=size, reserve_bytes=size, offsets_size_max=size)

    def _append(self, kind: int, payload: bytes) -> None:
        if kind == KIND_OFFSET:
            return
        self.saved_count += 1
        self.written_bytes += len(payload)
        if kind == KIND_GROUP:
            self._replayed.apply_group(decode_group(payload))
        else:
            assert kind == KIND_GROUP_DELTA
            self._replayed.apply_delta(decode_delta(payload))

    def _check_room(self, _size: int, _room: int) -> None:
        if self.is_full:
            raise DiskFullError("there is no room left")

    @property
    def groups(self) -> Mapping[str, GroupFrame]:
        """As a replay finds them."""
        return self._replayed.groups

    @property
    def names(self) -> list[str]:
        return sorted(self._replayed.groups.keys() | set(self._store.names))

    def offsets(self, group: str) -> Mapping[tuple[int, int], OffsetEntry]:
        return self._store.offsets(group)

    def commit(self, group: str, op: int = OFFSET_COMMITTED) -> None:
        """Let a group have an offset."""
        self._store.commit_offsets([OffsetEntry(op=op, group=group, topic_id=1, partition=0)])

    def expire_offsets(self, group: str) -> None:
        """Let a group have no offsets any more."""
        self.commit(group, OFFSET_DELETED)

    def note_members(self, group: str) -> None:
        self._store.note_members(group)

    def note_address(self, group: str, address: str) -> None:
        self._store.note_address(group, address)

    def save_group(self, frame: GroupFrame) -> None:
        self._store.save_group(frame)


class GroupHarness:
    """The coordinator and all around it.

    Attributes:
        clock, log, groups: what it is made of; `groups` is another one after a restart.
    """

    def __init__(self, **settings: Any) -> None:
        self.clock = VirtualClock()
        self.log = HarnessLog()
        self.config = small_config(**({"initial_rebalance_delay_ms": DELAY_MS} | settings))
        self.groups = GroupCoordinator(self.log, self.clock, self.config)

    @classmethod
    def around(cls, broker: BrokerHarness) -> "GroupHarness":
        """The coordinator of a broker."""
        harness = cls()
        harness.clock, harness.config, harness.groups = broker.clock, broker.config, broker.groups
        return harness

    @property
    def now_ms(self) -> int:
        return self.clock.monotonic_ns() // NS_PER_MS

    def advance(self, duration_ms: int) -> None:
        """Let time pass, and everything happen that is due on the way."""
        end_ms = self.now_ms + duration_ms
        while True:
            due_ms = self.groups.next_deadline_ms()
            if due_ms is None or due_ms > end_ms:
                break
            self.clock.advance_ms(max(0, due_ms - self.now_ms))
            self.groups.expire(self.now_ms)
        self.clock.advance_ms(end_ms - self.now_ms)

    def restart(self) -> None:
        """Stop the broker and restart it from the log. No answer is given."""
        self.groups = GroupCoordinator(self.log, self.clock, self.config)
        self.groups.restore(self.now_ms)

    def group(self, name: str = "g") -> Group:
        """A group that exists."""
        group = self.groups.find(name)
        assert group is not None
        return group

    def join(self, group: str = "g", member_id: str = "", **given: Any) -> Waiting[JoinAnswer]:
        """Send JoinGroup, by default as an old client, which does not get its id first."""
        reply = Waiting[JoinAnswer]()
        request: dict[str, Any] = {
            "client_id": "c",
            "client_host": "127.0.0.1",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": {"range": b"m"},
            "is_member_id_required": False,
        } | given
        self.groups.join(
            JoinRequest(group_id=group, member_id=member_id, **request), reply, self.now_ms
        )
        return reply

    def join_error(self, group: str = "g", member_id: str = "", **given: Any) -> ErrorCode:
        """Send JoinGroup that is answered at once; its error."""
        return self.join(group, member_id, **given).answer.error

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        group: str = "g",
        **given: Any,
    ) -> Waiting[SyncAnswer]:
        """Send SyncGroup."""
        reply = Waiting[SyncAnswer]()
        request = SyncRequest(
            group_id=group,
            member_id=member_id,
            generation=generation,
            assignments=assignments or {},
            **given,
        )
        self.groups.sync(request, reply, self.now_ms)
        return reply

    def heartbeat(
        self,
        member_id: str,
        generation: int,
        instance_id: str | None = None,
        *,
        group: str = "g",
        address: str = "",
    ) -> ErrorCode:
        """Send Heartbeat."""
        return self.groups.heartbeat(
            group, member_id, instance_id, generation, self.now_ms, address=address
        )

    def leave(self, *members: str | tuple[str, str | None], group: str = "g") -> list[ErrorCode]:
        """Send LeaveGroup, for members by id or by member id and instance id."""
        named = [(each, None) if isinstance(each, str) else each for each in members]
        return self.groups.leave(group, named, self.now_ms)

    def stable(
        self, *members: Mapping[str, Any], group: str = "g", **given: Any
    ) -> list[JoinAnswer]:
        """Make an empty group stable; of each member, what it was answered. The first one leads.

        Each one's assignment is its own id, in bytes.
        """
        waiting = [self.join(group, **(given | dict(each))) for each in members]
        self.advance(2 * DELAY_MS)
        answers = [each.answer for each in waiting]
        self.share(answers, group=group)
        return answers

    def share(self, answers: list[JoinAnswer], *, group: str = "g") -> None:
        """Let the leader assign to each member its id, and all of them ask for it."""
        assignments = {each.member_id: each.member_id.encode() for each in answers}
        for each in sorted(answers, key=lambda answer: answer.member_id != answer.leader_id):
            reply = self.sync(each.member_id, each.generation, assignments, group=group)
            assert reply.answer.assignment == each.member_id.encode(), reply.answer
