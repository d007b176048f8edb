"""A broker with one producing client: the bytes that it sends, and those of the log."""

import struct
from typing import Final

from appliance.broker import Broker
from appliance.config.config import Config
from appliance.kafka_facade import KAFKA_FACADE
from appliance.store.paths import segment_name
from tests.support.harness.configs import DATA_DIR, small_config
from tests.support.harness.small_files import repeatable_ids
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.simulator.virtual_clock import VirtualClock

SEED: Final = 10
"""Seed of the ids and the salt that the broker draws."""


class ProduceHarness:
    """A broker without sockets, on a simulated disk, whose clock does not advance."""

    def __init__(self, config: Config | None = None) -> None:
        self.disk = SimFileSystem()
        self.clock = VirtualClock()
        self.config = small_config() if config is None else config
        self.broker = Broker(self.clock, self.disk, self.config, KAFKA_FACADE)
        with repeatable_ids(SEED):
            for _ in self.broker.recover():
                pass
        self.session = self.broker.open_session(lambda _: "only Produce is served here")

    def produce(self, topic: str, partition: int, batch: bytes) -> None:
        """Send one batch as a client does, with acks=all, and flush."""
        name = topic.encode()
        body = struct.pack(">hhih", 0, 3, 1, -1)  # Produce v3 without client id
        body += struct.pack(">hhii", -1, -1, 1000, 1)  # no transaction, acks=all, one topic
        body += struct.pack(">h", len(name)) + name
        body += struct.pack(">iii", 1, partition, len(batch)) + batch
        self.send(struct.pack(">i", len(body)) + body)

    def send(self, request: bytes) -> None:
        sent = 0
        while sent < len(request):
            buffer = self.session.get_buffer()
            count = min(len(buffer), len(request) - sent)
            buffer[:count] = request[sent : sent + count]
            self.session.received(count, now_ns=self.clock.wall_ns())
            self.broker.commit()
            self.session.compact()
            sent += count
        self.broker.flush()

    def answers(self) -> bytes:
        """The answers to the client since the last call."""
        return b"".join(bytes(part) for part in self.session.output(self.broker.flushed_pos))

    def log(self) -> bytes:
        """The first segment, up to the end of the log."""
        segment = self.disk.files()[DATA_DIR / "commitlog" / segment_name(0)]
        return segment[: self.broker.committed_pos]
