"""The processes of a benchmark: the broker, librdkafka's mock broker and the C client.

Starts them, stops them, and takes their CPU times. A measured process does nothing for anybody
else, so the growth of its CPU time over a run is what the run cost.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Self

import psutil
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

REPOSITORY: Final = Path(__file__).resolve().parent.parent
CLIENT_SOURCE: Final = REPOSITORY / "perf" / "client.c"
BUILD_DIR: Final = REPOSITORY / "build" / "perf"

START_LIMIT_S: Final = 60.0
STOP_LIMIT_S: Final = 60.0
CLIENT_LIMIT_S: Final = 330.0  # a little above the client's own TIME_LIMIT_S, which explains more

# Longer than the flush bound of async (500 ms): what a run left to be flushed counts for that run.
SETTLE_S: Final = 0.8

# Written before each run that fills the page cache: a little more than the run writes.
WARM_BYTES: Final = 1_200_000_000
WARM_PASSES_MAX: Final = 6
WARM_GAIN_MIN: Final = 1.25
_CHUNK_BYTES: Final = 1_000_000

TOPIC: Final = "bench"
PARTITION_COUNT: Final = 4


class MissingToolError(Exception):
    """Something to install; the message is one line that names it."""


class BenchError(Exception):
    """A measured process did not start, or failed; the message holds what it said."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of the client against one broker."""

    message_count: int
    payload_bytes: int
    seconds: float
    broker_cpu_s: float
    client_cpu_s: float
    other_cpu_share: float
    """CPU seconds per second that neither broker nor client used: 0 on a quiet machine."""

    @property
    def messages_per_s(self) -> float:
        return self.message_count / self.seconds

    @property
    def mb_per_s(self) -> float:
        return self.payload_bytes / self.seconds / 1e6

    @property
    def broker_cpu_s_per_gb(self) -> float:
        return self.broker_cpu_s / (self.payload_bytes / 1e9)

    @property
    def client_cpu_s_per_gb(self) -> float:
        return self.client_cpu_s / (self.payload_bytes / 1e9)


def build_client() -> Path:
    """Compile perf/client.c unless that was done since it changed.

    Raises:
        MissingToolError: there is no C compiler, or no librdkafka to compile against.
    """
    binary = BUILD_DIR / "client"
    if binary.exists() and binary.stat().st_mtime > CLIENT_SOURCE.stat().st_mtime:
        return binary
    compiler = shutil.which("cc")
    if compiler is None:
        raise MissingToolError("the benchmark's client needs a C compiler: apt-get install gcc")
    BUILD_DIR.mkdir(parents=True, exist_ok=True)
    includes = "#include <librdkafka/rdkafka.h>\n#include <librdkafka/rdkafka_mock.h>\n"
    preprocess = [compiler, "-E", "-x", "c", "-"]
    tried = subprocess.run(preprocess, input=includes, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise MissingToolError(
            "the benchmark's client needs librdkafka: apt-get install librdkafka-dev"
        )
    flags = ["-O2", "-Wall", "-Wextra"]
    subprocess.run(
        [compiler, *flags, "-o", str(binary), str(CLIENT_SOURCE), "-lrdkafka"], check=True
    )
    return binary


def find_broker_command() -> Path:
    """The `latermq` command of the environment this runs in.

    Raises:
        MissingToolError: it is not installed there.
    """
    command = Path(sys.executable).parent / "latermq"
    if not command.exists():
        raise MissingToolError(f"{command} does not exist: run make bench, which sets up .venv")
    return command


class Served:
    """A broker in a process of its own that accepts clients at `address`."""

    def __init__(self, command: list[str], ready_prefix: str, log: IO[str]) -> None:
        """Start `command` and wait for its line `ready_prefix...` on standard output.

        Raises:
            BenchError: it ended, or said nothing for START_LIMIT_S.
        """
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        watchdog = threading.Timer(START_LIMIT_S, self._process.kill)
        watchdog.start()
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        watchdog.cancel()
        if not line.startswith(ready_prefix):
            self._process.kill()
            self._process.wait()
            said = Path(log.name).read_text()[-2000:]
            raise BenchError(f"{command[0]} did not become ready: {line!r}\n{said}")
        self.ready_line = line
        self._usage = psutil.Process(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def address(self) -> str:
        """HOST:PORT of the Kafka listener: `kafka=HOST:PORT` or the last word of the ready line."""
        for word in self.ready_line.split():
            if word.startswith("kafka="):
                return word.removeprefix("kafka=")
        return self.ready_line.split()[-1]

    def cpu_s(self) -> float:
        """CPU seconds used since the start, user and system, all threads."""
        times = self._usage.cpu_times()
        return float(times.user + times.system)

    def stop(self) -> None:
        """End it; a broker by SIGTERM, the mock by closing its standard input.

        Raises:
            BenchError: it did not end within STOP_LIMIT_S, or not with status 0.
        """
        assert self._process.stdin is not None
        if "kafka=" in self.ready_line:
            self._process.terminate()
        self._process.stdin.close()
        try:
            status = self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise BenchError(f"no end within {STOP_LIMIT_S:.0f} s: {self.ready_line}") from None
        if status != 0:
            raise BenchError(f"ended with status {status}: {self.ready_line}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def warm_page_cache(path: Path) -> None:
    """Write a file and delete it, until that gets no faster.

    The memory of a virtual machine costs ten times as much at its first touch as later, and again
    once the host was told that it is free. The page cache takes up the memory that was freed last,
    so what is measured right after this finds warm memory, as on a machine that is in use.
    """
    chunk = bytes(_CHUNK_BYTES)
    best_s = float("inf")
    for _ in range(WARM_PASSES_MAX):
        begin_s = time.monotonic()
        with path.open("wb", buffering=0) as file:
            for _ in range(WARM_BYTES // _CHUNK_BYTES):
                file.write(chunk)
        path.unlink()
        elapsed_s = time.monotonic() - begin_s
        if elapsed_s > best_s / WARM_GAIN_MIN:
            return
        best_s = elapsed_s


@contextmanager
def serve_latermq(flush: str) -> Iterator[Served]:
    """A broker on free ports with a new data directory, which is deleted afterwards.

    `flush` is `sync` or `async`. The directory lies in the build directory rather than among the
    system's temporary files, which are often kept in memory: a flush must reach a disk.
    """
    BUILD_DIR.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="data-", dir=BUILD_DIR))
    ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    command = [str(find_broker_command()), "serve", "--data-dir", str(root / "data"), *ports]
    try:
        with (
            (root / "log").open("w") as log,
            Served([*command, "--flush", flush], "latermq ready ", log) as served,
        ):
            _create_topic(served.address)
            warm_page_cache(root / "warm")
            yield served
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def serve_mock(client: Path) -> Iterator[Served]:
    """librdkafka's mock broker; it answers Produce and keeps next to nothing."""
    command = [str(client), "mock", "--topic", TOPIC, "--partitions", str(PARTITION_COUNT)]
    with (BUILD_DIR / "mock.log").open("w") as log, Served(command, "mock ready ", log) as served:
        yield served


def _create_topic(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    topic = NewTopic(TOPIC, num_partitions=PARTITION_COUNT, replication_factor=1)
    for future in admin.create_topics([topic]).values():
        future.result(timeout=10)


def measure(served: Served, client: Path, arguments: list[str]) -> Sample:
    """Run the client once against `served` (`arguments`: a mode and its options).

    Raises:
        BenchError: the client failed; the message holds what it said.
    """
    common = ["--brokers", served.address, "--topic", TOPIC, "--partitions", str(PARTITION_COUNT)]
    own = psutil.Process()
    broker_begin_s, machine_begin_s, own_begin_s = served.cpu_s(), _machine_cpu_s(), _cpu_s(own)
    children_begin_s = _children_cpu_s(own)
    begin_s = time.monotonic()
    done = subprocess.run(
        [str(client), *arguments, *common],
        capture_output=True,
        text=True,
        timeout=CLIENT_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise BenchError(f"client {' '.join(arguments)}: {done.stderr.strip()}")
    time.sleep(SETTLE_S)
    wall_s = time.monotonic() - begin_s
    broker_cpu_s = served.cpu_s() - broker_begin_s
    ours_s = broker_cpu_s + _children_cpu_s(own) - children_begin_s + _cpu_s(own) - own_begin_s
    said = json.loads(done.stdout)
    return Sample(
        message_count=said["messages"],
        payload_bytes=said["bytes"],
        seconds=said["seconds"],
        broker_cpu_s=broker_cpu_s,
        client_cpu_s=said["cpu_user_s"] + said["cpu_system_s"],
        other_cpu_share=max(0.0, (_machine_cpu_s() - machine_begin_s - ours_s) / wall_s),
    )


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _children_cpu_s(process: psutil.Process) -> float:
    """CPU seconds of the children that have ended."""
    times = process.cpu_times()
    return float(times.children_user + times.children_system)


def _machine_cpu_s() -> float:
    """Busy CPU seconds of the whole machine, what the hypervisor took for others included."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)
