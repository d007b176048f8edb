"""One member of a group, and the requests and answers of JoinGroup and SyncGroup.

Layer 3; does no I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from appliance.store.state.group_frames import GroupMember
from compat.kafka.groups.deadlines import Deadline
from compat.kafka.protocol.deferred import DeferredResponse
from compat.kafka.protocol.error_codes import ErrorCode

MEMBER_OVERHEAD_BYTES: Final = 256
"""Memory of a member besides its names, subscriptions and assignment; less in a group frame."""

PROTOCOL_OVERHEAD_BYTES: Final = 64

Protocols: TypeAlias = Mapping[str, bytes]
"""The protocols that a member supports in order of preference, each with its metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A JoinGroup request. Times are in ms."""

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
    """The client first receives its id in a refusal, then joins with it (from version 4 on)."""
    can_skip_assignment: bool = True
    """A leader can be told to skip the assignment (from version 9 on)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """The answer to JoinGroup."""

    error: ErrorCode = ErrorCode.none
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader_id: str = ""
    skip_assignment: bool = False
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """Member id, instance id and metadata of each member; only the leader receives them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A SyncGroup request; only the leader sends `assignments`, by member id."""

    group_id: str
    member_id: str
    instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    """The answer to SyncGroup."""

    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """One member.

    Attributes:
        protocols: see Protocols.
        session: removes the member when it expires.
        is_new: none of its JoinGroup requests was answered, so it cannot send heartbeats yet.
        is_restored: it was restored from the log, which has only the metadata of the chosen
            protocol.
        awaiting_join, awaiting_sync: the deferred response of a waiting request.
        frame: what a frame of its group says of it; None if it has changed since one was made.
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
    awaiting_join: DeferredResponse[JoinAnswer] | None = None
    awaiting_sync: DeferredResponse[SyncAnswer] | None = None
    frame: GroupMember | None = None

    @property
    def size_bytes(self) -> int:
        """Its memory in bytes. O(protocols)."""
        return (
            member_size(self.member_id, self.instance_id, self.client_id, self.protocols)
            + len(self.client_host)
            + len(self.assignment)
        )

    def matches(self, protocols: Protocols) -> bool:
        """Return whether it supports exactly these protocols, with this metadata and order."""
        if self.is_restored:
            # A group with members has a protocol, so there is at least one.
            return all(protocols.get(name) == data for name, data in self.protocols.items())
        return list(self.protocols.items()) == list(protocols.items())

    def answer_sync(self, answer: SyncAnswer) -> bool:
        """Complete the waiting SyncGroup; returns whether there was one."""
        waiting, self.awaiting_sync = self.awaiting_sync, None
        if waiting is not None:
            waiting.complete(answer)
        return waiting is not None


def member_size(
    member_id: str, instance_id: str | None, client_id: str, protocols: Protocols
) -> int:
    """Return the memory of a member without assignment, bytes. O(protocols)."""
    names = len(member_id.encode()) + len((instance_id or "").encode()) + len(client_id.encode())
    return (
        MEMBER_OVERHEAD_BYTES
        + names
        + sum(
            PROTOCOL_OVERHEAD_BYTES + len(name.encode()) + len(data)
            for name, data in protocols.items()
        )
    )
