"""The tables say what the broker did, whatever it was asked to do."""

import random

import pytest

from compat.tables.selection import Selection
from tests.support.harness.tables import planned, rows_of
from tests.support.oracles.tables_model import TOPICS, UsedBroker

SEEDS = range(8)


@pytest.fixture(scope="module", params=SEEDS)
def used(request: pytest.FixtureRequest) -> UsedBroker:
    """A broker after several lives."""
    rng = random.Random(request.param)
    used = UsedBroker(rng)
    for how in ("clean", "kept", "clean"):
        used.use(60)
        used.stop(how)
    used.use(20)
    used.harness.broker.close()
    return used


def test_messages_are_what_consumers_get(used: UsedBroker) -> None:
    rows = rows_of(used.harness.disk, "messages")
    assert len(rows) > 100
    reader = used.harness.crash("kept", random.Random(1))  # a copy: the disk stays as it is
    for topic, count in TOPICS.items():
        for partition in range(count):
            found = [
                (
                    row["offset"],
                    row["timestamp"],
                    row["key"],
                    row["value"],
                    tuple((each["key"], each["value"]) for each in row["headers"]),
                )
                for row in rows
                if (row["topic"], row["partition"]) == (topic, partition)
            ]
            fetched = [
                (each.offset, each.timestamp_ms, each.key, each.value, each.headers)
                for each in reader.fetch(topic, partition)
            ]
            assert found == fetched


def test_timers_are_in_the_state_that_their_producers_know(used: UsedBroker) -> None:
    rows = rows_of(used.harness.disk, "timers")
    known = [
        (
            t.topic,
            t.partition,
            t.index,
            t.user_id,
            t.level,
            t.due_ms,
            t.accepted_ms,
            t.state,
            t.completed_ms,
            t.key,
            t.value,
        )
        for t in used.timers
    ]
    assert {t.state for t in used.timers} == {"pending", "delivered", "cancelled", "replaced"}
    names = (
        "topic",
        "partition",
        "index",
        "id",
        "level",
        "due_at",
        "accepted_at",
        "delay_state",
        "completed_at",
        "key",
        "value",
    )
    assert [tuple(row[name] for name in names) for row in rows] == known


def test_deliveries_are_the_timers_that_were_delivered(used: UsedBroker) -> None:
    deliveries = rows_of(used.harness.disk, "deliveries")
    timers = {
        (row["position"], row["index"]): row
        for row in rows_of(used.harness.disk, "timers")
        if row["delay_state"] == "delivered"
    }
    messages = {
        (row["topic"], row["partition"], row["offset"]): row
        for row in rows_of(used.harness.disk, "messages")
        if row["delay_state"] == "delivered"
    }
    assert len(deliveries) == len(timers) == len(messages) > 10
    for row in deliveries:
        timer = timers[row["accept_position"], row["index"]]
        message = messages[row["topic"], row["partition"], row["offset"]]
        for name in ("topic", "partition", "id", "due_at", "accepted_at"):
            assert row[name] == timer[name]
        assert row["delivered_at"] == timer["completed_at"] == message["store_timestamp"]
        assert row["lateness_ms"] == row["delivered_at"] - row["due_at"] >= 0
        assert row["position"] == message["position"]
        assert row["key"] == message["key"] == timer["key"]


def test_queues_have_a_unit_for_each_message(used: UsedBroker) -> None:
    names = ("topic", "partition", "offset", "position", "store_timestamp")
    units = rows_of(used.harness.disk, "queues")
    messages = rows_of(used.harness.disk, "messages")
    assert [[row[name] for name in names] for row in units] == [
        [row[name] for name in names] for row in messages
    ]
    frames = {row["position"]: row["size"] for row in rows_of(used.harness.disk, "frames")}
    assert all(frames[row["position"]] == row["size"] for row in units)


def test_groups_lag_behind_by_what_they_have_not_read(used: UsedBroker) -> None:
    rows = rows_of(used.harness.disk, "groups")
    assert {(row["group"], row["topic"], row["partition"]): row["offset"] for row in rows} == (
        used.committed
    )
    counts: dict[int, int] = {}
    for row in rows_of(used.harness.disk, "messages"):
        if row["topic"] == "orders":
            counts[row["partition"]] = row["offset"] + 1
    for row in rows:
        assert row["end_offset"] == counts.get(row["partition"], 0)
        assert row["lag"] == row["end_offset"] - row["offset"]


def test_frames_stand_one_after_the_other(used: UsedBroker) -> None:
    rows = rows_of(used.harness.disk, "frames")
    pos = 0
    for row in rows:
        assert row["position"] == pos
        pos += row["size"]
    assert pos == planned(used.harness.disk).end


@pytest.mark.parametrize("table", ["messages", "timers", "deliveries", "queues", "frames"])
def test_a_selection_has_the_rows_of_the_whole_table(used: UsedBroker, table: str) -> None:
    """With zones and tasks so small that most are left out."""
    disk, rng = used.harness.disk, random.Random(7)
    plan = planned(disk, zone_bytes=1000)
    everything = rows_of(disk, table)
    at = {"messages": "timestamp", "timers": "due_at", "deliveries": "due_at"}.get(
        table, "store_timestamp"
    )
    by = {"timestamp": "timestamps", "due_at": "due", "store_timestamp": "stored"}[at]
    instants = sorted(row[at] for row in everything if row[at] is not None)
    for _ in range(10):
        low, high = sorted(rng.choice(instants) for _ in range(2))
        topic = rng.choice(["orders", "mails", None])
        selection = Selection(
            topics=None if topic is None else frozenset({topic}), **{by: (low, high)}
        )
        wanted = [
            row
            for row in everything
            if low <= (row[at] or -1) < high and (topic is None or row["topic"] == topic)
        ]
        found = rows_of(disk, table, plan, selection=selection, split_bytes=rng.choice([1, 5000]))
        assert found == wanted
