"""Lateness of timers in memory while 100,000 timers that are only on the disk are due.

    make bench-cold                            # or: python -m perf.cold
    python -m perf.cold --rounds 1 --count 20000

It produces cold timers, each in a frame of its own and due in another order than in the log, stops
the broker, drops the log from the page cache and starts the broker again. Then it sends hot timers
to other topics, 1,000 a second, and measures their lateness: once with nothing else due (idle),
once while all cold ones fall due within a second (beside). The result is the median over the rounds
of the ratio of the two p99; it must be below 2. After that, three times as many cold timers fall
due within a second, and nothing else: how many are delivered a second until the last one? Prints a
table; exit status 1 if the ratio is not met, or if cold timers are missing afterwards.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from perf.brokers import (
    PARTITION_COUNT,
    Served,
    build_client,
    create_topics,
    find_broker_command,
    new_directory,
)
from perf.figures import Figure
from perf.machine import BenchError, build_directory, machine_line

RATIO_MAX: Final = 2.0
COUNT: Final = 100_000
VALUE_BYTES: Final = 1_024
SPREAD_MS: Final = 1_000
STEP: Final = 7_919
"""A prime, so that neighbours in the log are due far from each other."""

HOT_COUNT: Final = 5_000
HOT_PER_S: Final = 1_000
HOT_LEAD_MS: Final = 2_000
COLD_LEAD_MS: Final = 1_000
"""How long hot timers arrive before the cold ones are due."""

PREPARE_S: Final = 20.0
PREPARE_EACH_S: Final = 0.0003
"""From sending the first cold timer to its due time: to send all, restart and measure idle."""

POLL_S: Final = 0.02
LIMIT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Round:
    """Lateness of hot timers, p99 ms, and how many cold ones were delivered a second."""

    idle_ms: float
    beside_ms: float
    cold_per_s: float


class Harness:
    """One data directory, and the brokers that serve it one after the other."""

    def __init__(self, client: Path, directory: Path, flush: str) -> None:
        self._client = client
        self._directory = directory
        data = ["--data-dir", str(directory / "data"), "--flush", flush]
        ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        self._command = [str(find_broker_command()), "serve", *data, *ports]

    @contextmanager
    def serve(self) -> Iterator[Served]:
        """A broker, stopped cleanly at the end."""
        with (self._directory / "log").open("a") as log:
            served = Served(self._command, log)
            try:
                yield served
            finally:
                served.stop(is_signalled=True)

    def send_cold(self, address: str, count: int, due_ms: int) -> None:
        """Send the cold timers, each in a request of its own."""
        settings: dict[str, Any] = {"bootstrap.servers": address, "batch.num.messages": 1}
        settings |= {"linger.ms": 0, "queue.buffering.max.messages": count + 1, "log_level": 3}
        producer = Producer(settings)
        failed: list[str] = []
        for index in range(count):
            due = due_ms + index * STEP % SPREAD_MS
            headers: list[tuple[str, bytes]] = [("x-deliver-at", b"%d" % due)]
            producer.produce(
                "cold",
                bytes(VALUE_BYTES),
                partition=index % PARTITION_COUNT,
                headers=headers,
                on_delivery=lambda error, _: failed.append(str(error)) if error else None,
            )
            producer.poll(0)
        if producer.flush(LIMIT_S) or failed:
            raise BenchError(f"cold timers were not accepted: {failed[:1]}")

    def drop_cache(self) -> None:
        """Drop the log from the page cache."""
        for path in (self._directory / "data" / "commitlog").iterdir():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    def hot_p99_ms(self, address: str, topic: str) -> float:
        """Return the lateness of hot timers."""
        load = ["--count", str(HOT_COUNT), "--size", "200", "--rate", str(HOT_PER_S)]
        place = ["--brokers", address, "--topic", topic, "--partitions", str(PARTITION_COUNT)]
        command = [str(self._client), "lateness", *place, *load, "--lead-ms", str(HOT_LEAD_MS)]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode:
            raise BenchError(said.stderr.strip())
        return float(json.loads(said.stdout)["p99_ms"])

    def await_cold(self, address: str, count: int) -> None:
        """Read all cold timers."""
        load = ["--count", str(count), "--size", str(VALUE_BYTES)]
        place = ["--brokers", address, "--topic", "cold", "--partitions", str(PARTITION_COUNT)]
        command = [str(self._client), "consume", *place, *load]
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        if said.returncode:
            raise BenchError(said.stderr.strip())


def pending(served: Served) -> int:
    """Return how many timers are pending."""
    with urllib.request.urlopen(f"http://{served.admin}/metrics", timeout=LIMIT_S) as answer:
        found = re.search(rb"\nlatermq_pending_timers (\S+)", answer.read())
    assert found is not None
    return int(float(found[1]))


def measure_rate(harness: Harness, count: int) -> float:
    """Return how many cold timers are delivered a second, all due within one."""
    due_s = time.time() + PREPARE_S + count * PREPARE_EACH_S
    with harness.serve() as broker:
        create_topics(broker.address, ("cold",), PARTITION_COUNT, {})
        harness.send_cold(broker.address, count, int(due_s * 1_000))
    harness.drop_cache()
    with harness.serve() as broker:
        if time.time() > due_s or pending(broker) != count:
            raise BenchError("no time left to prepare: the machine is too slow, or busy")
        time.sleep(due_s - time.time())
        while pending(broker):
            time.sleep(POLL_S)
        return count / (time.time() - due_s)


def run_round(harness: Harness, count: int) -> tuple[float, float]:
    """Return the lateness of hot timers, p99 ms: idle and beside cold ones, on a new directory."""
    due_s = time.time() + PREPARE_S + count * PREPARE_EACH_S
    with harness.serve() as broker:
        create_topics(broker.address, ("cold", "idle", "beside"), PARTITION_COUNT, {})
        harness.send_cold(broker.address, count, int(due_s * 1_000))
    harness.drop_cache()
    with harness.serve() as broker:
        idle_ms = harness.hot_p99_ms(broker.address, "idle")
        rest_s = due_s - (COLD_LEAD_MS + HOT_LEAD_MS) / 1_000 - time.time()
        if rest_s < 0:
            raise BenchError("no time left to prepare: the machine is too slow, or busy")
        # Nothing is read meanwhile, so the log stays out of the page cache.
        time.sleep(rest_s)
        beside_ms = harness.hot_p99_ms(broker.address, "beside")
        harness.await_cold(broker.address, count)
    return idle_ms, beside_ms


def run(options: argparse.Namespace) -> bool:
    """Measure and print; returns whether the median ratio is below the bound."""
    print(machine_line())
    client = build_client()
    rounds = []
    with build_directory() as directory:
        for _ in range(options.rounds):
            with new_directory(directory) as place:
                late_ms = run_round(Harness(client, place, options.flush), options.count)
            with new_directory(directory) as place:
                rate = measure_rate(Harness(client, place, options.flush), 3 * options.count)
            rounds.append(Round(*late_ms, rate))
    ratio = Figure(tuple(each.beside_ms / each.idle_ms for each in rounds))
    print(f"flush = {options.flush}, {options.count} cold timers due within {SPREAD_MS} ms\n")
    print("| round | p99 idle, ms | p99 beside, ms | ratio | cold ones a second |")
    print("|---|---|---|---|---|")
    for number, each in enumerate(rounds, 1):
        figures = f"{each.idle_ms:.2f} | {each.beside_ms:.2f} | {each.beside_ms / each.idle_ms:.2f}"
        print(f"| {number} | {figures} | {each.cold_per_s:,.0f} |")
    verdict = "met" if ratio.median < RATIO_MAX else "MISSED"
    print(f"\nratio {ratio.median:.2f} [{ratio.min:.2f} .. {ratio.max:.2f}]: {verdict}")
    return ratio.median < RATIO_MAX


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=COUNT, help="cold timers (100000)")
    parser.add_argument("--flush", choices=["async", "sync"], default="async")
    options = parser.parse_args()
    try:
        return 0 if run(options) else 1
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
