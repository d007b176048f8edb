"""Members of a group, straight at the coordinator of a broker: offsets are all that goes by wire.

member = join(harness, "g", ["t"])
offsets.commit("g", {("t", 0): Commit(1)}, **member.identity)
member.leave()
"""

import struct
from collections.abc import Sequence
from typing import Any

from compat.kafka.groups.member import JoinAnswer
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.broker_harness import BrokerHarness
from tests.unit.groups.harness import GroupHarness, Waiting


class RawMember:
    """One member that does nothing by itself.

    Attributes:
        member_id, instance_id, generation: as of its last join.
    """

    def __init__(
        self, harness: BrokerHarness, group: str, topics: Sequence[str], protocol_type: str
    ) -> None:
        self._groups = GroupHarness.around(harness)
        self._group = group
        self._asks: dict[str, Any] = {
            "protocol_type": protocol_type,
            "protocols": {"range": subscription(topics)},
        }
        self.member_id = ""
        self.instance_id: str | None = None
        self.generation = -1

    @property
    def identity(self) -> dict[str, Any]:
        """How it names itself in a commit."""
        return {
            "member_id": self.member_id,
            "instance_id": self.instance_id,
            "generation": self.generation,
        }

    def ask_to_join(self) -> Waiting[JoinAnswer]:
        """Send JoinGroup."""
        return self._groups.join(
            self._group, self.member_id, instance_id=self.instance_id, **self._asks
        )

    def take(self, waiting: Waiting[JoinAnswer]) -> None:
        """Read the answer to JoinGroup."""
        assert waiting.answer.error is ErrorCode.none
        self.member_id, self.generation = waiting.answer.member_id, waiting.answer.generation

    def sync(self) -> None:
        """Send SyncGroup as the leader; everybody gets an empty assignment."""
        sent = self._groups.sync(
            self.member_id, self.generation, group=self._group, instance_id=self.instance_id
        )
        assert sent.answer.error is ErrorCode.none

    def leave(self) -> None:
        """Send LeaveGroup."""
        leaving = (self.member_id, self.instance_id)
        assert self._groups.leave(leaving, group=self._group) == [ErrorCode.none]


def join(
    harness: BrokerHarness,
    group: str,
    topics: Sequence[str],
    *,
    protocol_type: str = "consumer",
    instance_id: str | None = None,
    is_synced: bool = True,
) -> RawMember:
    """Join an empty group; it is stable when this returns, or waits for the assignment."""
    member = RawMember(harness, group, topics, protocol_type)
    member.instance_id = instance_id
    waiting = member.ask_to_join()
    harness.pass_ms(harness.config.initial_rebalance_delay_ms)
    member.take(waiting)
    if is_synced:
        member.sync()
    return member


def subscription(topics: Sequence[str]) -> bytes:
    """Kafka's ConsumerProtocolSubscription, version 0."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)
