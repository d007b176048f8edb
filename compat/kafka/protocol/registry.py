"""The table of Kafka APIs with their versions and handlers.

The table determines what ApiVersions advertises, what is served, which header a request has, and
the table in docs/KAFKA.md (a test compares them). A file in compat.kafka.apis adds an API.
Layer 3; does no I/O.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from compat.kafka.node import Node
from compat.kafka.protocol.deferred import DeferredResponse
from compat.kafka.protocol.slices import InPieces, Steps

Fields: TypeAlias = dict[str, Any]
"""A message or a part of it, with the field names of kio's schemas. Times are integers in ms, error
codes are integers, arrays are lists or tuples, a topic id is a UUID or None."""

Find: TypeAlias = Callable[[Node, Fields], Iterator[int]]
"""(node, request) -> log positions, the greatest of which its answer needs once it is handled."""

Late: TypeAlias = Callable[[Node, int, Fields], "Fields | InPieces"]
"""(node, version, request) -> the response to send instead of one that waits too long."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What the answers of an API need.

    Args:
        find: yields the log positions that must be durable, one for each name or so.
        late: makes the answer of a request that waits too long.
    """

    find: Find
    late: Late


@dataclass(frozen=True, slots=True)
class OnSlave:
    """What a slave answers, which changes nothing and coordinates nobody.

    Args:
        says: for the documentation: the name of the error code, or what it does.
        answer: makes the answer; None: the handler does, as on a master.
    """

    says: str
    answer: Late | None = None


SERVED: Final = OnSlave("as a master")


Response: TypeAlias = Fields | bytes | InPieces | DeferredResponse[Any]
"""A response, its encoded body, one that is produced while it is encoded, or a deferred one."""

Handler: TypeAlias = Callable[[Node, int, Fields], Response | Steps[Response]]
"""Answers one request: (node, version, request) -> response, or steps that lead to it."""


@dataclass(frozen=True, slots=True)
class Api:
    """One row of the table.

    Args:
        key: Kafka's API key.
        name: its name, as in Kafka's documentation.
        versions: the first and last version that ApiVersions advertises.
        flexible_from: the first version with compact types and tagged fields.
        served_from: the first version that is served; above versions[0] only where clients need a
            wider advertised range.
        needs: what its answers depend on; None if they leave at once.
        on_slave: what a slave answers.
        handler: None for the APIs that compiled code answers, from bytes to bytes.
    """

    key: int
    name: str
    versions: tuple[int, int]
    flexible_from: int
    served_from: int
    needs: Needs | None = None
    on_slave: OnSlave = SERVED
    handler: Handler | None = None

    def __post_init__(self) -> None:
        first, last = self.versions
        assert 0 <= first <= self.served_from <= last

    def serves(self, version: int) -> bool:
        """Return whether requests of this version are answered."""
        return self.served_from <= version <= self.versions[1]

    def is_flexible(self, version: int) -> bool:
        """Return whether this version has compact types and tagged fields."""
        return version >= self.flexible_from


def handles(
    *,
    key: int,
    name: str,
    versions: tuple[int, int],
    flexible_from: int,
    needs: Needs | None,
    on_slave: OnSlave,
) -> Callable[[Handler], Api]:
    """Turn the decorated handler into the row of its API; the arguments are those of Api."""
    return partial(Api, key, name, versions, flexible_from, versions[0], needs, on_slave)


class Registry:
    """The table, by API key."""

    def __init__(self, apis: Iterable[Api]) -> None:
        self._by_key = {api.key: api for api in sorted(apis, key=lambda api: api.key)}

    @property
    def apis(self) -> tuple[Api, ...]:
        """All rows in the order of their keys."""
        return tuple(self._by_key.values())

    def find_key(self, key: int) -> Api | None:
        """Return the API with this key, regardless of the version."""
        return self._by_key.get(key)

    def find(self, key: int, version: int) -> Api | None:
        """Return the API with this key if it serves this version."""
        api = self._by_key.get(key)
        return api if api is not None and api.serves(version) else None
