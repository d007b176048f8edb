"""Delayed records beside what people use for them otherwise: RocketMQ, Redis, PostgreSQL and more.

    apt-get install redis-server postgresql beanstalkd maven default-jdk-headless
    go install github.com/nats-io/nats-server/v2@latest        # and have it on the PATH
    .venv/bin/python -m pip install redis psycopg[binary] greenstalk nats-py
    make bench-rivals                          # or: python -m perf.rivals
    python -m perf.rivals --rounds 1 --only latermq redis

What is not installed is left out, and named. Each is used through its own client in Python, one
process that schedules and one thread that waits for what is due, as its users do it:

- latermq: confluent-kafka, the header `x-deliver-at`, one topic of four partitions;
- RocketMQ: its Java client, messages with a deliver time, 8,000 in flight, a topic of four queues;
- NATS: nats-py, a schedule for each record, as a subject holds one; an ordered consumer;
- Redis: a sorted set of records by due time, ZADD in pipelines of 1,000; a script of the server
  takes up to 1,000 that are due, every millisecond while there are none;
- PostgreSQL: a table with an index of due times, INSERT of 1,000 rows; DELETE of up to 1,000 rows
  that are due and not locked (SKIP LOCKED), every millisecond while there are none;
- beanstalkd: `put` with a delay in whole seconds, one job at a time: its protocol has no more.

A round has, in turn for each: --count records of 200 bytes that are due in an hour, and the memory
that they take; --count records that are due at one instant, and how long the last one took; 5,000
records a second for ten seconds, and how late they came; and --count records, after which the
server is killed with SIGKILL and started again, and how many are left. A kill is no power cut: what
the kernel has is kept.

Prints a table, and draws it in build/perf/rivals.svg.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perf.brokers import new_directory
from perf.figures import Figure, Result, Sample
from perf.machine import BUILD_DIR, BenchError, build_directory, machine_line
from perf.plot import plot
from perf.rival_nats import Nats
from perf.rival_servers import (
    LIMIT_S,
    Beanstalkd,
    LatermqAsync,
    LatermqSync,
    Postgres,
    RedisAlways,
    RedisWithoutFile,
    Rival,
    Taken,
    now_us,
)
from perf.rocketmq import RocketMq, RocketMqSync

LATER_S: Final = 3_600
LATENESS_RATE: Final = 5_000
LATENESS_S: Final = 10

RIVALS: Final[dict[str, type[Rival]]] = {
    "latermq": LatermqAsync,
    "latermq-sync": LatermqSync,
    "rocketmq": RocketMq,
    "rocketmq-sync": RocketMqSync,
    "redis": RedisWithoutFile,
    "redis-always": RedisAlways,
    "postgres": Postgres,
    "beanstalkd": Beanstalkd,
    "nats": Nats,
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One rival in one round.

    Attributes:
        rate: scheduled a second.
        memory_bytes: for each pending record.
        burst_s: from the due time of all to the last one.
        late_p50_ms, late_p99_ms: at 5,000 a second.
        early: records that came before they were due.
        left: of those that were acknowledged before a kill, as a part.
    """

    rate: float
    memory_bytes: float
    burst_s: float
    late_p50_ms: float
    late_p99_ms: float
    early: int
    left: float


def _receive(rival: Rival, dues_us: Sequence[int]) -> Taken:
    """Schedule records while a thread waits for them; return what came."""
    rival.prepare()
    taken, stop = Taken(), threading.Event()
    thread = threading.Thread(target=rival.take, args=(len(dues_us), taken, stop), daemon=True)
    thread.start()
    time.sleep(0.5)
    rival.schedule(dues_us)
    if now_us() > dues_us[0]:
        raise BenchError(f"{rival.name}: the first record is due before all are scheduled")
    thread.join(LIMIT_S)
    stop.set()
    if len(taken.late_us) < len(dues_us):
        raise BenchError(f"{rival.name}: {len(taken.late_us)} of {len(dues_us)} records came")
    return taken


def measure(kind: type[Rival], place: Path, count: int) -> Measured:
    """Measure one rival, from nothing."""
    rival = kind(place)
    rival.start()
    try:
        rival.prepare()
        time.sleep(1)
        before_mb, begin_s = rival.memory_mb(), time.monotonic()
        rival.schedule([now_us() + LATER_S * 1_000_000] * count)
        took_s = time.monotonic() - begin_s
        time.sleep(1)
        memory_bytes = (rival.memory_mb() - before_mb) * 1e6 / count
        lead_us = int(1.5 * took_s * 1e6) + 2_000_000
        due_us = _aligned(now_us() + lead_us, rival.grain_us)
        burst = _receive(rival, [due_us] * count)
        total = LATENESS_RATE * LATENESS_S
        lead_us = int(1.5 * took_s * total / count * 1e6) + 2_000_000
        first_us = _aligned(now_us() + lead_us, rival.grain_us)
        step_us = 1_000_000 // LATENESS_RATE
        dues = [_aligned(first_us + each * step_us, rival.grain_us) for each in range(total)]
        late = sorted(_receive(rival, dues).late_us)
        left = _left_after_kill(rival, count)
    finally:
        rival.kill()
    return Measured(
        rate=count / took_s,
        memory_bytes=memory_bytes,
        burst_s=(burst.last_us - due_us) / 1e6,
        late_p50_ms=late[len(late) // 2] / 1e3,
        late_p99_ms=late[len(late) * 99 // 100] / 1e3,
        early=sum(each < 0 for each in (*late, *burst.late_us)),
        left=left,
    )


def _aligned(at_us: int, grain_us: int) -> int:
    return -(-at_us // grain_us) * grain_us


def _left_after_kill(rival: Rival, count: int) -> float:
    """Schedule more, kill the server at once, and return which part of them is there again."""
    before = rival.pending()
    rival.prepare()
    rival.schedule([now_us() + LATER_S * 1_000_000] * count)
    rival.kill()
    rival.start()
    return (rival.pending() - before) / count if rival.pending() >= before else 0.0


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    print(machine_line())
    wanted = {name: RIVALS[name] for name in options.only}
    for name, kind in list(wanted.items()):
        if missing := kind.missing():
            print(f"{kind.name} is left out: no {', '.join(missing)}")
            del wanted[name]
    found: dict[str, list[Measured]] = {name: [] for name in wanted}
    with build_directory() as directory:
        for number in range(options.rounds):
            names = list(wanted)
            at = number % len(names)
            for name in names[at:] + names[:at]:  # the first of a round is not always the same
                with new_directory(directory) as place:
                    found[name].append(measure(wanted[name], place, options.count))
                    print(f"round {number + 1}: {name}: {found[name][-1]}", flush=True)
    _show(wanted, found)
    labels = {name: kind.name for name, kind in wanted.items()}
    (BUILD_DIR / "rivals.svg").write_text(_draw(labels, found, machine_line()))


def _sample(found: Measured) -> Sample:
    return {
        "messages_per_s": found.rate,
        "bytes_each": found.memory_bytes,
        "last_ms": found.burst_s * 1e3,
        "p99_ms": found.late_p99_ms,
        "left_percent": 100 * found.left,
    }


DRAWN: Final = {
    "scheduling": "messages_per_s",
    "due at one instant": "last_ms",
    "lateness at 5,000/s": "p99_ms",
    "pending records": "bytes_each",
    "left after kill -9": "left_percent",
}
"""What is drawn, and the metric of each."""


def _draw(labels: Mapping[str, str], found: Mapping[str, Sequence[Measured]], subtitle: str) -> str:
    """Return the figures of all rivals as SVG; `labels` are the names of those that were found."""
    results = [
        Result(what, labels[name], dict(enumerate(map(_sample, runs))))
        for what in DRAWN
        for name, runs in found.items()
    ]
    return plot(results, DRAWN, subtitle)


def _show(wanted: dict[str, type[Rival]], found: dict[str, list[Measured]]) -> None:
    print(
        "\n| | scheduled a second | bytes of memory each | all due at once, last one, s "
        "| lateness at 5,000/s, p50 and p99, ms | left after kill -9 |\n|---|---|---|---|---|---|"
    )
    for name, runs in found.items():

        def median(of: Callable[[Measured], float], runs: list[Measured] = runs) -> float:
            return Figure(tuple(map(of, runs))).median

        late = f"{median(lambda each: each.late_p50_ms):.1f}, "
        late += f"{median(lambda each: each.late_p99_ms):.1f}"
        early = sum(each.early for each in runs)
        print(
            f"| {wanted[name].name} | {median(lambda each: each.rate):,.0f} "
            f"| {median(lambda each: each.memory_bytes):,.0f} "
            f"| {median(lambda each: each.burst_s):.2f} | {late}"
            f"{f' ({early} early)' if early else ''} "
            f"| {100 * min(each.left for each in runs):.0f} % |"
        )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--only", nargs="+", choices=list(RIVALS), default=list(RIVALS))
    options = parser.parse_args()
    try:
        run(options)
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    # A benchmark that is stopped ends its processes.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    sys.exit(main())
