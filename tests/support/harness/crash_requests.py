"""The requests of clients to the broker of a `CrashRun`, and the answers that its model expects."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.harness.broker_harness import BrokerHarness
from tests.support.oracles.broker_model import Batch, Model


@dataclass(frozen=True, slots=True)
class Create:
    """Create a topic."""

    name: str
    partition_count: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a topic."""

    name: str


Request = Create | Delete | Batch


def send(harness: BrokerHarness, request: Request) -> int:
    """Send a request; return its correlation id."""
    match request:
        case Create(name, partition_count):
            return harness.send_create_topic(name, partition_count)
        case Delete(name):
            return harness.send_delete_topic(name)
        case Batch(topic, partition, intents, producer):
            records = [intent.record() for intent in intents]
            return harness.send_produce(topic, partition, records, producer)


def apply_to_model(model: Model, request: Request, now_ms: int) -> tuple[int, int]:
    """Apply a request to the model; return the error code and base offset to expect."""
    match request:
        case Create(name, partition_count):
            return model.create_topic(name, partition_count), -1
        case Delete(name):
            return model.delete_topic(name), -1
        case Batch():
            return model.produce(request, now_ms)


def end_recurrences(harness: BrokerHarness, models: Sequence[Model]) -> list[Model]:
    """Cancel all that recurs; return the models that agree with the broker about what that was."""
    left = list(models)
    for topic, user_id in sorted(set[tuple[str, bytes]]().union(*(m.recurring() for m in left))):
        state = harness.cancel_timer(topic, user_id)
        left = [model for model in left if model.cancel(topic, user_id) == state]
        assert left, f"{topic} {user_id!r}: {state}"
    return left
