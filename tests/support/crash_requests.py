"""What clients ask of the broker of a `CrashRun`, and what its model says of it."""

from dataclasses import dataclass

from tests.support.broker_model import Batch, Model
from tests.support.broker_rig import BrokerRig


@dataclass(frozen=True, slots=True)
class Create:
    """A topic is to be made."""

    name: str
    partition_count: int


@dataclass(frozen=True, slots=True)
class Delete:
    """A topic is to go."""

    name: str


Request = Create | Delete | Batch


def send(rig: BrokerRig, request: Request) -> int:
    """Send a request; its correlation id."""
    match request:
        case Create(name, partition_count):
            return rig.send_create_topic(name, partition_count)
        case Delete(name):
            return rig.send_delete_topic(name)
        case Batch(topic, partition, intents, producer):
            records = [intent.record() for intent in intents]
            return rig.send_produce(topic, partition, records, producer)


def apply_to_model(model: Model, request: Request, now_ms: int) -> tuple[int, int]:
    """Error code and base offset that the broker must answer."""
    match request:
        case Create(name, partition_count):
            return model.create_topic(name, partition_count), -1
        case Delete(name):
            return model.delete_topic(name), -1
        case Batch():
            return model.produce(request, now_ms)
