"""CRC32C: the published vectors, and every way of computing it gives the same."""

import random
from itertools import pairwise

import crc32c as other_library
import pytest
from hypothesis import given
from hypothesis import strategies as st

from _core.bytes.crc32c import FORMS, crc32c, crc32c_by
from tests.support.oracles import frames_model as model

LANE = 1024
ROUND = 3 * LANE
"""Bytes of one step of the form with three streams."""

SCSI_READ = bytes.fromhex(
    "01c00000 00000000 00000000 00000000 14000000 00000400 00000014 00000018"
    "28000000 00000000 02000000 00000000"
)
# RFC 3720, B.4, and the check value of the catalogue of CRC algorithms.
VECTORS = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (SCSI_READ, 0xD9963A56),
    (b"123456789", 0xE3069283),
    (b"", 0),
]


@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_published_vectors(data: bytes, expected: int) -> None:
    assert model.crc32c(data) == expected
    assert crc32c(data) == expected
    for form in FORMS:
        assert crc32c_by(form, data) == expected, form


@given(data=st.binary(max_size=700), crc=st.integers(0, 2**32 - 1))
def test_every_form_is_the_bit_by_bit_one_from_any_state(data: bytes, crc: int) -> None:
    expected = model.crc32c(data, crc)
    assert crc32c(data, crc) == expected
    for form in FORMS:
        assert crc32c_by(form, data, crc) == expected, form


def test_a_form_that_the_processor_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="form 'abacus' is not supported: use one of table"):
        crc32c_by("abacus", b"")


@pytest.mark.parametrize("around", [ROUND, 2 * ROUND, 5 * ROUND])
def test_lengths_around_whole_rounds_at_every_alignment(around: int) -> None:
    data = memoryview(random.Random(around).randbytes(around + 64))
    for length in range(around - 17, around + 18):
        for start in range(8):
            part = data[start : start + length]
            expected = other_library.crc32c(part)
            for form in FORMS:
                assert crc32c_by(form, part) == expected, (form, start, length)


def test_every_length_up_to_two_rounds() -> None:
    data = memoryview(random.Random(1).randbytes(2 * ROUND + 8))
    for length in range(2 * ROUND + 9):
        expected = other_library.crc32c(data[:length])
        for form in FORMS:
            assert crc32c_by(form, data[:length]) == expected, (form, length)


@given(
    size=st.integers(0, 4 * ROUND),
    cuts=st.lists(st.integers(0, 4 * ROUND), max_size=4),
    seed=st.integers(0, 99),
)
def test_parts_continue_to_the_checksum_of_the_whole(size: int, cuts: list[int], seed: int) -> None:
    data = random.Random(seed).randbytes(size)
    edges = [0, *sorted(min(cut, size) for cut in cuts), size]
    for form in FORMS:
        crc = 0
        for start, end in pairwise(edges):
            crc = crc32c_by(form, data[start:end], crc)
        assert crc == crc32c(data), form


def test_any_readable_buffer_is_taken_and_others_are_refused() -> None:
    for data in (bytearray(b"123456789"), memoryview(b"_123456789")[1:]):
        assert crc32c(data) == 0xE3069283
    with pytest.raises(TypeError):
        crc32c("123456789")  # type: ignore[arg-type]
    with pytest.raises(BufferError, match="contiguous"):
        crc32c(memoryview(b"112233")[::2])
