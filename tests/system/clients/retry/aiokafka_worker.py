"""A worker with aiokafka; work.py says what it does."""

import asyncio
import sys
from typing import NoReturn

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord
from retry_later import handle_or_retry

from tests.system.clients.retry.work import CRASHED, Work


class CrashingConsumer:
    """A consumer whose process ends when it commits."""

    async def commit(self, _: object) -> NoReturn:
        sys.exit(CRASHED)


async def main() -> None:
    work = Work()
    consumer = AIOKafkaConsumer(
        *work.topics,
        bootstrap_servers=work.address,
        group_id=work.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )

    async def handle(message: ConsumerRecord) -> None:
        place = (message.topic, message.partition, message.offset)
        work.handle(place, message.key, message.value, message.headers)

    producer = AIOKafkaProducer(bootstrap_servers=work.address, acks="all")
    async with producer, consumer:
        committing = CrashingConsumer() if work.crashes else consumer
        while work.is_left:
            for messages in (await consumer.getmany(timeout_ms=1_000, max_records=1)).values():
                for message in messages:
                    await handle_or_retry(committing, producer, work.group, message, handle)


asyncio.run(main())
