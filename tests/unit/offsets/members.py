"""Members of a group, straight at the coordinator of a broker: offsets are all that goes by wire.

member = join(harness, "g", ["t"])
offsets.commit("g", {("t", 0): Commit(1)}, **member.identity)
member.leave()
"""

import struct
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

from compat.kafka.groups.member import JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.broker_harness import BrokerHarness

SESSION_TIMEOUT_MS: Final = 10_000

Answer = TypeVar("Answer")


class Waiting(Generic[Answer]):
    """Takes the answer to a request.

    Attributes:
        answers: none yet, or the one.
    """

    is_abandoned = False

    def __init__(self) -> None:
        self.answers: list[Answer] = []

    def complete(self, answer: Answer) -> None:
        self.answers.append(answer)


class RawMember:
    """One member that does nothing by itself.

    Attributes:
        member_id, instance_id, generation: as of its last join.
    """

    def __init__(
        self, harness: BrokerHarness, group: str, topics: Sequence[str], protocol_type: str
    ) -> None:
        self._harness = harness
        self._group = group
        self._topics = topics
        self._protocol_type = protocol_type
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
        waiting = Waiting[JoinAnswer]()
        request = JoinRequest(
            group_id=self._group,
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id="client",
            client_host="127.0.0.1",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=SESSION_TIMEOUT_MS,
            protocol_type=self._protocol_type,
            protocols={"range": subscription(self._topics)},
            is_member_id_required=False,
        )
        self._harness.groups.join(request, waiting, self._harness.now_ms())
        return waiting

    def take(self, waiting: Waiting[JoinAnswer]) -> None:
        """Read the answer to JoinGroup."""
        (answer,) = waiting.answers
        assert answer.error is ErrorCode.NONE
        self.member_id, self.generation = answer.member_id, answer.generation

    def sync(self) -> None:
        """Send SyncGroup as the leader; everybody gets an empty assignment."""
        waiting = Waiting[SyncAnswer]()
        request = SyncRequest(
            group_id=self._group,
            member_id=self.member_id,
            instance_id=self.instance_id,
            generation=self.generation,
            assignments={},
        )
        self._harness.groups.sync(request, waiting, self._harness.now_ms())
        (answer,) = waiting.answers
        assert answer.error is ErrorCode.NONE

    def leave(self) -> None:
        """Send LeaveGroup."""
        leaving = [(self.member_id, self.instance_id)]
        assert self._harness.groups.leave(self._group, leaving, self._harness.now_ms()) == [
            ErrorCode.NONE
        ]


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
