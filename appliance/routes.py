"""The brokers that clients know, and which of them leads: one broker, or the two of a pair.

Every answer that names a broker takes it from here: Metadata, DescribeCluster, FindCoordinator. The
owner changes it as the pair changes. Layer 3; does no I/O.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from appliance.model import Endpoint

NO_NODE: Final = -1
"""The id of a broker that is not known."""


@dataclass(frozen=True, slots=True)
class Member:
    """A broker, as clients know it.

    Attributes:
        node_id: its id.
        at: where clients reach it.
    """

    node_id: int
    at: Endpoint


@dataclass(slots=True)
class Routes:
    """Who there is.

    Attributes:
        me: this broker.
        leads: it is a master: it leads all partitions and coordinates all groups.
        peer: the other node of the pair; None if it is not known.
        is_peer_in_sync: the other node has what this one shows.
        is_open: the leader is known to be there: a slave hears its master.
        may_lead: whether a master may accept something, which may end with time; True if nothing
            can end it.
    """

    me: Member
    leads: bool = True
    peer: Member | None = None
    is_peer_in_sync: bool = False
    is_open: bool = True
    may_lead: Callable[[], bool] = lambda: True

    @property
    def leader(self) -> Member | None:
        """The broker that accepts records now; None if nobody is known to."""
        if self.leads:
            return self.me if self.may_lead() else None
        return self.peer if self.is_open else None

    @property
    def members(self) -> tuple[Member, ...]:
        """The brokers of the cluster.

        Two nodes that advertise one address are one broker for clients, which reach the leader
        there.
        """
        if self.peer is None:
            return (self.me,)
        if self.shares_address:
            return (self.me if self.leads else self.peer,)
        return (self.me, self.peer)

    @property
    def shares_address(self) -> bool:
        """Both nodes advertise the same address."""
        peer = self.peer
        return peer is not None and (self.me.at.host, self.me.at.port) == (
            peer.at.host,
            peer.at.port,
        )

    @property
    def replica_ids(self) -> tuple[int, ...]:
        """The ids of the brokers that have the partitions, the leader first if it is known."""
        leader = self.leader
        return tuple(each.node_id for each in sorted(self.members, key=lambda each: each != leader))

    @property
    def in_sync_ids(self) -> tuple[int, ...]:
        """Those of them that have everything that can be read."""
        if self.is_peer_in_sync:
            return self.replica_ids
        leader = self.leader
        return () if leader is None else (leader.node_id,)
