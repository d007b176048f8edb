"""What a producer notices while segments are freed, and what a carry costs.

    make bench-retention                       # or: python -m perf.retention
    python -m perf.retention --gb 3 --segment-mb 512

A broker has 10,000 partitions and as many GB as asked for, a topic for each segment. Beside a
producer of 10 MB/s a probe produces one record after another and waits for each. Then all records
of one topic after the other are deleted: after each deletion a segment is freed. What the probe saw
from a deletion until its segment was gone is compared with what it saw in the same time before it.
Prints both, and the bytes that were carried for a GiB that was freed.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from perf.brokers import (
    Served,
    build_client,
    create_topics,
    delete_records,
    find_broker_command,
    new_directory,
)
from perf.keys import Admin
from perf.machine import BenchError, await_idle, build_directory, cpu_s, machine_line

MIB: Final = 1 << 20
GIB: Final = 1 << 30
PARTITION_COUNT: Final = 10_000
TOPIC_PARTITIONS_MAX: Final = 1_000
RECORD_BYTES: Final = 1_024
PROBE_BYTES: Final = 200
LOAD_BYTES: Final = 10_000
LOAD_PER_S: Final = 1_000
TURNS_PER_S: Final = 100
QUIET_S: Final = 5.0
LIMIT_S: Final = 120.0
CARRY_QUIET_S: Final = 25.0
"""The broker looks for what it can carry every ten seconds."""
CARRY_ROUNDS: Final = 16
CARRY_STEP_BYTES: Final = 64 * MIB
CARRY_SEGMENT_BYTES: Final = 320 * MIB
CONFIG: Final = """\
[store]
segment_size_bytes = {segment_bytes}
[retention]
check_interval_ms = 500
[topics]
partition_total_max = 20000
[index]
keys = false
"""


@dataclass
class Probe:
    """Produces one record after another on a thread of its own, and times each.

    Attributes:
        times: when each began, seconds, and how long it took, ms.
    """

    address: str
    times: list[tuple[float, float]] = field(default_factory=list)
    _is_over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Probe in this context.

        Raises:
            BenchError: a record was not acknowledged.
        """
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def _run(self) -> None:
        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 0, "acks": "all"})
        while not self._is_over.is_set():
            begin_s = time.monotonic()
            producer.produce("probe", bytes(PROBE_BYTES), partition=0)
            if producer.flush(LIMIT_S):
                return
            self.times.append((begin_s, (time.monotonic() - begin_s) * 1e3))

    def between(self, begin_s: float, end_s: float) -> list[float]:
        """The times of what began in that span, ms."""
        return [took_ms for at_s, took_ms in self.times if begin_s <= at_s < end_s]


def load(address: str) -> None:
    """Produce at a steady rate until standard input ends."""
    is_over = threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=await_end, daemon=True).start()
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "acks": "all"})
    begin_s, sent = time.monotonic(), 0
    while not is_over.is_set():
        for _ in range(LOAD_PER_S // TURNS_PER_S):
            producer.produce("load", bytes(LOAD_BYTES), partition=sent % 4)
            sent += 1
        producer.poll(0)
        is_over.wait(max(0.0, begin_s + sent / LOAD_PER_S - time.monotonic()))
    producer.flush(LIMIT_S)


@contextmanager
def loading(address: str) -> Iterator[None]:
    """Load a broker in this context, from a process of its own."""
    command = [sys.executable, "-m", "perf.retention", "--load", address]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        process.communicate(timeout=LIMIT_S)


@contextmanager
def serving(place: Path, segment_bytes: int, flush: str) -> Iterator[Served]:
    """A broker on a new data directory."""
    config = place / "latermq.toml"
    config.write_text(CONFIG.format(segment_bytes=segment_bytes))
    command = [str(find_broker_command()), "serve", "--config", str(config)]
    command += ["--data-dir", str(place / "data"), "--flush", flush]
    command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    with (place / "log").open("w") as log:
        served = Served(command, log)
        try:
            yield served
        finally:
            served.stop(is_signalled=True)


def send(client: Path, address: str, topic: str, partitions: int, count: int) -> None:
    """Send records of RECORD_BYTES as fast as they are taken."""
    place = ["--brokers", address, "--topic", topic, "--partitions", str(partitions)]
    command = [str(client), "produce", *place, "--count", str(count)]
    command += ["--size", str(RECORD_BYTES)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode:
        raise BenchError(said.stderr.strip())


@dataclass(frozen=True, slots=True)
class Span:
    """One deletion: when it began, when its segment was gone, and CPU seconds of the broker."""

    begin_s: float
    end_s: float
    cpu_s: float


class Course:
    """Fills a broker and frees it again."""

    def __init__(self, client: Path, broker: Served, count: int, segment_bytes: int) -> None:
        self._client = client
        self._broker = broker
        self._admin = Admin(broker.admin)
        self._segment_bytes = segment_bytes
        self._partitions = min(PARTITION_COUNT // count, TOPIC_PARTITIONS_MAX)
        self._topics = [f"old-{number}" for number in range(count)]

    def fill(self) -> None:
        """Create all topics, and fill a segment for each of the old ones."""
        address = self._broker.address
        create_topics(address, ("probe",), 1, {})
        create_topics(address, ("load",), 4, {})
        rest = PARTITION_COUNT - self._partitions * len(self._topics)
        for number in range(rest // TOPIC_PARTITIONS_MAX):
            create_topics(address, (f"idle-{number}",), TOPIC_PARTITIONS_MAX, {})
        for topic in self._topics:
            create_topics(address, (topic,), self._partitions, {})
            count = self._segment_bytes // RECORD_BYTES
            send(self._client, address, topic, self._partitions, count)

    def free(self) -> list[Span]:
        """Delete the records of one topic after the other; wait for each segment."""
        spans = []
        for topic in self._topics:
            time.sleep(QUIET_S)
            start, spent_s = self._start(), cpu_s(self._broker.pid)
            begin_s = time.monotonic()
            delete_records(self._broker.address, topic, self._partitions)
            while self._start() == start:
                if time.monotonic() - begin_s > LIMIT_S:
                    raise BenchError(f"nothing was freed after {topic} was emptied")
                time.sleep(0.05)
            time.sleep(1)
            spent_s = cpu_s(self._broker.pid) - spent_s
            spans.append(Span(begin_s, time.monotonic(), spent_s))
        return spans

    def _start(self) -> int:
        return int(self._admin.get("status")["log"]["start"])

    def metrics(self) -> dict[str, float]:
        """What was freed and carried."""
        names = ("freed_bytes", "carried_bytes", "recycled_segments")
        return {name: self._admin.metric(f"latermq_{name}_total") for name in names}


def measure_carry(client: Path, broker: Served, segment_bytes: int) -> None:
    """Print what it costs to carry records that are kept, between others that are deleted."""
    create_topics(broker.address, ("kept",), 4, {"retention.ms": "-1"})
    create_topics(broker.address, ("old",), 4, {})
    for _ in range(CARRY_ROUNDS):
        for topic, size in (("kept", CARRY_STEP_BYTES), ("old", 2 * CARRY_STEP_BYTES)):
            send(client, broker.address, topic, 4, size // RECORD_BYTES)
    await_idle(broker.pid)
    admin = Admin(broker.admin)

    def carried_bytes() -> float:
        return admin.metric("latermq_carried_bytes_total")

    spent_s, begin_s = cpu_s(broker.pid), time.monotonic()
    delete_records(broker.address, "old", 4)
    seen, end_s = 0.0, begin_s
    while time.monotonic() - end_s < CARRY_QUIET_S:
        time.sleep(0.1)
        if carried_bytes() > seen:
            seen, end_s = carried_bytes(), time.monotonic()
        if time.monotonic() - begin_s > LIMIT_S:
            break
    if not seen:
        raise BenchError("nothing was carried")
    spent_s = cpu_s(broker.pid) - spent_s
    freed = admin.metric("latermq_freed_bytes_total")
    print(
        f"\nrecords kept between others, segments of {segment_bytes // MIB} MiB: "
        f"{seen / GIB:.2f} GiB carried and {freed / GIB:.2f} GiB freed in {end_s - begin_s:.1f} s, "
        f"{spent_s / (seen / GIB):.2f} s of CPU time for each GiB carried"
    )


def _ranks(times_ms: list[float]) -> str:
    ranked = sorted(times_ms)
    count = len(ranked)
    p50, p99, p999 = (ranked[min(int(count * rank), count - 1)] for rank in (0.5, 0.99, 0.999))
    return f"{count:,} | {p50:.2f} | {p99:.2f} | {p999:.2f} | {ranked[-1]:.1f}"


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    print(machine_line())
    client = build_client()
    segment_bytes = options.segment_mb * MIB
    count = max(2, round(options.gb * 1e9 / segment_bytes))
    with (
        build_directory() as directory,
        new_directory(directory) as place,
        serving(place, segment_bytes, options.flush) as broker,
    ):
        course = Course(client, broker, count, segment_bytes)
        course.fill()
        await_idle(broker.pid)
        probe = Probe(broker.address)
        with loading(broker.address), probe.running():
            time.sleep(2)
            spans = course.free()
        freeing = [each for span in spans for each in probe.between(span.begin_s, span.end_s)]
        quiet = [
            each
            for span in spans
            for each in probe.between(span.begin_s - (span.end_s - span.begin_s), span.begin_s)
        ]
        found = course.metrics()
    print(f"\n{count} segments of {options.segment_mb} MiB, {options.flush} flush\n")
    print("| | records | p50, ms | p99 | p99.9 | longest |\n|---|---|---|---|---|---|")
    print(
        f"| nothing is freed | {_ranks(quiet)} |\n| while segments are freed | {_ranks(freeing)} |"
    )
    carried = found["carried_bytes"] / (found["freed_bytes"] / GIB)
    took_s = [span.end_s - span.begin_s for span in spans]
    print(
        f"\n{found['freed_bytes'] / 1e9:.1f} GB freed, {carried / 1e6:.2f} MB carried for each "
        f"GiB, {found['recycled_segments']:.0f} segments recycled; a deletion and its segment took "
        f"{min(took_s):.1f} to {max(took_s):.1f} s"
    )
    print(json.dumps({"found": found, "cpu_s": [round(span.cpu_s, 2) for span in spans]}))


def run_carry(options: argparse.Namespace) -> None:
    """Measure and print."""
    client = build_client()
    with (
        build_directory() as directory,
        new_directory(directory) as place,
        serving(place, CARRY_SEGMENT_BYTES, options.flush) as broker,
    ):
        measure_carry(client, broker, CARRY_SEGMENT_BYTES)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, default=10, help="GB of records (10)")
    parser.add_argument("--segment-mb", type=int, default=1_024, help="MiB of a segment (1024)")
    parser.add_argument("--flush", choices=["async", "sync"], default="sync")
    parser.add_argument("--carry-alone", action="store_true", help="only the cost of a carry")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        load(options.load)
        return 0
    try:
        if not options.carry_alone:
            run(options)
        run_carry(options)
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
