"""A worker with kafka-python; work.py says what it does."""

from contextlib import closing

from kafka import KafkaConsumer, KafkaProducer
from kafka.consumer.fetcher import ConsumerRecord
from retry_later import handle_or_retry

from tests.system.clients.retry.work import CrashingConsumer, Work


def main() -> None:
    work = Work()
    producer = KafkaProducer(bootstrap_servers=work.address)
    consumer = KafkaConsumer(
        *work.topics,
        bootstrap_servers=work.address,
        group_id=work.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )

    def handle(message: ConsumerRecord) -> None:
        place = (message.topic, message.partition, message.offset)
        work.handle(place, message.key, message.value, message.headers)

    with closing(producer), closing(consumer):
        committing = CrashingConsumer() if work.crashes else consumer
        while work.is_left:
            for messages in consumer.poll(timeout_ms=1_000, max_records=1).values():
                for message in messages:
                    handle_or_retry(committing, producer, work.group, message, handle)


main()
