"""What the tables say about delays is what the broker stamped, however the producer asked."""

from appliance.units import MS_PER_HOUR
from tests.support.harness.broker_harness import with_topic
from tests.support.harness.tables import rows_of
from tests.support.simulator.virtual_clock import START_MS
from tests.support.values.kafka_records import Record


def test_columns_come_from_the_stamps_and_not_from_headers_that_look_like_them() -> None:
    """A delay counts from the next millisecond, but its record was accepted in this one."""
    harness = with_topic(1, {"delay.invalid": "pass"})
    harness.clock.advance_ns(600_000)
    forged = [("X-Due-At", b"7"), ("X-Accepted-At", b"7")]
    records = [
        Record(b"later", headers=[("X-Delay", b"1s"), *forged]),
        Record(b"null", headers=[("X-Delay-Level", b"-1"), *forged]),
        Record(b"passed", headers=[("x-delay", b"soon"), *forged]),
        Record(b"now", headers=[("x-delay", b"0"), *forged]),
    ]
    assert harness.produce("t", 0, records).error == 0
    assert harness.tick(1000) == 0
    assert harness.tick(1) == 1
    harness.broker.close()
    messages = rows_of(harness.disk, "messages")
    assert [
        (row["value"], row["due_at"], row["accepted_at"], row["delay_state"]) for row in messages
    ] == [
        (b"null", None, None, "immediate"),
        (b"passed", None, None, "immediate"),
        (b"now", START_MS, START_MS, "immediate"),
        (b"later", START_MS + 1001, START_MS, "delivered"),
    ]
    (timer,) = rows_of(harness.disk, "timers")
    assert (timer["due_at"], timer["accepted_at"]) == (START_MS + 1001, START_MS)
    (delivery,) = rows_of(harness.disk, "deliveries")
    assert (delivery["due_at"], delivery["lateness_ms"]) == (START_MS + 1001, 0)


def test_a_recurring_record_has_its_schedule_in_each_row() -> None:
    harness = with_topic()
    rule = {"x-cron": b"0 * * * *", "x-cron-zone": b"Asia/Tokyo", "x-cron-missed": b"all"}
    named = ("x-deliver-id", b"id")
    records = [
        Record(b"hourly", headers=[*rule.items(), named]),
        Record(b"daily", headers=[("x-cron", b"@daily"), ("x-deliver-id", b"d")]),
        Record(b"once", headers=[("x-delay", b"2h")]),
    ]
    assert harness.produce("t", 0, records).error == 0
    assert [harness.tick(MS_PER_HOUR) for _ in range(2)] == [1, 2]
    harness.broker.close()
    hourly, none = ("0 * * * *", "Asia/Tokyo", "all"), (None, None, None)
    rows = rows_of(harness.disk, "timers")
    assert [
        (row["value"], row["cron"], row["zone"], row["missed"], row["delay_state"]) for row in rows
    ] == [
        (b"hourly", *hourly, "delivered"),
        (b"daily", "@daily", "UTC", "once", "pending"),
        (b"once", *none, "delivered"),
        (b"hourly", *hourly, "delivered"),
        (b"hourly", *hourly, "pending"),
    ]
    only = rows_of(harness.disk, "timers", columns=("missed", "zone"))
    assert [(row["zone"], row["missed"]) for row in only] == [
        (row["zone"], row["missed"]) for row in rows
    ]
