"""Which Kafka APIs there are, in which versions, and who answers them.

One table feeds everything: what ApiVersions advertises, what is served, which header a request has,
and the table in docs/KAFKA.md (a test compares them). A handler joins by its decorator and by being
listed in compat.kafka.control.
Layer 3; does no I/O.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from compat.kafka.node import Node

Fields: TypeAlias = dict[str, Any]
"""A message or a part of it: field names as in kio's schemas. Times are integers in ms, error codes
integers, arrays lists or tuples, a topic id is a UUID or None."""


class Later:
    """The answer to a request that must wait, as for the other members of a group.

    The handler returns it in place of a response, and whoever has the response calls `complete`.
    The requests that come behind on that connection wait as well: Kafka answers in order.

    Attributes:
        is_abandoned: nobody waits any more, the connection is gone.
    """

    def __init__(self) -> None:
        self.is_abandoned = False
        self._response: Fields | None = None
        self._answered: Callable[[Fields], None] | None = None

    @property
    def is_complete(self) -> bool:
        """The response has been given."""
        return self._response is not None

    def complete(self, response: Fields) -> None:
        """Give the response; once, at any time, also before the handler returns."""
        assert self._response is None, "answered twice"
        self._response = response
        if self._answered is not None:
            self._answered(response)

    def when_complete(self, answered: Callable[[Fields], None]) -> None:
        """Have a function called with the response, at once if it is there already."""
        self._answered = answered
        if self._response is not None:
            answered(self._response)


Handler: TypeAlias = Callable[[Node, int, Fields], Fields | bytes | Later]
"""Answers one request: node, version, request -> response, or its body if that is encoded
already, or an answer to come."""


@dataclass(frozen=True, slots=True)
class Api:
    """One row of the table.

    Args:
        key: Kafka's API key.
        name: its name, as in Kafka's documentation.
        versions: the first and last version that ApiVersions advertises.
        flexible_from: the first version with compact types and tagged fields.
        served_from: the first version that is served; above versions[0] only where clients must be
            misled.
        handler: None for the APIs that are served elsewhere, from bytes to bytes.
    """

    key: int
    name: str
    versions: tuple[int, int]
    flexible_from: int
    served_from: int
    handler: Handler | None = None

    def __post_init__(self) -> None:
        first, last = self.versions
        assert 0 <= first <= self.served_from <= last

    def serves(self, version: int) -> bool:
        """Tell whether requests of this version are answered."""
        return self.served_from <= version <= self.versions[1]

    def is_flexible(self, version: int) -> bool:
        """Tell whether this version has compact types and tagged fields."""
        return version >= self.flexible_from


def handles(
    *, key: int, name: str, versions: tuple[int, int], flexible_from: int
) -> Callable[[Handler], Api]:
    """Turn the decorated handler into the row of its API; the arguments are those of Api."""

    def make_api(handler: Handler) -> Api:
        return Api(
            key=key,
            name=name,
            versions=versions,
            flexible_from=flexible_from,
            served_from=versions[0],
            handler=handler,
        )

    return make_api


class Registry:
    """The table, by API key."""

    def __init__(self, apis: Iterable[Api]) -> None:
        self._by_key = {api.key: api for api in sorted(apis, key=lambda api: api.key)}

    @property
    def apis(self) -> tuple[Api, ...]:
        """All rows in the order of their keys."""
        return tuple(self._by_key.values())

    def find_key(self, key: int) -> Api | None:
        """Return the API of this key, in whatever version."""
        return self._by_key.get(key)

    def find(self, key: int, version: int) -> Api | None:
        """Return the API if this version of it is served."""
        api = self._by_key.get(key)
        return api if api is not None and api.serves(version) else None


PRODUCE = Api(key=0, name="Produce", versions=(0, 11), flexible_from=9, served_from=3)
"""Answered by compiled code. Versions 0 to 2 are advertised and not served, as Kafka 4 does:
librdkafka before 2.11.1 compresses only if the broker's range overlaps [0, version of the
codec]."""

FETCH = Api(key=1, name="Fetch", versions=(4, 17), flexible_from=12, served_from=4)
"""Answered by compiled code. 4 and 10 lie inside for librdkafka before 2.11.1; 13 and above name
topics by the ids that Metadata tells."""
