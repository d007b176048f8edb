"""What is known of one member of a group, and what is asked of and told to it.

Layer 3; does no I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, TypeVar

from compat.kafka.error_codes import ErrorCode
from compat.kafka.groups.deadlines import Deadline

MEMBER_OVERHEAD_BYTES: Final = 256
"""What a member takes besides its names, subscriptions and assignment; in a group frame, less."""

PROTOCOL_OVERHEAD_BYTES: Final = 64

Protocols: TypeAlias = Mapping[str, bytes]
"""The protocols that a member supports, the one it likes best first, each with its metadata."""

A_contra = TypeVar("A_contra", contravariant=True)


class Reply(Protocol[A_contra]):
    """Where an answer goes that may have to wait."""

    @property
    def is_abandoned(self) -> bool:
        """Nobody waits for the answer any more: the connection is gone."""

    def complete(self, answer: A_contra) -> None:
        """Give the answer, once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """What a client asks for with JoinGroup. Times are in ms."""

    group_id: str
    member_id: str = ""
    instance_id: str | None = None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    is_member_id_required: bool = True
    """The client learns its id from a refusal first, and joins with it (from version 4 on)."""
    can_skip_assignment: bool = True
    """A leader can be told to leave the assignment as it is (from version 9 on)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """What JoinGroup answers."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader_id: str = ""
    skip_assignment: bool = False
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """Member id, instance id and metadata of each, for the leader alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """What a client asks for with SyncGroup; `assignments`, by member id, come from the leader."""

    group_id: str
    member_id: str
    instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    """What SyncGroup answers."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """One member.

    Attributes:
        protocols: see Protocols.
        session: when it is removed if nothing is heard of it.
        is_new: no JoinGroup of it has been answered, so that it cannot send heartbeats.
        is_restored: it comes from the log, which holds its metadata for the chosen protocol alone.
        awaiting_join, awaiting_sync: the request of it that waits.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    session: Deadline
    assignment: bytes = b""
    is_new: bool = False
    is_restored: bool = False
    awaiting_join: Reply[JoinAnswer] | None = None
    awaiting_sync: Reply[SyncAnswer] | None = None

    @property
    def size_bytes(self) -> int:
        """What it takes. O(protocols)."""
        return (
            member_size(self.member_id, self.instance_id, self.client_id, self.protocols)
            + len(self.client_host)
            + len(self.assignment)
        )

    def matches(self, protocols: Protocols) -> bool:
        """Tell whether it supports just these protocols, with the same metadata, in this order."""
        if self.is_restored:
            # A group without a protocol has no members, so there is one at least.
            return all(protocols.get(name) == data for name, data in self.protocols.items())
        return list(self.protocols.items()) == list(protocols.items())

    def answer_sync(self, answer: SyncAnswer) -> bool:
        """Answer the SyncGroup that waits, if one does."""
        waiting, self.awaiting_sync = self.awaiting_sync, None
        if waiting is not None:
            waiting.complete(answer)
        return waiting is not None


def member_size(
    member_id: str, instance_id: str | None, client_id: str, protocols: Protocols
) -> int:
    """The bytes that a member takes before it has an assignment. O(protocols)."""
    names = len(member_id.encode()) + len((instance_id or "").encode()) + len(client_id.encode())
    return (
        MEMBER_OVERHEAD_BYTES
        + names
        + sum(
            PROTOCOL_OVERHEAD_BYTES + len(name.encode()) + len(data)
            for name, data in protocols.items()
        )
    )
