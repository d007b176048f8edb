"""What was carried out of segments before they are freed has one row, wherever it stands."""

import random
from dataclasses import replace
from typing import Any, Final

import pytest

from compat.tables.batches import DataLossError
from compat.tables.plan import Plan
from compat.tables.selection import NOTHING_READ, ReadBefore, Selection
from compat.tables.table import Query, tasks
from tests.support.harness.carried_log import PATHS, CarriedLog, lived
from tests.support.harness.tables import Row, planned, rows_of
from tests.support.simulator.sim_fs import SimFileSystem

TABLES: Final = ("messages", "timers", "deliveries", "queues", "groups")
SEGMENT: Final = 64 * 1024


@pytest.fixture(params=range(2))
def log(request: pytest.FixtureRequest) -> CarriedLog:
    """The log of a stopped broker, of several segments, with pending timers in the first one."""
    log = lived(request.param)
    assert len(log.bases) > 2, log.end
    return log


def without(rows: list[Row], *names: str) -> list[Row]:
    return [{key: value for key, value in row.items() if key not in names} for row in rows]


def by_place(rows: list[Row]) -> list[Row]:
    """Messages in the order of their partitions, without where they are."""
    found = without(rows, "position", "size")
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def by_id(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["position"], row["index"]))


def test_what_is_carried_and_still_there_changes_no_table(log: CarriedLog) -> None:
    before = {table: rows_of(log.disk, table) for table in TABLES}
    log.carry(log.bases[2])
    found = {table: rows_of(log.disk, table) for table in TABLES}
    assert by_place(found.pop("queues")) == by_place(before.pop("queues"))
    assert found == before
    kinds = {row["kind"] for row in rows_of(log.disk, "frames")}
    assert kinds >= {"carry", "carried records"}


@pytest.mark.parametrize("times", [1, 2, 3])
def test_what_is_carried_keeps_its_rows_when_its_segment_is_freed(
    log: CarriedLog, times: int
) -> None:
    messages, timers = rows_of(log.disk, "messages"), rows_of(log.disk, "timers")
    first = log.bases[0]
    for _ in range(times):
        cut = log.bases[2]
        log.carry(cut)
        log.free(cut)
    assert log.bases[0] > first
    assert by_place(rows_of(log.disk, "messages")) == by_place(messages)
    kept = [row for row in timers if row["position"] >= cut or row["delay_state"] == "pending"]
    assert min(row["position"] for row in kept) < log.bases[0]
    assert by_id(rows_of(log.disk, "timers")) == by_id(kept)


def test_a_place_is_where_the_record_can_be_read(log: CarriedLog) -> None:
    cut = log.bases[2]
    log.carry(cut)
    log.free(cut)
    kinds = {row["position"]: row["kind"] for row in rows_of(log.disk, "frames")}
    carried = [
        row for row in rows_of(log.disk, "messages") if kinds[row["position"]] == "carried records"
    ]
    assert {row["delay_state"] for row in carried} == {"immediate", "delivered"}
    assert min(row["position"] for row in carried) >= cut


def test_units_are_those_of_the_newest_place(log: CarriedLog) -> None:
    """As the broker's ConsumeQueues, which follow the log."""
    places = {
        (row["topic"], row["partition"], row["offset"]): row["position"]
        for row in rows_of(log.disk, "queues")
    }
    cut = log.bases[2]
    log.carry(cut)
    for frame in log.frames():
        header = frame.header
        if frame.carried_origin():
            topic = log.plan.state.projections.topics_by_id[frame.topic_id].name
            for offset in range(
                header["base_offset"], header["base_offset"] + header["last_delta"] + 1
            ):
                places[topic, header["partition"], offset] = frame.pos
    found = {
        (row["topic"], row["partition"], row["offset"]): row["position"]
        for row in rows_of(log.disk, "queues")
    }
    assert found == places
    log.free(cut)
    assert len(rows_of(log.disk, "queues")) == len(places)


@pytest.mark.parametrize("is_freed", [False, True])
def test_a_carried_timer_ends_as_any_other(log: CarriedLog, is_freed: bool) -> None:
    cut = log.bases[2]
    pending = [
        row
        for row in rows_of(log.disk, "timers")
        if row["delay_state"] == "pending" and row["position"] < cut
    ]
    log.carry(cut)
    if is_freed:
        log.free(cut)
    named = [row for row in pending if row["id"] is not None]
    plain = [row for row in pending if row["id"] is None]
    ends: dict[tuple[int, int], tuple[str, int]] = {}
    for row in plain[:3]:
        log.deliver(row["position"], row["index"])
        ends[row["position"], row["index"]] = "delivered", log.now_ms
    topics = {each.name: key for key, each in log.plan.state.projections.topics_by_id.items()}
    for row in named[:2]:
        log.cancel(topics[row["topic"]], row["partition"], row["id"])
        ends[row["position"], row["index"]] = "cancelled", log.now_ms
    found = {(row["position"], row["index"]): row for row in rows_of(log.disk, "timers")}
    for row in pending:
        name = row["position"], row["index"]
        state, since = ends.get(name, ("pending", None))
        assert found[name] == row | {"delay_state": state, "completed_at": since}
    assert {state for state, _ in ends.values()} == {"delivered", "cancelled"}
    accepted = {row["accept_position"] for row in rows_of(log.disk, "deliveries")}
    assert accepted >= {row["position"] for row in plain[:3]}


def test_a_deleted_topic_takes_its_carried_timers_along(log: CarriedLog) -> None:
    log.carry(log.bases[2])
    log.free(log.bases[2])
    topics = {row["topic"] for row in rows_of(log.disk, "timers")}
    assert topics == {"orders", "mails"}
    log.delete("mails")
    assert {row["topic"] for row in rows_of(log.disk, "timers")} == {"orders"}
    states = rows_of(log.disk, "timers", with_deleted=True)
    assert {row["delay_state"] for row in states if row["topic"] == "mails"} >= {"deleted"}
    assert "pending" not in {row["delay_state"] for row in states if row["topic"] == "mails"}


@pytest.mark.parametrize("table", ["messages", "timers", "queues", "deliveries"])
def test_pruned_rows_are_those_of_the_whole_table(log: CarriedLog, table: str) -> None:
    """A carried record keeps its store time, so store times fall along the log."""
    cut = log.bases[2]
    log.carry(cut)
    log.free(cut)
    whole = rows_of(log.disk, table)
    name = {"timers": "accepted_at", "deliveries": "delivered_at"}.get(table, "store_timestamp")
    instants = sorted({row[name] for row in whole})
    rng = random.Random(1)
    for _ in range(20):
        low, high = sorted(rng.sample(instants, 2))
        for bounds in ((low, high), (low, None), (None, high)):
            found = rows_of(log.disk, table, selection=Selection(stored=bounds))
            assert found == [
                row
                for row in whole
                if (bounds[0] is None or bounds[0] <= row[name])
                and (bounds[1] is None or row[name] < bounds[1])
            ]


def test_due_times_and_columns_of_carried_timers_are_selected(log: CarriedLog) -> None:
    cut = log.bases[2]
    log.carry(cut)
    log.free(cut)
    whole = rows_of(log.disk, "timers")
    dues = sorted(row["due_at"] for row in whole)
    low, high = dues[len(dues) // 4], dues[len(dues) // 2]
    found = rows_of(log.disk, "timers", selection=Selection(due=(low, high)))
    assert found == [row for row in whole if low <= row["due_at"] < high]
    for columns in (("position", "index"), ("accepted_at",), ("id", "delay_state"), ("value",)):
        found = rows_of(log.disk, "timers", columns=columns)
        assert found == [{name: row[name] for name in columns} for row in whole]


def test_a_copy_has_the_rows_of_a_damaged_original(log: CarriedLog) -> None:
    messages, timers = rows_of(log.disk, "messages"), rows_of(log.disk, "timers")
    log.carry(log.bases[2])
    frame = next(
        frame for frame in log.frames() if frame.timers_held and frame.header["record_count"]
    )
    path = PATHS.commit_log / f"{frame.pos - frame.pos % SEGMENT:020d}"
    log.disk.flip(path, frame.pos % SEGMENT + 40, 1)
    with pytest.raises(DataLossError):
        rows_of(log.disk, "messages")
    assert by_place(rows_of(log.disk, "messages", fails_on_loss=False)) == by_place(messages)
    lost = {
        (row["position"], row["index"])
        for row in timers
        if row["position"] == frame.pos and row["delay_state"] != "pending"
    }
    kept = [row for row in timers if (row["position"], row["index"]) not in lost]
    assert by_id(rows_of(log.disk, "timers", fails_on_loss=False)) == by_id(kept)


# Readings that go on where they ended


class Reading:
    """Reads a table part by part, as a stream does."""

    def __init__(self, disk: SimFileSystem, table: str) -> None:
        self.disk, self.query = disk, Query(table=table, fails_on_loss=False)
        plan = planned(disk)
        begin = plan.reader.segments[0][0]
        self.read = ReadBefore(position=begin)
        if begin:
            self.read = ReadBefore(position=begin, gap=(0, begin), gap_end=plan.end_of_gap(begin))
        self.rows: list[Row] = []

    def read_on(self, end: int | None = None) -> None:
        plan = planned(self.disk, stop=end)
        copies: Plan | None = None
        if self.read.gap_end > plan.end:
            copies = planned(self.disk, stop=self.read.gap_end)
        found = tasks(
            plan, self.query, start=self.read.position, end=plan.end, read=self.read, copies=copies
        )
        for task in found:
            for batch in task.batches(self.disk):  # type: ignore[call-arg]
                self.rows += batch.to_pylist()
        self.read = replace(self.read, position=plan.end)


@pytest.mark.parametrize("seed", range(6))
def test_a_reading_in_parts_has_each_row_once(seed: int) -> None:
    """Whenever it begins, and whatever is carried and freed behind it."""
    rng = random.Random(seed)
    log = lived(seed)
    expected = by_place(rows_of(log.disk, "messages"))
    for _ in range(rng.randrange(3)):
        log.carry(log.bases[2])
        log.free(log.bases[2])
    if rng.random() < 0.5:
        log.carry(log.bases[2])  # a pass that was broken off
    reading = Reading(log.disk, "messages")
    for _ in range(rng.randrange(3, 8)):
        borders = [row["position"] for row in rows_of(log.disk, "frames")]
        later = [pos for pos in borders if pos > reading.read.position]
        reading.read_on(rng.choice(later) if later and rng.random() < 0.8 else None)
        cut = max((base for base in log.bases[:3] if base <= reading.read.position), default=0)
        if cut > log.bases[0] and rng.random() < 0.7:
            log.carry(cut)
            log.free(cut)
    reading.read_on()
    found = [
        {name: row[name] for name in ("topic", "partition", "offset", "value")}
        for row in reading.rows
    ]
    found.sort(key=lambda row: (row["topic"], row["partition"], row["offset"]))
    assert found == [
        {name: row[name] for name in ("topic", "partition", "offset", "value")} for row in expected
    ]


def test_nothing_was_read_before_unless_it_is_said() -> None:
    assert NOTHING_READ.numbers == (0, 0, 0, 0)
    some: Any = ReadBefore(position=9, gap=(1, 5), gap_end=7)
    assert some.numbers == (9, 1, 5, 7)
