"""What the broker counts, and how it is told to Prometheus.

Counters live in `Metrics`, which the broker changes with plain additions. What has a present value
is read from the broker when it is asked for, as `Gauges`. docs/METRICS.md lists `METRICS`, and a
test holds the two together. Layer 1; does no I/O. Belongs to the loop's thread.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, Literal

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import CollectorRegistry

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
"""What `render` returns, as HTTP names it."""

LATENESS_BOUNDS_MS: Final = (0.5, 1, 2, 5, 10, 20, 50, 100, 250, 500, 1_000, 5_000, 60_000)
"""Fine where a machine that keeps up is (a few ms), coarse where only the fact matters."""

FLUSH_BOUNDS_SECONDS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)
"""From a fast disk's 0.2 ms to the time after which Produce is answered REQUEST_TIMED_OUT."""


class Histogram:
    """How often values fell between bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        assert list(bounds) == sorted(set(bounds))
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        """By bound: values not above it, but above the one before. The last has no bound."""
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count `value` (0 or more, in the unit of the bounds) `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def quantile(self, fraction: float) -> float:
        """Return the bound below which `fraction` (0 to 1) of the values are; 0 if there are none.

        It is infinite if they lie above the last bound.
        """
        wanted = fraction * sum(self.counts)
        for bound, count in zip(self.bounds, accumulate(self.counts), strict=False):
            if count >= wanted:
                return bound if count else 0.0
        return float("inf")


@dataclass(slots=True)
class Metrics:
    """Everything that only grows while the broker runs."""

    requests: dict[int, int] = field(default_factory=dict)
    """By Kafka API key."""
    request_errors: dict[int, int] = field(default_factory=dict)
    """By Kafka error code."""
    connections_refused: dict[str, int] = field(default_factory=dict)
    """By what there are too many of."""
    connections_closed: dict[str, int] = field(default_factory=dict)
    """By the broker, by why."""
    received_bytes: int = 0
    sent_bytes: int = 0
    accepted_frames: int = 0
    accepted_records: int = 0
    delivered_frames: int = 0
    timers_accepted: int = 0
    timers_delivered: int = 0
    timers_cancelled: int = 0
    timers_replaced: int = 0
    flushes: int = 0
    delivery_lateness_ms: Histogram = field(default_factory=lambda: Histogram(LATENESS_BOUNDS_MS))
    flush_seconds: Histogram = field(default_factory=lambda: Histogram(FLUSH_BOUNDS_SECONDS))

    def count_request(self, api_key: int) -> None:
        self.requests[api_key] = self.requests.get(api_key, 0) + 1

    def count_refused(self, reason: str) -> None:
        self.connections_refused[reason] = self.connections_refused.get(reason, 0) + 1

    def count_closed(self, reason: str) -> None:
        self.connections_closed[reason] = self.connections_closed.get(reason, 0) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What is true at the moment."""

    connections: int = 0
    inflight_bytes: int = 0
    pending_timers: int = 0
    waiting_timers: int = 0
    unreadable_timers: int = 0
    cache_bytes: int = 0
    locked_bytes: int = 0
    log_wrote_pos: int = 0
    log_committed_pos: int = 0
    log_flushed_pos: int = 0
    log_visible_pos: int = 0
    recovered_damage: int = 0
    disk_full: bool = False
    insecure: bool = False
    level_queue_lag: Mapping[int, int] = field(default_factory=dict)
    """By level: timers that wait in its queue."""


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """One metric: its name without `latermq_`, which is also the field that holds it."""

    field_name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    label: str = ""

    @property
    def name(self) -> str:
        """The name Prometheus knows; that of a counter ends in `_total`."""
        return f"latermq_{self.field_name}" + ("_total" if self.kind == "counter" else "")


METRICS: Final = (
    MetricInfo("requests", "counter", "Requests received, by Kafka API key.", "api_key"),
    MetricInfo(
        "request_errors",
        "counter",
        "Batches and partitions refused by Produce and Fetch, by error.",
        "code",
    ),
    MetricInfo(
        "connections_refused",
        "counter",
        "Connections refused because there are too many: in all (count), of one address (address).",
        "reason",
    ),
    MetricInfo(
        "connections_closed",
        "counter",
        "Connections closed by the broker: idle, slow_request, slow_reader, memory (scarce), "
        "request (one that is not served).",
        "reason",
    ),
    MetricInfo("received_bytes", "counter", "Bytes received from Kafka clients."),
    MetricInfo("sent_bytes", "counter", "Bytes sent to Kafka clients."),
    MetricInfo("accepted_frames", "counter", "Batches accepted, one frame of the log for each."),
    MetricInfo("accepted_records", "counter", "Records accepted, held ones included."),
    MetricInfo("delivered_frames", "counter", "Batches of due records appended to partitions."),
    MetricInfo("timers_accepted", "counter", "Records held back until they are due."),
    MetricInfo("timers_delivered", "counter", "Held records delivered."),
    MetricInfo("timers_cancelled", "counter", "Held records withdrawn, replaced ones excluded."),
    MetricInfo("timers_replaced", "counter", "Held records replaced by one with the same id."),
    MetricInfo("flushes", "counter", "Times the log was synced."),
    MetricInfo("delivery_lateness_ms", "histogram", "Delivery minus due time, in milliseconds."),
    MetricInfo("flush_seconds", "histogram", "How long a sync of the log took, in seconds."),
    MetricInfo("connections", "gauge", "Open connections of Kafka clients."),
    MetricInfo("inflight_bytes", "gauge", "Memory for requests and answers of all connections."),
    MetricInfo("pending_timers", "gauge", "Held records that are not delivered yet."),
    MetricInfo("waiting_timers", "gauge", "Due timers that wait for their records to be read."),
    MetricInfo("unreadable_timers", "gauge", "Due timers whose records the disk cannot read."),
    MetricInfo("cache_bytes", "gauge", "Memory of frames that were read and checked."),
    MetricInfo("locked_bytes", "gauge", "That part of it which is segments locked in memory."),
    MetricInfo("level_queue_lag", "gauge", "Timers that wait in the queue of a level.", "level"),
    MetricInfo("log_wrote_pos", "gauge", "Position of the log up to which frames are encoded."),
    MetricInfo("log_committed_pos", "gauge", "Position up to which the log is written."),
    MetricInfo("log_flushed_pos", "gauge", "Position up to which the log is synced."),
    MetricInfo("log_visible_pos", "gauge", "Position up to which consumers see the log."),
    MetricInfo("recovered_damage", "gauge", "Damaged places that the last start reported."),
    MetricInfo("disk_full", "gauge", "1 if the disk has no room for the next segment."),
    MetricInfo("insecure", "gauge", "1 if others may connect without encryption and password."),
)


def render(metrics: Metrics, gauges: Gauges) -> bytes:
    """Return all metrics in Prometheus' text format (`CONTENT_TYPE`)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(metrics, gauges))
    return generate_latest(registry)


class _Snapshot:
    """A collector of prometheus-client that shows one moment."""

    def __init__(self, metrics: Metrics, gauges: Gauges) -> None:
        self._metrics = metrics
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        for info in METRICS:
            holder = self._gauges if info.kind == "gauge" else self._metrics
            yield _family(info, getattr(holder, info.field_name))


def _family(
    info: MetricInfo, value: int | Mapping[int, int] | Mapping[str, int] | Histogram
) -> Metric:
    name = f"latermq_{info.field_name}"
    if isinstance(value, Histogram):
        bounds = [*(str(float(bound)) for bound in value.bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(value.counts), strict=True))
        return HistogramMetricFamily(name, info.help, buckets=buckets, sum_value=value.total)
    labels = [info.label] if info.label else []
    family = (CounterMetricFamily if info.kind == "counter" else GaugeMetricFamily)(
        name, info.help, labels=labels
    )
    samples = value if isinstance(value, Mapping) else {None: value}
    for key, sample in sorted(samples.items(), key=lambda item: item[0] or 0):
        family.add_metric([] if key is None else [str(key)], sample)
    return family
