"""Pages, filters and merges of the key index, against plain Python."""

import random
import struct
from collections.abc import Iterator

import pytest

from _core.tables.key_pages import (
    KEY_ROWS_PER_PAGE,
    PAGE_SIZE,
    PAGE_USED_MAX,
    FilterPages,
    RowMerge,
    filter_has,
    filter_lines,
    filter_place,
    find_row,
    open_page,
    positions_of,
    row_pages,
    seal,
)
from _core.tables.key_scan import KEY_ROW_SIZE

Row = tuple[int, int]


def packed(rows: list[Row]) -> bytes:
    return b"".join(struct.pack(">Qq", *row) for row in rows)


def unpacked(data: bytes) -> list[Row]:
    return list(struct.iter_unpack(">Qq", data))


def some_rows(rng: random.Random, count: int) -> list[Row]:
    hashes = [rng.getrandbits(64) for _ in range(max(1, count // 2))]
    return sorted({(rng.choice(hashes), rng.randrange(1 << 40)) for _ in range(count)})


def blocks_of(rng: random.Random, rows: list[Row]) -> Iterator[bytes]:
    at = 0
    while at < len(rows):
        count = rng.randrange(1, 50)
        yield packed(rows[at : at + count])
        at += count


@pytest.mark.parametrize("seed", range(20))
def test_a_merge_has_the_rows_of_all_sources_in_order(seed: int) -> None:
    rng = random.Random(seed)
    sources = [some_rows(rng, rng.randrange(200)) for _ in range(rng.randrange(6))]
    merge = RowMerge([blocks_of(rng, rows) for rows in sources])
    found: list[Row] = []
    while taken := merge.take(rng.randrange(1, 100)):
        found += unpacked(taken)
    assert found == sorted(row for rows in sources for row in rows)
    assert merge.take(1) == b""


@pytest.mark.parametrize("seed", range(10))
def test_rows_of_a_hash_are_found_from_a_position_on(seed: int) -> None:
    rng = random.Random(seed)
    rows = some_rows(rng, 300)
    data = packed(rows)
    for digest, pos in [*rng.sample(rows, 20), (0, 0), ((1 << 64) - 1, 0)]:
        at = find_row(data, len(data), digest, pos)
        expected = [other for name, other in rows if name == digest and other >= pos]
        assert at == KEY_ROW_SIZE * sum(row < (digest, pos) for row in rows)
        assert positions_of(data, len(data), at, digest) == expected


def test_pages_hold_all_rows_and_only_the_last_has_room() -> None:
    rows = some_rows(random.Random(1), 1_000)
    pages = row_pages(packed(rows), 7, 99)
    count = -(-len(rows) // KEY_ROWS_PER_PAGE)
    assert len(pages) == count * PAGE_SIZE
    found: list[Row] = []
    for number in range(count):
        page = pages[number * PAGE_SIZE : (number + 1) * PAGE_SIZE]
        used = open_page(page, 7 + number, 99)
        assert used == PAGE_USED_MAX or number == count - 1
        found += unpacked(page[:used])
    assert found == rows


def test_a_page_of_another_place_or_run_and_every_changed_byte_is_refused() -> None:
    rng = random.Random(1)
    page = seal(3, b"content", 5)
    assert open_page(page, 3, 5) == 7
    assert open_page(page, 4, 5) == -1
    assert open_page(page, 3, 6) == -1
    assert open_page(page[:-1], 3, 5) == -1
    for at in range(PAGE_SIZE):
        changed = bytearray(page)
        changed[at] ^= 1 << rng.randrange(8)
        assert open_page(bytes(changed), 3, 5) == -1
    with pytest.raises(ValueError, match="up to 4080 bytes"):
        seal(0, bytes(PAGE_USED_MAX + 1), 0)


@pytest.mark.parametrize("count", [0, 1, 3, 5_000])
def test_a_filter_passes_all_that_is_there_and_little_else(count: int) -> None:
    rng = random.Random(count)
    rows = some_rows(rng, count)
    lines = filter_lines(len(rows))
    pages = FilterPages(lines, 1)
    data = b"".join([*map(pages.add, blocks_of(rng, rows)), pages.finish()])
    assert pages.number == 1 + len(data) // PAGE_SIZE

    def has(digest: int) -> bool:
        number, at = filter_place(digest, lines)
        page = data[number * PAGE_SIZE : (number + 1) * PAGE_SIZE]
        assert open_page(page, 1 + number, 1) >= 0
        return filter_has(page, at, digest)

    assert all(has(digest) for digest, _ in rows)
    passed = sum(has(rng.getrandbits(64)) for _ in range(5_000))
    assert passed < 100
