"""Sync flush into recycled segments, beside new ones and the disk alone.

    make bench-recycled                        # or: python -m perf.recycled
    python -m perf.recycled --rounds 1 --segment-mb 512

Each round measures, in turn and each on a new data directory: a broker whose measured records go to
a segment with the file of a freed one, the same broker with `store.recycle_segments = false`, one
with async flush, and pwrite with an fdatasync after every 4 MiB into a file that was written
before. Both sync brokers do the same before the measured part: they fill a segment, expire it, wait
until it is freed, and fill the next one. Prints the rates, and per round the ratios of sync flush
to the lower of async flush and the disk. The median on recycled segments must be at least 0.8; exit
status 1 if it is not.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perf.brokers import (
    PARTITION_COUNT,
    Served,
    build_client,
    create_topics,
    delete_records,
    find_broker_command,
    new_directory,
)
from perf.figures import Figure
from perf.keys import Admin
from perf.machine import BenchError, await_idle, build_directory, cpu_s, machine_line
from perf.memory import WarmMemory, warm_memory

RATIO_MIN: Final = 0.8
RECORD_BYTES: Final = 1_024
MIB: Final = 1 << 20
MEASURED_SHARE: Final = 0.9
"""Of a segment, so that the measured records are in one."""
FREED_SHARE: Final = 1.2
LIMIT_S: Final = 60.0
WAIT_S: Final = 0.05
CONFIG: Final = """\
[store]
segment_size_bytes = {segment_bytes}
recycle_segments = {is_recycling}
[retention]
check_interval_ms = 200
[index]
keys = false
"""


@dataclass(frozen=True, slots=True)
class Run:
    """MB/s, and CPU seconds of the broker for a GB; 0 for the disk."""

    mb_per_s: float
    cpu_s_per_gb: float = 0.0


class Harness:
    """What all runs share."""

    def __init__(self, client: Path, directory: Path, segment_bytes: int) -> None:
        self._client = client
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._count = int(MEASURED_SHARE * segment_bytes) // RECORD_BYTES

    @contextmanager
    def _serve(self, place: Path, *, flush: str, is_recycling: bool) -> Iterator[Served]:
        config = place / "latermq.toml"
        config.write_text(
            CONFIG.format(segment_bytes=self._segment_bytes, is_recycling=str(is_recycling).lower())
        )
        command = [str(find_broker_command()), "serve", "--config", str(config)]
        command += ["--data-dir", str(place / "data"), "--flush", flush]
        command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        with (place / "log").open("w") as log:
            served = Served(command, log)
            try:
                create_topics(served.address, ("bench",), PARTITION_COUNT, {})
                yield served
            finally:
                served.stop(is_signalled=True)

    def _say(self, *words: str) -> float:
        """Run the client; return its MB/s."""
        said = subprocess.run(
            [str(self._client), *words], capture_output=True, text=True, check=False
        )
        if said.returncode:
            raise BenchError(said.stderr.strip())
        result = json.loads(said.stdout)
        return float(result["bytes"] / (result["end_s"] - result["begin_s"]) / 1e6)

    def _produce(self, broker: Served, count: int) -> float:
        place = ["--brokers", broker.address, "--topic", "bench"]
        load = ["--count", str(count), "--size", str(RECORD_BYTES)]
        return self._say("produce", *place, *load, "--partitions", str(PARTITION_COUNT))

    def _measure(self, broker: Served, memory: WarmMemory | None) -> Run:
        await_idle(broker.pid)
        if memory is not None:
            memory.fill()
        begin_s = cpu_s(broker.pid)
        rate = self._produce(broker, self._count)
        spent_s = cpu_s(broker.pid) - begin_s
        return Run(rate, spent_s / (self._count * RECORD_BYTES / 1e9))

    def asynchronous(self, memory: WarmMemory | None) -> Run:
        """With async flush, on a new segment."""
        with (
            new_directory(self._directory) as place,
            self._serve(place, flush="async", is_recycling=False) as broker,
        ):
            return self._measure(broker, memory)

    def synced(self, memory: WarmMemory | None, *, is_recycling: bool) -> Run:
        """With sync flush, after a segment was freed."""
        with (
            new_directory(self._directory) as place,
            self._serve(place, flush="sync", is_recycling=is_recycling) as broker,
        ):
            admin = Admin(broker.admin)
            self._produce(broker, int(FREED_SHARE * self._segment_bytes) // RECORD_BYTES)
            delete_records(broker.address, "bench", PARTITION_COUNT)
            _await_freed(admin, self._segment_bytes)
            # Into the third segment, whose file was that of the first one.
            rest = 2 * self._segment_bytes + 4 * MIB - _end(admin)
            self._produce(broker, rest // RECORD_BYTES)
            kept = admin.metric("latermq_recycled_segments_total")
            if (kept > 0) != is_recycling or _end(admin) < 2 * self._segment_bytes:
                raise BenchError(f"{kept} segments were recycled, the log ends at {_end(admin)}")
            run = self._measure(broker, memory)
            if _end(admin) > 3 * self._segment_bytes:
                raise BenchError("the measured records went to two segments")
            return run

    def disk(self, memory: WarmMemory | None) -> Run:
        """Without a broker."""
        if memory is not None:
            memory.fill()
        with new_directory(self._directory) as place:
            blocks = ["--count", str(self._count * RECORD_BYTES // MIB), "--per-sync", "4"]
            file = ["--file", str(place / "file"), "--recycled"]
            return Run(self._say("limit-write", *blocks, *file))


def _end(admin: Admin) -> int:
    return int(admin.get("status")["log"]["flushed"])


def _await_freed(admin: Admin, pos: int) -> None:
    limit_s = time.monotonic() + LIMIT_S
    while admin.get("status")["log"]["start"] < pos:
        if time.monotonic() > limit_s:
            raise BenchError("the first segment was not freed")
        time.sleep(WAIT_S)
    # Its file takes the place of the next segment within a tenth of a second.
    time.sleep(0.3)


def run(options: argparse.Namespace) -> bool:
    """Measure and print; returns whether the bound is kept."""
    print(machine_line())
    client = build_client()
    found: dict[str, list[Run]] = {}
    with build_directory() as directory, ExitStack() as stack:
        memory = None if options.shared else stack.enter_context(warm_memory(directory))
        harness = Harness(client, directory, options.segment_mb * MIB)
        kinds = {
            "sync, recycled": lambda: harness.synced(memory, is_recycling=True),
            "sync, new": lambda: harness.synced(memory, is_recycling=False),
            "async": lambda: harness.asynchronous(memory),
            "disk, recycled": lambda: harness.disk(memory),
        }
        print("\n| round | " + " | ".join(f"{name}, MB/s" for name in kinds) + " |")
        print("|---" * (len(kinds) + 1) + "|")
        names = list(kinds)
        for number in range(options.rounds):
            for name in names[number % 4 :] + names[: number % 4]:
                found.setdefault(name, []).append(kinds[name]())
            rates = " | ".join(f"{found[name][-1].mb_per_s:,.0f}" for name in names)
            print(f"| {number + 1} | {rates} |", flush=True)
    return _conclude(found)


def _conclude(found: dict[str, list[Run]]) -> bool:
    print()
    is_met = True
    limits = [
        min(each.mb_per_s for each in pair)
        for pair in zip(found["async"], found["disk, recycled"], strict=True)
    ]
    for name, bound in (("sync, recycled", RATIO_MIN), ("sync, new", 0.0)):
        runs = found[name]
        ratio = Figure(
            tuple(each.mb_per_s / limit for each, limit in zip(runs, limits, strict=True))
        )
        cost = Figure(tuple(each.cpu_s_per_gb for each in runs))
        verdict = ("met" if ratio.median >= bound else "MISSED") if bound else ""
        print(
            f"{name}: {ratio.median:.2f} [{ratio.min:.2f} .. {ratio.max:.2f}] of the lower of "
            f"async and disk, {cost.median:.2f} CPU s/GB {verdict}"
        )
        is_met &= ratio.median >= bound
    return is_met


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--shared", action="store_true", help="leave the memory to others; figures spread more"
    )
    parser.add_argument("--segment-mb", type=int, default=1_024, help="MiB of a segment (1024)")
    try:
        return 0 if run(parser.parse_args()) else 1
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
