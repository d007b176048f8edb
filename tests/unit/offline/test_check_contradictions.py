"""Frames whose CRCs are right and that no broker writes: each is named, and nothing breaks."""

import struct
from dataclasses import replace
from typing import Any, Final

import pytest

from appliance.errors import FormatVersionError
from appliance.store.state import control_frames as control
from tests.support.harness import offline_scenario as scenario
from tests.support.oracles import frames_model as model
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.simulator.virtual_clock import START_MS
from tests.support.values.scanned_log import Log

DUE_MS: Final = START_MS + 60_000


def disk_of(log: Log) -> SimFileSystem:
    """A directory that has nothing but this log."""
    disk = SimFileSystem()
    disk.make_dirs(scenario.LOG)
    for base, content in log.segments():
        disk.open(scenario.LOG / f"{base:020d}", create=True).pwritev([content], 0)
    return disk


def reported(log: Log) -> list[tuple[str, int, str, str]]:
    return scenario.check(disk_of(log)).fault_rows


def only_fault(log: Log) -> tuple[int, str, str]:
    """Offset, expected and found."""
    ((_, offset, expected, found),) = reported(log)
    return offset, expected, found


@pytest.fixture
def log() -> Log:
    """A log with an epoch, a topic and a record."""
    log = Log()
    payload = control.encode_epoch(control.EpochFrame(0, 0, control.UUID(int=12)))
    log.add(model.control_frame(model.EPOCH, payload, store_time=START_MS))
    log.topic()
    log.accept()
    return log


def add_batch(log: Log, batch: model.Batch, visible: bytes | None = None) -> int:
    """An accept frame with this batch."""
    frame = model.Frame(
        kind=model.ACCEPT,
        topic_id=1,
        partition=0,
        base_offset=batch.base_offset,
        record_count=len(batch.records),
        visible=batch.encode() if visible is None else visible,
    )
    return log.add(frame)


def add_timer(log: Log, *, index: int = 0, **changes: Any) -> int:
    """An accept frame that holds one record back."""
    record = model.Record(timestamp=START_MS, value=b"held")
    held = [model.Held(index=index, due=DUE_MS, record=record, **changes)]
    frame = model.Frame(
        kind=model.ACCEPT, topic_id=1, partition=0, store_time=START_MS, position=log.end
    )
    return log.add(model.with_timers(frame, held, model.Batch(records=())))


def add_completed(log: Log, kind: int, *timers: model.Completed) -> int:
    """A deliver or cancel frame."""
    frame = model.Frame(
        kind=kind,
        topic_id=1,
        partition=0,
        store_time=DUE_MS,
        timer_count=len(timers),
        tables=model.completed_table(timers),
    )
    if kind == model.DELIVER:
        records = tuple(model.Record(timestamp=START_MS, value=b"held") for _ in timers)
        batch = model.Batch(records=records, base_offset=log.next_offset)
        frame = replace(
            frame,
            base_offset=log.next_offset,
            record_count=len(timers),
            visible=batch.encode(),
            max_timestamp=START_MS,
            running_max=START_MS,
        )
        log.next_offset += len(timers)
    return log.add(frame)


def test_such_a_log_is_whole_as_long_as_nothing_is_wrong(log: Log) -> None:
    pos = add_timer(log)
    other = add_timer(log)
    add_completed(log, model.DELIVER, model.Completed(accept_pos=pos, index=0))
    add_completed(log, model.CANCEL, model.Completed(accept_pos=other, index=0))
    assert reported(log) == []


@pytest.mark.parametrize("second", [model.DELIVER, model.CANCEL])
def test_a_timer_that_is_completed_twice(log: Log, second: int) -> None:
    pos = add_timer(log)
    timer = model.Completed(accept_pos=pos, index=0)
    add_completed(log, model.DELIVER, timer)
    again = add_completed(log, second, timer)
    verb = "delivers" if second == model.DELIVER else "cancels"
    found = f"it {verb} record 0 of the frame at {pos}, which is not pending"
    assert only_fault(log) == (again + 160, "a timer that is pending in its partition", found)


def test_a_timer_that_never_was(log: Log) -> None:
    pos = add_timer(log)
    timers = (model.Completed(accept_pos=pos, index=0), model.Completed(accept_pos=8, index=3))
    completed = add_completed(log, model.DELIVER, *timers)
    offset, _, found = only_fault(log)
    assert offset == completed + 160 + 32
    assert found == "it delivers record 3 of the frame at 8, which is not pending"


def test_a_timer_that_is_replaced_and_completed_all_the_same(log: Log) -> None:
    pos = add_timer(log, user_id=b"a")
    add_timer(log, user_id=b"a")
    add_completed(log, model.CANCEL, model.Completed(accept_pos=pos, index=0, user_id=b"a"))
    assert len(reported(log)) == 1


def test_a_timer_of_another_frame(log: Log) -> None:
    pos = add_timer(log, accept_pos=8)
    assert only_fault(log) == (pos + 160, f"the accept position {pos} of its own frame", "8")


@pytest.mark.parametrize(("base_offset", "is_kept"), [(0, False), (5, True), (1 << 40, True)])
def test_offsets_that_do_not_follow(log: Log, base_offset: int, is_kept: bool) -> None:
    log.next_offset = base_offset
    pos = log.accept()
    checked = scenario.check(disk_of(log))
    assert checked.fault_rows == [
        ("0" * 20, pos + 40, "the next offset of jobs1/0, 1", f"base offset {base_offset}")
    ]
    assert checked.report.units == (3 if is_kept else 1), "lost offsets share one unit"


@pytest.mark.parametrize(
    ("offset_deltas", "last_delta", "units"),
    [((0, 2), 2, 3), ((0, 2), 9, 10), ((1, 1024), 1024, 1025), ((0, 1024), 1025, 1), ((), 3, 1)],
)
def test_a_batch_may_take_more_offsets_than_it_has_records(
    offset_deltas: tuple[int, ...], last_delta: int, units: int
) -> None:
    """One unit for each offset, or one for all if records are few among them."""
    log = Log()
    log.topic()
    records = tuple(model.Record(timestamp=START_MS, key=b"k") for _ in offset_deltas)
    batch = model.Batch(
        records=records, offset_deltas=offset_deltas, last_delta=last_delta, base_timestamp=START_MS
    )
    add_batch(log, batch, batch.encode_even_empty())
    log.next_offset = last_delta + 1
    log.accept()
    checked = scenario.check(disk_of(log))
    assert checked.fault_rows == []
    assert checked.report.units == units + 1


def test_a_frame_with_more_records_than_offsets(log: Log) -> None:
    records = tuple(model.Record(timestamp=START_MS) for _ in range(3))
    batch = model.Batch(records=records, base_offset=1, last_delta=1)
    pos = add_batch(log, batch)
    assert only_fault(log)[:2] == (pos + 52, "a batch of visible records")


def test_offsets_that_damage_took_are_no_second_fault(log: Log) -> None:
    lost = log.accept()
    log.accept()
    log.spoil(lost, "header")
    faults = reported(log)
    assert [offset for _, offset, _, _ in faults] == [lost]


def test_a_topic_that_the_segment_does_not_declare(log: Log) -> None:
    while log.end < log.segment_size:
        log.accept()
    pos = log.positions[-1]
    assert reported(log) == [
        (
            f"{log.segment_size:020d}",
            pos - log.segment_size + 12,
            "a topic frame of its topic earlier in the segment",
            "none of topic id 1",
        )
    ]


def test_a_topic_that_nothing_declares(log: Log) -> None:
    pos = log.accept(topic_id=7)
    faults = reported(log)
    assert faults[0][1:] == (
        pos + 12,
        "a topic frame of its topic earlier in the segment",
        "none of topic id 7",
    )
    assert faults[1][1] == pos


def test_an_epoch_that_no_frame_begins(log: Log) -> None:
    log.epoch = 1
    pos = log.accept()
    ((_, offset, expected, found), *_) = reported(log)
    assert (offset, expected) == (pos + 8, "epoch 0, or an epoch frame before a later one")
    assert found == "epoch 1"


def test_an_epoch_that_falls() -> None:
    log = Log()
    log.epoch = 3
    log.topic()
    log.accept()
    log.epoch = 2
    pos = log.accept()
    log.epoch = 3
    log.accept()
    assert (pos, "frame of an earlier epoch") in [(each[1], each[3]) for each in reported(log)]


def test_a_flushed_mark_that_falls(log: Log) -> None:
    before = log.flushed[-1]
    pos = log.accept(flushed=before - 8)
    (expected, found) = (f"a flushed mark of at least {before}, as before it", f"{before - 8}")
    assert ("0" * 20, pos + 24, expected, found) in reported(log)


def test_a_frame_that_marks_its_own_bytes_as_flushed_is_not_whole(log: Log) -> None:
    pos = log.accept(flushed=log.end + 8)
    log.accept()
    assert (pos, "flushed mark above its own position") in [
        (each[1], each[3]) for each in reported(log)
    ]


def test_a_running_maximum_that_falls(log: Log) -> None:
    pos = add_timer(log)
    add_completed(log, model.DELIVER, model.Completed(accept_pos=pos, index=0))
    other = log.accept()
    expected = f"the highest timestamp of jobs1/0, {START_MS} or more"
    assert only_fault(log) == (other + 92, expected, "-1")


def test_a_batch_of_another_epoch(log: Log) -> None:
    record = model.Record(timestamp=START_MS)
    batch = model.Batch(records=(record,), base_offset=log.next_offset, leader_epoch=4)
    pos = add_batch(log, batch)
    expected = "the epoch 0 of its frame as leader epoch of the batch"
    assert only_fault(log)[:2] == (pos + 160 + 12, expected)


def test_a_range_of_due_times_that_is_not_that_of_the_table(log: Log) -> None:
    record = model.Record(timestamp=START_MS)
    frame = model.Frame(kind=model.ACCEPT, topic_id=1, partition=0, position=log.end)
    held = [model.Held(index=0, due=DUE_MS, record=record)]
    whole = model.with_timers(frame, held, model.Batch(records=()))
    pos = log.add(replace(whole, max_due_time=DUE_MS + 1))
    expected = f"the range of its due times, {DUE_MS} to {DUE_MS}"
    assert only_fault(log) == (pos + 100, expected, f"{DUE_MS} to {DUE_MS + 1}")


def test_a_payload_that_ends_early(log: Log) -> None:
    pos = log.add(model.control_frame(model.OFFSET, bytes([0, 0, 0, 9])))
    expected = "9 items of at least 60 bytes in the payload of an offset frame"
    assert only_fault(log) == (pos + 160 + 4, expected, "4 bytes")


def test_a_next_producer_id_that_falls(log: Log) -> None:
    log.add(model.control_frame(model.PRODUCER, control.encode_producer(2000)))
    pos = log.add(model.control_frame(model.PRODUCER, control.encode_producer(1000)))
    expected = "a next producer id of 2000 or more, as before"
    assert only_fault(log) == (pos + 160, expected, "1000")


def test_an_epoch_may_begin_where_a_segment_ends(log: Log) -> None:
    """The blank frame that ends the segment is of the new epoch already."""
    while -log.end % log.segment_size > 300:
        log.accept()
    log.epoch = 1
    payload = control.encode_epoch(control.EpochFrame(1, log.segment_size, control.UUID(int=12)))
    pos = log.add(model.control_frame(model.EPOCH, payload, store_time=START_MS))
    assert pos == log.segment_size
    assert reported(log) == []


def add_carried(log: Log, *, base_offset: int, **changes: Any) -> int:
    """A frame of carried records with one record."""
    records = (model.Record(timestamp=START_MS, value=b"v"),)
    batch = model.Batch(records=records, base_offset=base_offset, **changes)
    frame = model.Frame(
        kind=model.CARRIED_RECORDS,
        topic_id=1,
        partition=0,
        base_offset=base_offset,
        record_count=1,
        tables=struct.pack(">qq", 0, START_MS),
        visible=batch.encode(),
    )
    return log.add(frame)


def test_carried_records_of_known_offsets_are_right(log: Log) -> None:
    add_carried(log, base_offset=0)
    add_carried(log, base_offset=0)
    log.accept()
    assert reported(log) == []


def test_carried_records_of_offsets_that_were_never_assigned(log: Log) -> None:
    pos = add_carried(log, base_offset=7)
    assert only_fault(log) == (
        pos + 40,
        f"offsets below the next one of jobs1/0, {log.next_offset}",
        "offsets up to 7",
    )


def test_carried_records_of_a_later_epoch_than_their_frame(log: Log) -> None:
    pos = add_carried(log, base_offset=0, leader_epoch=4)
    expected = "a leader epoch of at most 0, that of its frame"
    assert only_fault(log)[:2] == (pos + 160 + 16 + 12, expected)


RESERVED: Final = (model.TXN, *range(model.ACCESS_CONTROL, model.GROUP_DELTA), 77)


@pytest.mark.parametrize("kind", RESERVED)
def test_a_kind_that_no_start_takes_is_refused_unless_it_is_optional(log: Log, kind: int) -> None:
    pos = log.add(model.control_frame(kind, bytes(8)))
    name = {model.QUOTAS: ", quotas,", 77: ""}.get(kind, "")
    with pytest.raises(FormatVersionError, match=f"a frame of kind {kind}{name}") as caught:
        scenario.check(disk_of(log))
    assert caught.value.offset == pos


@pytest.mark.parametrize("kind", RESERVED)
def test_an_optional_frame_of_such_a_kind_is_skipped(log: Log, kind: int) -> None:
    log.add(model.control_frame(kind, b"whatever it says", flags=model.OPTIONAL))
    log.accept()
    checked = scenario.check(disk_of(log))
    assert checked.faults == []
    assert (checked.report.frames, checked.report.end) == (5, log.end)


def test_a_newer_version_is_no_fault_but_cannot_be_checked(log: Log) -> None:
    pos = log.add(model.Frame(kind=model.OFFSET, tables=bytes(16), version=2))
    with pytest.raises(FormatVersionError, match="format version 2 at byte") as caught:
        scenario.check(disk_of(log))
    assert caught.value.offset == pos


def test_a_held_batch_that_lacks_a_record_is_named(log: Log) -> None:
    """Or has one elsewhere: a reader of the batch would not find what the table says."""
    frames = []
    for padding, taken in ((0, 0), (model.BATCH_HEADER_SIZE, 0), (0, 1)):
        records = [model.Record(timestamp=START_MS, value=value) for value in (b"a", b"bc")]
        held = [model.Held(index=n, due=DUE_MS, record=each) for n, each in enumerate(records)]
        frame = model.Frame(
            kind=model.ACCEPT, topic_id=1, partition=0, store_time=START_MS, position=log.end
        )
        whole = model.with_timers(frame, held, model.Batch(records=()))
        if taken:
            count = (len(records) - taken).to_bytes(4, "big")
            whole = replace(whole, held=sealed(whole.held[:57] + count + whole.held[61:]))
        if padding:
            whole = moved(whole, padding)
        frames.append(log.add(whole))
    expected = [(fault[1] - frames[n], fault[2]) for n, fault in enumerate(reported(log), start=1)]
    held_pos = model.HEADER_SIZE + 128
    assert expected == [
        (model.HEADER_SIZE + 32, f"the record of timer 0 at {held_pos + 61} of the frame"),
        (held_pos + 57, "a record for each of 2 timers"),
    ]


def sealed(batch: bytes) -> bytes:
    """A batch with the CRC of its content."""
    return batch[:17] + model.crc32c(batch[21:]).to_bytes(4, "big") + batch[21:]


def moved(frame: model.Frame, padding: int) -> model.Frame:
    """A frame whose held records come after some zeros, as their entries say."""
    head, body = frame.held[:61], frame.held[61:]
    length = (len(frame.held) + padding - 12).to_bytes(4, "big")
    batch = sealed(head[:8] + length + head[12:] + bytes(padding) + body)
    tables = bytearray(frame.tables)
    for entry in range(frame.timer_count):
        at = entry * 64 + 32
        place = int.from_bytes(tables[at : at + 4], "big") + padding
        tables[at : at + 4] = place.to_bytes(4, "big")
    return replace(frame, held=batch, tables=bytes(tables))
