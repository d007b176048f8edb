"""The scan at start, where the disk cannot read what was written; and how much it reads."""

import pytest

from tests.support.oracles import frames_model as model
from tests.support.values.scanned_log import PAGE_SIZE_BYTES, UNREADABLE, Log, reader, scan

UNKNOWN_TOPIC = "frame of an unknown topic"


# What the disk cannot read


def marked_log(*, lag: int, segment_size: int, accepts: int = 40) -> Log:
    """A log of which each frame names as flushed what was `lag` frames before it."""
    log = Log(segment_size)
    log.topic()
    for index in range(1, accepts + 1):
        log.accept(flushed=log.positions[max(index - lag, 0)] if lag else log.end)
    return log


@pytest.mark.parametrize("lag", [0, 3, 100])
@pytest.mark.parametrize("page", range(4))
def test_an_unreadable_page_is_damage_or_a_torn_tail_as_other_invalid_bytes_are(
    page: int, lag: int
) -> None:
    """Frames that touch it are lost, those beside it are kept."""
    log = marked_log(lag=lag, segment_size=1 << 14, accepts=60)
    start, end = page * PAGE_SIZE_BYTES, (page + 1) * PAGE_SIZE_BYTES
    ends = [*log.positions[1:], log.end]
    lost = [
        index
        for index, (pos, behind) in enumerate(zip(log.positions, ends, strict=True))
        if pos < end and start < behind
    ]
    assert 0 < len(lost) < len(ends)
    segments = log.segments()
    found = scan(segments, read=reader(segments, bad=[start]))
    begin, behind = log.positions[lost[0]], ends[lost[-1]]
    assert found.unreadable == [(start, end, "Input/output error")]
    mark = max(log.flushed[lost[-1] + 1 :], default=-1)
    if begin < mark:
        assert found.damage[0] == (begin, behind, UNREADABLE)
        assert {fault for _, _, fault in found.damage[1:]} <= {UNKNOWN_TOPIC}
        assert (found.pos, found.frames) == (log.end, len(ends) - len(lost))
    else:
        assert (found.damage, found.pos, found.tail_fault) == ([], begin, UNREADABLE)
        assert found.frames == lost[0]


def test_zeros_that_were_written_and_cannot_be_read_are_not_taken_for_whole() -> None:
    log = Log(1 << 15)
    log.topic()
    pos = log.accept(value=bytes(3 * PAGE_SIZE_BYTES))
    behind = log.accept()
    log.accept()
    inside = pos // PAGE_SIZE_BYTES * PAGE_SIZE_BYTES + PAGE_SIZE_BYTES
    assert not any(log.data[inside : inside + PAGE_SIZE_BYTES])
    segments = log.segments()
    found = scan(segments, read=reader(segments, bad=[inside]))
    assert found.damage == [(pos, behind, UNREADABLE)]
    assert (found.pos, found.frames) == (log.end, 3)


def test_what_a_blank_frame_passes_over_need_not_be_readable() -> None:
    log = Log(1 << 15)
    log.topic()
    log.accept(value=bytes(10_000))
    log.accept(value=bytes(10_000))
    inside = log.end // PAGE_SIZE_BYTES * PAGE_SIZE_BYTES + PAGE_SIZE_BYTES
    log.accept(value=bytes(20_000))
    assert log.positions[-1] == 1 << 15
    segments = log.segments()
    found = scan(segments, read=reader(segments, bad=[inside]))
    assert (found.damage, found.pos, found.frames) == ([], log.end, 5)


def test_two_unreadable_pages_beside_each_other_are_one_part() -> None:
    log = marked_log(lag=0, segment_size=1 << 14, accepts=60)
    segments = log.segments()
    found = scan(segments, read=reader(segments, bad=[4096, 8192]))
    assert found.unreadable == [(4096, 12_288, "Input/output error")]
    assert len(found.damage) == 1


def test_an_unreadable_page_at_a_segments_start_is_damage_of_that_segment() -> None:
    log = marked_log(lag=0, segment_size=1 << 14, accepts=150)
    segments = log.segments()
    base = segments[1][0]
    found = scan(segments, read=reader(segments, bad=[base]))
    assert [begin for begin, _, _ in found.damage] == [base]
    assert found.pos == log.end


# How the log is read


def large_log(value_sizes: list[int], segment_size: int) -> Log:
    log = Log(segment_size)
    log.topic()
    for size in value_sizes:
        log.accept(value=bytes(range(256)) * (size // 256))
    return log


@pytest.mark.parametrize("size", [1 << 12, 1 << 16, 300 << 10])
def test_frames_of_any_size_are_read_whole_and_about_once(size: int) -> None:
    log = large_log([size] * max(2, (1 << 19) // size), 1 << 25)
    segments = [(0, bytes(log.data))]
    asked: list[tuple[int, int]] = []
    found = scan(segments, read=reader(segments, asked=asked))
    assert (found.pos, found.damage) == (log.end, [])
    assert sum(asked_size for _, asked_size in asked) < 2 * log.end + (1 << 20)


def test_a_newer_frame_that_is_larger_than_what_is_read_at_once_is_known() -> None:
    log = large_log([1000], 1 << 22)
    pos = log.add(model.Frame(kind=200, version=2, position=0, tables=bytes(300 << 10)))
    log.accept()
    found = scan(log.segments())
    assert (found.newer_version, found.pos) == (True, pos)


@pytest.mark.parametrize("bad_pages", [1, 8])
def test_unreadable_pages_in_the_middle_cost_a_constant_number_of_looks(bad_pages: int) -> None:
    """The disk is asked once for each of them, and a few times for what is intact."""
    log = large_log([10_000] * 160, 1 << 19)
    bad = [(1 << 18) + index * (1 << 16) for index in range(bad_pages)]
    ends = [*log.positions[1:], log.end]
    intact = [
        all(behind <= page or page + PAGE_SIZE_BYTES <= pos for page in bad)
        for pos, behind in zip(log.positions, ends, strict=True)
    ]
    segments = log.segments()
    blanks = len(segments) - 1
    asked: list[tuple[int, int]] = []
    found = scan(segments, read=reader(segments, bad=bad, asked=asked))
    assert found.pos == log.end
    assert len(found.damage) == bad_pages
    assert found.frames == sum(intact) + blanks
    for page in bad:
        touched = [pos for pos, size in asked if pos < page + 4096 and page < pos + size]
        assert len(touched) == 1
    # The replay, the look for marks, and what is read again after each fault.
    assert sum(size for _, size in asked) < 2.5 * log.end + bad_pages * (3 << 18)
