"""The interface through which control-plane handlers use the broker.

The broker implements it structurally, so that handlers import nothing above them. Layer 3; does no
I/O.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from appliance.config.config import Config
from appliance.model import ColdPlace
from appliance.offset_search import OffsetSearch
from appliance.routes import Routes
from appliance.store.state.group_store import GroupStore
from appliance.system.clock import Clock
from appliance.topics import Topics
from appliance.units import NS_PER_MS
from compat.kafka.groups.coordinator import GroupCoordinator
from compat.kafka.protocol.slices import SlicedAnswer, Wait


class ControlBroker(Protocol):
    """The part of the broker that answers control-plane requests."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def node_id(self) -> int: ...

    @property
    def epoch(self) -> int:
        """The leader epoch of every partition."""

    @property
    def has_lease(self) -> bool:
        """Nobody else can be the master: requests may be answered and may change something."""

    @property
    def config(self) -> Config: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def topics(self) -> Topics: ...

    @property
    def groups(self) -> GroupStore: ...

    @property
    def search(self) -> OffsetSearch: ...

    def space(self) -> tuple[int, int]:
        """Return total and free bytes of the data's file system. Raises StorageError."""

    @property
    def producer_ids_pos(self) -> int:
        """The end of the frame in the log that reserves the producer ids given out last."""

    def allocate_producer_id(self, address: str = "") -> int:
        """Return a producer id for a client at an IP address. Raises RequestError."""


class CommitShare(Protocol):
    """What addresses may write to the log by commits."""

    def must_wait(self, address: str) -> bool:
        """Return whether a commit of an address has to wait, or is too late if it did."""

    def wait(self, address: str) -> Wait:
        """Return a step that waits for the turn of a commit of an address, at most 10 s."""

    def charge(self, address: str, size: int) -> None:
        """Note how many bytes of the log a commit of an address takes."""


class NoLimit:
    """Commits may write what they like."""

    def must_wait(self, _address: str) -> bool:
        return False

    def wait(self, _address: str) -> Wait:
        raise NotImplementedError

    def charge(self, _address: str, _size: int) -> None:
        pass


NO_LIMIT: Final[CommitShare] = NoLimit()


@dataclass(frozen=True, slots=True)
class Client:
    """The sender of a request.

    Args:
        client_id: the client's name for itself, "" if it sends none.
        host: its IP address.
    """

    client_id: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """One broker and where clients reach it, as one request meets it.

    Args:
        broker: the broker.
        routes: the brokers that clients know. The advertised host is an IPv4 literal unless the
            user chose a name: for "localhost" librdkafka tries ::1 first.
        groups: the consumer groups of this broker.
        read_cold: (places, then): reads frames and units from the disk, and calls `then` when they
            are in memory or known to be damaged.
        aside: (begin, then): waits for the thread that does long work of requests. When it is this
            request's turn, `begin` returns the work, or None if there is none any more; `then` is
            called after the work.
        later: (answer): calls `step` of the answer in a later turn, when it comes to it.
        client: the sender of the request.
        commits: what its address may write to the log by commits.
    """

    broker: ControlBroker
    routes: Routes
    groups: GroupCoordinator
    read_cold: Callable[[list[ColdPlace], Callable[[], None]], None]
    aside: Callable[[Callable[[], Callable[[], None] | None], Callable[[], None]], None]
    later: Callable[[SlicedAnswer], None]
    client: Client = Client()
    commits: CommitShare = NO_LIMIT

    def for_client_id(self, client_id: str) -> "Node":
        """Return the node as a request with this client id meets it."""
        # dataclasses.replace takes three times as long, for each request.
        return Node(
            self.broker,
            self.routes,
            self.groups,
            self.read_cold,
            self.aside,
            self.later,
            Client(client_id, self.client.host),
            self.commits,
        )

    @property
    def host(self) -> str:
        """The advertised host of this broker."""
        return self.routes.me.at.host

    @property
    def port(self) -> int:
        """The advertised port of this broker, 1 to 65535."""
        return self.routes.me.at.port

    def now_ms(self) -> int:
        """Return the monotonic time in ms, the clock of the protocol's time-outs."""
        return self.broker.clock.monotonic_ns() // NS_PER_MS
