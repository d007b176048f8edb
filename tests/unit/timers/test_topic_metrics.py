"""The page of metrics by topic says what producers and deliveries did to each topic."""

from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance.metrics import LATENESS_BOUNDS_SECONDS
from appliance.topic_metrics import TOPIC_METRICS, render
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.values.kafka_records import Headers, Record, cancel, delay
from tests.unit.timers.test_held_back import PAUSED, change

KINDS: Final = {each.full_name.removesuffix("_total"): each.kind for each in TOPIC_METRICS}

Samples = dict[tuple[str, str, str], float]
"""By name without its prefix, topic and bucket."""


def page(harness: BrokerHarness) -> str:
    broker = harness.broker
    return "".join(text for text, _ in render(broker.topics.all(), broker.timers))


def samples(harness: BrokerHarness) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(page(harness)):
        assert family.type == KINDS[family.name]
        assert family.documentation
        for each in family.samples:
            name = each.name.removeprefix("latermq_topic_")
            found[name, each.labels["topic"], each.labels.get("le", "")] = each.value
    return found


def counts_of(found: Samples, topic: str) -> tuple[float, ...]:
    """What was accepted, delivered, cancelled and replaced, and what is pending and held."""
    names = ("accepted", "delivered", "cancelled", "replaced")
    totals = [found[f"timers_{name}_total", topic, ""] for name in names]
    return (*totals, found["pending_timers", topic, ""], found["held_timers", topic, ""])


def send(harness: BrokerHarness, topic: str, headers: Headers) -> None:
    partition = len(topic) % 2
    assert harness.produce(topic, partition, [Record(b"x", headers=headers)]).error == 0


def two_topics() -> BrokerHarness:
    harness = BrokerHarness()
    for name in ("a", "bb", "plain"):
        harness.create_topic(name, 2)
    return harness


def test_each_topic_has_its_own_counts() -> None:
    harness = two_topics()
    for number in range(5):
        send(harness, "a", delay(1_000 + number))
    send(harness, "bb", delay(1_000, user_id=b"id"))
    send(harness, "bb", delay(2_000, user_id=b"id"))
    send(harness, "bb", delay(3_000, user_id=b"other"))
    send(harness, "bb", cancel(b"other"))
    send(harness, "plain", ())
    found = samples(harness)
    assert counts_of(found, "a") == (5, 0, 0, 0, 5, 0)
    assert counts_of(found, "bb") == (3, 0, 1, 1, 1, 0)
    harness.tick(1_002)
    harness.deliver_all()
    found = samples(harness)
    assert counts_of(found, "a") == (5, 3, 0, 0, 2, 0)
    assert counts_of(found, "bb") == (3, 0, 1, 1, 1, 0)
    assert "plain" not in page(harness)


def test_the_lateness_of_a_topic_is_that_of_its_deliveries() -> None:
    harness = two_topics()
    send(harness, "a", delay(1_000))
    send(harness, "bb", delay(1_000))
    harness.tick(1_000)
    send(harness, "bb", delay(1_000))
    harness.clock.advance_ms(1_030)
    harness.deliver_all()
    found = samples(harness)
    name = "delivery_lateness_seconds"
    assert found[f"{name}_count", "a", ""] == 1
    assert found[f"{name}_sum", "a", ""] == 0
    assert found[f"{name}_count", "bb", ""] == 2
    assert found[f"{name}_sum", "bb", ""] == pytest.approx(0.03)
    buckets = [found[f"{name}_bucket", "bb", str(float(each))] for each in LATENESS_BOUNDS_SECONDS]
    assert buckets == [1 if each < 0.03 else 2 for each in LATENESS_BOUNDS_SECONDS]
    assert found[f"{name}_bucket", "bb", "+Inf"] == 2


def test_what_a_topic_holds_back_is_pending_and_not_late() -> None:
    harness = with_topic(2)
    change(harness, PAUSED, "true")
    send(harness, "t", delay(1_000))
    harness.tick(5_000)
    assert counts_of(samples(harness), "t") == (1, 0, 0, 0, 1, 1)
    change(harness, PAUSED, None)
    harness.deliver_all()
    found = samples(harness)
    assert counts_of(found, "t") == (1, 1, 0, 0, 0, 0)
    assert found["delivery_lateness_seconds_count", "t", ""] == 0


def test_a_deleted_topic_leaves_the_page_also_while_it_is_made() -> None:
    harness = two_topics()
    send(harness, "a", delay(1_000))
    send(harness, "bb", delay(1_000))
    parts = render(harness.broker.topics.all(), harness.broker.timers)
    begin = next(parts)[0] + next(parts)[0]
    harness.delete_topic("bb")
    rest = "".join(text for text, _ in parts)
    assert '"bb"' not in begin + rest
    assert '"a"' in rest
    assert '"bb"' not in page(harness)


def test_no_part_of_the_page_is_much_work() -> None:
    """The caller lets the loop serve others after some hundred units of it."""
    harness = two_topics()
    send(harness, "a", delay(1_000))
    assert all(work <= 20 for _, work in render(harness.broker.topics.all(), harness.broker.timers))
