"""The brokers of a benchmark: latermq, librdkafka's mock broker and Apache Kafka.

latermq is restarted for each run, on a new data directory. The mock and Kafka serve all runs: the
mock keeps next to nothing, and Kafka is slow until its JVM is warm; it gets new topics for each run
instead. A measured process serves no one else, so the growth of its CPU time over a run is the cost
of the run.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Self

from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from perf.kafka import Kafka, fetch_kafka
from perf.machine import BUILD_DIR, REPOSITORY, BenchError, MissingToolError
from perf.memory import WarmMemory, warm_memory

CLIENT_DIR: Final = REPOSITORY / "perf" / "client"

START_LIMIT_S: Final = 60.0
STOP_LIMIT_S: Final = 60.0
_ADMIN_LIMIT_S: Final = 30.0

MACHINE: Final = "machine"
"""No broker at all: what loopback and disk allow."""
MOCK: Final = "mock"
ASYNC: Final = "latermq async"
SYNC: Final = "latermq sync"
OTHER_ASYNC: Final = "other async"
"""Another build of latermq, for `make bench-check` with --other."""
OTHER_SYNC: Final = "other sync"
KAFKA: Final = "Kafka"
KAFKA_SYNC: Final = "Kafka flush=1"

PARTITION_COUNT: Final = 4


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the clients of one run connect."""

    address: str
    """HOST:PORT, empty if there is no broker."""
    pid: int
    """0 if there is no broker."""
    topic: str
    load_topic: str
    acks: str
    directory: Path
    """Directory for files of the run; deleted after it."""
    admin: str = ""
    """HOST:PORT of latermq's metrics; empty if it is something else."""


def build_client() -> Path:
    """Compile perf/client unless that was done since it changed.

    Raises:
        MissingToolError: there is no C compiler, or no librdkafka to compile against.
    """
    binary = BUILD_DIR / "client"
    sources = sorted(CLIENT_DIR.glob("*.[ch]"))
    newest_s = max(source.stat().st_mtime for source in sources)
    if binary.exists() and binary.stat().st_mtime > newest_s:
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
    files = [str(source) for source in sources if source.suffix == ".c"]
    flags = ["-O2", "-Wall", "-Wextra", "-std=gnu11", "-pthread"]
    # Renamed when complete: another process may look for it meanwhile.
    partial = BUILD_DIR / f"client.{os.getpid()}"
    subprocess.run([compiler, *flags, "-o", str(partial), *files, "-lrdkafka"], check=True)
    partial.replace(binary)
    return binary


def find_broker_command(checkout: Path | None = None) -> Path:
    """The `latermq` command of a checkout's .venv; by default of the environment this runs in.

    Raises:
        MissingToolError: it is not installed there.
    """
    programs = Path(sys.executable).parent if checkout is None else checkout / ".venv" / "bin"
    command = programs.resolve() / "latermq"
    if not command.exists():
        raise MissingToolError(f"{command} does not exist: run make build there, which makes it")
    return command


class Served:
    """A process that prints `... kafka=HOST:PORT ...` on standard output when it is ready."""

    def __init__(self, command: list[str], log: IO[str]) -> None:
        """Start `command` and wait for that line.

        Raises:
            BenchError: it ended, or printed nothing for START_LIMIT_S.
        """
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        watchdog = threading.Timer(START_LIMIT_S, self._process.kill)
        watchdog.start()
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        watchdog.cancel()
        words = [word for word in line.split() if word.startswith("kafka=")]
        if not words:
            self._process.kill()
            self._end()
            said = Path(log.name).read_text().splitlines()[-3:]
            raise BenchError(f"{command[0]} did not become ready: {' / '.join(said)}")
        self.address = words[0].removeprefix("kafka=")
        admins = [word for word in line.split() if word.startswith("admin=")]
        self.admin = admins[0].removeprefix("admin=") if admins else ""
        self.pid = self._process.pid
        self._name = Path(command[0]).name

    def stop(self, *, is_signalled: bool) -> None:
        """End it: latermq by SIGTERM, the mock by closing its standard input.

        Raises:
            BenchError: it did not end within STOP_LIMIT_S, or not with status 0.
        """
        if is_signalled:
            self._process.terminate()
        try:
            status = self._end()
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._end()
            raise BenchError(f"{self._name} did not end within {STOP_LIMIT_S:.0f} s") from None
        if status != 0:
            raise BenchError(f"{self._name} ended with status {status}")

    def _end(self) -> int:
        """Close its standard input, wait, and return its exit status."""
        self._process.communicate(timeout=STOP_LIMIT_S)
        return self._process.returncode


class Brokers:
    """All that can be measured; a context manager that ends what it started."""

    def __init__(
        self,
        client: Path,
        wanted: frozenset[str],
        directory: Path,
        config: Path | None = None,
        other: Path | None = None,
        *,
        holds_memory: bool = True,
    ) -> None:
        """Start nothing yet.

        `client` is the compiled perf/client; `wanted` are the brokers to measure; data directories
        are made below `directory`, which should be on a disk: many systems keep temporary files
        in memory, where a flush costs nothing. `config` is latermq's. `other` is a checkout with
        another build of it, which has its defaults: it may know other settings. Without
        `holds_memory` the machine's memory stays free, and figures depend on its host.

        Raises:
            MissingToolError: a build of latermq is not there.
        """
        self._client = client
        self._wanted = wanted
        self._directory = directory
        settings = ["--config", str(config)] if config is not None else []
        serve = [str(find_broker_command()), "serve", *settings]
        self._latermq = dict.fromkeys((ASYNC, SYNC), serve)
        if other is not None:
            serve = [str(find_broker_command(other)), "serve"]
            self._latermq |= dict.fromkeys((OTHER_ASYNC, OTHER_SYNC), serve)
        self._stack = ExitStack()
        self._mock: Served | None = None
        self._kafka: Kafka | None = None
        self._holds_memory = holds_memory
        self._memory: WarmMemory | None = None
        self._topic_count = 0
        self.skipped: dict[str, str] = {}
        """Broker -> why it is not measured."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if MOCK in self._wanted:
                self._mock = self._start_mock(stack)
            if self._wanted & {KAFKA, KAFKA_SYNC}:
                self._start_kafka(stack)
            if self._holds_memory:  # last, because it takes what is left
                self._memory = stack.enter_context(warm_memory(self._directory))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start_mock(self, stack: ExitStack) -> Served:
        directory = stack.enter_context(new_directory(self._directory))
        log = stack.enter_context((directory / "log").open("w"))
        partitions = ["--partitions", str(PARTITION_COUNT)]
        served = Served([str(self._client), "mock", "--topic", "bench", *partitions], log)
        stack.callback(served.stop, is_signalled=False)
        return served

    def _start_kafka(self, stack: ExitStack) -> None:
        try:
            fetch_kafka()
            directory = stack.enter_context(new_directory(self._directory))
            self._kafka = Kafka(directory)
            stack.callback(self._kafka.stop)
        except (MissingToolError, BenchError) as error:
            for broker in self._wanted & {KAFKA, KAFKA_SYNC}:
                self.skipped[broker] = str(error)

    def warm(self) -> None:
        """Have memory in use that the broker's page cache replaces: see perf/memory.py."""
        if self._memory is not None:
            self._memory.fill()

    @contextmanager
    def serve(self, broker: str, partition_count: int = PARTITION_COUNT) -> Iterator[Endpoint]:
        """Have `broker` ready for one run, with new topics; delete its data afterwards.

        Raises:
            BenchError: it did not start or stop as it should.
        """
        with new_directory(self._directory) as directory:
            if broker == MACHINE:
                yield Endpoint("", 0, "", "", "1", directory)
            elif broker == MOCK:
                assert self._mock is not None
                mock = self._mock
                yield Endpoint(mock.address, mock.pid, "bench", "bench", "1", directory)
            elif broker in {KAFKA, KAFKA_SYNC}:
                with self._kafka_topics(broker, partition_count, directory) as endpoint:
                    yield endpoint
            else:
                with self._serve_latermq(broker, partition_count, directory) as endpoint:
                    yield endpoint

    @contextmanager
    def _kafka_topics(
        self, broker: str, partition_count: int, directory: Path
    ) -> Iterator[Endpoint]:
        assert self._kafka is not None
        kafka = self._kafka
        self._topic_count += 1
        topics = (f"bench-{self._topic_count}", f"load-{self._topic_count}")
        is_sync = broker == KAFKA_SYNC
        config = {"flush.messages": "1"} if is_sync else {}
        create_topics(kafka.address, topics, partition_count, config)
        acks = "-1" if is_sync else "1"
        yield Endpoint(kafka.address, kafka.pid, *topics, acks, directory)
        admin = _admin(kafka.address)
        for future in admin.delete_topics(list(topics)).values():
            future.result(timeout=_ADMIN_LIMIT_S)

    @contextmanager
    def _serve_latermq(
        self, broker: str, partition_count: int, directory: Path
    ) -> Iterator[Endpoint]:
        flush = ["--flush", "sync" if broker in {SYNC, OTHER_SYNC} else "async"]
        ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        data = ["--data-dir", str(directory / "data")]
        with (directory / "log").open("w") as log:
            served = Served([*self._latermq[broker], *data, *ports, *flush], log)
            is_done = False
            try:
                topics = ("bench", "load")
                create_topics(served.address, topics, partition_count, {})
                yield Endpoint(served.address, served.pid, *topics, "1", directory, served.admin)
                is_done = True
            finally:
                try:
                    served.stop(is_signalled=True)
                except BenchError:
                    if is_done:  # otherwise the first error says more
                        raise


@contextmanager
def new_directory(parent: Path) -> Iterator[Path]:
    """A directory in `parent`, deleted with its content."""
    directory = Path(tempfile.mkdtemp(prefix="data-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def create_topics(
    address: str, names: tuple[str, ...], partition_count: int, config: dict[str, str]
) -> None:
    admin = _admin(address)
    topics = [NewTopic(name, partition_count, 1, config=config) for name in names]
    for future in admin.create_topics(topics).values():
        future.result(timeout=_ADMIN_LIMIT_S)


def delete_records(address: str, topic: str, partition_count: int) -> None:
    """Delete all records of a topic."""
    everything = [TopicPartition(topic, index, OFFSET_END) for index in range(partition_count)]
    admin = _admin(address)
    for future in admin.delete_records(everything).values():
        future.result(timeout=_ADMIN_LIMIT_S)


def _admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address, "log_level": 3})
