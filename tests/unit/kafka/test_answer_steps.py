"""The work of an answer in steps, and its pieces."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compat.kafka.protocol import messages
from compat.kafka.protocol.pieces import PieceWriter
from compat.kafka.protocol.slices import (
    SLICE_WORK,
    EncodedItems,
    Hold,
    SlicedAnswer,
    Steps,
    Wait,
    answer_in_slices,
)


def nested(make_array: Callable[[Any], Any]) -> dict[str, Any]:
    """A DescribeGroups response; `make_array` makes its arrays."""

    def make_member(number: int) -> dict[str, Any]:
        return {
            "member_id": f"m{number}",
            "client_id": "c" * 50,
            "client_host": "h",
            "member_metadata": bytes(number),
            "member_assignment": b"a",
        }

    def make_group(number: int) -> dict[str, Any]:
        return {
            "error_code": 0,
            "group_id": f"g{number}",
            "group_state": "Stable",
            "protocol_type": "p",
            "protocol_data": "d",
            "members": make_array(make_member(each) for each in range(number % 3 * 70)),
        }

    return {"groups": make_array(make_group(number) for number in range(150))}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("cut_every", [1, 3, 1000])
def test_pieces_are_what_is_encoded_at_once(version: int, cut_every: int) -> None:
    """Also where the number of items has two bytes, and wherever pieces end."""
    writer = PieceWriter()
    schema = messages.response_schema(15, version)
    for count, _ in enumerate(schema.write_in_steps(writer, nested(lambda items: items))):
        if count % cut_every == 0:
            writer._cut()
    whole = messages.encode_response(15, version, nested(list))
    assert writer.size_bytes == len(whole)
    assert b"".join(writer.finish_pieces()) == whole


def test_steps_between_items_are_no_items() -> None:
    def groups() -> Iterator[Any]:
        yield 64
        yield EncodedItems(2, b"\0\x02a\x02b\0" * 2)
        yield Hold(5)
        yield Wait(lambda then: then())

    writer = PieceWriter()
    schema = messages.response_schema(16, 3)
    steps = schema.write_in_steps(writer, {"error_code": 0, "groups": groups()})
    assert [type(step) for step in steps] == [Hold, Wait]
    assert writer.finish_pieces() == [bytes(6) + b"\x03" + b"\0\x02a\x02b\0" * 2 + b"\0"]


def test_work_waits_goes_on_and_is_cancelled() -> None:
    begun: list[Callable[[], None]] = []
    cancelled: list[bool] = []
    later: list[SlicedAnswer] = []

    def work(writer: PieceWriter) -> Steps[None]:
        writer.raw(b"a")
        yield Wait(lambda then: then())
        yield Wait(begun.append, lambda: cancelled.append(True))
        writer.raw(b"b")
        yield SLICE_WORK
        yield Wait(begun.append, lambda: cancelled.append(True))

    writer = PieceWriter()
    answer = answer_in_slices(work(writer), writer, bytes, lambda: 0, later.append)
    assert isinstance(answer, SlicedAnswer)
    assert (len(begun), later) == (1, [])
    begun[0]()
    assert later == [answer]
    assert answer.held_bytes == 2
    answer.step()
    assert len(begun) == 2
    answer.abandon()
    assert cancelled == [True]
    begun[1]()
    assert not answer.is_complete
