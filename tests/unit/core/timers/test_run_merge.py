"""Blocks of runs: how memtables become runs and how runs are merged, against plain dicts."""

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pytest

from _core.bytes.layout import RUN_BLOCK_SIZE_MAX, RUN_IDS, RUN_TIMERS
from _core.timers.memtable import TimerMemtable
from _core.timers.run_merge import RowCheck, RunMerge
from appliance.store.runs.run_files import (
    COMPLETED_ROW,
    ID_ROW,
    TIMER_ROW,
    CompletedRow,
    IdRow,
    TimerRow,
    rows_of,
)
from tests.support.compiled import timer_calls as calls

NOW_POS: Final = 1_000
DONE: Final = -1
SEEDS: Final = range(20)

Row = TimerRow | CompletedRow | IdRow


def encode(row: Row) -> bytes:
    match row:
        case TimerRow(pos, index, level, due_ms, level_offset, topic_id, partition):
            return TIMER_ROW.pack(
                pos, index, 1, level, due_ms, level_offset, topic_id, partition, pos
            )
        case CompletedRow(pos, index):
            return COMPLETED_ROW.pack(pos, index, 2)
        case IdRow():
            return ID_ROW.pack(*(getattr(row, name) for name in IdRow.__slots__))


def key(row: Row) -> tuple[int, int, int]:
    if isinstance(row, IdRow):
        return row.hash_high, row.hash_low, row.topic_id
    return row.accept_pos, row.index, 0


def timer(pos: int, index: int = 0, *, topic_id: int = 1, due_ms: int = 5) -> TimerRow:
    return TimerRow(pos, index, 0, due_ms, -1, topic_id, 0)


def id_row(hash_high: int, pos: int, *, topic_id: int = 1, completed_pos: int = 0) -> IdRow:
    return IdRow(hash_high, 7, topic_id, pos, 5, completed_pos, 0, 0, 3 if completed_pos else 1)


def blocks_of(memtable: TimerMemtable, kind: int) -> list[bytes]:
    memtable.sort()
    blocks = []
    while block := memtable.next_block(kind):
        blocks.append(block)
    return blocks


def split(rng: random.Random, rows: Sequence[Row]) -> Iterator[bytes]:
    """Rows as blocks of any sizes, as if a file had them."""
    at = 0
    while at < len(rows):
        count = rng.randrange(1, 5)
        yield b"".join(map(encode, rows[at : at + count]))
        at += count


def merge(
    kind: int,
    sources: Sequence[Iterable[bytes]],
    *,
    topics: Sequence[int] = (1, 2),
    is_whole: bool = True,
) -> list[Row]:
    """The rows that come out."""
    feeds = [iter(source) for source in sources]
    checks = [RowCheck(kind) for _ in sources]
    merging = RunMerge(
        kind, source_count=len(sources), topics=topics, is_whole=is_whole, forget_pos=NOW_POS
    )
    rows: list[Row] = []
    while True:
        wanted = merging.run()
        if wanted >= 0:
            block = next(feeds[wanted], b"")
            assert checks[wanted].find_unsound(block) == -1
            merging.feed(wanted, block)
            continue
        count = merging.out_rows
        block = merging.take()
        found = list(rows_of(kind, block))
        assert len(found) == count
        assert len(block) <= RUN_BLOCK_SIZE_MAX
        rows += found
        if wanted == DONE:
            return rows


# Deltas


@pytest.mark.parametrize("seed", SEEDS)
def test_timers_that_came_and_went_are_in_no_block(seed: int) -> None:
    rng = random.Random(seed)
    memtable = TimerMemtable()
    pushed = {}
    completed = {(rng.randrange(50), 0) for _ in range(rng.randrange(20))}  # from earlier
    for pos in range(100, 100 + rng.randrange(200)):
        for index in sorted(rng.sample(range(9), rng.randrange(1, 4))):
            row = TimerRow(pos, index, rng.randrange(4), rng.randrange(1 << 40), pos, 3, index)
            pushed[pos, index] = row
            calls.note_pushed(
                memtable,
                row.due_ms,
                pos,
                index,
                topic_id=3,
                partition=row.partition,
                level=row.level,
                level_offset=pos,
            )
    completed |= {place for place in pushed if rng.random() < 0.5}
    for place in rng.sample(sorted(completed), len(completed)):
        calls.note_completed(memtable, *place)
    rows = [row for block in blocks_of(memtable, RUN_TIMERS) for row in rows_of(RUN_TIMERS, block)]
    expected = [row for place, row in pushed.items() if place not in completed]
    expected_completed = [CompletedRow(*place) for place in completed if place not in pushed]
    assert rows == sorted([*expected, *expected_completed], key=key)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_last_change_of_an_id_is_in_a_block(seed: int) -> None:
    rng = random.Random(seed)
    memtable = TimerMemtable()
    last: dict[tuple[int, int, int], IdRow] = {}
    for pos in range(rng.randrange(1, 300)):
        # A few high words, so that some differ in the rest of the key alone.
        place = rng.choice((5, 1 << 63, rng.getrandbits(64))), rng.randrange(3), rng.randrange(1, 3)
        last[place] = IdRow(*place, pos, 8, 9, 0, 4, 3)
        calls.note_named(
            memtable, *place, position=pos, partition=4, due_ms=8, completed_pos=9, state=3
        )
    rows = [row for block in blocks_of(memtable, RUN_IDS) for row in rows_of(RUN_IDS, block)]
    assert rows == [last[place] for place in sorted(last)]


def test_many_rows_come_in_blocks_of_bounded_size_and_again_after_another_sort() -> None:
    memtable = TimerMemtable()
    count = 20_000
    for number in range(count):
        calls.note_pushed(memtable, number, number, 0, topic_id=1, partition=0)
        calls.note_named(memtable, number << 40, 0, 1, position=number)
    for kind in (RUN_TIMERS, RUN_IDS):
        blocks = blocks_of(memtable, kind)
        assert len(blocks) > 2
        assert max(map(len, blocks)) <= RUN_BLOCK_SIZE_MAX
        assert sum(len(list(rows_of(kind, block))) for block in blocks) == count
        assert blocks_of(memtable, kind) == blocks
    assert memtable.memory_bytes >= count * 88
    memtable.release()
    assert memtable.memory_bytes == 0


# Merges


def merged_model(
    sources: Sequence[Sequence[Row]], topics: Sequence[int], is_whole: bool
) -> list[Row]:
    """What a merge amounts to, the slow way."""
    timers: dict[tuple[int, int, int], TimerRow] = {}
    completed: dict[tuple[int, int, int], CompletedRow] = {}
    ids: dict[tuple[int, int, int], IdRow] = {}
    for row in (row for source in sources for row in source):
        match row:
            case TimerRow():
                timers[key(row)] = row
            case CompletedRow():
                completed[key(row)] = row
            case IdRow():
                ids[key(row)] = row
    kept: list[Row] = [
        row for place, row in timers.items() if place not in completed and row.topic_id in topics
    ]
    if not is_whole:
        kept += [row for place, row in completed.items() if place not in timers]
    for id_ in ids.values():
        is_forgotten = is_whole and 0 < id_.completed_pos <= NOW_POS
        if id_.topic_id in topics and not is_forgotten:
            kept.append(id_)
    return sorted(kept, key=key)


def random_timer_runs(rng: random.Random) -> list[list[Row]]:
    """Runs of one history: each timer is pushed once, and completed in a later run or never."""
    runs: list[list[Row]] = []
    open_timers: list[TimerRow] = []
    for number in range(rng.randrange(1, 7)):
        completed = rng.sample(open_timers, rng.randrange(len(open_timers) + 1))
        open_timers = [row for row in open_timers if row not in completed]
        added = [
            timer(number * 100 + pos, index, topic_id=rng.randrange(1, 5))
            for pos in sorted(rng.sample(range(100), rng.randrange(12)))
            for index in range(rng.randrange(1, 3))
        ]
        open_timers += added
        rows = [*added, *(CompletedRow(row.accept_pos, row.index) for row in completed)]
        runs.append(sorted(rows, key=key))
    return runs


def random_id_runs(rng: random.Random) -> list[list[Row]]:
    runs: list[list[Row]] = []
    for number in range(rng.randrange(1, 7)):
        places = sorted(
            {(rng.randrange(30), rng.randrange(1, 5)) for _ in range(rng.randrange(20))}
        )
        runs.append(
            [
                id_row(high, number, topic_id=topic_id, completed_pos=rng.choice((0, 5, 5_000)))
                for high, topic_id in places
            ]
        )
    return runs


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("kind", [RUN_TIMERS, RUN_IDS])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_merge_is_what_the_model_says(seed: int, kind: int, is_whole: bool) -> None:
    rng = random.Random(seed)
    runs = random_timer_runs(rng) if kind == RUN_TIMERS else random_id_runs(rng)
    if not is_whole:
        runs = runs[1:]
    sources = [split(rng, rows) for rows in runs]
    assert merge(kind, sources, is_whole=is_whole) == merged_model(runs, (1, 2), is_whole)


@pytest.mark.parametrize("seed", SEEDS)
def test_merging_some_runs_first_makes_no_difference(seed: int) -> None:
    """What a partial merge leaves out must not be missed later."""
    rng = random.Random(seed)
    for kind, runs in ((RUN_TIMERS, random_timer_runs(rng)), (RUN_IDS, random_id_runs(rng))):
        expected = merge(kind, [split(rng, rows) for rows in runs])
        while len(runs) > 1:
            first = rng.randrange(len(runs) - 1)
            last = rng.randrange(first + 1, len(runs)) + 1
            part = [split(rng, rows) for rows in runs[first:last]]
            runs[first:last] = [merge(kind, part, is_whole=first == 0)]
            assert merge(kind, [split(rng, rows) for rows in runs]) == expected


def test_a_completed_row_goes_on_until_it_meets_its_timer() -> None:
    old, middle, new = [timer(8)], [timer(16)], [CompletedRow(8, 0), CompletedRow(16, 0)]
    encoded = [[b"".join(map(encode, rows))] for rows in (old, middle, new)]
    assert merge(RUN_TIMERS, encoded[1:], is_whole=False) == [CompletedRow(8, 0)]
    assert merge(RUN_TIMERS, encoded) == []


def test_a_forgotten_id_hides_what_it_named_before_until_everything_is_merged() -> None:
    old, new = [id_row(9, 1)], [id_row(9, 1, completed_pos=NOW_POS)]
    encoded = [[b"".join(map(encode, rows))] for rows in (old, new)]
    assert merge(RUN_IDS, encoded[1:], is_whole=False) == new
    assert merge(RUN_IDS, encoded) == []


def test_output_of_more_than_a_block_is_taken_piece_by_piece() -> None:
    rows = [timer(pos) for pos in range(20_000)]
    even, odd = rows[::2], rows[1::2]
    sources = [[b"".join(map(encode, part))] for part in (even, odd)]
    assert merge(RUN_TIMERS, sources) == rows


# Rows that nobody wrote


GOOD_TIMERS: Final[tuple[Row, ...]] = (timer(8), CompletedRow(8, 1), timer(16, 3))


def broken(at: int, value: bytes, rows: Sequence[Row] = GOOD_TIMERS) -> bytes:
    data = bytearray(b"".join(map(encode, rows)))
    data[at : at + len(value)] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("kind", "block", "place"),
    [
        (RUN_TIMERS, broken(0, b""), -1),
        (RUN_TIMERS, broken(0, b"")[:-1], 64),
        (RUN_TIMERS, broken(0, b"")[:53], 48),
        (RUN_TIMERS, broken(0, b"\xff"), 0),  # a negative position
        (RUN_TIMERS, broken(12, b"\x03"), 0),  # an unknown kind
        (RUN_TIMERS, broken(16, b"\x01"), 0),  # due after the year 10889
        (RUN_TIMERS, broken(24, b"\xfe"), 0),  # a level offset below -1
        (RUN_TIMERS, broken(32, b"\xff"), 0),  # a negative topic
        (RUN_TIMERS, broken(36, b"\x7f"), 0),  # no such partition ever
        (RUN_TIMERS, broken(40, b"\xff"), 0),  # a record before its acceptance
        (RUN_TIMERS, broken(59, b"\x00"), 48),  # twice the same timer
        (RUN_TIMERS, broken(71, b"\x07"), 64),  # not in order
        (RUN_IDS, encode(id_row(3, 1)) + encode(id_row(4, 1)), -1),
        (RUN_IDS, encode(id_row(3, 1)) + encode(id_row(3, 2)), 52),
        (RUN_IDS, encode(id_row(3, 1))[:-1], 0),
        (RUN_IDS, broken(48, b"\x04", [id_row(3, 1)]), 0),  # an unknown state
        (RUN_IDS, broken(48, b"\x02", [id_row(3, 1)]), 0),  # cancelled, and never forgotten
        (RUN_IDS, broken(44, b"\x7f", [id_row(3, 1)]), 0),
        (RUN_IDS, broken(16, b"\xff", [id_row(3, 1)]), 0),
        (RUN_IDS, broken(12, b"\xff", [id_row(3, 1)]), 0),
    ],
)
def test_rows_that_are_not_possible_are_found(kind: int, block: bytes, place: int) -> None:
    assert RowCheck(kind).find_unsound(block) == place


def test_order_is_checked_across_blocks() -> None:
    check = RowCheck(RUN_TIMERS)
    assert check.find_unsound(encode(timer(8))) == -1
    assert check.find_unsound(b"") == -1
    assert check.find_unsound(encode(timer(8))) == 0
    assert check.rows == 1
