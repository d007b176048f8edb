"""What an answer depends on: the changes that it shows must be durable before it leaves.

An answer that shows a change that a power cut takes back would be wrong. So each API says which
changes its answers show: those of the topics or groups that the request names. An answer waits for
these only, and one that shows none leaves at once, also while the disk does not respond. An answer
that waits too long is replaced by one with an error after which clients ask again. Layer 3; does no
I/O.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from compat.kafka.configs.entries import ResourceType
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.registry import Fields, Find, Late, Needs


def with_code(code: ErrorCode) -> Late:
    """Replace every error code 0 of a response; the other fields stay."""
    return lambda node, version, request, response: _replace_codes(response, code)


def _replace_codes(value: Any, code: ErrorCode) -> Any:
    if isinstance(value, dict):
        changed = {name: _replace_codes(each, code) for name, each in value.items()}
        if value.get("error_code") == ErrorCode.none:
            changed["error_code"] = code
        return changed
    if isinstance(value, (list, tuple)):
        return [_replace_codes(each, code) for each in value]
    return value


# Positions


def of_topics(names: Callable[[Fields], Iterable[str | None]]) -> Find:
    """Find the last change of the named topics; None as a name stands for any topic."""

    def find(node: Node, request: Fields) -> int:
        changes = node.broker.topics.changes
        if not len(changes):
            return 0
        return max(
            (changes.last if name is None else changes.of(name) for name in names(request)),
            default=0,
        )

    return find


def of_groups(names: Callable[[Fields], Iterable[str]]) -> Find:
    """Find the last change of the named groups."""

    def find(node: Node, request: Fields) -> int:
        changes = node.broker.groups.changes
        if not len(changes):
            return 0
        return max(map(changes.of, names(request)), default=0)

    return find


def _named(request: Fields) -> list[str | None]:
    return [each["name"] for each in request["topics"]]


def _resources(request: Fields) -> list[str]:
    return [
        each["resource_name"]
        for each in request["resources"]
        if each["resource_type"] == ResourceType.TOPIC
    ]


def _group(request: Fields) -> tuple[str]:
    return (request["group_id"],)


TOPICS_READ: Final = Needs(of_topics(_named), with_code(ErrorCode.leader_not_available))
"""A request that reads `topics`, each with a `name`."""

TOPICS_CHANGED: Final = Needs(of_topics(_named), with_code(ErrorCode.request_timed_out))
"""A request that changes `topics`, each with a `name`. As in Kafka, they may be changed later."""

RESOURCES: Final = Needs(of_topics(_resources), with_code(ErrorCode.request_timed_out))
"""A request that reads or changes `resources`."""

GROUP_CHANGED: Final = Needs(of_groups(_group), with_code(ErrorCode.coordinator_not_available))
"""A request that changes the group with `group_id`. Kafka answers so if its log does not."""
