"""The scan at start: what is kept, what is damage, and where the log ends."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _core.queue.partition import Topic
from _core.state.projections import Projections
from _core.state.scan import EPOCH_FELL, LogScan
from tests.support.docs.golden_frames import JOBS
from tests.support.oracles import frames_model as model
from tests.support.values.scanned_log import BAD_CRC, NO_MAGIC, Log, reader, scan, sizes, small_log

NEWER = "written by a newer latermq"
MISSING = "a segment is missing"
UNKNOWN_TOPIC = "frame of an unknown topic"


# A whole log


def test_no_segments_are_an_empty_log() -> None:
    found = scan([])
    assert (found.pos, found.frames, found.tail_fault) == (0, 0, None)


def test_zeros_are_an_empty_log() -> None:
    found = scan([(0, bytes(4096))])
    assert (found.pos, found.frames, found.damage, found.tail_fault) == (0, 0, [], NO_MAGIC)


@pytest.mark.parametrize("accepts", [0, 1, 5, 40])
def test_a_whole_log_is_replayed_to_its_end(accepts: int) -> None:
    log = small_log(accepts)
    found = scan(log.segments())
    assert found.pos == log.end
    assert (found.damage, found.newer_version) == ([], False)
    assert found.next_offset == accepts
    assert found.controls == [(model.TOPIC, 1, 0)]


def test_a_log_that_fills_its_last_segment_ends_without_a_fault() -> None:
    log = small_log(3)
    blank = model.Frame(kind=model.BLANK, position=log.end, blank_size=log.segment_size - log.end)
    log.data += blank.encode().ljust(blank.blank_size, b"\x00")
    found = scan(log.segments())
    assert (found.pos, found.tail_fault) == (log.segment_size, None)
    assert scan([*log.segments(), (log.segment_size, bytes(4096))]).pos == log.segment_size


def test_a_log_may_begin_anywhere() -> None:
    log = small_log(30, segment_size=2048)
    base, first = log.segments()[1]
    found = scan([(base, first)])
    assert found.pos == base + log.segment_size
    # Its topic frame is in the segment that is gone.
    assert {fault for _, _, fault in found.damage} == {UNKNOWN_TOPIC}


@pytest.mark.parametrize("first_sequence", [5, -1])
def test_a_frame_without_a_first_sequence_leaves_its_producer_as_it_is(first_sequence: int) -> None:
    """The format says so of -1: for a batch that names a producer but is not in its sequence."""
    log = Log()
    log.topic()
    log.accept(producer=(77, 2, 4))
    log.accept(producer=(77, 3, first_sequence))
    found = Projections(id_key=bytes(16))
    scan(log.segments(), into=found)
    state = found.topics_by_id[1].partitions[0].producers[77]
    expected = (3, 5) if first_sequence >= 0 else (2, 4)
    assert (state.epoch, state.last_sequence) == expected


# Torn or damaged: the decision, for every frame and every mark


HOWS = ("zeros", "header", "version", "tail")


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("victim", range(1, 12))
@pytest.mark.parametrize("lag", [0, 1, 3, 100])
def test_bytes_below_a_later_mark_are_damage_and_others_a_torn_tail(
    how: str, victim: int, lag: int
) -> None:
    """Each frame names as flushed what was before the frame `lag` places ahead of it."""
    log = Log()
    log.topic()
    for index in range(1, 12):
        ahead = max(index - lag, 0)
        log.accept(flushed=log.end if lag == 0 else log.positions[ahead] if ahead else 0)
    pos = log.positions[victim]
    fault = log.spoil(pos, how)
    found = scan(log.segments())
    mark = max(log.flushed[victim + 1 :], default=-1)
    if pos < mark:
        assert found.damage == [(pos, log.positions[victim + 1], fault)]
        assert found.pos == log.end
        assert found.next_offset == 11
    else:
        assert found.damage == []
        assert found.pos == pos
        assert found.tail_fault == fault
        assert found.next_offset == victim - 1
    assert not found.newer_version


@pytest.mark.parametrize("victims", list(combinations(range(1, 9), 2)))
def test_each_of_two_damaged_parts_is_reported(victims: tuple[int, int]) -> None:
    log = small_log(10)
    faults = [log.spoil(log.positions[victim], "header") for victim in victims]
    found = scan(log.segments())
    first, second = (log.positions[victim] for victim in victims)
    assert found.pos == log.end
    if victims[1] == victims[0] + 1:
        assert found.damage == [(first, log.positions[victims[1] + 1], BAD_CRC)]
    else:
        assert found.damage == [
            (pos, log.positions[victim + 1], fault)
            for pos, victim, fault in zip((first, second), victims, faults, strict=True)
        ]


def test_damage_with_a_torn_tail_after_it() -> None:
    log = small_log(8)
    log.spoil(log.positions[3], "header")
    log.spoil(log.positions[8], "zeros")
    found = scan(log.segments())
    assert found.damage == [(log.positions[3], log.positions[4], BAD_CRC)]
    assert found.pos == log.positions[8]


def test_a_torn_tail_hides_whole_frames_that_were_never_flushed() -> None:
    """What was acknowledged was flushed: frames after the gap had not been."""
    log = small_log(8, flushed=0)
    log.spoil(log.positions[4], "zeros")
    found = scan(log.segments())
    assert (found.pos, found.damage, found.next_offset) == (log.positions[4], [], 3)


def test_a_mark_right_at_the_gap_is_not_above_it() -> None:
    """The mark is the first byte that was not flushed."""
    for mark, is_damage in ((0, False), (8, True)):
        log = small_log(3)
        pos = log.accept()
        log.accept(flushed=pos + mark)
        log.spoil(pos, "header")
        found = scan(log.segments())
        assert bool(found.damage) is is_damage
        assert (found.pos == log.end) is is_damage


def test_a_known_mark_makes_damage_of_what_no_frame_vouches_for() -> None:
    log = small_log(5, flushed=0)
    pos = log.positions[4]
    log.spoil(pos, "zeros")
    assert scan(log.segments(), known_flushed=pos).damage == []
    found = scan(log.segments(), known_flushed=pos + 8)
    assert found.damage == [(pos, log.positions[5], NO_MAGIC)]
    assert found.pos == log.end


def test_a_known_mark_after_the_last_whole_frame_tells_of_the_loss() -> None:
    log = small_log(5)
    for victim in (4, 5):
        log.spoil(log.positions[victim], "zeros")
    found = scan(log.segments(), known_flushed=log.end)
    assert found.damage == [(log.positions[4], log.end, NO_MAGIC)]
    assert found.pos == log.positions[4]


def test_a_damaged_topic_frame_makes_the_frames_of_the_topic_unreadable() -> None:
    log = small_log(3)
    log.spoil(0, "header")
    found = scan(log.segments())
    assert found.damage[0] == (0, log.positions[1], BAD_CRC)
    ends = [*log.positions[2:], log.end]
    assert found.damage[1:] == [
        (pos, end, UNKNOWN_TOPIC) for pos, end in zip(log.positions[1:], ends, strict=True)
    ]
    assert (found.pos, found.next_offset) == (log.end, None)


def test_a_frame_of_a_partition_that_does_not_exist_is_reported() -> None:
    log = small_log(1)
    pos = log.accept(partition=1)
    found = scan(log.segments())
    assert found.damage == [(pos, log.end, UNKNOWN_TOPIC)]


# Segments


def test_a_missing_segment_below_a_later_mark_is_damage() -> None:
    log = small_log(30, segment_size=2048)
    segments = log.segments()
    assert len(segments) >= 4
    found = scan([segments[0], *segments[2:]])
    assert found.damage == [(2048, 4096, MISSING)]
    assert found.pos == log.end


def test_a_missing_segment_above_all_marks_ends_the_log() -> None:
    log = small_log(30, segment_size=2048, flushed=0)
    segments = log.segments()
    found = scan([segments[0], *segments[2:]])
    assert (found.damage, found.pos, found.tail_fault) == ([], 2048, MISSING)


def test_damage_that_reaches_over_the_end_of_a_segment_is_one_part() -> None:
    log = small_log(30, segment_size=2048)
    segments = log.segments()
    inside = [pos for pos in log.positions if pos < 2048]
    behind = [pos for pos in log.positions if pos >= 2048]
    changed = bytes(segments[0][1][: inside[-1]]).ljust(2048, b"\x00")
    second = bytes(behind[1] - 2048) + segments[1][1][behind[1] - 2048 :]
    found = scan([(0, changed), (2048, second), *segments[2:]])
    assert found.damage == [(inside[-1], behind[1], NO_MAGIC)]
    assert found.pos == log.end


def test_a_torn_tail_in_an_earlier_segment_than_the_last_ends_the_log_there() -> None:
    log = small_log(30, segment_size=2048, flushed=0)
    pos = log.positions[3]
    log.spoil(pos, "header")
    found = scan(log.segments())
    assert (found.pos, found.tail_fault, found.damage) == (pos, BAD_CRC, [])


# Epochs and versions


def test_the_epoch_of_the_last_frame_is_reported() -> None:
    log = small_log(2)
    log.epoch = 5
    log.accept()
    assert scan(log.segments()).epoch == 5


def test_a_frame_of_an_earlier_epoch_is_left_over_from_before_a_cut() -> None:
    log = Log(epoch=2)
    log.topic()
    log.accept()
    end = log.end
    log.epoch = 1
    log.accept()
    log.accept()
    found = scan(log.segments())
    assert (found.pos, found.tail_fault, found.damage) == (end, EPOCH_FELL, [])
    assert (found.epoch, found.next_offset) == (2, 1)


@pytest.mark.parametrize("between", [0, 1])
def test_marks_of_an_earlier_epoch_do_not_make_damage_of_a_torn_tail(between: int) -> None:
    """Neither right after the torn frame nor after a frame of this epoch."""
    log = Log(epoch=2)
    log.topic()
    torn, *_ = [log.accept(flushed=0) for _ in range(1 + between)]
    log.epoch = 1
    log.accept()
    log.spoil(torn, "zeros")
    found = scan(log.segments())
    assert (found.pos, found.damage) == (torn, [])


@pytest.mark.parametrize("count", [1, 3])
def test_frames_of_an_earlier_epoch_between_valid_ones_are_one_damaged_part(count: int) -> None:
    log = Log(epoch=2)
    log.topic()
    log.epoch = 1
    stale, *_ = [log.accept() for _ in range(count)]
    log.epoch = 2
    following = log.accept()
    found = scan(log.segments())
    assert found.damage == [(stale, following, EPOCH_FELL)]
    assert (found.pos, found.epoch) == (log.end, 2)


def newer(pos: int = 0) -> model.Frame:
    return model.Frame(kind=200, version=2, position=pos, tables=bytes(16))


def test_a_newer_frame_stops_the_scan_where_it_stands() -> None:
    log = small_log(3)
    pos = log.add(newer())
    log.accept()
    found = scan(log.segments())
    assert found.newer_version
    assert (found.pos, found.tail_fault, found.damage) == (pos, NEWER, [])


def test_a_newer_frame_after_damage_is_found() -> None:
    """Else an older latermq would cut away all that a newer one wrote."""
    log = small_log(3)
    log.spoil(log.positions[3], "header")
    pos = log.add(newer())
    found = scan(log.segments())
    assert found.newer_version
    assert found.pos == pos
    assert found.damage == [(log.positions[3], pos, BAD_CRC)]


# Slices


BUDGETS = (1, 7, 144, 1000, 4096, 10**6)


@settings(max_examples=40)
@given(
    accepts=st.integers(0, 25),
    lag=st.integers(0, 4),
    spoilt=st.lists(st.tuples(st.integers(0, 25), st.sampled_from(HOWS)), max_size=3),
    known_flushed=st.integers(-1, 6000),
)
def test_slices_of_any_size_find_the_same(
    accepts: int, lag: int, spoilt: list[tuple[int, str]], known_flushed: int
) -> None:
    log = Log(segment_size=2048)
    log.topic()
    for index in range(1, accepts + 1):
        log.accept(flushed=log.positions[max(index - lag, 0)] if lag else log.end)
    for victim, how in spoilt:
        log.spoil(log.positions[victim % len(log.positions)], how)
    segments = log.segments()
    whole = scan(segments, known_flushed=known_flushed)
    for budget in BUDGETS:
        assert scan(segments, known_flushed=known_flushed, budget=budget) == whole


def test_a_slice_stops_soon_after_its_budget() -> None:
    log = small_log(30, segment_size=2048)
    projections = Projections(id_key=bytes(16))
    topic = Topic("jobs1", JOBS, 1, {})
    projections.add_topic(topic, [(0, 0, -1)])
    segments = log.segments()
    log_scan = LogScan(projections, sizes(segments), reader(segments), lambda *_: None)
    while not log_scan.step(500):
        before = log_scan.pos
        log_scan.step(500)
        assert log_scan.pos - before <= 500 + 2048 or log_scan.done
    assert log_scan.step(500)
    assert log_scan.pos == log.end


@pytest.mark.parametrize("watermark", ["after the fault", "end", "before the fault"])
def test_nothing_is_searched_for_after_the_watermark(watermark: str) -> None:
    """A watermark that the log has passed is ignored: it belongs to another log."""
    log = small_log(10, segment_size=2048)
    log.spoil(log.positions[5], "zeros")
    positions = {
        "after the fault": log.positions[6],
        "end": log.end,
        "before the fault": log.positions[4],
    }
    projections = Projections(id_key=bytes(16))
    segments = log.segments()
    log_scan = LogScan(
        projections,
        sizes(segments),
        reader(segments),
        lambda *_: None,
        watermark=positions[watermark],
    )
    while not log_scan.step(2**40):
        pass
    assert log_scan.pos == (log.positions[5] if watermark == "after the fault" else log.end)
