"""Functions that take bytes: of which objects, and for how long."""

import contextlib
from collections.abc import Callable

import pytest

from _core.bytes.batch import batch_header, highest_timestamp
from _core.bytes.borrowed import Borrowed
from _core.bytes.crc32c import crc32c
from _core.bytes.record_list import records
from _core.log.frames import check, read_header
from _core.queue.frame_finder import find_candidate

TAKERS: tuple[Callable[..., object], ...] = (
    Borrowed,
    batch_header,
    crc32c,
    read_header,
    lambda data: highest_timestamp(data, 1, base_offset=0, base_timestamp=0, start=0),
    lambda data: records(data, 1),
    lambda data: check(data, 0),
    lambda data: find_candidate(data, 0, 0),
)


@pytest.mark.parametrize("take", TAKERS)
def test_none_is_refused(take: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="bytes-like"):
        take(None)


@pytest.mark.parametrize("take", TAKERS)
def test_bytes_that_are_not_contiguous_are_refused(take: Callable[..., object]) -> None:
    with pytest.raises(BufferError, match="contiguous"):
        take(memoryview(bytes(200))[::2])


@pytest.mark.parametrize("take", TAKERS)
def test_bytes_are_released_when_a_call_is_over(take: Callable[..., object]) -> None:
    data = bytearray(3)
    with contextlib.suppress(ValueError):  # too short for some
        take(data)
    data.append(0)  # refused while they are borrowed


def test_bytes_stay_where_they_are_while_they_are_borrowed() -> None:
    data = bytearray(3)
    borrowed = Borrowed(data)
    with pytest.raises(BufferError):
        data.append(0)
    del borrowed
    data.append(0)
