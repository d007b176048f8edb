"""What a broker does with millions of pending timers: how fast it answers about them, and starts.

    make bench-pending                         # or: python -m perf.pending
    python -m perf.pending --count 50_000_000

Half of the records are due within a week, the others within eight years, in mixed order. Each tenth
has an id, and some of these are cancelled after the start (--named-every 0: none). The memory is
anonymous, half of it that of the frame cache at most. A start is from the process's begin until
it is ready, after a clean stop. Each request goes to the admin API seven times. At the end another
broker has --at-once records of 200 bytes that are all due in one millisecond, and a consumer waits
for them: when does the last one come?
"""

import argparse
import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import Final

from perf.brokers import (
    PARTITION_COUNT,
    Served,
    build_client,
    create_topics,
    find_broker_command,
    new_directory,
)
from perf.machine import BenchError, anonymous_mb, build_directory, machine_line

TOPIC: Final = "timers"
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
SPREADS_MS: Final = ((HOUR_MS, 7 * DAY_MS), (8 * DAY_MS, 3_000 * DAY_MS))
"""From when on, and for how long, each half is due."""

FAR_MS: Final = 400 * DAY_MS
LEAD_MS: Final = 8_000
LEAD_PER_MS: Final = 350
"""Records that one client schedules in a millisecond, at least."""

TIMES: Final = 7
CANCELLED: Final = 100_000
SETTLE_S: Final = 10.0
"""After a start the broker counts what is due within two days by seconds."""

LIMIT_S: Final = 600.0
SETTINGS: Final = "limits.pending_timers_max = 1_000_000_000\n"

REQUESTS: Final = (
    ("counts?step_ms=1000&count=3600", "forecast of an hour by seconds"),
    ("counts?step_ms=60000&count=2820", "forecast of 47 hours by minutes"),
    ("counts?step_ms=86400000&count=3650", "forecast of ten years by days"),
    (f"counts?topic={TOPIC}&step_ms=60000&count=60", "forecast of one topic"),
    ("?limit=1000", "list of the first 1,000"),
    ("?limit=1000&from={far}", "list of 1,000 from a year ahead on"),
    ("levels", "delay levels"),
)


def _start(directory: Path) -> tuple[Served, float]:
    """Start a broker, and return how long it took, in seconds."""
    config = directory / "latermq.toml"
    config.write_text(SETTINGS)
    command = [str(find_broker_command()), "serve", "--data-dir", str(directory / "data")]
    command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--flush", "async"]
    begin_s = time.monotonic()
    with (directory / "log").open("a") as log:
        served = Served([*command, "--config", str(config)], log)
    return served, time.monotonic() - begin_s


def _schedule(served: Served, client: Path, count: int, named_every: int) -> float:
    """Schedule records, and return how many a second."""
    begin_s = time.monotonic()
    for half, (lead_ms, spread_ms) in enumerate(SPREADS_MS):
        command = [str(client), "produce", "--brokers", served.address, "--topic", TOPIC]
        command += ["--partitions", str(PARTITION_COUNT), "--count", str(count // 2)]
        command += ["--size", "100", "--delay-ms", str(lead_ms)]
        command += ["--delay-spread-ms", str(spread_ms)]
        if named_every:
            command += ["--named-every", str(named_every), "--first", str(half * (count // 2))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchError(f"not all is scheduled: {done.stderr.strip()}")
    return count / (time.monotonic() - begin_s)


def _cancel(served: Served, client: Path, count: int, named_every: int) -> float:
    """Cancel records whose ids are spread over all, and return how many a second."""
    command = [str(client), "produce", "--brokers", served.address, "--topic", TOPIC]
    command += ["--partitions", str(PARTITION_COUNT), "--count", str(CANCELLED), "--size", "8"]
    every = max(count // CANCELLED // named_every, 1) * named_every
    command += ["--cancel-every", str(every)]
    begin_s = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"not all is cancelled: {done.stderr.strip()}")
    return CANCELLED / (time.monotonic() - begin_s)


def _all_at_once(client: Path, count: int) -> float:
    """Return how long after the due time of all the last one comes, ms."""
    lead_ms = LEAD_MS + count // LEAD_PER_MS
    with build_directory() as parent, new_directory(parent) as directory:
        served, _ = _start(directory)
        create_topics(served.address, (TOPIC,), PARTITION_COUNT, {})
        command = [str(client), "burst", "--brokers", served.address, "--topic", TOPIC]
        command += ["--partitions", str(PARTITION_COUNT), "--count", str(count), "--size", "200"]
        command += ["--lead-ms", str(lead_ms)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        served.stop(is_signalled=True)
    if done.returncode != 0:
        raise BenchError(f"not all came: {done.stderr.strip()}")
    return float(json.loads(done.stdout)["last_ms"])


def _ask(served: Served, request: str) -> tuple[float, float, float]:
    """Return the median, the least and the most of how long an answer took, ms."""
    far_ms = time.time_ns() // 1_000_000 + FAR_MS
    separator = "" if request.startswith("?") else "/"
    path = f"/api/v1/timers{separator}{request.format(far=far_ms)}"
    took_ms = []
    for _ in range(TIMES):
        begin_s = time.monotonic()
        with urllib.request.urlopen(f"http://{served.admin}{path}", timeout=LIMIT_S) as answer:
            json.load(answer)
        took_ms.append((time.monotonic() - begin_s) * 1e3)
    return median(took_ms), min(took_ms), max(took_ms)


def _metric(served: Served, name: str) -> int:
    """Return the value of a metric."""
    with urllib.request.urlopen(f"http://{served.admin}/metrics", timeout=LIMIT_S) as answer:
        found = re.search(rb"\nlatermq_%s (\S+)" % name.encode(), answer.read())
    assert found is not None
    return int(float(found[1]))


def _unloaded(served: Served) -> int:
    """Return how many timers are not in memory, about."""
    return _metric(served, "unloaded_timers")


def _wait_until_loaded(served: Served) -> tuple[float, int]:
    """Return how long it took to load what there is memory for, in seconds, and what is left."""
    begin_s = last_s = time.monotonic()
    left = -1
    while left and time.monotonic() < last_s + 2:
        before, left = left, _unloaded(served)
        if left != before:
            last_s = time.monotonic()
        time.sleep(0.1)
    return last_s - begin_s, left


def run(count: int, named_every: int) -> None:
    """Measure and print."""
    print(machine_line())
    client = build_client()
    with build_directory() as parent, new_directory(parent) as directory:
        served, empty_s = _start(directory)
        create_topics(served.address, (TOPIC,), PARTITION_COUNT, {})
        rate = _schedule(served, client, count, named_every)
        print(
            f"anonymous memory: {anonymous_mb(served.pid):,.0f} MB, {_unloaded(served):,} on disk"
        )
        print(f"\n{count:,} records of 100 bytes: {rate:,.0f} scheduled a second")
        pending = _metric(served, "pending_timers")
        served.stop(is_signalled=True)
        served, full_s = _start(directory)
        print(f"start: {full_s:.2f} s, of an empty broker {empty_s:.2f} s")
        loaded_s, left = _wait_until_loaded(served)
        print(f"loaded {loaded_s:.1f} s later; {left:,} timers are not in memory")
        print(f"anonymous memory then: {anonymous_mb(served.pid):,.0f} MB")
        print("\n| request | median, ms | least and most |\n|---|---|---|")
        time.sleep(SETTLE_S)
        for request, name in REQUESTS:
            middle, least, most = _ask(served, request)
            print(f"| {name} | {middle:.1f} | {least:.1f} .. {most:.1f} |", flush=True)
        if named_every:
            rate = _cancel(served, client, count, named_every)
            cancelled = pending - _metric(served, "pending_timers")
            print(
                f"\n{cancelled:,} cancelled, {rate:,.0f} a second; "
                f"{_metric(served, 'id_reads_total'):,} ids read from the disk; "
                f"{anonymous_mb(served.pid):,.0f} MB then"
            )
        served.stop(is_signalled=True)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--named-every", type=int, default=10)
    parser.add_argument("--at-once", type=int, default=10_000_000, help="0: not measured")
    options = parser.parse_args()
    try:
        run(options.count, options.named_every)
        if options.at_once:
            took_ms = _all_at_once(build_client(), options.at_once)
            print(f"\n{options.at_once:,} due in one millisecond: the last after {took_ms:,.0f} ms")
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
