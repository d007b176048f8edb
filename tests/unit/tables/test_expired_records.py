"""Records that have expired have no rows, unless they are asked for and the log still has them."""

from typing import Any

import pytest

from appliance.units import MS_PER_HOUR, MS_PER_MINUTE
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.tables import planned, rows_of
from tests.support.values.kafka_records import Record, delay

NAMES = ("topic", "partition", "offset", "value")


@pytest.fixture
def harness() -> BrokerHarness:
    """A broker with three records, of which the first two have expired, one of them delayed."""
    harness = BrokerHarness()
    harness.create_topic("t", 1, {"retention.ms": str(MS_PER_HOUR)})
    harness.create_topic("kept", 1, {"retention.ms": "-1"})
    harness.produce("t", 0, [Record(b"late", headers=delay(1))])
    harness.tick(1)
    harness.produce("t", 0, [Record(b"old")])
    harness.produce("kept", 0, [Record(b"kept")])
    for _ in range(2 * MS_PER_HOUR // MS_PER_MINUTE):
        harness.tick(MS_PER_MINUTE)
        harness.housekeep()
    harness.produce("t", 0, [Record(b"new")])
    harness.flush()
    assert harness.partition(topic="t").start_offset == 2
    harness.broker.close()
    return harness


def found(harness: BrokerHarness, table: str = "messages", **query: Any) -> list[tuple[Any, ...]]:
    return [
        tuple(row[name] for name in NAMES if name in row)
        for row in rows_of(harness.disk, table, **query)
    ]


def test_expired_records_have_no_rows(harness: BrokerHarness) -> None:
    assert found(harness) == [("kept", 0, 0, b"kept"), ("t", 0, 2, b"new")]
    assert found(harness, "queues") == [("kept", 0, 0), ("t", 0, 2)]


def test_expired_records_have_rows_if_they_are_asked_for(harness: BrokerHarness) -> None:
    assert found(harness, with_expired=True) == [
        ("t", 0, 0, b"late"),
        ("t", 0, 1, b"old"),
        ("kept", 0, 0, b"kept"),
        ("t", 0, 2, b"new"),
    ]
    units = found(harness, "queues", with_expired=True)
    assert units == [("t", 0, 0), ("t", 0, 1), ("kept", 0, 0), ("t", 0, 2)]


def test_what_expired_later_than_a_plan_has_rows_in_it(harness: BrokerHarness) -> None:
    """A plan is the log as of one moment, also if it is made afterwards."""
    kinds = {row["position"]: row["kind"] for row in rows_of(harness.disk, "frames")}
    expiry = max(position for position, kind in kinds.items() if kind == "topic")
    plan = planned(harness.disk, stop=expiry)
    assert plan.end == expiry
    rows = rows_of(harness.disk, "messages", plan)
    assert [row["value"] for row in rows] == [b"late", b"old", b"kept"]


def test_what_happened_to_expired_records_stays(harness: BrokerHarness) -> None:
    (timer,) = rows_of(harness.disk, "timers")
    (delivery,) = rows_of(harness.disk, "deliveries")
    assert timer["delay_state"] == "delivered"
    assert (delivery["offset"], delivery["lateness_ms"]) == (0, 0)


def test_records_of_deleted_topics_have_no_rows_in_any_case(harness: BrokerHarness) -> None:
    harness = BrokerHarness(harness.disk)
    harness.delete_topic("t")
    harness.flush()
    harness.broker.close()
    assert found(harness, with_expired=True) == [("kept", 0, 0, b"kept")]
