"""How fast the log is written, how fast a broker starts, and how much memory its queues take.

    make bench-recovery                        # or: python -m perf.recovery
    python -m perf.recovery --only clean --gib 10

    append    frames into the log, and the same bytes by pwrite and fdatasync alone, in turn
    clean     from the process's start until it is ready, with a log of --gib GiB
    unclean   the same after a kill, when all of the log follows the last checkpoint
    queues    memory of a broker with 10,000 queues

Logs are made in this process, by the broker's own code; starts are of real processes, whose page
cache of the log is dropped first. Prints a table; exit status 1 if a goal is missed.
"""

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from appliance.broker import Broker
from appliance.config.config import Config
from appliance.kafka_facade import KAFKA_FACADE
from appliance.system.clock import SystemClock
from appliance.system.files import OsFileSystem
from appliance.units import GIB, KIB, MIB
from perf.brokers import find_broker_command
from perf.machine import BenchError, build_directory, machine_line
from perf.wire import produce_request

CLEAN_MAX_S: Final = 0.5
UNCLEAN_MIN_GB_S: Final = 1.0
QUEUES: Final = 10_000
TOPICS: Final = 20
RUNS: Final = 5
FLUSH_BYTES: Final = 4 * MIB
HOUSEKEEP_BYTES: Final = 64 * MIB
TURN_BYTES: Final = MIB
LIMIT_S: Final = 120.0

RECOVERED: Final = re.compile(r"recovered after .* replayed (\d+) frames, .* in ([\d.]+) (ms|s)\b")


@dataclass(frozen=True, slots=True)
class Load:
    """What is produced: batch size in records, and record size in bytes."""

    name: str
    records: int
    value_bytes: int

    def request(self) -> bytes:
        return produce_request("t", 0, [bytes(self.value_bytes)] * self.records)


LOADS: Final = (Load("100 x 1 KiB", 100, KIB), Load("1 x 200 B", 1, 200))


class Writer:
    """A broker in this process, without sockets."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        config = Config(data_dir=directory, **settings)
        self.broker = Broker(SystemClock(), OsFileSystem(), config, KAFKA_FACADE)
        for _ in self.broker.recover():
            pass
        if self.broker.topics.find("t") is None:
            self.broker.topics.create("t", 1, {})
        self.broker.flush()
        self._session = self.broker.open_session(lambda _: "only Produce is served here")
        self._housekept_pos = 0

    def take(self, data: bytes) -> None:
        """Let the broker handle requests that arrive in one read from a socket."""
        session, broker = self._session, self.broker
        start = 0
        while start < len(data):
            room = session.get_buffer()
            size = min(len(data) - start, len(room))
            room[:size] = data[start : start + size]
            start += size
            session.received(size, now_ns=broker.clock.wall_ns())
            self._end_turn()
            while session.yielded or session.paused:
                session.resume(now_ns=broker.clock.wall_ns())
                self._end_turn()
        if session.close_reason is not None:
            raise BenchError(session.close_reason)

    def _end_turn(self) -> None:
        self.broker.commit()
        self._session.compact()
        # Nobody reads the answers, so they need not wait for a flush.
        self._session.output(self.broker.wrote_pos)

    def fill(self, load: Load, size_bytes: int) -> None:
        """Produce until the log has this size."""
        request = load.request()
        turn = request * max(1, TURN_BYTES // len(request))
        broker = self.broker
        while broker.wrote_pos < size_bytes:
            self.take(turn)
            if broker.wrote_pos - broker.flushed_pos > FLUSH_BYTES:
                broker.flush()
            if broker.wrote_pos - self._housekept_pos > HOUSEKEEP_BYTES:
                self.housekeep()
        broker.flush()

    def housekeep(self) -> None:
        """Do the pump's other work."""
        self._housekept_pos = self.broker.wrote_pos
        self.broker.housekeep()
        spare = self.broker.log.begin_spare()
        if spare is not None:
            spare.run()


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `is_met` is None where there is no goal."""

    name: str
    value: str
    note: str = ""
    is_met: bool | None = None


def append(root: Path, options: argparse.Namespace) -> Iterator[Row]:
    """MB/s and frames/s of the log, and of the same bytes written raw, in alternating runs."""
    for load in LOADS:
        size_bytes = int(options.append_mib * MIB) // (1 if load.records > 1 else 4)
        logged: list[tuple[float, float]] = []
        raw: list[float] = []
        for run in range(RUNS):
            directory = root / f"append-{run}"
            writer = Writer(directory / "data", flush="sync")
            begin_pos = writer.broker.wrote_pos
            begin_s = time.perf_counter()
            writer.fill(load, begin_pos + size_bytes)
            passed_s = time.perf_counter() - begin_s
            written = writer.broker.wrote_pos - begin_pos
            frames = writer.broker.collect_metrics().accepted_frames
            logged.append((written / passed_s / 1e6, frames / passed_s))
            writer.broker.abandon()
            raw.append(written / write_raw(directory / "raw", written) / 1e6)
            shutil.rmtree(directory)
        ratio = median(log[0] / alone for log, alone in zip(logged, raw, strict=True))
        yield Row(
            f"append {load.name}",
            f"{median(each[0] for each in logged):.0f} MB/s",
            f"{median(each[1] for each in logged):,.0f} frames/s; raw {median(raw):.0f} MB/s, "
            f"ratio {ratio:.2f}",
        )


def write_raw(path: Path, size_bytes: int) -> float:
    """Seconds to write this many bytes as the log does: turn by turn, a sync after some MiB."""
    data = bytes(TURN_BYTES)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, GIB)
        os.fdatasync(fd)
        begin_s = time.perf_counter()
        unsynced = 0
        for at in range(0, size_bytes, TURN_BYTES):
            os.pwrite(fd, data[: size_bytes - at], at)
            unsynced += TURN_BYTES
            if unsynced > FLUSH_BYTES:
                os.fdatasync(fd)
                unsynced = 0
        os.fdatasync(fd)
        return time.perf_counter() - begin_s
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class Start:
    """How long a start took: the process until it was ready, and its recovery."""

    ready_s: float
    recovery_s: float
    frames: int
    rss_bytes: int


@contextmanager
def served(data_dir: Path) -> Iterator[tuple[Start, str, subprocess.Popen[str]]]:
    """Serve a directory by a process that is killed at the end; yield its start and address."""
    log = data_dir.with_name(data_dir.name + ".log")
    addresses = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    command = [str(find_broker_command()), "serve", "--data-dir", str(data_dir), *addresses]
    begin_s = time.perf_counter()
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        ready_s = time.perf_counter() - begin_s
        found = RECOVERED.search(log.read_text())
        if "ready" not in line or found is None:
            raise BenchError(f"no start: {line} {log.read_text()[-1_000:]}")
        address = next(word for word in line.split() if word.startswith("kafka="))
        recovery_s = float(found[2]) / (1_000 if found[3] == "ms" else 1)
        rss = psutil.Process(process.pid).memory_info().rss
        start = Start(ready_s, recovery_s, int(found[1]), rss)
        yield start, address.removeprefix("kafka="), process
    finally:
        process.kill()
        process.communicate()


def drop_caches(directory: Path) -> None:
    """Drop the cached pages of all files below."""
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def read_rate(directory: Path) -> float:
    """GB/s at which the log is read from the disk, without processing."""
    drop_caches(directory)
    buffer = bytearray(4 * MIB)
    total = 0
    begin_s = time.perf_counter()
    for path in sorted(directory.glob("commitlog/*")):
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total / (time.perf_counter() - begin_s) / 1e9


def clean(root: Path, options: argparse.Namespace) -> Iterator[Row]:
    """A start after a clean stop: nothing but the checkpoint is read."""
    empty = start_stopped(root / "empty", lambda _: None)
    data_dir = root / "clean"
    size_bytes = int(options.gib * GIB)

    def fill(writer: Writer) -> None:
        writer.fill(LOADS[0], size_bytes)

    starts = start_stopped(data_dir, fill)
    shutil.rmtree(data_dir)
    recovery_s = median(each.recovery_s for each in starts)
    process_s = median(each.ready_s for each in empty)
    yield Row(
        f"clean start, {options.gib:g} GiB",
        f"{recovery_s * 1e3:.0f} ms",
        f"ready after {median(each.ready_s for each in starts):.2f} s, with an empty log after "
        f"{process_s:.2f} s; {starts[0].frames} frames replayed; goal {CLEAN_MAX_S} s",
        median(each.ready_s for each in starts) - process_s < CLEAN_MAX_S,
    )


def start_stopped(data_dir: Path, fill: Callable[[Writer], None]) -> list[Start]:
    """Make a log, stop cleanly, and start several times."""
    writer = Writer(data_dir, flush="async")
    fill(writer)
    writer.broker.close()
    starts = []
    for _ in range(RUNS):
        drop_caches(data_dir)
        with served(data_dir) as (start, _, process):
            starts.append(start)
            process.terminate()
            process.wait(LIMIT_S)
    return starts


def unclean(root: Path, options: argparse.Namespace) -> Iterator[Row]:
    """A start after a kill: all that follows the checkpoint is read, checked and applied."""
    for load in LOADS:
        size_bytes = int(options.unclean_gib * GIB) // (1 if load.records > 1 else 8)
        data_dir = root / "unclean"
        writer = Writer(data_dir, flush="async", checkpoint_interval_bytes=64 * GIB)
        writer.fill(load, size_bytes)
        writer.broker.abandon()
        rates, frames = [], []
        raw = read_rate(data_dir)
        for _ in range(RUNS):
            copy = root / "again"
            # A start changes the directory: each one gets a fresh copy.
            subprocess.run(["cp", "-a", "--reflink=auto", data_dir, copy], check=True)
            drop_caches(copy)
            with served(copy) as (start, _, _):
                rates.append(size_bytes / start.recovery_s / 1e9)
                frames.append(start.frames / start.recovery_s)
            shutil.rmtree(copy)
        shutil.rmtree(data_dir)
        rate = median(rates)
        yield Row(
            f"unclean start, {load.name}",
            f"{rate:.2f} GB/s",
            f"{median(frames):,.0f} frames/s of {size_bytes / GIB:g} GiB after the checkpoint; "
            f"reading alone {raw:.2f} GB/s; goal {UNCLEAN_MIN_GB_S} GB/s",
            rate >= UNCLEAN_MIN_GB_S if load.records > 1 else None,
        )


def queues(root: Path, _: argparse.Namespace) -> Iterator[Row]:
    """Memory of a broker with many queues that hold a record each, running and restarted."""
    data_dir = root / "queues"
    with served(data_dir) as (start, address, process):
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        names = [f"t{number}" for number in range(TOPICS)]
        topics = [NewTopic(name, QUEUES // TOPICS, 1) for name in names]
        for future in admin.create_topics(topics).values():
            future.result(LIMIT_S)
        made = psutil.Process(process.pid).memory_info().rss
        produce_to_all(address, names)
        filled = psutil.Process(process.pid).memory_info().rss
        process.terminate()
        process.wait(LIMIT_S)
    with served(data_dir) as (again, _, _):
        pass
    shutil.rmtree(data_dir)
    yield Row(
        f"memory, {QUEUES:,} queues",
        f"{filled / MIB:.0f} MiB",
        f"{start.rss_bytes / MIB:.0f} MiB without them, {made / MIB:.0f} MiB while they are empty, "
        f"{again.rss_bytes / MIB:.0f} MiB after a restart",
    )


def produce_to_all(address: str, names: Sequence[str]) -> None:
    """Produce a record to each partition of the topics."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), LIMIT_S) as connection:
        for name in names:
            partitions = range(QUEUES // len(names))
            requests = (produce_request(name, index, [bytes(100)]) for index in partitions)
            connection.sendall(b"".join(requests))
            for _ in partitions:
                size = int.from_bytes(_receive(connection, 4), "big")
                _receive(connection, size)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise BenchError("the broker closed the connection")
        data += piece
    return data


PARTS: Final = {"append": append, "clean": clean, "unclean": unclean, "queues": queues}


def main() -> int:
    """Measure the chosen parts, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(description="How fast the log is written and read at a start.")
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    parser.add_argument("--gib", type=float, default=10, help="log of the clean start")
    parser.add_argument("--unclean-gib", type=float, default=2, help="log of the unclean start")
    parser.add_argument("--append-mib", type=float, default=512, help="bytes of an append run")
    options = parser.parse_args()
    rows: list[Row] = []
    with build_directory() as directory:
        root = directory / "data-recovery"
        root.mkdir()
        try:
            for name, part in PARTS.items():
                if options.only in (None, name):
                    for row in part(root, options):
                        rows.append(row)
                        verdict = {None: "", True: "met", False: "MISSED"}[row.is_met]
                        print(f"| {row.name} | {row.value} | {row.note} | {verdict} |", flush=True)
        finally:
            shutil.rmtree(root, ignore_errors=True)
    print(machine_line())
    return 1 if any(row.is_met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
