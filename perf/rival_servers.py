"""What `make bench-rivals` measures: servers that hold records until they are due, and clients."""

import contextlib
import importlib
import importlib.util
import os
import pwd
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from perf.brokers import create_topics, find_broker_command
from perf.keys import Admin
from perf.machine import BenchError, anonymous_mb

RECORD_BYTES: Final = 200
BATCH: Final = 1_000
PARTITION_COUNT: Final = 4
LIMIT_S: Final = 180.0
POLL_S: Final = 0.001
START_LIMIT_S: Final = 30.0
_STAMP: Final = struct.Struct("<qq")


def record(due_us: int, number: int) -> bytes:
    """Return a record that says when it is due, in us since 1970, and which one it is."""
    return _STAMP.pack(due_us, number) + bytes(RECORD_BYTES - _STAMP.size)


def now_us() -> int:
    return time.time_ns() // 1_000


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _shared_mb(pid: int) -> float:
    """Shared memory that a process has touched, without files."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = [line.split()[1] for line in lines if line.startswith("RssShmem:")]
    return int(sizes[0]) * 1_024 / 1e6 if sizes else 0.0


@dataclass(slots=True)
class Taken:
    """What a thread received.

    Attributes:
        late_us: of each record, in the order in which they came.
        last_us: when the last one came.
    """

    late_us: list[int] = field(default_factory=list)
    last_us: int = 0

    def note(self, data: bytes) -> None:
        self.last_us = now_us()
        self.late_us.append(self.last_us - _STAMP.unpack_from(data)[0])


class Rival:
    """A server and its client.

    Attributes:
        name: for the table.
        grain_us: due times are multiples of it.
    """

    name = ""
    grain_us = 1_000
    needs: tuple[str, ...] = ()
    """Commands and modules."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def missing(cls) -> list[str]:
        """What is not installed."""
        return [
            each
            for each in cls.needs
            if shutil.which(each) is None and importlib.util.find_spec(each) is None
        ]

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        with (self._place / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command(), stdout=log, stderr=log)
        limit_s = time.monotonic() + START_LIMIT_S
        while True:
            try:
                self._connect()
                return
            except Exception as error:  # each client has errors of its own
                if time.monotonic() > limit_s:
                    raise BenchError(f"{self.name} does not start: {error}") from error
                time.sleep(0.05)

    def kill(self) -> None:
        """End it, with all its processes, at once."""
        if self._process is None:
            return
        family = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self._process.wait()
        psutil.wait_procs(family)
        self._process = None

    def memory_mb(self) -> float:
        """Memory of all its processes, without files; what they share counts once."""
        assert self._process is not None
        root = psutil.Process(self._process.pid)
        family = [each.pid for each in (root, *root.children(recursive=True))]
        return sum(map(anonymous_mb, family)) + max(map(_shared_mb, family))

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _connect(self) -> None:
        raise NotImplementedError

    def prepare(self) -> None:
        """Make a place for the next records."""

    def schedule(self, dues_us: Sequence[int]) -> None:
        """Schedule a record for each due time, and return when all are acknowledged."""
        raise NotImplementedError

    def take(self, count: int, taken: Taken, stop: threading.Event) -> None:
        """Receive so many records as they become due."""
        raise NotImplementedError

    def pending(self) -> int:
        """How many records wait."""
        raise NotImplementedError


def polled(take: Callable[[], Sequence[bytes]], count: int, taken: Taken, stop: Any) -> None:
    """Take what is due again and again."""
    while len(taken.late_us) < count and not stop.is_set():
        found = take()
        for data in found:
            taken.note(data)
        if not found:
            time.sleep(POLL_S)


class Latermq(Rival):
    """latermq, with sync or async flush."""

    flush = "async"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._address, self._admin = f"127.0.0.1:{self._port}", f"127.0.0.1:{free_port()}"
        self._topic = ""

    def prepare(self) -> None:
        self._topic = f"t{now_us()}"
        create_topics(self._address, (self._topic,), PARTITION_COUNT, {})

    def _command(self) -> list[str]:
        command = [str(find_broker_command()), "serve", "--data-dir", str(self._place / "data")]
        command += ["--listen", self._address, "--flush", self.flush]
        return [*command, "--admin", self._admin]

    def _connect(self) -> None:
        Admin(self._admin).get("status")

    def schedule(self, dues_us: Sequence[int]) -> None:
        settings = {"bootstrap.servers": self._address, "acks": "all", "linger.ms": 5}
        producer = Producer({**settings, "queue.buffering.max.messages": 2_000_000, "log_level": 0})
        failed: list[str] = []

        def note(error: object, _: object) -> None:
            if error is not None:
                failed.append(str(error))

        for number, due_us in enumerate(dues_us):
            headers: list[tuple[str, str | bytes | None]] = [
                ("x-deliver-at", b"%d" % (due_us // 1_000))
            ]
            data = record(due_us, number)
            partition = number % PARTITION_COUNT
            producer.produce(
                self._topic, data, partition=partition, headers=headers, on_delivery=note
            )
            if number % BATCH == 0:
                producer.poll(0)
        if producer.flush(LIMIT_S) or failed:
            raise BenchError(f"not all is acknowledged: {failed[:1]}")

    def take(self, count: int, taken: Taken, stop: threading.Event) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._address,
                "group.id": "bench",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 500,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(self._topic, each, 0) for each in range(PARTITION_COUNT)])
        while len(taken.late_us) < count and not stop.is_set():
            first = consumer.poll(0.1)  # `consume` would wait for a whole batch
            more = [] if first is None else [first, *consumer.consume(BATCH, 0)]
            for message in more:
                if message.error() is None:
                    taken.note(message.value() or b"")
        consumer.close()

    def pending(self) -> int:
        return int(Admin(self._admin).get("status")["pending_timers"])


class LatermqAsync(Latermq):
    """A power cut loses up to half a second."""

    name = "latermq, async flush"


class LatermqSync(Latermq):
    """A power cut loses nothing."""

    name = "latermq, sync flush"
    flush = "sync"


_TAKE_DUE: Final = """
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #found > 0 then redis.call('ZREM', KEYS[1], unpack(found)) end
return found
"""


class Redis(Rival):
    """A sorted set."""

    needs = ("redis-server", "redis")
    arguments: tuple[str, ...] = ()

    def _command(self) -> list[str]:
        command = ["redis-server", "--port", str(self._port), "--bind", "127.0.0.1"]
        return [*command, "--dir", str(self._place), "--save", "", *self.arguments]

    def _make_client(self) -> Any:
        module: Any = importlib.import_module("redis")
        return module.Redis(port=self._port)

    def _connect(self) -> None:
        self._client = self._make_client()
        self._client.ping()

    def schedule(self, dues_us: Sequence[int]) -> None:
        for first in range(0, len(dues_us), BATCH):
            pipeline = self._client.pipeline(transaction=False)
            for number, due_us in enumerate(dues_us[first : first + BATCH], first):
                pipeline.zadd("due", {record(due_us, number): due_us})
            pipeline.execute()

    def take(self, count: int, taken: Taken, stop: threading.Event) -> None:
        client = self._make_client()
        script = client.register_script(_TAKE_DUE)
        polled(lambda: script(keys=["due"], args=[now_us(), BATCH]), count, taken, stop)

    def pending(self) -> int:
        return int(self._client.zcard("due"))


class RedisWithoutFile(Redis):
    """Nothing on the disk."""

    name = "Redis, no AOF"
    arguments = ("--appendonly", "no")


class RedisAlways(Redis):
    """A sync for each batch of commands."""

    name = "Redis, AOF always"
    arguments = ("--appendonly", "yes", "--appendfsync", "always")


class Postgres(Rival):
    """A table, and SKIP LOCKED."""

    name = "PostgreSQL, SKIP LOCKED"
    needs = ("psycopg",)

    @classmethod
    def missing(cls) -> list[str]:
        found = super().missing()
        return found if cls._binaries() else [*found, "postgresql"]

    @staticmethod
    def _binaries() -> Path | None:
        places = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
        return places[-1].parent if places else None

    def _command(self) -> list[str]:
        binaries, data = self._binaries(), self._place / "pg"
        assert binaries is not None
        run: list[str] = []
        if os.geteuid() == 0:  # it refuses to run as root
            run = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            user = pwd.getpwnam("postgres")
            self._place.chmod(0o755)
        if not data.exists():
            data.mkdir()
            if run:
                os.chown(data, user.pw_uid, user.pw_gid)
            init = [*run, str(binaries / "initdb"), "-D", str(data), "-U", "bench", "--no-sync"]
            subprocess.run(init, check=True, stdout=subprocess.DEVNULL)
        options = ["-c", "unix_socket_directories=", "-c", "shared_buffers=256MB"]
        command = [*run, str(binaries / "postgres"), "-D", str(data), "-p", str(self._port)]
        return [*command, *options]

    def _make_client(self) -> Any:
        module: Any = importlib.import_module("psycopg")
        where = f"host=127.0.0.1 port={self._port} user=bench dbname=postgres"
        return module.connect(where, autocommit=True)

    def _connect(self) -> None:
        self._client = self._make_client()
        self._client.execute("create table if not exists due (due_us bigint, data bytea)")
        self._client.execute("create index if not exists by_due on due (due_us)")

    def schedule(self, dues_us: Sequence[int]) -> None:
        query = "insert into due values (%s, %s)"
        with self._client.cursor() as cursor:
            for first in range(0, len(dues_us), BATCH):
                part = enumerate(dues_us[first : first + BATCH], first)
                rows = [(due_us, record(due_us, number)) for number, due_us in part]
                with self._client.transaction():
                    cursor.executemany(query, rows)

    def take(self, count: int, taken: Taken, stop: threading.Event) -> None:
        client = self._make_client()
        query = (
            "delete from due where ctid = any(array(select ctid from due where due_us <= %s "
            "order by due_us limit %s for update skip locked)) returning data"
        )

        def take() -> list[bytes]:
            found = client.execute(query, (now_us(), BATCH), prepare=True).fetchall()
            return [bytes(row[0]) for row in found]

        polled(take, count, taken, stop)

    def pending(self) -> int:
        return int(self._client.execute("select count(*) from due").fetchone()[0])


class Beanstalkd(Rival):
    """A queue with delays of whole seconds, and a log."""

    name = "beanstalkd, -f 50"
    grain_us = 1_000_000
    needs = ("beanstalkd", "greenstalk")

    def _command(self) -> list[str]:
        log = self._place / "binlog"
        log.mkdir(exist_ok=True)
        command = ["beanstalkd", "-l", "127.0.0.1", "-p", str(self._port)]
        return [*command, "-b", str(log), "-f", "50"]

    def _make_client(self) -> Any:
        module: Any = importlib.import_module("greenstalk")
        return module.Client(("127.0.0.1", self._port), encoding=None)

    def _connect(self) -> None:
        self._client = self._make_client()

    def schedule(self, dues_us: Sequence[int]) -> None:
        for number, due_us in enumerate(dues_us):
            delay_s = max(0, -(-(due_us - now_us()) // 1_000_000))
            self._client.put(record(due_us, number), delay=delay_s)

    def take(self, count: int, taken: Taken, stop: threading.Event) -> None:
        client = self._make_client()
        module: Any = importlib.import_module("greenstalk")
        while len(taken.late_us) < count and not stop.is_set():
            with contextlib.suppress(module.TimedOutError):
                job = client.reserve(timeout=1)
                taken.note(job.body)
                client.delete(job)

    def pending(self) -> int:
        return int(self._client.stats()["current-jobs-delayed"])
