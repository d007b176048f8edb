"""The broker's metrics, and their rendering for Prometheus.

Counters are in `Metrics`, which the broker changes with plain additions. `Gauges` are read from the
broker for each request of the page. docs/METRICS.md lists `METRICS`; a test compares the two. Layer
1; does no I/O. Belongs to the loop's thread.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
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
"""The HTTP content type of what `render` returns."""

LATENESS_BOUNDS_SECONDS: Final = (
    *(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.25, 0.5, 1, 5, 60),
)
"""Fine in the range of a machine that keeps up (a few ms), coarse above it. They are those of
`_core.queue.lateness`, which counts in ms."""

FLUSH_BOUNDS_SECONDS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)
"""From a fast disk's 0.2 ms to the 5 s after which Produce is answered REQUEST_TIMED_OUT."""


class Histogram:
    """Counts of values between bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        assert list(bounds) == sorted(set(bounds))
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        """Per bound: values at or below it and above the previous one. The last has no bound."""
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count `value` (0 or more, in the unit of the bounds) `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count


@dataclass(slots=True)
class Metrics:
    """The counters: values that only grow while the broker runs."""

    requests: dict[int, int] = field(default_factory=dict)
    """By Kafka API key."""
    request_errors: dict[int, int] = field(default_factory=dict)
    """By Kafka error code."""
    delay_refused: dict[str, int] = field(default_factory=dict)
    """Batches, by the reason."""
    delay_passed: dict[str, int] = field(default_factory=dict)
    """Records, by the reason."""
    retried_records: int = 0
    dead_letters: int = 0
    moved_occurrences: int = 0
    replies: dict[str, int] = field(default_factory=dict)
    """By the outcome."""
    connections_refused: dict[str, int] = field(default_factory=dict)
    """By the limit that was exceeded."""
    connections_closed: dict[str, int] = field(default_factory=dict)
    """Closed by the broker, by reason."""
    late_answers: int = 0
    sent_to_slave: dict[str, int] = field(default_factory=dict)
    """By the reason."""
    admin_connections_refused: dict[str, int] = field(default_factory=dict)
    """By the limit that was exceeded."""
    admin_connections_closed: dict[str, int] = field(default_factory=dict)
    """Closed by the broker, by reason."""
    producers_refused: dict[str, int] = field(default_factory=dict)
    """By the limit that was exceeded."""
    producers_forgotten: int = 0
    batches_held_back: int = 0
    commits_held_back: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    accepted_frames: int = 0
    accepted_records: int = 0
    delivered_frames: int = 0
    timers_accepted: int = 0
    timers_delivered: int = 0
    timers_cancelled: int = 0
    timers_replaced: int = 0
    id_reads: int = 0
    expired_records: int = 0
    early_expired_records: int = 0
    freed_bytes: int = 0
    carried_bytes: int = 0
    recycled_segments: int = 0
    flushes: int = 0
    delivery_lateness_seconds: Histogram = field(
        default_factory=lambda: Histogram(LATENESS_BOUNDS_SECONDS)
    )
    flush_seconds: Histogram = field(default_factory=lambda: Histogram(FLUSH_BOUNDS_SECONDS))

    def count_request(self, api_key: int) -> None:
        self.requests[api_key] = self.requests.get(api_key, 0) + 1

    def count_refused(self, reason: str) -> None:
        self.connections_refused[reason] = self.connections_refused.get(reason, 0) + 1

    def count_closed(self, reason: str) -> None:
        self.connections_closed[reason] = self.connections_closed.get(reason, 0) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The current values."""

    connections: int = 0
    admin_connections: int = 0
    anonymous_bytes: int = 0
    inflight_bytes: int = 0
    producers: int = 0
    pending_timers: int = 0
    pending_timers_max: int = 0
    waiting_timers: int = 0
    unreadable_timers: int = 0
    held_timers: int = 0
    unloaded_timers: int = 0
    id_bytes: int = 0
    unsaved_timer_bytes: int = 0
    checkpoint_failed: bool = False
    checkpoint_lag_bytes: int = 0
    enqueue_stopped: bool = False
    dequeue_stopped: bool = False
    enqueue_backlog: int = 0
    enqueue_backlog_seconds: float = 0.0
    dequeue_backlog: int = 0
    dequeue_backlog_seconds: float = 0.0
    next_due_seconds: float = 0.0
    cache_bytes: int = 0
    locked_bytes: int = 0
    log_wrote_pos: int = 0
    log_committed_pos: int = 0
    log_flushed_pos: int = 0
    log_visible_pos: int = 0
    key_index_pos: int = 0
    key_index_lag_bytes: int = 0
    key_index_rows: int = 0
    key_index_runs: int = 0
    recovered_damage: int = 0
    clock_jump_seconds: int = 0
    replication_slave: bool = False
    replication_streaming: bool = False
    replication_solo: bool = False
    replication_lease_seconds: float = 0.0
    replication_lag_bytes: int = 0
    replication_held_bytes: int = 0
    replication_silence_seconds: float = 0.0
    disk_full: bool = False
    disk_state: int = 0
    disk_total_bytes: int = 0
    disk_used_bytes: int = 0
    disk_free_bytes: int = 0
    disk_log_bytes: int = 0
    log_start_pos: int = 0
    log_reclaimable_bytes: int = 0
    log_dead_bytes: int = 0
    carry_held_back: bool = False
    expires_early: bool = False
    disk_seconds_until_full: float = 0.0
    write_amplification: float = 0.0
    insecure: bool = False
    level_next_offset: Mapping[int, int] = field(default_factory=dict)
    """Timers that the queue of each level ever had."""
    level_lag: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """One metric: its name without `latermq_`, which is also the field that holds it."""

    field_name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    label: str = ""

    @property
    def name(self) -> str:
        """The name in Prometheus; a counter's ends in `_total`."""
        return f"latermq_{self.field_name}" + ("_total" if self.kind == "counter" else "")


METRICS: Final = (
    MetricInfo("requests", "counter", "Requests received, by Kafka's name of the API.", "api"),
    MetricInfo(
        "request_errors",
        "counter",
        "Batches and partitions refused by Produce and Fetch, by Kafka's name of the error.",
        "error",
    ),
    MetricInfo(
        "delay_refused",
        "counter",
        "Batches refused because of a delay header, by what is wrong: its value, an epoch in "
        "another unit than ms (unit), too_far away, a contradiction, the size of an id, a "
        "near_miss of a name, a missing request, a retry, a reply, or a cron expression. Or "
        "because there are too many pending timers: of all (full), of one address "
        "(address); each time that a client tries again counts.",
        "reason",
    ),
    MetricInfo(
        "delay_passed",
        "counter",
        "Records with such a header delivered at once, on topics with `delay.invalid=pass`.",
        "reason",
    ),
    MetricInfo(
        "retried_records",
        "counter",
        "Records accepted with `x-retry-group`, for another attempt.",
    ),
    MetricInfo(
        "dead_letters",
        "counter",
        "Records accepted with `x-retry-group` that had all their attempts and go to GROUP.dlq.",
    ),
    MetricInfo(
        "moved_occurrences",
        "counter",
        "Occurrences of recurring records that were set anew and not delivered: missed under "
        "`x-cron-missed: none`, or moved by new data of their zone.",
    ),
    MetricInfo(
        "replies",
        "counter",
        "Records written for `x-deliver-reply`, by what became of the id: cancelled, replaced, "
        "too-late or unknown.",
        "outcome",
    ),
    MetricInfo(
        "connections_refused",
        "counter",
        "Connections refused over a limit: on all of them (count), on one address (address).",
        "reason",
    ),
    MetricInfo(
        "connections_closed",
        "counter",
        "Connections closed by the broker: idle, slow_request, slow_reader, memory (out of the "
        "budget), request (one that is not served).",
        "reason",
    ),
    MetricInfo(
        "late_answers",
        "counter",
        "Answers about topics, groups and offsets that waited too long for the disk; an error made "
        "the client ask again. Produce has REQUEST_TIMED_OUT in latermq_request_errors_total.",
    ),
    MetricInfo(
        "sent_to_slave",
        "counter",
        "Partitions of Fetch requests whose consumers were sent to the slave: those in its rack "
        "(near), those far behind (late).",
        "reason",
    ),
    MetricInfo(
        "admin_connections_refused",
        "counter",
        "Connections to the admin address refused over a limit: on all (count), on one address "
        "(address).",
        "reason",
    ),
    MetricInfo(
        "admin_connections_closed",
        "counter",
        "Connections to the admin address closed by the broker: idle, slow_request, slow_reader, "
        "crowded (for a new one), request (its head is too large).",
        "reason",
    ),
    MetricInfo(
        "producers_refused",
        "counter",
        "New idempotent producers that had to wait because of a limit: on all of them (count), on "
        "new ones of an address (address). Each time that a client tries again counts.",
        "reason",
    ),
    MetricInfo(
        "producers_forgotten",
        "counter",
        "Idempotent producers forgotten for new ones because of the limit on all of them.",
    ),
    MetricInfo(
        "batches_held_back",
        "counter",
        "Compressed batches that waited because the log takes too much of what their address "
        "sends.",
    ),
    MetricInfo(
        "commits_held_back",
        "counter",
        "Steps of commits that waited because commits of their address write too much to the log.",
    ),
    MetricInfo("received_bytes", "counter", "Bytes received from Kafka clients."),
    MetricInfo("sent_bytes", "counter", "Bytes sent to Kafka clients."),
    MetricInfo("accepted_frames", "counter", "Batches accepted, each as one frame of the log."),
    MetricInfo("accepted_records", "counter", "Records accepted, including held ones."),
    MetricInfo("delivered_frames", "counter", "Batches of due records appended to partitions."),
    MetricInfo("timers_accepted", "counter", "Records held back until they are due."),
    MetricInfo("timers_delivered", "counter", "Held records delivered."),
    MetricInfo("timers_cancelled", "counter", "Held records cancelled, excluding replaced ones."),
    MetricInfo("timers_replaced", "counter", "Held records replaced by one with the same id."),
    MetricInfo("id_reads", "counter", "Ids of held records that were looked up on the disk."),
    MetricInfo(
        "expired_records", "counter", "Offsets that age or size limits of their topics removed."
    ),
    MetricInfo(
        "early_expired_records",
        "counter",
        "Those of them that expired before their retention was over: the disk was too full.",
    ),
    MetricInfo("freed_bytes", "counter", "Bytes of segments that were freed."),
    MetricInfo("carried_bytes", "counter", "Bytes appended again so that segments could be freed."),
    MetricInfo(
        "recycled_segments", "counter", "Freed segments whose files were kept for later segments."
    ),
    MetricInfo("flushes", "counter", "Syncs of the log."),
    MetricInfo(
        "delivery_lateness_seconds",
        "histogram",
        "Delivery minus due time, in seconds, of records that were not held back.",
    ),
    MetricInfo("flush_seconds", "histogram", "Duration of a sync of the log, in seconds."),
    MetricInfo("connections", "gauge", "Open connections of Kafka clients."),
    MetricInfo("admin_connections", "gauge", "Open connections to the admin address."),
    MetricInfo(
        "inflight_bytes",
        "gauge",
        "Memory of requests and answers of all connections, those to the admin address too; "
        "frames that answers refer to are in cache_bytes.",
    ),
    MetricInfo(
        "anonymous_bytes",
        "gauge",
        "Memory of the process by the kernel's account, without mapped files (RssAnon).",
    ),
    MetricInfo(
        "producers",
        "gauge",
        "Idempotent producers that are remembered, each counted on each of its partitions.",
    ),
    MetricInfo("pending_timers", "gauge", "Held records that are not delivered yet."),
    MetricInfo("pending_timers_max", "gauge", "How many there may be (limits.pending_timers_max)."),
    MetricInfo("waiting_timers", "gauge", "Due timers whose records are being read from the disk."),
    MetricInfo("unreadable_timers", "gauge", "Due timers whose records the disk cannot read."),
    MetricInfo("held_timers", "gauge", "Due timers that their topics hold back."),
    MetricInfo(
        "unloaded_timers", "gauge", "Pending timers that are on the disk and not in memory, about."
    ),
    MetricInfo("id_bytes", "gauge", "Memory of ids and of the filters for ids on the disk, bytes."),
    MetricInfo(
        "unsaved_timer_bytes",
        "gauge",
        "Memory of changes of timers and ids that no checkpoint has, bytes.",
    ),
    MetricInfo(
        "checkpoint_failed",
        "gauge",
        "1: the last checkpoint, or a merge of older runs, failed; it is tried again.",
    ),
    MetricInfo(
        "checkpoint_lag_bytes", "gauge", "Size of the log that the last checkpoint does not have."
    ),
    MetricInfo("enqueue_stopped", "gauge", "1: an operator lets delayed records be refused."),
    MetricInfo("dequeue_stopped", "gauge", "1: an operator lets all due records wait."),
    MetricInfo(
        "enqueue_backlog", "gauge", "Held records that were accepted and are not synced yet."
    ),
    MetricInfo(
        "enqueue_backlog_seconds", "gauge", "How long the first byte that is not synced has waited."
    ),
    MetricInfo(
        "dequeue_backlog",
        "gauge",
        "Timers that were due before this second and are not delivered, without held_timers.",
    ),
    MetricInfo(
        "dequeue_backlog_seconds",
        "gauge",
        "How long the first due timer has waited, without waiting_timers and held_timers.",
    ),
    MetricInfo(
        "next_due_seconds",
        "gauge",
        "When the next timer is due, in seconds since 1970; 0: none is pending.",
    ),
    MetricInfo(
        "cache_bytes",
        "gauge",
        "Memory of frames that were read and checked, also of those that only answers still hold.",
    ),
    MetricInfo("locked_bytes", "gauge", "Part of cache_bytes in segments locked in memory."),
    MetricInfo(
        "level_next_offset",
        "gauge",
        "Offset of the next timer of a delay level: how many were accepted.",
        "level",
    ),
    MetricInfo("level_lag", "gauge", "Pending timers of a delay level.", "level"),
    MetricInfo("log_wrote_pos", "gauge", "Log position up to which frames are encoded."),
    MetricInfo("log_committed_pos", "gauge", "Log position up to which frames are written."),
    MetricInfo("log_flushed_pos", "gauge", "Log position up to which frames are synced."),
    MetricInfo("log_visible_pos", "gauge", "Log position up to which consumers see frames."),
    MetricInfo("key_index_pos", "gauge", "Log position up to which keys and ids are indexed."),
    MetricInfo(
        "key_index_lag_bytes", "gauge", "Synced bytes of the log after that; `find` reads them."
    ),
    MetricInfo("key_index_rows", "gauge", "Rows of the key index, one for each key in a frame."),
    MetricInfo("key_index_runs", "gauge", "Files of the key index."),
    MetricInfo("recovered_damage", "gauge", "Damaged places found by the start and since."),
    MetricInfo(
        "clock_jump_seconds",
        "gauge",
        "How far the wall clock is ahead of the age of records; it counts after an hour.",
    ),
    MetricInfo(
        "disk_full", "gauge", "1 if the disk had no room for a segment when one was last needed."
    ),
    MetricInfo(
        "replication_slave", "gauge", "1 if this node is a slave, 0 if it is a master or alone."
    ),
    MetricInfo(
        "replication_streaming",
        "gauge",
        "1 if the other node is connected and the slave has caught up.",
    ),
    MetricInfo(
        "replication_solo", "gauge", "1 if a master with sync replication waits for no slave."
    ),
    MetricInfo(
        "replication_lease_seconds",
        "gauge",
        "How long a master with sync replication may acknowledge without another sign of its "
        "slave; 0 if it may not, or needs none.",
    ),
    MetricInfo(
        "replication_lag_bytes",
        "gauge",
        "Bytes of the master's log that are not on the disk of the slave, as far as known.",
    ),
    MetricInfo(
        "replication_held_bytes",
        "gauge",
        "Bytes of the log that a master keeps for its connected slave alone.",
    ),
    MetricInfo(
        "replication_silence_seconds",
        "gauge",
        "Time since the last message of the other node; 0 if there was none.",
    ),
    MetricInfo(
        "disk_state",
        "gauge",
        "How full the disk is: 0 ok, 1 warn, 2 new records are refused.",
    ),
    MetricInfo(
        "disk_total_bytes", "gauge", "Bytes of the data's file system, without those of root."
    ),
    MetricInfo("disk_used_bytes", "gauge", "Bytes of it that are used, by whomever."),
    MetricInfo("disk_free_bytes", "gauge", "Bytes of it that are not used."),
    MetricInfo("disk_log_bytes", "gauge", "Bytes of the log's segments, allocated or written."),
    MetricInfo("log_start_pos", "gauge", "Log position of the first byte that is kept."),
    MetricInfo(
        "log_reclaimable_bytes",
        "gauge",
        "Bytes of the first segments in which nothing is needed: they are freed next.",
    ),
    MetricInfo(
        "log_dead_bytes",
        "gauge",
        "Bytes of the log that nothing needs, wherever they are. An estimate: a record counts as "
        "much as the average of its partition.",
    ),
    MetricInfo(
        "carry_held_back",
        "gauge",
        "1 while nothing is moved to free segments because of `store.delete_when`.",
    ),
    MetricInfo(
        "expires_early",
        "gauge",
        "1 while records expire before their retention is over: the disk is too full.",
    ),
    MetricInfo(
        "write_amplification",
        "gauge",
        "Bytes appended since the start for each byte that was not appended again.",
    ),
    MetricInfo(
        "disk_seconds_until_full",
        "gauge",
        "Until no byte is left, at the rate of the last five minutes; NaN if it does not grow.",
    ),
    MetricInfo(
        "insecure", "gauge", "1 if other machines may connect without encryption and password."
    ),
)


PART_METRICS: Final = 8
"""Metrics in one part of the page."""

LINE_WORK: Final = 4
"""Work for a line. prometheus-client takes several times as long for one as a list for an item."""

LabelNames = Mapping[str, Callable[[int], str]]
"""By the field of a metric: what names the numbers by which it is counted."""


def render(
    metrics: Metrics, gauges: Gauges, label_names: LabelNames | None = None
) -> Iterator[tuple[str, int]]:
    """Yield all metrics in Prometheus' text format (`CONTENT_TYPE`), in parts.

    All together take some milliseconds. Counters may grow between two parts. The work of a part is
    LINE_WORK for each of its lines.

    Args:
        metrics, gauges: the values.
        label_names: see there; where it has no name, the number is the label.
    """
    for first in range(0, len(METRICS), PART_METRICS):
        part = METRICS[first : first + PART_METRICS]
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Snapshot(part, metrics, gauges, label_names or {}))
        text = generate_latest(registry).decode()
        yield text, text.count("\n") * LINE_WORK


class _Snapshot:
    """A prometheus-client collector of some metrics at one moment."""

    def __init__(
        self,
        infos: Sequence[MetricInfo],
        metrics: Metrics,
        gauges: Gauges,
        label_names: LabelNames,
    ) -> None:
        self._infos = infos
        self._metrics = metrics
        self._gauges = gauges
        self._label_names = label_names

    def collect(self) -> Iterator[Metric]:
        for info in self._infos:
            holder = self._gauges if info.kind == "gauge" else self._metrics
            name_of = self._label_names.get(info.field_name, str)
            yield _family(info, getattr(holder, info.field_name), name_of)


def _family(
    info: MetricInfo,
    value: float | Mapping[int, int] | Mapping[str, int] | Histogram,
    name_of: Callable[[int], str],
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
        label = name_of(key) if isinstance(key, int) else str(key)
        family.add_metric([] if key is None else [label], sample)
    return family
