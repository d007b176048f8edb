"""Requests whose items are answered each by itself, such as topics to create.

What a request names more than once is refused, or answered once: so a small request cannot cause an
answer, or work, of any size. Layer 3; does no I/O.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from appliance.errors import InvalidRequestError, RequestError
from compat.kafka.protocol.error_codes import ErrorCode, code_of
from compat.kafka.protocol.registry import Fields
from compat.kafka.protocol.slices import VALUE_WORK, Items, Steps, free_in_steps

PARTITION_WORK: Final = 256
"""The price of a partition that is made."""


def answer_each(
    items: Iterable[Fields],
    name_fields: tuple[str, ...],
    what: str,
    answer: Callable[[Fields], Fields],
    *,
    refused: Mapping[str, object] = {},
    partitions: Callable[[Fields, Fields], int] = lambda _item, _answer: 0,
) -> Items:
    """Yield the answer to each item; one that is named more than once is refused, once.

    Args:
        items: of the request.
        name_fields: the fields that name an item; the answer has them too.
        what: what an item is.
        answer: does what an item asks for and returns the rest of its answer; raises RequestError.
        refused: the rest of the answer to a refused item.
        partitions: returns from an item and its answer how many partitions were made for it.
    """
    named: dict[tuple[object, ...], Fields | None] = {}
    for item in items:
        name = tuple(item[field] for field in name_fields)
        named[name] = None if name in named else item
        yield VALUE_WORK
    for name, only in named.items():
        result: Fields = {"error_code": ErrorCode.none, "error_message": None}
        try:
            if only is None:
                raise InvalidRequestError(
                    f"the request names this {what} more than once: name it once"
                )
            result |= answer(only)
            yield PARTITION_WORK * partitions(only, result)
        except RequestError as error:
            result = {**refused, "error_code": code_of(error), "error_message": error.message}
        yield result | dict(zip(name_fields, name, strict=True))
    yield from free_in_steps(named)


def each_once(items: Iterable[Any]) -> Iterator[Any]:
    """Yield each item once, in the order of their first places; VALUE_WORK for one that repeats."""
    seen: dict[Any, None] = {}
    for item in items:
        if item in seen:
            yield VALUE_WORK
        else:
            seen[item] = None
            yield item
    yield from free_in_steps(seen)


def by_partition(
    topics: Iterable[Fields], name_field: str, partitions_field: str, index_field: str = ""
) -> Steps[dict[str, dict[int, Any]]]:
    """Return what a request says of each partition, by topic and index; the last one counts.

    Args:
        topics: of the request.
        name_field: the field with the topic's name.
        partitions_field: the field with the partitions.
        index_field: the field of a partition with its index; "" if a partition is only an index.
    """
    found: dict[str, dict[int, Any]] = {}
    for topic in topics:
        partitions = found.setdefault(topic[name_field], {})
        for partition in topic[partitions_field]:
            partitions[partition[index_field] if index_field else partition] = partition
            yield VALUE_WORK
    return found
