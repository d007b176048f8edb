"""What of the log is held in memory: whole frames alone, found where they begin, not too many."""

import random
from itertools import pairwise

import pytest

from _core.log.view import LONE_BYTES, WINDOW_BYTES, Block, LogView
from tests.support.harness.broker_harness import with_topic
from tests.support.harness.configs import small_config
from tests.support.values.kafka_records import Record

COUNT = 300


def log_of(seed: int) -> tuple[bytes, list[int]]:
    """The bytes of a log with frames of many sizes, and where they begin."""
    rng = random.Random(seed)
    harness = with_topic(config=small_config(segment_size_bytes=4 << 20))
    for _ in range(COUNT):
        harness.produce("t", 0, [Record(rng.randbytes(rng.choice((1, 50, 700, 3_000))))])
    path = harness.segment_paths()[0]
    data = harness.disk.files()[path]
    starts, at = [], 0
    while at < len(data) and int.from_bytes(data[at + 4 : at + 8], "big"):
        starts.append(at)
        at += int.from_bytes(data[at + 4 : at + 8], "big")
    return data[:at], starts


LOG, STARTS = log_of(1)


def block_at(
    view: LogView, pos: int, size: int, data: bytes = LOG, *, is_locked: bool = False
) -> Block:
    part = data[pos : pos + size]
    if is_locked:
        block = Block(view.memory, pos, len(part), part)
        block.check(len(part))
        return block
    block = Block(view.memory, pos, size)
    block.room[: len(part)] = part
    block.check(len(part))
    return block


def read(view: LogView, pos: int) -> bytes | None:
    size = int.from_bytes(LOG[pos + 4 : pos + 8], "big")
    return view.read_hot(pos, pos, size)


def test_frames_are_found_where_they_begin_and_nowhere_else() -> None:
    view = LogView(size_max=1 << 20)
    view.put(block_at(view, 0, 40_000))
    held = [pos for pos in range(0, 41_000, 8) if view.holds(pos)]
    ends = [*STARTS[1:], len(LOG)]
    assert held == [pos for pos, end in zip(STARTS, ends, strict=True) if end <= 40_000]
    assert all(read(view, pos) == LOG[pos : ends[STARTS.index(pos)]] for pos in held)


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_blocks_holds_each_frame_once_and_whole(seed: int) -> None:
    """Blocks overlap as they like; what is found is what the log has, and memory is bounded."""
    rng = random.Random(seed)
    view = LogView(size_max=4 * WINDOW_BYTES)
    for _ in range(200):
        pos = rng.choice(STARTS)
        size = rng.choice((160, 1_000, 9_000, 70_000))
        view.put(block_at(view, pos, size, is_locked=rng.random() < 0.5))
        assert view.cached_bytes <= view.size_max
        if rng.random() < 0.05:
            view.unlock(rng.randrange(100_000))
        for wanted in rng.sample(STARTS, 5):
            found = read(view, wanted)
            size = int.from_bytes(LOG[wanted + 4 : wanted + 8], "big")
            assert found in (None, LOG[wanted : wanted + size]), f"seed {seed}"


def test_a_flipped_bit_is_not_taken_in() -> None:
    for at in range(0, STARTS[4], 7):
        data = bytearray(LOG)
        data[at] ^= 1
        view = LogView(size_max=1 << 20)
        view.put(block_at(view, 0, 8_000, bytes(data)))
        assert [pos for pos in STARTS if view.holds(pos)] == [
            pos for pos, end in pairwise(STARTS) if end <= at
        ]


def test_the_block_that_was_used_longest_ago_goes_first() -> None:
    view = LogView(size_max=3 * LONE_BYTES)
    places = [STARTS[index] for index in (0, 40, 80, 120)]
    for pos in places[:3]:
        view.put(block_at(view, pos, 5_000))
    assert view.holds(places[0])
    view.put(block_at(view, places[3], 5_000))
    assert [view.holds(pos) for pos in places] == [True, False, True, True]


def test_a_block_larger_than_all_that_may_be_held_stays_until_the_next() -> None:
    view = LogView(size_max=LONE_BYTES)
    view.put(block_at(view, 0, 2 * LONE_BYTES))
    assert view.holds(0)
    last = STARTS[-2]
    view.put(block_at(view, last, len(LOG) - last))
    assert not view.holds(0)
    assert view.holds(last)
    assert view.cached_bytes == view.memory.size == LONE_BYTES


def held(view: LogView, index: int) -> None:
    """What the store does when it has written a frame."""
    begin, end = STARTS[index], [*STARTS, len(LOG)][index + 1]
    middle = (begin + end) // 2
    view.hold(begin, [memoryview(LOG)[begin:middle], memoryview(LOG)[middle:end]])


def test_what_was_written_is_held_and_reads_do_not_drive_it_out() -> None:
    view = LogView(size_max=8 * WINDOW_BYTES)
    for index in range(100):
        held(view, index)
    assert [index for index in range(COUNT) if view.holds(STARTS[index])] == list(range(100))
    assert all(read(view, pos) == LOG[pos:end] for pos, end in pairwise(STARTS[:101]))
    for index in range(100, COUNT):
        view.put(block_at(view, STARTS[index], 3 * LONE_BYTES))
    assert all(view.holds(pos) for pos in STARTS[:100])
    assert view.cached_bytes <= view.size_max


def test_what_was_written_is_held_in_its_part_of_the_memory_alone() -> None:
    view = LogView(size_max=4 * WINDOW_BYTES)
    for index in range(COUNT):
        held(view, index)
        if index % 7 == 0:
            view.put(block_at(view, STARTS[index // 2], LONE_BYTES))
        assert view.cached_bytes <= view.size_max
        assert view.holds(STARTS[index])


def test_a_large_window_drives_out_what_was_read_rather_than_nothing() -> None:
    view = LogView(size_max=4 * LONE_BYTES)
    for index in (0, 40, 80):
        view.put(block_at(view, STARTS[index], 5_000))
    view.put(block_at(view, STARTS[120], 3 * LONE_BYTES, is_locked=True))
    assert view.holds(STARTS[120])
    assert [view.holds(STARTS[index]) for index in (0, 40, 80)] == [False, False, True]
    assert view.cached_bytes <= view.size_max


def test_locked_windows_are_given_up_oldest_first_and_the_rest_stays() -> None:
    view = LogView(size_max=1 << 20)
    places = [STARTS[index] for index in (0, 40, 80, 120)]
    for pos in places:
        view.put(block_at(view, pos, 5_000, is_locked=pos != places[1]))
    assert view.memory.locked_size == 15_000
    assert view.holds(places[0])
    view.unlock(6_000)
    assert [view.holds(pos) for pos in places] == [True, True, False, False]
    assert view.memory.locked_size == 5_000
    view.unlock(1 << 40)
    assert [view.holds(pos) for pos in places] == [False, True, False, False]
    assert view.memory.locked_size == 0
    assert view.memory.size == LONE_BYTES


def test_a_locked_window_is_held_as_long_as_somebody_refers_to_it() -> None:
    view = LogView(size_max=1 << 20)
    data = bytearray(LOG[:5_000])
    block = Block(view.memory, 0, 5_000, data)
    block.check(5_000)
    view.put(block)
    with pytest.raises(BufferError):
        data.append(0)
    view.unlock(1)
    with pytest.raises(BufferError):
        data.append(0)
    del block
    data.append(0)
