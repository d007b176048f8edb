"""Throughput and latency with a slave, relative to none, and how fast a new slave catches up.

    make bench-replication                     # or: python -m perf.replication
    python -m perf.replication --rounds 1 --mb 200
    python -m perf.replication --latency --flush sync

Each round measures, in turn and each on new data directories: a broker alone, one with a slave and
async replication, and one with sync replication; both nodes are on this machine. Then a slave that
has nothing copies the log of a master that nobody uses, beside a plain copy of these segments with
an fdatasync at the end. Prints rates, ratios within a round, and CPU seconds of each process for a
GB of records.

With --latency each round sends records one at a time, with acks=1 and then with acks=all, to each
of the three. Prints how long one took, and ratios to a broker alone within a round.
"""

import argparse
import json
import os
import socket
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
    find_broker_command,
    new_directory,
)
from perf.figures import Figure
from perf.keys import Admin
from perf.machine import BenchError, await_idle, build_directory, cpu_s, machine_line

RECORD_BYTES: Final = 1_024
MIB: Final = 1 << 20
COPY_BYTES: Final = 4 * MIB
LIMIT_S: Final = 120.0
WAIT_S: Final = 0.02
LATENCY_COUNT: Final = 2_000
ACKS: Final = ("1", "all")
MODES: Final = ("none", "async", "sync")
CONFIG: Final = """\
[disk]
refuse_percent = 100
[index]
keys = false
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One measured load.

    Attributes:
        mb_per_s: of records, until the last acknowledgement.
        behind_s: how much later the slave had everything on its disk.
        master_cpu_s_per_gb, slave_cpu_s_per_gb: of records, until then.
    """

    mb_per_s: float
    behind_s: float = 0.0
    master_cpu_s_per_gb: float = 0.0
    slave_cpu_s_per_gb: float = 0.0


class Slave:
    """A slave's process; it tries until its master is there."""

    def __init__(self, place: Path, master: str) -> None:
        self.admin_address = _free_address()
        self._log = place / "slave.log"
        command = _command(place, "slave", "--role", "slave", "--master", master)
        command += ["--admin", self.admin_address]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.pid = self._process.pid

    def await_caught_up(self) -> None:
        """Wait for its ready line."""
        assert self._process.stdout is not None
        if "role=slave" not in self._process.stdout.readline():
            raise BenchError(f"the slave did not become ready: {self._log.read_text()[-500:]}")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def at(self) -> tuple[int, int]:
        """What it has received, and what is durable; (0, 0) before it answers."""
        try:
            found = Admin(self.admin_address).get("replication")
        except (OSError, BenchError):
            return 0, 0
        return int(found["received"] or 0), int(found["durable"] or 0)

    def await_durable(self, pos: int) -> None:
        """Wait until it has everything below a log position on its disk."""
        limit_s = time.monotonic() + LIMIT_S
        while self.at()[1] < pos:
            if time.monotonic() > limit_s:
                raise BenchError(f"the slave does not come to {pos}")
            time.sleep(WAIT_S)


def _command(place: Path, name: str, *more: str) -> list[str]:
    config = place / "latermq.toml"
    config.write_text(CONFIG)
    command = [str(find_broker_command()), "serve", "--config", str(config), *more]
    return [*command, "--data-dir", str(place / name), "--listen", "127.0.0.1:0"]


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


class Harness:
    """What all runs share."""

    def __init__(self, client: Path, directory: Path, options: argparse.Namespace) -> None:
        self._client = client
        self._directory = directory
        self._count = options.mb * 1_000_000 // RECORD_BYTES
        self._flush = options.flush

    def _produce(self, address: str) -> float:
        """Send the records; return MB/s."""
        place = ["--brokers", address, "--topic", "bench", "--partitions", str(PARTITION_COUNT)]
        load = ["--count", str(self._count), "--size", str(RECORD_BYTES)]
        command = [str(self._client), "produce", *place, *load]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode:
            raise BenchError(said.stderr.strip())
        result = json.loads(said.stdout)
        return float(result["bytes"] / (result["end_s"] - result["begin_s"]) / 1e6)

    @contextmanager
    def _serve(self, place: Path, mode: str, address: str) -> Iterator[Served]:
        """A master that waits for a slave at `address`; it serves before one is there."""
        more = ["--flush", self._flush, "--replication", mode, "--replication-listen", address]
        more += ["--alone"] if mode != "none" else []
        command = [*_command(place, "master", *more), "--admin", "127.0.0.1:0"]
        with (place / "master.log").open("w") as log:
            served = Served(command, log)
            try:
                create_topics(served.address, ("bench",), PARTITION_COUNT, {})
                yield served
            finally:
                served.stop(is_signalled=True)

    @contextmanager
    def _serve_pair(self, mode: str) -> Iterator[tuple[Served, Slave | None]]:
        """A broker with that mode of replication, and its slave, both idle."""
        with new_directory(self._directory) as place, ExitStack() as stack:
            address = _free_address()
            slave = None if mode == "none" else Slave(place, address)
            if slave is not None:
                stack.callback(slave.stop)
            served = stack.enter_context(self._serve(place, mode, address))
            if slave is not None:
                slave.await_caught_up()
                while Admin(served.admin).get("replication")["solo"]:
                    time.sleep(WAIT_S)
            await_idle(served.pid)
            yield served, slave

    def latency_ms(self, mode: str, acks: str) -> float:
        """Return how long one record takes, the median in ms."""
        with self._serve_pair(mode) as (served, _):
            command = [sys.executable, "-m", "perf.latency", "one-at-a-time", "--acks", acks]
            command += ["--brokers", served.address, "--topic", "bench"]
            command += ["--count", str(LATENCY_COUNT), "--size", str(RECORD_BYTES)]
            said = subprocess.run(command, capture_output=True, text=True, check=False)
            if said.returncode:
                raise BenchError(said.stderr.strip())
            return float(json.loads(said.stdout)["p50_ms"])

    def produce(self, mode: str) -> Run:
        """Load a broker with that mode of replication."""
        with self._serve_pair(mode) as (served, slave):
            before_s, slave_before_s = cpu_s(served.pid), 0.0 if slave is None else cpu_s(slave.pid)
            rate = self._produce(served.address)
            begin_s = time.monotonic()
            if slave is not None:
                slave.await_durable(_end(served))
            gigabytes = self._count * RECORD_BYTES / 1e9
            return Run(
                rate,
                time.monotonic() - begin_s,
                (cpu_s(served.pid) - before_s) / gigabytes,
                0.0 if slave is None else (cpu_s(slave.pid) - slave_before_s) / gigabytes,
            )

    def catch_up(self) -> tuple[Run, float]:
        """Let a new slave copy a log; return that, and the MB/s of a plain copy."""
        with new_directory(self._directory) as place, ExitStack() as stack:
            address = _free_address()
            served = stack.enter_context(self._serve(place, "async", address))
            self._produce(served.address)
            await_idle(served.pid)
            size = _end(served)
            copied = _copy(place / "master" / "commitlog", place / "copy", size)
            before_s = cpu_s(served.pid)
            slave = Slave(place, address)
            stack.callback(slave.stop)
            limit_s = time.monotonic() + LIMIT_S
            while not (first := slave.at()[0]):
                if time.monotonic() > limit_s:
                    raise BenchError("the slave does not begin")
                time.sleep(WAIT_S)
            begin_s, slave_before_s = time.monotonic(), cpu_s(slave.pid)
            slave.await_durable(size)
            rate = (size - first) / 1e6 / (time.monotonic() - begin_s)
            master = (cpu_s(served.pid) - before_s) / size * 1e9
            spent = (cpu_s(slave.pid) - slave_before_s) / (size - first) * 1e9
            return Run(rate, 0.0, master, spent), copied


def _end(served: Served) -> int:
    return int(Admin(served.admin).get("replication")["end"])


def _copy(source: Path, target: Path, size: int) -> float:
    """Copy so much of a log; return MB/s."""
    target.mkdir()
    begin_s, left = time.monotonic(), size
    for path in sorted(source.glob("[0-9]*")):
        with path.open("rb") as reader, (target / path.name).open("wb") as writer:
            while left > 0 and (data := reader.read(min(COPY_BYTES, left))):
                writer.write(data)
                left -= len(data)
            writer.flush()
            os.fdatasync(writer.fileno())
    return size / 1e6 / (time.monotonic() - begin_s)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    print(machine_line())
    client = build_client()
    found: dict[str, list[Run]] = {mode: [] for mode in MODES}
    catch_ups: list[tuple[Run, float]] = []
    with build_directory() as directory:
        harness = Harness(client, directory, options)
        print("\n| round | none, MB/s | async | sync | a new slave | plain copy |")
        print("|---|---|---|---|---|---|")
        for number in range(options.rounds):
            for at in range(len(MODES)):  # the first of a round is not always the same one
                mode = MODES[(number + at) % len(MODES)]
                found[mode].append(harness.produce(mode))
            catch_ups.append(harness.catch_up())
            rates = " | ".join(f"{found[mode][-1].mb_per_s:,.0f}" for mode in MODES)
            new, copied = catch_ups[-1]
            print(f"| {number + 1} | {rates} | {new.mb_per_s:,.0f} | {copied:,.0f} |", flush=True)
    _conclude(found, catch_ups)


def _conclude(found: dict[str, list[Run]], catch_ups: list[tuple[Run, float]]) -> None:
    print("\n| | of none | slave behind at the end, s | CPU of the master, s/GB | of the slave |")
    print("|---|---|---|---|---|")
    alone = found["none"]
    for mode in MODES:
        runs = found[mode]
        pairs = zip(runs, alone, strict=True)
        ratio = Figure(tuple(each.mb_per_s / other.mb_per_s for each, other in pairs))
        behind = Figure(tuple(each.behind_s for each in runs))
        master = Figure(tuple(each.master_cpu_s_per_gb for each in runs))
        slave = Figure(tuple(each.slave_cpu_s_per_gb for each in runs))
        print(
            f"| {mode} | {ratio.median:.2f} [{ratio.min:.2f} .. {ratio.max:.2f}] "
            f"| {behind.median:.2f} | {master.median:.2f} | {slave.median:.2f} |"
        )
    ratio = Figure(tuple(new.mb_per_s / copied for new, copied in catch_ups))
    master = Figure(tuple(new.master_cpu_s_per_gb for new, _ in catch_ups))
    slave = Figure(tuple(new.slave_cpu_s_per_gb for new, _ in catch_ups))
    print(
        f"\na new slave: {ratio.median:.2f} [{ratio.min:.2f} .. {ratio.max:.2f}] of a plain copy, "
        f"CPU of the master {master.median:.2f} s/GB, of the slave {slave.median:.2f} s/GB"
    )


def run_latency(options: argparse.Namespace) -> None:
    """Measure single records, and print."""
    print(machine_line())
    found: dict[tuple[str, str], list[float]] = {
        (mode, acks): [] for mode in MODES for acks in ACKS
    }
    with build_directory() as directory:
        harness = Harness(build_client(), directory, options)
        for number in range(options.rounds):
            cases = list(found)
            at = number % len(cases)
            for case in cases[at:] + cases[:at]:  # the first of a round is not always the same one
                found[case].append(harness.latency_ms(*case))
    print("\n| replication | acks | one record, ms | of none, same round |\n|---|---|---|---|")
    for (mode, acks), times in found.items():
        pairs = zip(times, found["none", acks], strict=True)
        ratio = Figure(tuple(each / alone for each, alone in pairs))
        median = Figure(tuple(times)).median
        spread = f"{ratio.median:.2f} [{ratio.min:.2f} .. {ratio.max:.2f}]"
        print(f"| {mode} | {acks} | {median:.2f} | {'' if mode == 'none' else spread} |")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mb", type=int, default=500, help="of values in a run (500)")
    parser.add_argument("--flush", choices=["async", "sync"], default="async")
    parser.add_argument("--latency", action="store_true", help="of single records instead")
    options = parser.parse_args()
    try:
        (run_latency if options.latency else run)(options)
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
