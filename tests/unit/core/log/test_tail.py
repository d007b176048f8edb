"""The growing end of the log: what is handed out to be written, and where a segment ends."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _core.log.frames import check, read_header
from _core.log.pointers import Pointers
from _core.log.tail import ROOM_CONTROL, ROOM_DELIVERY, ROOM_RECORDS, LogTail
from tests.support.docs.golden_frames import START_MS, log_tail
from tests.support.oracles import frames_model as model

HEADER = model.HEADER_SIZE


def append(tail: LogTail, payload: bytes, kind: int = model.OFFSET, topic_id: int = 0) -> int:
    return tail.append_control(kind, topic_id=topic_id, store_time_ms=START_MS, payload=payload)


def pending(tail: LogTail) -> bytes:
    return b"".join(bytes(part) for part in tail.take())


def expected(payload: bytes, pos: int, *, epoch: int = 0, flushed: int = 0) -> bytes:
    padded = payload + model.padding(len(payload))
    return model.Frame(
        kind=model.OFFSET,
        position=pos,
        epoch=epoch,
        flushed=flushed,
        store_time=START_MS,
        tables=padded,
    ).encode()


class Log:
    """Segments as the store makes them, in memory."""

    def __init__(self, segment_size: int) -> None:
        self.tail = log_tail(size=segment_size)
        self.tail.roll = self._roll
        self._size = segment_size
        self.data = bytearray()

    def _roll(self, size: int) -> bool:
        assert size <= self._size
        self.tail.append_blank()
        self.commit()
        self.data += bytes(self.tail.segment_end - len(self.data))
        self.tail.enter_segment(self.tail.segment_end + self._size)
        return True

    def commit(self) -> None:
        self.data += pending(self.tail)
        self.tail.taken()


# Frames


@pytest.mark.parametrize("size", [*range(18), 4095, 4096, 4097])
def test_a_control_frame_is_padded_and_gets_its_position(size: int) -> None:
    tail = log_tail(start=4096)
    payload = bytes(range(256)) * 17
    assert append(tail, payload[:size]) == 4096
    data = pending(tail)
    assert data == expected(payload[:size], 4096, flushed=4096)
    assert check(data, 4096) == "whole"
    assert tail.pointers.wrote == 4096 + len(data)


@pytest.mark.parametrize("kind", range(model.TOPIC, model.BLANK))
def test_kind_topic_and_epoch_stand_in_the_header(kind: int) -> None:
    tail = log_tail()
    tail.begin_epoch(7, 1)
    append(tail, b"x", kind, topic_id=3)
    header = read_header(pending(tail))
    assert (header["kind"], header["topic_id"], header["epoch"]) == (kind, 3, 7)
    assert header["store_time_ms"] == START_MS


@pytest.mark.parametrize("epoch", [6, 7])
def test_an_epoch_that_does_not_rise_is_refused(epoch: int) -> None:
    """I5: two starts never write in the same epoch."""
    tail = log_tail()
    tail.begin_epoch(7, 1)
    with pytest.raises(AssertionError):
        tail.begin_epoch(epoch, 1)
    assert tail.epoch == 7


def test_frames_follow_each_other_and_name_what_is_flushed_by_then() -> None:
    tail = log_tail()
    first = expected(b"one", 0)
    assert append(tail, b"one") == 0
    assert append(tail, b"two") == len(first)
    assert pending(tail) == first + expected(b"two", len(first))
    tail.taken()
    tail.pointers.advance_flushed(len(first))
    third = append(tail, b"three")
    assert third == 2 * len(first)
    assert pending(tail) == expected(b"three", third, flushed=len(first))


def test_what_is_taken_is_committed_and_only_new_frames_are_handed_out_again() -> None:
    tail = log_tail()
    assert not tail.has_pending
    assert tail.take() == []
    append(tail, b"one")
    assert tail.has_pending
    assert pending(tail) == pending(tail)
    assert tail.pointers.committed == 0
    tail.taken()
    assert not tail.has_pending
    assert tail.take() == []
    assert tail.pointers.committed == tail.pointers.wrote
    append(tail, b"two")
    assert check(pending(tail), tail.pointers.committed) == "whole"


def test_frames_appended_between_take_and_the_next_take_are_not_lost() -> None:
    """`take` hands out views of a buffer that grows: a later one shows everything again."""
    tail = log_tail(size=2**24)
    append(tail, b"one")
    assert len(pending(tail)) == tail.pointers.wrote
    append(tail, b"x" * 2_000_000)
    append(tail, b"two")
    data = pending(tail)
    assert len(data) == tail.pointers.wrote
    assert check(data, 0) == "whole"
    tail.taken()
    append(tail, b"after the buffer was given back")
    assert check(pending(tail), tail.pointers.committed) == "whole"


# The end of a segment


@pytest.mark.parametrize("rest", [0, HEADER, HEADER + 8, 4096])
def test_a_frame_fits_if_nothing_or_a_blank_frame_can_follow(rest: int) -> None:
    tail = log_tail(size=HEADER + 8 + rest)
    assert append(tail, b"12345678") == 0
    assert tail.segment_end - tail.pointers.wrote == rest


@pytest.mark.parametrize("rest", range(-8, HEADER, 8))
def test_a_frame_after_which_no_blank_frame_fits_goes_into_the_next_segment(rest: int) -> None:
    if rest == 0:
        return
    tail = log_tail(size=HEADER + 8 + rest)
    asked: list[int] = []
    tail.roll = lambda size: bool(asked.append(size))
    assert append(tail, b"12345678") == -1
    assert asked == [HEADER + 8]
    assert tail.pointers.wrote == 0
    assert not tail.has_pending


def test_after_a_roll_the_frame_stands_at_the_start_of_the_next_segment() -> None:
    tail = log_tail(size=1024)
    written = bytearray()

    def roll(_: int) -> bool:
        tail.append_blank()
        written.extend(pending(tail))
        tail.taken()
        tail.enter_segment(2048)
        return True

    tail.roll = roll
    append(tail, bytes(600))
    assert append(tail, bytes(300)) == 1024
    assert tail.segment_end == 2048
    blank = bytes(written[HEADER + 600 :])
    assert (
        blank
        == model.Frame(
            kind=model.BLANK, position=HEADER + 600, blank_size=1024 - HEADER - 600
        ).encode()
    )
    assert check(blank + bytes(1024 - len(written)), HEADER + 600) == "whole"
    assert pending(tail) == expected(bytes(300), 1024)


def test_a_blank_frame_takes_all_that_is_left_and_nothing_where_nothing_is() -> None:
    tail = log_tail(size=2 * HEADER + 8)
    append(tail, bytes(8))
    tail.append_blank()
    data = pending(tail)
    assert len(data) == tail.pointers.wrote == tail.segment_end
    assert read_header(data[HEADER + 8 :])["size"] == HEADER
    tail.append_blank()
    assert pending(tail) == data


@pytest.mark.parametrize("rest", [-8, 8, HEADER - 8])
def test_a_frame_that_leaves_no_room_to_end_its_segment_stops_the_writer(rest: int) -> None:
    """It would be a mistake of the caller, and the next roll would write across the border."""
    log = Log(1024)
    append(log.tail, b"first")
    with pytest.raises(AssertionError):
        append(log.tail, bytes(1024 - HEADER - rest))
    assert log.tail.pointers.wrote in (HEADER + 8, 1024)


def test_a_segment_ends_after_what_is_written() -> None:
    tail = log_tail(size=4096)
    append(tail, b"x")
    with pytest.raises(AssertionError):
        tail.enter_segment(tail.pointers.wrote)


STEPS = st.lists(st.integers(0, 688) | st.sampled_from(["commit", "flush"]), max_size=60)


@settings(max_examples=100)
@given(steps=STEPS)
def test_the_log_is_whole_frames_from_end_to_end_whatever_is_appended(
    steps: list[int | str],
) -> None:
    log = Log(1024)
    payloads: list[tuple[int, int]] = []
    for step in steps:
        if isinstance(step, int):
            payloads.append((append(log.tail, bytes([step % 256]) * step), step))
            continue
        log.commit()
        if step == "flush":
            log.tail.pointers.advance_flushed(log.tail.pointers.committed)
    log.commit()
    at, marks, found = 0, [0], []
    while at < len(log.data):
        data = bytes(log.data[at:])
        assert check(data, at) == "whole"
        header = read_header(data)
        assert marks[-1] <= header["flushed"] <= at
        marks.append(header["flushed"])
        assert at // 1024 == (at + header["size"] - 1) // 1024, "it crosses a segment"
        if header["kind"] != model.BLANK:
            found.append((at, header["tables_size"]))
        at += header["size"]
    assert found == [(pos, size + -size % 8) for pos, size in payloads]


# The reserve


def largest_frames(tail: LogTail) -> list[int]:
    """The largest frame that fits, by how much of the reserve it may use; 0 if none does."""
    sizes = range(0, tail.segment_end + 8, 8)
    return [
        max((HEADER + size for size in sizes if tail.has_room(size, room)), default=0)
        for room in (ROOM_RECORDS, ROOM_CONTROL, ROOM_DELIVERY)
    ]


def test_the_end_of_the_last_segment_is_for_less_and_less() -> None:
    tail = LogTail(Pointers(0, sync_flush=True), reserve_bytes=1024)
    tail.roll = lambda _: False
    tail.prepare_spare = lambda: False
    tail.enter_segment(8192)
    assert largest_frames(tail) == [8192 - 1024, 8192 - 512, 8192]
    append(tail, bytes(8192 - 512 - 2 * HEADER))
    assert largest_frames(tail) == [0, HEADER, 512 + HEADER]
    tail.has_spare = True
    assert largest_frames(tail) == [512 + HEADER] * 3


def test_a_log_that_refuses_records_has_room_for_all_else() -> None:
    tail = LogTail(Pointers(0, sync_flush=True), reserve_bytes=1024)
    tail.roll = lambda _: False
    tail.enter_segment(8192)
    tail.has_spare = True
    tail.is_refusing = True
    assert largest_frames(tail) == [0, 8192, 8192]
    tail.is_refusing = False
    assert largest_frames(tail) == [8192, 8192, 8192]
