"""Requests whose items are answered each by itself, such as topics to create.

Layer 3; does no I/O.
"""

from collections.abc import Callable, Iterable, Mapping

from appliance.errors import InvalidRequestError, RequestError
from compat.kafka.protocol.error_codes import ErrorCode, code_of
from compat.kafka.protocol.registry import Fields


def answer_each(
    items: Iterable[Fields],
    name_fields: tuple[str, ...],
    what: str,
    answer: Callable[[Fields], Fields],
    *,
    refused: Mapping[str, object] = {},
) -> list[Fields]:
    """Answer each item independently; one that is named more than once is refused, once.

    Args:
        items: of the request.
        name_fields: the fields that name an item; the answer has them too.
        what: what an item is.
        answer: does what an item asks for and returns the rest of its answer; raises RequestError.
        refused: the rest of the answer to a refused item.
    """
    named: dict[tuple[object, ...], list[Fields]] = {}
    for item in items:
        named.setdefault(tuple(item[field] for field in name_fields), []).append(item)
    answers = []
    for name, same in named.items():
        result: Fields = {"error_code": ErrorCode.none, "error_message": None}
        try:
            if len(same) > 1:
                raise InvalidRequestError(
                    f"the request names this {what} more than once: name it once"
                )
            result |= answer(same[0])
        except RequestError as error:
            result = {**refused, "error_code": code_of(error), "error_message": error.message}
        answers.append(result | dict(zip(name_fields, name, strict=True)))
    return answers
