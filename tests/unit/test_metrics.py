"""Metrics as Prometheus reads them."""

import gc
import mmap
import random
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from _core.queue.lateness import LATENESS_BOUNDS_MS
from appliance.admin import LiveStatus
from appliance.broker import Broker
from appliance.kafka_facade import KAFKA_FACADE
from appliance.metrics import (
    LATENESS_BOUNDS_SECONDS,
    LINE_WORK,
    METRICS,
    PART_METRICS,
    Gauges,
    Metrics,
    render,
)
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.checkpoints import take_checkpoint
from tests.support.harness.slave_harness import SlaveHarness
from tests.support.values.kafka_records import Record, delay


def parse(parts: Iterable[tuple[str, int]]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return sample values by name and labels."""
    return {
        (sample.name, tuple(sample.labels.items())): sample.value
        for family in text_string_to_metric_families("".join(text for text, _ in parts))
        for sample in family.samples
    }


def test_a_new_broker_shows_every_metric_without_labels_as_zero() -> None:
    samples = parse(render(Metrics(), Gauges()))
    for info in METRICS:
        if not info.label:
            suffix = "_count" if info.kind == "histogram" else ""
            assert samples.pop((info.name + suffix, ())) == 0, info.name
    assert not any(samples.values())


def test_the_page_comes_in_parts_of_few_metrics() -> None:
    """Rendered at once, it would keep the loop for some milliseconds."""
    parts = list(render(Metrics(), Gauges()))
    counts = [text.count("# TYPE ") for text, _ in parts]
    assert max(counts) <= PART_METRICS
    assert sum(counts) == len(METRICS)
    assert [work for _, work in parts] == [len(text.splitlines()) * LINE_WORK for text, _ in parts]


def test_every_counter_and_gauge_is_shown_under_its_name() -> None:
    counters = {
        info.field_name: number
        for number, info in enumerate(METRICS, start=1)
        if info.kind == "counter" and not info.label
    }
    gauges = {
        info.field_name: number
        for number, info in enumerate(METRICS, start=1)
        if info.kind == "gauge" and not info.label and info.field_name != "insecure"
    }
    samples = parse(render(Metrics(**counters), Gauges(**gauges, insecure=True)))
    for name, number in counters.items():
        assert samples[(f"latermq_{name}_total", ())] == number
    for name, number in gauges.items():
        assert samples[(f"latermq_{name}", ())] == number
    assert samples[("latermq_insecure", ())] == 1


def test_every_field_is_a_metric_and_every_metric_a_field() -> None:
    held = {each.name for cls in (Metrics, Gauges) for each in fields(cls)}
    assert held == {info.field_name for info in METRICS}


def test_the_memory_of_the_process_is_what_the_kernel_counts() -> None:
    broker = BrokerHarness().broker
    gc.collect()  # what earlier tests left would be freed between the two looks
    before = broker.gauges(connections=0).anonymous_bytes
    # Mapped: a block of the heap may lie in memory that an earlier test freed.
    held = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for _ in range(64):
        held.write(bytes(1 << 20))
    status = Path("/proc/self/status").read_text().splitlines()
    (wanted,) = (int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:"))
    found = broker.gauges(connections=0).anonymous_bytes
    assert found == pytest.approx(wanted, rel=0.02)
    assert found - before == pytest.approx(len(held), rel=0.1)


def test_requests_and_errors_are_distinguished_by_label() -> None:
    metrics = Metrics()
    for api_key in (0, 1, 1):
        metrics.count_request(api_key)
    metrics.request_errors = {3: 2, 87: 1, -1: 1, 9999: 1}
    gauges = Gauges(level_next_offset={1: 5, 18: 7})
    samples = parse(render(metrics, gauges, KAFKA_FACADE.label_names))
    shown = {
        (name, *labels[0]): value
        for (name, labels), value in samples.items()
        if labels and labels[0][0] != "le"
    }
    assert shown == {
        ("latermq_requests_total", "api", "Produce"): 1,
        ("latermq_requests_total", "api", "Fetch"): 2,
        ("latermq_request_errors_total", "error", "UNKNOWN_SERVER_ERROR"): 1,
        ("latermq_request_errors_total", "error", "UNKNOWN_TOPIC_OR_PARTITION"): 2,
        ("latermq_request_errors_total", "error", "INVALID_RECORD"): 1,
        ("latermq_request_errors_total", "error", "9999"): 1,
        ("latermq_level_next_offset", "level", "1"): 5,
        ("latermq_level_next_offset", "level", "18"): 7,
    }


def test_durations_are_in_seconds_as_prometheus_wants_them() -> None:
    assert tuple(bound * 1000 for bound in LATENESS_BOUNDS_SECONDS) == LATENESS_BOUNDS_MS
    harness = BrokerHarness()
    harness.create_topic("t")
    harness.produce("t", 0, [Record(b"a", headers=delay(1))])
    harness.tick(3)
    samples = parse(render(harness.broker.collect_metrics(), Gauges()))
    assert samples[("latermq_delivery_lateness_seconds_sum", ())] == 0.002
    assert samples[("latermq_delivery_lateness_seconds_bucket", (("le", "0.001"),))] == 0
    assert samples[("latermq_delivery_lateness_seconds_bucket", (("le", "0.002"),))] == 1
    assert not any("_ms" in info.name for info in METRICS)


def test_a_bucket_counts_all_values_up_to_its_bound() -> None:
    metrics = Metrics()
    for value, count in ((0, 1), (0.0005, 2), (0.0006, 4), (0.001, 8), (5, 16), (1e9, 32)):
        metrics.delivery_lateness_seconds.observe(value, count)
    samples = parse(render(metrics, Gauges()))

    def bucket(bound: str) -> float:
        return samples[("latermq_delivery_lateness_seconds_bucket", (("le", bound),))]

    assert (bucket("0.0005"), bucket("0.001"), bucket("0.002")) == (3, 15, 15)
    assert (bucket("1.0"), bucket("5.0"), bucket("60.0")) == (15, 31, 31)
    assert bucket("+Inf") == samples[("latermq_delivery_lateness_seconds_count", ())] == 63
    assert samples[("latermq_delivery_lateness_seconds_sum", ())] == pytest.approx(
        2 * 0.0005 + 4 * 0.0006 + 8 * 0.001 + 16 * 5 + 32e9
    )


def page(broker: Broker) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The metrics page of a broker that serves nobody as a master."""
    return parse(LiveStatus(broker).metrics(admin_connections=1, admin_held_bytes=0))


def test_checkpoints_that_fail_or_lag_are_seen() -> None:
    harness = with_topic()
    lag, failed = ("latermq_checkpoint_lag_bytes", ()), ("latermq_checkpoint_failed", ())
    take_checkpoint(harness)
    assert (page(harness.broker)[lag], page(harness.broker)[failed]) == (0, 0)
    before = harness.broker.committed_pos
    harness.produce("t", 0, [Record(b"a", headers=delay(1_000))])
    harness.flush()
    assert page(harness.broker)[lag] == harness.broker.committed_pos - before > 0
    assert page(harness.broker)["latermq_unsaved_timer_bytes", ()] > 0
    spare, harness.disk.free = harness.disk.free, 10
    assert take_checkpoint(harness).error is not None
    samples = page(harness.broker)
    assert samples[failed] == 1
    assert samples[lag] > 0
    harness.disk.free = spare
    harness.clock.advance_ms(5_000)  # until the next attempt
    take_checkpoint(harness)
    samples = page(harness.broker)
    assert (samples[lag], samples[failed]) == (0, 0)
    assert samples["latermq_unsaved_timer_bytes", ()] == 0


def test_a_slave_shows_what_it_has() -> None:
    master, slave = with_topic(), SlaveHarness()
    empty = page(slave.broker)
    assert empty["latermq_pending_timers", ()] == 0
    master.produce("t", 0, [Record(b"a", headers=delay(1_000, b"id")), Record(b"b")])
    master.flush()
    slave.receive(master)
    slave.flush()
    end = master.broker.log.pointers.flushed
    slave.follower.show(end)
    samples = page(slave.broker)
    assert samples["latermq_pending_timers", ()] == 1
    assert samples["latermq_log_visible_pos", ()] == samples["latermq_log_wrote_pos", ()] == end
    assert samples["latermq_disk_free_bytes", ()] > 0
    assert samples["latermq_id_bytes", ()] > 0
    assert samples["latermq_unsaved_timer_bytes", ()] > 0
    assert samples["latermq_checkpoint_lag_bytes", ()] == end - slave.follower.start_pos
    slave.checkpoint()
    assert page(slave.broker)["latermq_checkpoint_lag_bytes", ()] == 0
    assert page(slave.broker)["latermq_unsaved_timer_bytes", ()] == 0
    assert samples["latermq_admin_connections", ()] == 1
    slave.broker.slave().collect_metrics()
    assert page(slave.broker)["latermq_requests_total", (("api", "Fetch"),)] == 0


def test_a_broker_that_starts_shows_its_metrics_between_all_steps() -> None:
    harness = with_topic()
    harness.produce("t", 0, [Record(b"a", headers=delay(1_000))])
    harness.flush()
    disk = harness.disk.crashed("killed", random.Random(1))
    broker = Broker(harness.clock, disk, harness.config, KAFKA_FACADE)
    pages = 1
    assert page(broker)["latermq_anonymous_bytes", ()] > 0
    for _ in broker.recover():
        pages += 1
        page(broker)
    assert pages > 3
    assert page(broker)["latermq_pending_timers", ()] == 1
