"""Records that recur, and replies to cancels, by the commands and the admin API."""

import json

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from appliance.units import MS_PER_DAY, MS_PER_HOUR
from tests.support.harness.appliance_process import ApplianceProcess
from tests.support.harness.command_line import CommandLine

# Clients that are closed leave the two ends of their wake-up pipes to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

DAILY = "--cron '0 2 * * *' --zone Asia/Tokyo --missed all"


def test_a_record_that_recurs_is_sent_listed_and_cancelled(
    latermq: CommandLine, topic: str
) -> None:
    said = latermq.ok(f"send {topic} report {DAILY} --id nightly --key k").stdout
    assert "recurs at 0 2 * * *, in Asia/Tokyo, missed: all, id nightly" in said
    latermq.ok(f"send {topic} once --delay 30d")
    head, first, second = latermq.ok(f"timers list {topic}").lines
    assert head.split()[-1] == "RECURS"
    assert first.endswith("0 2 * * * Asia/Tokyo")
    assert "0 2" not in second
    shown = json.loads(latermq.ok(f"timers list {topic} --limit 1 --json").lines[0])
    assert [shown[name] for name in ("cron", "zone", "missed", "occurrence")] == [
        *("0 2 * * *", "Asia/Tokyo", "all", 0),
    ]
    instants = [shown["due"] + days * MS_PER_DAY for days in range(5)]
    assert shown["instants"] == instants
    assert shown["due"] % MS_PER_DAY == 17 * MS_PER_HOUR
    (line, _) = latermq.ok(f"timers list {topic} --values").lines
    assert 'cron="0 2 * * *" zone=Asia/Tokyo missed=all' in line
    for command in ("reschedule", "deliver-now"):
        to = "--to 1h" if command == "reschedule" else ""
        assert "it recurs" in latermq.fails(f"timers {command} {topic} nightly {to}")
    assert latermq.ok(f"timers cancel {topic} nightly").stdout.startswith("nightly: cancelled")
    assert latermq.ok(f"timers list {topic}").lines[0].split()[-1] == "KEY"


def test_a_schedule_that_cannot_be_is_refused_with_the_reason(
    latermq: CommandLine, topic: str
) -> None:
    said = latermq.fails(f"send {topic} x --cron '61 * * * *' --id a")
    assert "bad minute in '61 * * * *': use five fields" in said
    said = latermq.fails(f"send {topic} x --cron '* * * * *' --zone Europe/Berln --id a")
    assert "no IANA time zone, such as Europe/Berlin" in said
    assert "needs x-deliver-id" in latermq.fails(f"send {topic} x --cron '* * * * *'")
    assert "go with x-cron" in latermq.fails(f"send {topic} x --zone UTC --id a")
    assert "cannot be combined" in latermq.fails(f"send {topic} x {DAILY} --id a --delay 1h")
    assert latermq.ok(f"timers list {topic}").lines == []


def test_a_cancel_is_answered_in_the_topic_that_it_names(latermq: CommandLine, topic: str) -> None:
    latermq.ok(f"send {topic} x --delay 1h --id a")
    latermq.ok(f"send {topic} x --delay 2h --id a --reply {topic}.said")
    for user_id in ("a", "b"):
        latermq.ok(f"send {topic} --cancel {user_id} --reply {topic}.said")
    found = latermq.ok(f"tail {topic}.said --json").json_lines()
    outcomes = sorted((each["key"], json.loads(each["value"])["outcome"]) for each in found)
    assert outcomes == [("a", "cancelled"), ("a", "replaced"), ("b", "unknown")]
    assert "needs x-deliver-cancel" in latermq.fails(f"send {topic} x --reply r")


def test_a_client_gets_a_record_at_each_instant(broker: ApplianceProcess, topic: str) -> None:
    """Each second for three seconds: this broker has the clock of the machine."""
    refused: list[KafkaException] = []
    producer = Producer({"bootstrap.servers": broker.kafka, "enable.idempotence": True})
    headers = [("x-cron", b"* * * * * *"), ("x-deliver-id", b"tick"), ("own", b"1")]
    for wish in (headers, [("x-cron", b"* * *"), ("x-deliver-id", b"other")]):
        producer.produce(
            topic,
            b"v",
            headers=wish,
            partition=0,
            on_delivery=lambda error, _: refused.append(KafkaException(error)) if error else None,
        )
        producer.flush()
    assert [each.args[0].name() for each in refused] == ["INVALID_RECORD"]
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": f"{topic}-readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    due = []
    for _ in range(3):
        message = consumer.poll(30.0)
        assert message is not None
        assert message.error() is None
        found = dict(message.headers() or [])
        assert list(found) == ["own", "x-accepted-at", "x-due-at", "x-due-id"]
        due.append(int(found["x-due-at"]))
    consumer.close()
    assert due == [due[0], due[0] + 1_000, due[0] + 2_000]
    producer.produce(topic, None, headers=[("x-deliver-cancel", b"tick")], partition=0)
    producer.flush()
