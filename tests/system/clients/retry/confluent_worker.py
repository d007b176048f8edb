"""A worker with confluent-kafka; work.py says what it does."""

from confluent_kafka import Consumer, KafkaError, Message, Producer
from retry_later import handle_or_retry

from tests.system.clients.retry.work import CrashingConsumer, Work


def main() -> None:
    work = Work()
    settings = {"bootstrap.servers": work.address, "log_level": 0}
    producer = Producer(settings)
    consumer = Consumer(
        {
            **settings,
            "group.id": work.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(work.topics)

    def handle(message: Message) -> None:
        place = (message.topic(), message.partition(), message.offset())
        work.handle(place, message.key(), message.value(), message.headers() or [])

    committing = CrashingConsumer() if work.crashes else consumer
    try:
        while work.is_left:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART, message.error()
                continue
            handle_or_retry(committing, producer, work.group, message, handle)
    finally:
        consumer.close()


main()
