"""What the features ask of a client library. Each has one adapter, in a module of its own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from tests.system.clients.delayed import Header, Received

TOPIC_ALREADY_EXISTS: Final = 36
MESSAGE_TOO_LARGE: Final = 10
INVALID_RECORD: Final = 87


class RefusedError(Exception):
    """The broker refused what was asked.

    Args:
        code: Kafka's; -1 if the library does not know it.
        text: what the library says.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class Sent:
    """A record to send. Without a timestamp the library takes the time of now."""

    value: bytes | None
    headers: Sequence[Header] = ()
    key: bytes | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Described:
    """A group with one member, which has all partitions of one topic."""

    state: str
    assignor: str
    client_id: str
    host: str
    assigned: tuple[str, tuple[int, ...]] | None


def ignore(*_: object) -> None:
    """Take anything and do nothing."""


class Consumer(Protocol):
    """A consumer. One thread at a time uses it, except for `share`."""

    def assign(self, topic: str, places: Mapping[int, int | None]) -> None:
        """Read these partitions, each from an offset or, with None, from its beginning."""

    def subscribe(
        self,
        topic: str,
        on_change: Callable[[str, Iterable[int]], None] = ignore,
        on_records: Callable[[Sequence[Received]], None] = ignore,
    ) -> None:
        """Join the group. `on_change` gets "assigned" or "revoked" and partitions; `on_records`
        what `poll` returns, before any later change."""

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read on from an offset of an assigned partition."""

    def poll(self, limit_s: float, count: int = 500) -> list[Received]:
        """Wait until there is something, and return no more than `count`."""

    def share(self) -> set[int]:
        """The partitions that it has."""

    def commit(self, topic: str, offsets: Mapping[int, int], metadata: str = "") -> None: ...

    def committed(self, topic: str, partition: int) -> int | None: ...

    def ends(self, topic: str) -> tuple[int, int]:
        """The first and the next offset of partition 0."""

    def offset_at(self, topic: str, time_ms: int) -> int | None:
        """The first offset of partition 0 with this timestamp or a later one."""


class Library(Protocol):
    """A library and the address of a broker. Each call but `try_send` raises `RefusedError`."""

    address: str
    is_binary: bool
    """Whether headers, keys and values may have any bytes, and a batch may mix headers."""
    sets_time: bool
    """Whether the application may give a record its timestamp."""
    invalid_record: int
    """The code that it shows for INVALID_RECORD."""
    shows_reason: bool
    """Whether it shows the broker's sentence about a bad record."""
    assignor: str
    """What its groups use by default."""

    def create(self, topic: str, partition_count: int = 1) -> None: ...

    def topics(self) -> set[str]:
        """The names that are listed."""

    def describe_topic(self, topic: str) -> int:
        """The number of its partitions."""

    def cluster(self) -> tuple[str, str]:
        """The controller's address, and the id of the cluster."""

    def try_send(
        self,
        topic: str,
        records: Sequence[Sent],
        *,
        partition: int = 0,
        acks: int = -1,
        codec: str = "none",
        is_idempotent: bool = False,
        batch_bytes: int | None = None,
    ) -> list[int | RefusedError]:
        """Send in one batch, if no size is given; return offset or error of each record."""

    def consuming(
        self,
        group: str | None = None,
        *,
        instance: str | None = None,
        is_cooperative: bool = False,
        can_reset: bool = True,
        auto_commits: bool = True,
        session_timeout_ms: int | None = None,
        client_id: str | None = None,
        fetch_wait_ms: int = 500,
    ) -> AbstractContextManager[Consumer]:
        """A consumer whose fetches wait for so long."""

    def list_groups(self) -> Mapping[str, str]:
        """State of each group, or its protocol type where the library shows no state."""

    def describe_group(self, group: str) -> Described: ...

    def group_offsets(self, group: str) -> Mapping[tuple[str, int], tuple[int, str | None]]:
        """Offset and metadata by topic and partition; no metadata where it shows none."""

    def set_offset(self, group: str, topic: str, offset: int) -> None: ...

    def delete_offset(self, group: str, topic: str) -> None: ...

    def delete_group(self, group: str) -> None: ...

    def create_partitions(self, topic: str, count: int) -> None: ...

    def settings_of(self, topic: str | None) -> Mapping[str, str | None]:
        """Of a topic, or of the broker."""

    def change_setting(self, topic: str, name: str, value: str) -> None: ...

    def delete_records(self, topic: str, offset: int) -> int:
        """Delete below an offset of partition 0; return the new start."""

    def delete_topic(self, topic: str) -> None: ...
