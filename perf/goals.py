"""Performance goals of the broker, and the ratios by which versions are compared.

A goal is decided within one run, mostly as a ratio, so that the machine's state cancels out.
"""

from dataclasses import dataclass
from typing import Final

from perf.brokers import ASYNC, KAFKA, KAFKA_SYNC, MACHINE, MOCK, SYNC
from perf.figures import METRICS, Figure, Measured, Quantity


@dataclass(frozen=True, slots=True)
class Goal:
    """A quantity, or its ratio to the lowest of others, and where it should be."""

    name: str
    of: Quantity
    to: tuple[Quantity, ...] = ()
    """Empty: `of` itself is compared."""
    at_least: float | None = None
    at_most: float | None = None
    """With neither bound it is only compared with the baseline."""
    tolerance: float = 1.25
    """bench-check: how much worse than the baseline a median may be."""

    @property
    def is_more_better(self) -> bool:
        return METRICS[self.of.metric].is_more_better

    def figure(self, measured: Measured) -> Figure | None:
        """Return the measured value, None if a part of it was not measured."""
        return measured.find_ratio(self.of, self.to) if self.to else measured.find(self.of)


def decide(figure: Figure, *, at_least: float | None = None, at_most: float | None = None) -> str:
    """Say whether a figure keeps a bound: `met`, `MISSED`, or `inconclusive`.

    The median decides, unless runs lie on both sides of the bound and spread too wide to be
    conclusive.
    """
    is_met = [
        (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
        for value in (figure.median, *figure.values)
    ]
    if any(is_met[1:]) and not all(is_met[1:]) and not figure.is_conclusive:
        return "inconclusive"
    return "met" if is_met[0] else "MISSED"


def _rate(workload: str, broker: str) -> Quantity:
    return Quantity(workload, broker, "messages_per_s")


def _mb(workload: str, broker: str) -> Quantity:
    return Quantity(workload, broker, "mb_per_s")


def _cpu(workload: str, broker: str) -> Quantity:
    return Quantity(workload, broker, "broker_cpu_s_per_gb")


def _rates(workload: str, of: str, to: str, at_least: float | None = None) -> Goal:
    name = f"{workload}: {of} / {to}"
    return Goal(name, _rate(workload, of), (_rate(workload, to),), at_least=at_least)


def _times(
    workload: str,
    rank: str,
    of: str,
    to: str,
    *,
    at_most: float | None = None,
    tolerance: float = 1.5,
) -> Goal:
    above, below = Quantity(workload, of, f"{rank}_ms"), Quantity(workload, to, f"{rank}_ms")
    name = f"{workload}, {rank}: {of} / {to}"
    return Goal(name, above, (below,), at_most=at_most, tolerance=tolerance)


def _synced(workload: str, file: str, at_least: float) -> Goal:
    """Sync flush reaches nearly the lower of async flush and the disk's own rate."""
    disk = _mb(f"write and sync, {file}", MACHINE)
    name = f"{workload}: {SYNC} / lower of async and disk, {file}"
    return Goal(name, _mb(workload, SYNC), (_mb(workload, ASYNC), disk), at_least=at_least)


def _late(workload: str, broker: str, at_most: float) -> Goal:
    of = Quantity(workload, broker, "p99_ms")
    return Goal(f"{workload}, p99 ms: {broker}", of, at_most=at_most)


_ONE: Final = "produce 1 KiB"
_TWO: Final = "produce 1 KiB, 2 clients"
_LONG: Final = "produce 3 GB at once"
_IDLE: Final = "lateness, 5,000/s"
_LOADED: Final = "lateness under load"
_BURST: Final = "1 M due in one ms"
_RAW_CPU: Final = Quantity("receive and write, new", MACHINE, "client_cpu_s_per_gb")
_RAW_TRIP: Final = Quantity("one at a time", MOCK, "p50_ms")
_RANKS: Final = ("p50", "p99")
_PAIRS: Final = ((ASYNC, KAFKA), (SYNC, KAFKA_SYNC))

_THROUGHPUT: Final = (
    _rates(_ONE, ASYNC, MOCK, 0.9),
    _rates("produce 100 B", ASYNC, MOCK),
    _rates("produce 10 KiB", ASYNC, MOCK),
    _rates(_TWO, ASYNC, MOCK),
    _rates(_ONE, ASYNC, KAFKA, 3.0),
    _rates("produce 100 B", ASYNC, KAFKA, 1.5),
    _rates(_TWO, ASYNC, KAFKA, 1.5),
    _rates("fetch 1 KiB", ASYNC, KAFKA, 1.0),
    _rates("fetch 100 B", ASYNC, KAFKA),
    _rates(_ONE, SYNC, KAFKA_SYNC, 3.0),
    _synced("produce 1 KiB, prewritten", "recycled", 0.8),
    _synced(_ONE, "new", 0.6),
    _synced(_LONG, "new", 0.6),
)

_COSTS: Final = (
    Goal("broker CPU s per GB produced, 1 KiB", _cpu(_ONE, ASYNC), at_most=0.7),
    Goal("broker CPU s per GB fetched, 1 KiB", _cpu("fetch 1 KiB", ASYNC), at_most=0.35),
    *(
        Goal(f"CPU per GB, {name}: {broker} / machine", _cpu(name, broker), (_RAW_CPU,))
        for name, broker in (
            (_ONE, ASYNC),
            (_ONE, SYNC),
            (_LONG, ASYNC),
            ("produce 100 B", ASYNC),
            ("fetch 1 KiB", ASYNC),
            ("fetch 100 B", ASYNC),
        )
    ),
)

_REQUESTS: Final = (
    Goal("pipelined requests/s", _rate("pipelined requests", ASYNC), at_least=200_000),
    _rates("pipelined requests", ASYNC, MOCK),
    _rates("pipelined requests", SYNC, ASYNC),
    Goal("accepted delayed/s", _rate("accept delayed", ASYNC), at_least=300_000),
    _rates("accept delayed", ASYNC, MOCK),
    _rates("accept delayed", SYNC, ASYNC),
)

_LATENCY: Final = (
    *(_times("one at a time", rank, of, to, at_most=1.0) for rank in _RANKS for of, to in _PAIRS),
    *(
        _times(f"end to end, {rate}/s", rank, ASYNC, KAFKA, at_most=1.0)
        for rate in ("1,000", "5,000")
        for rank in _RANKS
    ),
    _times("one at a time", "p50", ASYNC, MOCK),
    _times("one at a time", "p50", SYNC, ASYNC),
    _times("end to end, 5,000/s", "p50", SYNC, ASYNC),
)

_TIMERS: Final = (
    Goal(f"{_BURST}, last one, ms", Quantity(_BURST, ASYNC, "last_ms"), at_most=1000),
    Goal(f"{_BURST}: rate / fetch 100 B", _rate(_BURST, ASYNC), (_rate("fetch 100 B", ASYNC),)),
    _times(_BURST, "last", SYNC, ASYNC),
    _late(_IDLE, ASYNC, 2.0),
    _late(_IDLE, SYNC, 3.0),
    _late(_LOADED, ASYNC, 10.0),
    _late(_LOADED, SYNC, 10.0),
    Goal(
        f"{_IDLE}, p50: {ASYNC} / a round trip to the mock",
        Quantity(_IDLE, ASYNC, "p50_ms"),
        (_RAW_TRIP,),
        tolerance=1.5,
    ),
    _times(_IDLE, "p99", SYNC, ASYNC, tolerance=2.0),
    Goal(
        f"p99, {ASYNC}: {_LOADED} / {_IDLE}",
        Quantity(_LOADED, ASYNC, "p99_ms"),
        (Quantity(_IDLE, ASYNC, "p99_ms"),),
        tolerance=2.0,
    ),
)

GOALS: Final = (*_THROUGHPUT, *_COSTS, *_REQUESTS, *_LATENCY, *_TIMERS)
"""In the order in which they are shown. The lateness of sync may be 2 ms above that of async."""
