"""Producers of three client libraries that send one record at a time and report a refusal."""

import asyncio
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import KafkaError, Producer

from tests.system.realdisk.load import CLIENT, LIMIT_S

with warnings.catch_warnings():
    # It reads its schemas by functions of importlib.resources that are deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaProducer  # type: ignore[import-untyped]
    from kafka.errors import KafkaError as PythonError  # type: ignore[import-untyped]

AIOKAFKA_GIVES_UP_MS: Final = 700
"""It cannot be told not to try again, only how long."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a client reports of a record that was not stored."""

    code: int
    text: str


class Sender(Protocol):
    """Sends one record at a time."""

    def send(self, topic: str, value: bytes, delay_ms: int = 0) -> Refusal | None:
        """Return why a record is not stored; None if it is."""

    def close(self) -> None: ...


class ConfluentSender:
    def __init__(self, address: str) -> None:
        settings = {"linger.ms": 0, "message.send.max.retries": 0, **CLIENT}
        self._producer = Producer({"bootstrap.servers": address, **settings})

    def send(self, topic: str, value: bytes, delay_ms: int = 0) -> Refusal | None:
        found: list[KafkaError | None] = []
        self._producer.produce(
            topic,
            value,
            partition=0,
            headers=headers_of(delay_ms),
            on_delivery=lambda error, _: found.append(error),
        )
        assert self._producer.flush(LIMIT_S) == 0
        (error,) = found
        return None if error is None else Refusal(error.code(), error.str())

    def close(self) -> None:
        """Nothing is under way."""


class KafkaPythonSender:
    def __init__(self, address: str) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=address, retries=0, enable_idempotence=False, linger_ms=0
        )

    def send(self, topic: str, value: bytes, delay_ms: int = 0) -> Refusal | None:
        future = self._producer.send(topic, value, headers=headers_of(delay_ms), partition=0)
        try:
            future.get(LIMIT_S)
        except PythonError as error:
            return Refusal(error.errno, str(error))
        return None

    def close(self) -> None:
        self._producer.close()


class AiokafkaSender:
    """Its event loop runs during each call."""

    def __init__(self, address: str) -> None:
        self._runner = asyncio.Runner()
        self._producer: Any = self._runner.run(self._start(address))

    @staticmethod
    async def _start(address: str) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            bootstrap_servers=address, linger_ms=0, request_timeout_ms=AIOKAFKA_GIVES_UP_MS
        )
        await producer.start()
        return producer

    def send(self, topic: str, value: bytes, delay_ms: int = 0) -> Refusal | None:
        async def send() -> None:
            sent = await self._producer.send(
                topic, value, partition=0, headers=headers_of(delay_ms)
            )
            await asyncio.wait_for(sent, LIMIT_S)

        try:
            self._runner.run(send())
        except AioError as error:
            return Refusal(error.errno, str(error))
        return None

    def close(self) -> None:
        self._runner.run(self._producer.stop())
        self._runner.close()


SENDERS: Final[Mapping[str, Callable[[str], Sender]]] = {
    "confluent": ConfluentSender,
    "kafka_python": KafkaPythonSender,
    "aiokafka": AiokafkaSender,
}
"""By the name of the module of the library's features."""


def headers_of(delay_ms: int) -> list[tuple[str, str | bytes | None]]:
    return [("x-delay", b"%d" % delay_ms)] if delay_ms else []
