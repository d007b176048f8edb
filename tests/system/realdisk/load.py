"""A load that fills a disk, and what of it is there afterwards."""

import random
import time
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from appliance.units import KIB
from tests.support.harness.appliance_process import ApplianceProcess

TOPIC: Final = "t"
VALUE_SIZE_BYTES: Final = 20 * KIB
IN_FLIGHT_MAX: Final = 50
LIMIT_S: Final = 60.0

CLIENT: Final[dict[str, Any]] = {
    "log_level": 0,  # that the broker goes away is what the tests are about
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 50,
}


@dataclass
class Fill:
    """Sends large records, one batch for a few of them, each at most once.

    Attributes:
        timeout_ms: so long the client waits for an answer; short where none will come.
        sent: every value that was handed to the client.
        acknowledged: values by offset.
        acknowledged_at_s: when, on the monotonic clock.
        errors: Kafka error codes of the others.
    """

    address: str
    timeout_ms: int = 2_000
    sent: set[bytes] = field(default_factory=set)
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    acknowledged_at_s: dict[int, float] = field(default_factory=dict)
    errors: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(1)
        self._producer = Producer(
            {
                "bootstrap.servers": self.address,
                "acks": "all",
                "message.send.max.retries": 0,
                "message.timeout.ms": self.timeout_ms,
                "linger.ms": 1,
                "batch.num.messages": 4,
                **CLIENT,
            }
        )

    def send_later(self, value: bytes, delay_ms: int) -> None:
        """Send one record that is held back; its offset is not known."""
        headers: list[tuple[str, bytes]] = [("x-delay", b"%d" % delay_ms)]

        def note(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                self.errors.append(error.code())

        self._producer.produce(TOPIC, value, partition=0, headers=headers, on_delivery=note)

    def send(self, size_bytes: int = VALUE_SIZE_BYTES, pause_s: float = 0) -> None:
        """Send one record; wait while too many are under way, or `pause_s` for an answer."""
        value = self._random.randbytes(size_bytes)
        self.sent.add(value)
        self._producer.produce(TOPIC, value, partition=0, on_delivery=self._note)
        deadline_s = time.monotonic() + LIMIT_S
        while len(self._producer) > IN_FLIGHT_MAX:
            assert time.monotonic() < deadline_s, "nothing is answered"
            self._producer.poll(0.01)
        self._producer.poll(pause_s)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error.code())
            return
        offset, value = message.offset(), message.value()
        assert offset is not None
        assert value is not None
        self.acknowledged[offset] = value
        self.acknowledged_at_s[offset] = time.monotonic()

    def send_until_ended(self, appliance: ApplianceProcess) -> None:
        """Send until the broker's process has ended."""
        deadline_s = time.monotonic() + LIMIT_S
        while not appliance.has_ended:
            assert time.monotonic() < deadline_s, "the disk holds more than it has"
            self.send()
        self.finish()

    def finish(self) -> None:
        """Wait until nothing is under way."""
        assert self._producer.flush(LIMIT_S) == 0


def read_all(address: str) -> list[bytes]:
    """The values of the topic's partition, from its first offset to its end."""
    settings = {"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "error", **CLIENT})
    try:
        place = TopicPartition(TOPIC, 0, 0)
        consumer.assign([place])
        _, end = consumer.get_watermark_offsets(place, timeout=LIMIT_S)
        values: list[bytes] = []
        deadline_s = time.monotonic() + LIMIT_S
        while len(values) < end:
            assert time.monotonic() < deadline_s, f"{len(values)} of {end} records came"
            for message in consumer.consume(min(1_000, end - len(values)), 1.0):
                assert message.error() is None, message.error()
                assert message.offset() == len(values)
                values.append(message.value() or b"")
        return values
    finally:
        consumer.close()
