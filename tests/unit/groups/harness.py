"""A coordinator with a log in memory and a clock that a test moves.

    harness = GroupHarness()
    first = harness.join("g")                      # waits
    harness.advance(500)
    assert first.answer.generation == 1

Frames are kept as bytes, as in the log, so that `restart` finds what a broker would find.
"""

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

from appliance.errors import DiskFullError
from appliance.store.state.group_frames import (
    GROUP_DELETED,
    OFFSET_COMMITTED,
    GroupFrame,
    OffsetEntry,
    decode_group,
    encode_group,
)
from appliance.units import NS_PER_MS
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
    """Groups and offsets in memory.

    Attributes:
        is_full: nothing can be written.
        saved_count: frames that were written.
        generation_floor: a group that nobody knows begins its generations above it.
    """

    def __init__(self) -> None:
        self.is_full = False
        self.saved_count = 0
        self.generation_floor = 0
        self._frames: dict[str, bytes] = {}
        self._offsets: dict[str, dict[tuple[int, int], OffsetEntry]] = {}

    @property
    def groups(self) -> dict[str, GroupFrame]:
        return {name: decode_group(frame) for name, frame in self._frames.items()}

    @property
    def names(self) -> list[str]:
        return sorted(self._frames.keys() | self._offsets.keys())

    def offsets(self, group: str) -> Mapping[tuple[int, int], OffsetEntry]:
        return self._offsets.get(group, {})

    def commit(self, group: str) -> None:
        """Let a group have an offset."""
        self._offsets[group] = {
            (1, 0): OffsetEntry(op=OFFSET_COMMITTED, group=group, topic_id=1, partition=0)
        }

    def expire_offsets(self, group: str) -> None:
        """Let a group have no offsets any more."""
        del self._offsets[group]

    def note_members(self, group: str) -> None:
        """Offsets do not expire here."""

    def save_group(self, frame: GroupFrame) -> None:
        if self.is_full:
            raise DiskFullError("there is no room left")
        self.saved_count += 1
        if frame.op == GROUP_DELETED:
            self._frames.pop(frame.group, None)
            self._offsets.pop(frame.group, None)
        else:
            self._frames[frame.group] = encode_group(frame)


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
        self, member_id: str, generation: int, instance_id: str | None = None, *, group: str = "g"
    ) -> ErrorCode:
        """Send Heartbeat."""
        return self.groups.heartbeat(group, member_id, instance_id, generation, self.now_ms)

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
