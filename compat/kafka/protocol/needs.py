"""What an answer depends on: the changes that it shows must be durable before it leaves.

An answer that shows a change that a power cut takes back would be wrong. So each API says which
changes its answers show: those of the topics or groups that the request names. An answer waits for
these only, and one that shows none leaves at once, also while the disk does not respond. An answer
that waits too long is replaced by one with an error after which clients ask again. Layer 3; does no
I/O.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from compat.kafka.configs.entries import ResourceType
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.registry import Fields, Find, Late, OnSlave
from compat.kafka.protocol.slices import InPieces, Items


def refuse(code: ErrorCode, **fields: Any) -> Late:
    """Answer a request as a whole with an error.

    Args:
        code: the error.
        fields: the other fields of the response that have no default.
    """
    return lambda node, version, request: {"error_code": code, **fields}


def refuse_partitions(code: ErrorCode, **fields: Any) -> Late:
    """Answer every partition of `topics` with an error; the arguments are those of `refuse`."""

    def refused(topic: Fields) -> Items:
        for each in topic["partitions"]:
            yield {"partition_index": each["partition_index"], "error_code": code, **fields}

    def late(node: Node, version: int, request: Fields) -> InPieces:
        topics = ({"name": each["name"], "partitions": refused(each)} for each in request["topics"])
        return InPieces({"topics": topics})

    return late


def refuse_each(
    asked: str, names: Sequence[str], answered: str, code: ErrorCode, **fields: Any
) -> Late:
    """Answer every item of an array with an error.

    Args:
        asked: the array of the request.
        names: the fields that name an item, the same in the response.
        answered: the array of the response.
        code: the error.
        fields: the other fields of an item that have no default.
    """

    def late(node: Node, version: int, request: Fields) -> InPieces:
        items = (
            {
                **{name: each[name] for name in names},
                "error_code": code,
                "error_message": None,
                **fields,
            }
            for each in request[asked]
        )
        return InPieces({answered: items})

    return late


def on_slave(code: ErrorCode, late: Callable[..., Late], **fields: Any) -> OnSlave:
    """Let a slave refuse a request.

    Args:
        code: the error.
        late: makes the answer from the error and `fields`: `refuse` or the like.
        fields: the other fields that have no default.
    """
    return OnSlave(code.name.upper(), late(code, **fields))


# Positions


def of_topics(names: Callable[[Fields], Iterable[str | None]]) -> Find:
    """Find the last changes of the named topics; None as a name stands for any topic."""

    def find(node: Node, request: Fields) -> Iterator[int]:
        changes = node.broker.topics.changes
        if not changes.are_flushed:
            for name in names(request):
                yield changes.last if name is None else changes.of(name)

    return find


def of_groups(names: Callable[[Fields], Iterable[str]]) -> Find:
    """Find the last changes of the named groups."""

    def find(node: Node, request: Fields) -> Iterator[int]:
        changes = node.broker.groups.changes
        if not changes.are_flushed:
            yield from map(changes.of, names(request))

    return find


def _named(request: Fields) -> Iterator[str | None]:
    return (each["name"] for each in request["topics"])


def _resources(request: Fields) -> Iterator[str]:
    return (
        each["resource_name"]
        for each in request["resources"]
        if each["resource_type"] == ResourceType.TOPIC
    )


def _group(request: Fields) -> tuple[str]:
    return (request["group_id"],)


TOPICS: Final = of_topics(_named)
"""Of a request with `topics`, each with a `name`."""

RESOURCES: Final = of_topics(_resources)
"""Of a request with `resources`."""

GROUP: Final = of_groups(_group)
"""Of a request with a `group_id`."""
