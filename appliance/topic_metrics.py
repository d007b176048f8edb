"""The metrics of delayed records by topic, in Prometheus' text format, in parts.

They are a page of their own: a broker may have thousands of topics, and each has as many lines as
all other metrics together. Only topics that had delayed records since the start are on it. Layer
4; on the event loop.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from _core.queue.partition import Topic
from appliance.metrics import LATENESS_BOUNDS_SECONDS
from appliance.pending_timers import PendingTimers
from appliance.units import MS_PER_SECOND


@dataclass(frozen=True, slots=True)
class TopicMetric:
    """One metric, with the label `topic`.

    Attributes:
        name: without `latermq_topic_`.
        kind: of Prometheus.
        help: what it says.
    """

    name: str
    kind: str
    help: str

    @property
    def full_name(self) -> str:
        """The name in Prometheus; a counter's ends in `_total`."""
        return f"latermq_topic_{self.name}" + ("_total" if self.kind == "counter" else "")


PENDING: Final = TopicMetric("pending_timers", "gauge", "Held records that are not delivered yet.")
HELD: Final = TopicMetric(
    "held_timers", "gauge", "Due records that the topic holds back, cancelled ones included."
)
ACCEPTED: Final = TopicMetric("timers_accepted", "counter", "Records held back until they are due.")
DELIVERED: Final = TopicMetric("timers_delivered", "counter", "Held records delivered.")
CANCELLED: Final = TopicMetric(
    "timers_cancelled", "counter", "Held records cancelled, excluding replaced ones."
)
REPLACED: Final = TopicMetric(
    "timers_replaced", "counter", "Held records replaced by one with the same id."
)
LATENESS: Final = TopicMetric(
    "delivery_lateness_seconds",
    "histogram",
    "Delivery minus due time, in seconds, of records that the topic did not hold back.",
)

TOPIC_METRICS: Final = (PENDING, HELD, ACCEPTED, DELIVERED, CANCELLED, REPLACED, LATENESS)

_BOUNDS: Final = (*(str(float(bound)) for bound in LATENESS_BOUNDS_SECONDS), "+Inf")


def render(topics: Sequence[Topic], timers: PendingTimers) -> Iterator[tuple[str, int]]:
    """Yield the page in parts, each with the work that it takes.

    Args:
        topics: all topics; those that are deleted meanwhile are left out.
        timers: counts what is pending.
    """
    shown = [topic for topic in topics if topic.timers_accepted or topic.timers_delivered]
    yield "", 1 + len(topics) // 100
    for metric in TOPIC_METRICS:
        name = metric.full_name
        yield f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind}\n", 1
        for topic in shown:
            if topic.deleted:
                continue
            if metric is LATENESS:
                yield _histogram(name, topic), len(_BOUNDS)
            else:
                value = _value(metric, topic, timers)
                work = 1 + (len(topic.partitions) if metric is PENDING else 0)
                yield f"{name}{_labels(topic)} {value}\n", work


def _value(metric: TopicMetric, topic: Topic, timers: PendingTimers) -> int:
    if metric is PENDING:
        return sum(map(timers.count_of, topic.partitions))
    if metric is HELD:
        return timers.held_of(topic)
    value: int = getattr(topic, metric.name)
    return value


def _labels(topic: Topic, more: str = "") -> str:
    # The characters of a name need no escape.
    return f'{{topic="{topic.name}"{more}}}'


def _histogram(name: str, topic: Topic) -> str:
    totals = list(accumulate(topic.lateness))
    lines = []
    for bound, total in zip(_BOUNDS, totals, strict=True):
        labels = _labels(topic, f',le="{bound}"')
        lines.append(f"{name}_bucket{labels} {total}")
    lines.append(f"{name}_count{_labels(topic)} {totals[-1]}")
    lines.append(f"{name}_sum{_labels(topic)} {topic.lateness_sum_ms / MS_PER_SECOND}")
    return "\n".join(lines) + "\n"
