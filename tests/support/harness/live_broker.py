"""A broker and its Kafka server in this process, on a disk whose fdatasync a test can block.

async with LiveBroker(tmp_path, flush="sync") as live:
    client = await live.connect()
    live.disk.hold()
    await client.produce("t", 0, [Record(b"a")])      # waits until live.disk.let_go()
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

from appliance.broker import Broker
from appliance.kafka_facade import KAFKA_FACADE
from appliance.pump import Pump
from appliance.system.clock import Clock, SystemClock
from appliance.system.files import Buffer, File, OsFileSystem
from compat.kafka.network.server import KafkaServer
from tests.support.harness.broker_harness import PRODUCE_VERSION, Produced, produced
from tests.support.harness.configs import small_config
from tests.support.harness.harness_connection import FETCH_VERSION
from tests.support.oracles.kafka_oracle import (
    FetchResponse,
    ProduceResponse,
    encode_request,
)
from tests.support.values.kafka_records import Fetched, Producer, Record, build_batch, read_batches
from tests.support.values.record_requests import fetch_part, fetch_request, produce_request

LIMIT_S: Final = 60
"""A test that waits longer has failed; on a busy machine milliseconds become seconds."""


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; fail after `LIMIT_S`."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 (what is waited for happens on threads as well)
            await asyncio.sleep(0.001)


class HeldFile:
    """A file whose fdatasync blocks while the disk is held, and fails if the test asks for it."""

    def __init__(self, disk: "HeldDisk", file: File) -> None:
        self._disk = disk
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        return self._file.pwritev(buffers, offset)

    def fdatasync(self) -> None:
        is_log = self._file.path.parent.name == "commitlog"
        self._disk.syncs += is_log
        self._disk.synced_by.add(threading.current_thread())
        if is_log or not self._disk.is_log_held:
            assert self._disk.gate.wait(LIMIT_S), "the test never let go of the disk"
        if self._disk.error is not None:
            raise self._disk.error
        self._file.fdatasync()


class HeldDisk(OsFileSystem):
    """The real file system, with control over its fdatasync.

    Attributes:
        syncs: calls of fdatasync for the log so far.
        synced_by: the threads that called fdatasync, for any file.
        error: what the next calls raise, None for nothing.
        answer_usage: answers in place of `usage`, None for the real answer.
        usage_calls: calls of `usage` that have begun.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.is_log_held = False
        self.syncs = 0
        self.synced_by: set[threading.Thread] = set()
        self.error: Exception | None = None
        self.answer_usage: Callable[[Path], tuple[int, int]] | None = None
        self.usage_calls = 0

    def usage(self, path: Path) -> tuple[int, int]:
        self.usage_calls += 1
        return (self.answer_usage or super().usage)(path)

    def hold(self, *, log_only: bool = False) -> None:
        """Block fdatasync from now on, of all files or of the log's."""
        self.is_log_held = log_only
        self.gate.clear()

    def let_go(self) -> None:
        """Let fdatasync return, also calls that wait already."""
        self.gate.set()

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> Any:
        return HeldFile(self, super().open(path, create=create, writable=writable))


class Client:
    """One connection that sends requests and reads answers in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0

    def send_produce(
        self,
        topic: str,
        partition: int,
        records: Sequence[Record],
        *,
        acks: int = -1,
        timeout_ms: int = 30_000,
        producer: Producer | None = None,
    ) -> None:
        """Send a batch without waiting."""
        parts = [(partition, build_batch(records, producer))]
        request = produce_request([(topic, parts)], acks=acks, timeout_ms=timeout_ms)
        self._send(request, PRODUCE_VERSION)

    async def read_produced(self) -> Produced:
        """Read the next answer, to a Produce."""
        return produced(ProduceResponse.decode(await self._read(), PRODUCE_VERSION, header=True))

    async def produce(self, topic: str, partition: int, records: Sequence[Record]) -> Produced:
        """Send a batch and wait for its answer."""
        self.send_produce(topic, partition, records)
        return await self.read_produced()

    def send_fetch(
        self, topic: str, partition: int, offset: int, *, wait_ms: int = 0, min_bytes: int = 1
    ) -> None:
        """Send a Fetch without waiting."""
        parts = [fetch_part(partition, offset)]
        request = fetch_request([(topic, parts)], wait_ms=wait_ms, min_bytes=min_bytes)
        self._send(request, FETCH_VERSION)

    async def read_fetched(self) -> list[Fetched]:
        """Read the records of the next answer, to a Fetch."""
        answer = FetchResponse.decode(await self._read(), FETCH_VERSION, header=True)
        (topic,) = answer.responses
        (partition,) = topic.partitions
        assert partition.error_code == 0
        return read_batches(bytes(partition.records or b""))

    async def fetch(self, topic: str, partition: int, offset: int, **how: int) -> list[Fetched]:
        """Fetch records and wait for the answer."""
        self.send_fetch(topic, partition, offset, **how)
        return await self.read_fetched()

    def send_bytes(self, data: bytes) -> None:
        """Send any bytes."""
        self._writer.write(data)

    async def is_closed_by_broker(self) -> bool:
        """Wait until the broker closes the connection; False if it answers instead."""
        try:
            async with asyncio.timeout(LIMIT_S):
                return await self._reader.read(1) == b""
        except ConnectionError:
            return True  # it closed before it read all our bytes

    async def read_to_the_end(self) -> bytes:
        """Read everything that the broker sends before it closes the connection."""
        async with asyncio.timeout(LIMIT_S):
            return await self._reader.read()

    async def read_answer(self) -> bytes:
        """Read the next answer, undecoded, without its size."""
        return await self._read()

    async def close(self) -> None:
        """Close the connection, even if the broker closed it before."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def _send(self, request: Any, version: int) -> None:
        self._number += 1
        frame = encode_request(request, version, self._number)
        self._writer.write(len(frame).to_bytes(4, "big") + frame)

    async def _read(self) -> bytes:
        async with asyncio.timeout(LIMIT_S):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            return await self._reader.readexactly(size)


class LiveBroker:
    """A broker with the topic `t`; settings are those of `small_config`, changed by keywords."""

    def __init__(
        self,
        directory: Path,
        partition_count: int = 1,
        *,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        self.disk = HeldDisk()
        settings = {"disk_refuse_percent": 100} | settings  # the disk may be almost full
        config = small_config(data_dir=directory / "data", **settings)
        self.broker = Broker(clock or SystemClock(), self.disk, config, KAFKA_FACADE)
        self._clients: list[Client] = []
        self._partition_count = partition_count

    async def __aenter__(self) -> Self:
        for _ in self.broker.recover():
            pass
        if self.broker.topics.find("t") is None:
            self.broker.topics.create("t", self._partition_count, {})
            self.broker.flush()
        self.server: KafkaServer[Pump] = KafkaServer(self.broker, Pump(self.broker))
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.disk.let_go()
        for client in self._clients:
            await client.close()
        await self.server.stop()
        self.broker.abandon()

    async def connect(self, address: str = "127.0.0.1") -> Client:
        """Open a connection from a local address."""
        streams = await asyncio.open_connection(*self.server.bound, local_addr=(address, 0))
        client = Client(*streams)
        self._clients.append(client)
        return client
