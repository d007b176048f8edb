"""A log with damage: what is left is read, and what is missing is an error or passed over."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from _core.bytes.layout import FRAME_HEADER_SIZE
from appliance.errors import ConfigError, FormatVersionError
from appliance.units import MS_PER_HOUR
from compat.tables import batches
from compat.tables.batches import DataLossError, ScanTask, Task
from compat.tables.log_reader import SegmentGoneError
from compat.tables.table import Query, tasks
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import DATA_DIR, small_config
from tests.support.harness.tables import Row, planned, rows_of, table_of
from tests.support.oracles.tables_model import UsedBroker
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Record, delay

LOG = DATA_DIR / "commitlog"
SEGMENT = 64 * 1024


@pytest.fixture
def disk() -> SimFileSystem:
    """A log of several segments after a clean stop."""
    used = UsedBroker(random.Random(3))
    used.use(450)
    used.harness.broker.close()
    return used.harness.disk


def place(pos: int) -> tuple[Path, int]:
    """The segment that holds a log position, and the offset in it."""
    return LOG / f"{pos - pos % SEGMENT:020d}", pos % SEGMENT


def accept_frame(disk: SimFileSystem) -> Row:
    """A frame with records in the middle of the log."""
    frames = [
        row for row in rows_of(disk, "frames") if row["kind"] == "accept" and row["record_count"]
    ]
    return frames[len(frames) // 2]


def without(rows: list[Row], frame: Row) -> list[Row]:
    return [row for row in rows if row["position"] != frame["position"]]


def test_rotten_records_are_an_error_that_names_the_place(disk: SimFileSystem) -> None:
    frame = accept_frame(disk)
    path, offset = place(frame["position"] + frame["size"] - 20)
    disk.flip(path, offset, 1)
    with pytest.raises(DataLossError, match=f"position {frame['position']}: length, CRC") as error:
        rows_of(disk, "messages")
    assert error.value.pos == frame["position"]


def test_rotten_records_are_passed_over_if_that_is_accepted(disk: SimFileSystem) -> None:
    everything = {table: rows_of(disk, table) for table in ("messages", "timers", "frames")}
    frame = accept_frame(disk)
    path, offset = place(frame["position"] + frame["size"] - 20)
    disk.flip(path, offset, 1)
    assert rows_of(disk, "messages", fails_on_loss=False) == without(everything["messages"], frame)
    # What needs no records does not notice.
    assert rows_of(disk, "frames") == everything["frames"]


def test_timers_after_a_rotten_frame_keep_their_own_states(disk: SimFileSystem) -> None:
    everything = rows_of(disk, "timers")
    position = everything[len(everything) // 3]["position"]
    frame = next(row for row in rows_of(disk, "frames") if row["position"] == position)
    path, offset = place(position + frame["size"] - 20)
    disk.flip(path, offset, 1)
    found = rows_of(disk, "timers", fails_on_loss=False)
    assert found == without(everything, frame) != everything


def test_rotten_records_end_a_scan_without_crcs_at_worst(disk: SimFileSystem) -> None:
    """It reads nothing outside the frame, whatever the bytes say."""
    frame = accept_frame(disk)
    errors = set()
    for at in range(FRAME_HEADER_SIZE + 61, frame["size"], 3):
        path, offset = place(frame["position"] + at)
        disk.flip(path, offset, 0x7F)
        try:
            rows_of(disk, "messages", verifies=False)
        except DataLossError as error:
            errors.add(error.pos)
        disk.flip(path, offset, 0x7F)
    assert errors == {frame["position"]}


def test_rotten_heads_are_damage_of_the_plan(disk: SimFileSystem) -> None:
    messages = rows_of(disk, "messages")
    frame = accept_frame(disk)
    path, offset = place(frame["position"] + 40)
    disk.flip(path, offset, 1)
    with pytest.raises(DataLossError, match=f"position {frame['position']}: CRC of header"):
        rows_of(disk, "messages")
    found = rows_of(disk, "messages", fails_on_loss=False)
    assert found == without(messages, frame) != messages


def test_unreadable_sectors_are_damage(disk: SimFileSystem) -> None:
    messages = rows_of(disk, "messages")
    frame = accept_frame(disk)
    disk.spoil(*place(frame["position"]), FRAME_HEADER_SIZE)
    with pytest.raises(DataLossError, match="cannot be read"):
        rows_of(disk, "messages")
    found = rows_of(disk, "messages", fails_on_loss=False)
    kept = [row["position"] for row in found]
    assert kept == [row["position"] for row in messages if row["position"] in set(kept)]
    assert 0 < len(found) < len(messages)


def test_what_a_start_declared_lost_stays_lost_when_it_heals(disk: SimFileSystem) -> None:
    messages, timers = rows_of(disk, "messages"), rows_of(disk, "timers")
    frame = accept_frame(disk)
    path, offset = place(frame["position"] + frame["size"] - 20)
    disk.flip(path, offset, 1)
    for derived in ("control", "timer", "timerlog", "index", "consumequeue"):
        disk.remove_tree(DATA_DIR / derived)
    BrokerHarness(disk).broker.close()
    disk.flip(path, offset, 1)
    lost = [(begin, end) for begin, end, _ in planned(disk).damage]
    assert lost == [(frame["position"], frame["position"] + frame["size"])]
    with pytest.raises(DataLossError, match="declared lost by an earlier start"):
        rows_of(disk, "messages")
    assert rows_of(disk, "messages", fails_on_loss=False) == without(messages, frame)
    found = rows_of(disk, "timers", fails_on_loss=False)
    assert [row["position"] for row in found] == [row["position"] for row in without(timers, frame)]


def test_a_missing_segment_in_the_middle_is_damage(disk: SimFileSystem) -> None:
    messages = rows_of(disk, "messages")
    disk.unlink(LOG / f"{SEGMENT:020d}")
    with pytest.raises(DataLossError, match=f"position {SEGMENT}: a segment is missing"):
        rows_of(disk, "messages")
    found = rows_of(disk, "messages", fails_on_loss=False)
    assert found == [row for row in messages if row["position"] // SEGMENT != 1] != messages


def test_a_missing_segment_at_the_end_is_damage(disk: SimFileSystem) -> None:
    messages = rows_of(disk, "messages")
    last = max(row["position"] for row in messages) // SEGMENT
    disk.unlink(LOG / f"{last * SEGMENT:020d}")
    with pytest.raises(DataLossError, match=f"position {last * SEGMENT}: the log ends"):
        rows_of(disk, "messages")
    found = rows_of(disk, "messages", fails_on_loss=False)
    assert found == [row for row in messages if row["position"] // SEGMENT != last] != messages


def test_a_segment_that_is_freed_during_a_scan_is_an_error(disk: SimFileSystem) -> None:
    plan = planned(disk)
    disk.unlink(LOG / f"{0:020d}")
    with pytest.raises(SegmentGoneError, match=f"{0:020d} is gone"):
        rows_of(disk, "messages", plan)


@pytest.mark.parametrize("table", ["messages", "timers", "frames"])
def test_a_segment_that_is_freed_during_a_scan_is_passed_over_if_that_is_accepted(
    disk: SimFileSystem, table: str
) -> None:
    everything = rows_of(disk, table)
    plan = planned(disk)
    disk.unlink(LOG / f"{SEGMENT:020d}")
    found = rows_of(disk, table, plan, fails_on_loss=False)
    assert found == [row for row in everything if row["position"] // SEGMENT != 1] != everything


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("messages", ("position", "offset", "key")),
        ("timers", ("position", "index", "delay_state", "key")),
        ("frames", ("position", "kind")),
    ],
)
def test_a_segment_that_is_freed_while_it_is_read_costs_no_row_of_others(
    disk: SimFileSystem, monkeypatch: pytest.MonkeyPatch, table: str, columns: tuple[str, ...]
) -> None:
    query = Query(table=table, columns=columns, fails_on_loss=False)
    everything = table_of(disk, query).to_pylist()
    kept = [row for row in everything if row["position"] // SEGMENT != 1]
    monkeypatch.setattr(batches, "BATCH_ROWS", 16)
    (task,) = tasks(planned(disk), query)
    assert read_while_freed(disk, task, LOG / f"{SEGMENT:020d}") == kept != everything


def test_timers_after_a_segment_that_is_freed_in_the_middle_keep_their_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = 2 * SEGMENT  # heads are read in pieces of half of it
    harness = BrokerHarness(config=small_config(segment_size_bytes=size))
    harness.create_topic("t")
    for number in range(90):
        later = Record(b"x" * 3_000, headers=delay(1_000 if number < 60 else MS_PER_HOUR))
        assert harness.produce("t", 0, [later]).error == 0
    harness.tick(1_000)
    harness.broker.close()
    query = Query(table="timers", columns=("position", "delay_state"), fails_on_loss=False)
    everything = table_of(harness.disk, query).to_pylist()
    monkeypatch.setattr(batches, "BATCH_ROWS", 1)
    (task,) = tasks(planned(harness.disk), query)
    found = read_while_freed(harness.disk, task, LOG / f"{0:020d}")
    before = [row for row in found if row["position"] < size]
    after = [row for row in everything if row["position"] >= size]
    assert {row["delay_state"] for row in after} == {"pending", "delivered"}
    assert found == before + after
    assert 1 < len(before) < len(everything) - len(after)
    assert before == everything[: len(before)]


def read_while_freed(disk: SimFileSystem, task: Task, path: Path) -> list[Row]:
    """The rows of a task if a segment is freed after its first batch; it is noted as gone."""
    assert isinstance(task, ScanTask)
    gone: list[Path] = []
    found: list[Row] = []
    for batch in task.batches(disk, note_gone=gone.append):
        found += batch.to_pylist()
        if disk.exists(path):
            disk.unlink(path)
    assert gone == [path]
    return found


def test_a_segment_that_is_recycled_during_a_scan_is_an_error(disk: SimFileSystem) -> None:
    """Its file has frames of another position now."""
    plan = planned(disk)
    disk.unlink(LOG / f"{0:020d}")
    disk.rename(LOG / f"{SEGMENT:020d}", LOG / f"{0:020d}")
    with pytest.raises(DataLossError, match="position 0: frame of another position"):
        rows_of(disk, "frames", plan)


def test_a_column_that_is_too_long_for_its_offsets_is_an_error(disk: SimFileSystem) -> None:
    """A frame has more rows than fit if a compressed batch has millions of empty records."""
    plan = planned(disk)
    for task in tasks(plan, Query(columns=("topic",))):
        assert isinstance(task, ScanTask)
        # Never touched, so that it takes no memory.
        topics = {key: (bytes(1 << 31), starts) for key, (_, starts) in task.topics.items()}
        if topics:
            with pytest.raises(DataLossError, match="2 GiB or more in a column"):
                list(replace(task, topics=topics).batches(disk))
            return
    pytest.fail("there is no task")


@pytest.mark.parametrize("table", ["messages", "deliveries", "queues", "frames"])
def test_a_head_that_rots_after_the_plan_costs_its_own_frame_alone(
    disk: SimFileSystem, table: str
) -> None:
    everything = rows_of(disk, table)
    plan = planned(disk, zone_bytes=SEGMENT)
    frame = next(row for row in rows_of(disk, "frames") if row["position"] == middle(everything))
    disk.flip(*place(frame["position"] + 40), 1)
    found = rows_of(disk, table, plan, fails_on_loss=False)
    assert found == without(everything, frame) != everything
    with pytest.raises(DataLossError, match=f"position {frame['position']}: CRC of header"):
        rows_of(disk, table, plan)


def middle(rows: list[Row]) -> int:
    """The position of a row in the middle."""
    position: int = rows[len(rows) // 2]["position"]
    return position


def test_a_head_that_rots_after_the_plan_costs_timers_of_its_range_alone(
    disk: SimFileSystem,
) -> None:
    everything = rows_of(disk, "timers")
    position = everything[len(everything) // 3]["position"]
    plan = planned(disk, zone_bytes=SEGMENT)
    disk.flip(*place(position + 40), 1)
    found = rows_of(disk, "timers", plan, fails_on_loss=False)
    end = position - position % SEGMENT + SEGMENT
    assert found == [row for row in everything if not position <= row["position"] < end]
    assert found[-1] == everything[-1]


def test_the_head_of_the_log_may_be_freed_between_two_plans(disk: SimFileSystem) -> None:
    """Retention does that: it is no loss, and the topics are declared again in each segment."""
    messages = rows_of(disk, "messages")
    disk.unlink(LOG / f"{0:020d}")
    disk.unlink(DATA_DIR / "checkpoint")  # it says where the log began
    found = rows_of(disk, "messages")
    assert found == [row for row in messages if row["position"] >= SEGMENT] != messages


def test_a_head_that_the_checkpoint_has_is_missed(disk: SimFileSystem) -> None:
    disk.unlink(LOG / f"{0:020d}")
    with pytest.raises(DataLossError, match="position 0: the first segments are missing"):
        rows_of(disk, "messages")


def test_a_checkpoint_of_another_log_is_refused(disk: SimFileSystem) -> None:
    other = BrokerHarness()
    other.broker.close()
    content = other.disk.files()[DATA_DIR / "checkpoint"]
    disk.open(DATA_DIR / "checkpoint").pwritev([content], 0)
    with pytest.raises(ConfigError, match="restore both from the same copy"):
        rows_of(disk, "messages")


def test_frames_of_a_newer_latermq_are_refused(disk: SimFileSystem) -> None:
    frame = accept_frame(disk)
    path, offset = place(frame["position"] + 2)
    content = bytearray(disk.peek(path, frame["size"], offset - 2))
    content[2] = 9
    write_head(disk, frame["position"], content)
    with pytest.raises(FormatVersionError, match="format version 9"):
        rows_of(disk, "messages")


def write_head(disk: SimFileSystem, pos: int, frame: bytearray) -> None:
    """Write a frame again with the CRC that its head should have."""
    from _core.bytes.crc32c import crc32c
    from _core.log.frames import read_header

    header = read_header(bytes(frame))
    at = FRAME_HEADER_SIZE + header["tables_size"]
    covered = bytes(frame[:156]) + bytes(frame[FRAME_HEADER_SIZE:at])
    if header["visible_size"]:
        covered += bytes(frame[at : at + 21])
    if header["held_size"]:
        at += header["visible_size"]
        covered += bytes(frame[at : at + 21])
    frame[156:160] = crc32c(covered).to_bytes(4, "big")
    path, offset = place(pos)
    disk.open(path).pwritev([bytes(frame)], offset)
