"""The workloads, a row each: what the clients do, against which brokers, and how it is shown.

To add a workload, add a row; perf/README.md explains the existing ones.
"""

from dataclasses import dataclass
from typing import Final

from perf.brokers import (
    ASYNC,
    KAFKA,
    KAFKA_SYNC,
    MACHINE,
    MOCK,
    PARTITION_COUNT,
    SYNC,
)

HOUR_MS: Final = 3_600_000
MIB: Final = 1_048_576

FILE_PLACE: Final = "{file}"
"""Placeholder in options: a file of this run."""


@dataclass(frozen=True, slots=True)
class Step:
    """One action of clients: a mode of perf/client, or of perf.latency, and its options."""

    mode: str
    count: int
    size_bytes: int = 0
    """Of a record; 0 where the mode does not take it."""
    options: tuple[str, ...] = ()
    client_count: int = 1
    is_python: bool = False
    record_bytes: int = 0
    """Size of one of `count` on disk, if not `size_bytes`."""

    @property
    def disk_bytes(self) -> int:
        """Approximate growth of the page cache."""
        return self.count * (self.record_bytes or self.size_bytes) * self.client_count


@dataclass(frozen=True, slots=True)
class Table:
    """Workloads that are shown together."""

    title: str
    metrics: tuple[str, ...]
    """The columns."""
    main: int = 0
    """The main column of these workloads: its spread is checked, and it is plotted."""

    @property
    def has_cpu(self) -> bool:
        """Whether the broker's work after its clients ended counts."""
        return any(name.startswith("broker_cpu") for name in self.metrics)


THROUGHPUT: Final = Table(
    "Throughput", ("messages_per_s", "mb_per_s", "broker_cpu_s_per_gb", "client_cpu_s_per_gb")
)
REQUESTS: Final = Table("Requests", ("messages_per_s", "broker_cpu_us_per_message"))
LATENCY: Final = Table("Latency", ("p50_ms", "p99_ms", "p999_ms"))
BURST: Final = Table("Burst", ("last_ms", "messages_per_s", "broker_cpu_us_per_message"))
LATENESS: Final = Table("Lateness", ("p50_ms", "p99_ms", "p999_ms", "load_mb_per_s"), main=1)
LIMITS: Final = Table("Limits of the machine", ("mb_per_s", "client_cpu_s_per_gb"))
SYNCS: Final = Table("Limits of the disk", ("p50_ms", "p99_ms", "messages_per_s"))


@dataclass(frozen=True, slots=True)
class Workload:
    """What is measured against each of `brokers` in turn."""

    name: str
    step: Step
    brokers: tuple[str, ...]
    table: Table = THROUGHPUT
    prepare: tuple[Step, ...] = ()
    """Steps before the measured one."""
    partition_count: int = PARTITION_COUNT
    kafka_share: float = 1.0
    """Share of `count` for Kafka, where it would take too long."""
    awaits_idle: bool = True
    """Whether to begin only when the broker has completed its preparations after the start."""

    @property
    def metric(self) -> str:
        """Its main metric."""
        return self.table.metrics[self.table.main]


def produce(
    count: int, size_bytes: int, *, client_count: int = 1, options: tuple[str, ...] = ()
) -> Step:
    """Clients that send `count` records each."""
    return Step("produce", count, size_bytes, options, client_count)


def produce_delayed(count: int, size_bytes: int = 200) -> Step:
    """A client that sends records due one to two hours later."""
    options = ("--delay-ms", str(HOUR_MS), "--delay-spread-ms", str(HOUR_MS))
    return produce(count, size_bytes, options=options)


def consume(count: int, record_bytes: int) -> Step:
    """A client that reads `count` records from the beginning."""
    return Step("consume", count, record_bytes=record_bytes)


def pipeline(count: int, *, connection_count: int = 1) -> Step:
    """Requests of one 200 B record without waiting for answers."""
    return Step("pipeline", count, 200, ("--connections", str(connection_count)))


def burst(count: int, *, lead_ms: int) -> Step:
    """Records due at one millisecond, at a consumer that waits."""
    return Step("burst", count, 200, ("--lead-ms", str(lead_ms)))


def lateness(count: int, *, load_size_bytes: int = 0) -> Step:
    """Records due one after another, 5,000 a second."""
    options = ["--rate", "5000", "--lead-ms", "2000"]
    if not load_size_bytes:
        return Step("lateness", count, 200, tuple(options))
    options += ["--load-size", str(load_size_bytes)]
    # The load takes the memory: about 1.5 GB a second while 5,000 records are due.
    return Step("lateness", count, 200, tuple(options), record_bytes=300_000)


def one_at_a_time(count: int) -> Step:
    return Step("one-at-a-time", count, 200, is_python=True)


def end_to_end(rate: int, count: int) -> Step:
    return Step("end-to-end", count, 200, ("--rate", str(rate)), is_python=True)


def limit(mode: str, count: int, *options: str, size_bytes: int = 0) -> Step:
    """A limit of the machine; `count` blocks, 1 MiB each unless `size_bytes` is given."""
    return Step(mode, count, size_bytes, options, record_bytes=size_bytes or MIB)


_ALL: Final = (MOCK, ASYNC, SYNC, KAFKA, KAFKA_SYNC)
_LATERMQ: Final = (ASYNC, SYNC)
_FILE: Final = ("--file", FILE_PLACE)
_RECYCLED: Final = (*_FILE, "--recycled")
_GROUP: Final = ("--per-sync", "4")

# A run takes about a second and 1 GB of disk: long enough to time, and short enough that the page
# cache stays within warm memory and latermq within its first segment.
WORKLOADS: Final = (
    Workload("produce 1 KiB", produce(1_000_000, 1024), _ALL),
    Workload("produce 100 B", produce(5_000_000, 100), (MOCK, ASYNC, KAFKA)),
    Workload("produce 10 KiB", produce(100_000, 10_240), (MOCK, ASYNC, KAFKA)),
    Workload(
        "produce 1 KiB, 2 clients",
        produce(500_000, 1024, client_count=2),
        (MOCK, ASYNC, SYNC, KAFKA),
    ),
    Workload(
        "produce 1 KiB, prewritten",
        produce(1_000_000, 1024),
        _LATERMQ,
        prepare=(produce(1_000_000, 1024),),
    ),
    Workload("produce 3 GB at once", produce(3_000_000, 1024), _LATERMQ, awaits_idle=False),
    Workload(
        "fetch 1 KiB",
        consume(1_000_000, 1024),
        (ASYNC, KAFKA),
        prepare=(produce(1_000_000, 1024),),
    ),
    Workload(
        "fetch 100 B",
        consume(5_000_000, 100),
        (ASYNC, KAFKA),
        prepare=(produce(5_000_000, 100),),
    ),
    Workload(
        "pipelined requests",
        pipeline(300_000),
        (MOCK, ASYNC, SYNC, KAFKA),
        REQUESTS,
        kafka_share=0.2,
    ),
    Workload("accept delayed", produce_delayed(1_000_000), (MOCK, ASYNC, SYNC), REQUESTS),
    Workload("one at a time", one_at_a_time(4_000), _ALL, LATENCY),
    Workload("end to end, 1,000/s", end_to_end(1_000, 3_000), (ASYNC, SYNC, KAFKA), LATENCY),
    Workload("end to end, 5,000/s", end_to_end(5_000, 15_000), (ASYNC, SYNC, KAFKA), LATENCY),
    Workload("1 M due in one ms", burst(1_000_000, lead_ms=8_000), _LATERMQ, BURST),
    Workload("lateness, 5,000/s", lateness(15_000), _LATERMQ, LATENESS),
    Workload("lateness under load", lateness(15_000, load_size_bytes=1024), _LATERMQ, LATENESS),
    Workload("receive", limit("limit-receive", 1000), (MACHINE,), LIMITS),
    Workload("receive and write, new", limit("limit-receive", 1000, *_FILE), (MACHINE,), LIMITS),
    Workload(
        "receive and write, recycled",
        limit("limit-receive", 1000, *_RECYCLED),
        (MACHINE,),
        LIMITS,
    ),
    Workload("write, new", limit("limit-write", 1000, *_FILE), (MACHINE,), LIMITS),
    Workload("write, recycled", limit("limit-write", 1000, *_RECYCLED), (MACHINE,), LIMITS),
    Workload(
        "write and sync, new", limit("limit-write", 1000, *_GROUP, *_FILE), (MACHINE,), LIMITS
    ),
    Workload(
        "write and sync, recycled",
        limit("limit-write", 1000, *_GROUP, *_RECYCLED),
        (MACHINE,),
        LIMITS,
    ),
    Workload(
        "sync of 4 KiB, recycled",
        limit("limit-sync", 1000, *_RECYCLED, size_bytes=4096),
        (MACHINE,),
        SYNCS,
    ),
)
