"""Short forms of what most features do with a library."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from tests.system.clients.delayed import Received
from tests.system.clients.suites.library import Consumer, Library, RefusedError, Sent

LIMIT_S: Final = 60.0
"""For anything that should happen at once."""


def library_of(client: str, address: str) -> Library:
    """The adapter of a client; others need not be installed."""
    module: Any = import_module(f"tests.system.clients.suites.{client}_library")
    library: Library = module.Adapter(address)
    return library


def send(library: Library, topic: str, records: Sequence[Sent], **how: Any) -> list[int]:
    """Send records and return their offsets.

    Raises:
        RefusedError: one of them was refused.
    """
    offsets = []
    for outcome in library.try_send(topic, records, **how):
        if isinstance(outcome, RefusedError):
            raise outcome
        offsets.append(outcome)
    return offsets


def send_values(library: Library, topic: str, *values: bytes, **how: Any) -> None:
    send(library, topic, [Sent(value) for value in values], **how)


def create_and_send(library: Library, topic: str, *values: bytes, **how: Any) -> None:
    library.create(topic)
    send_values(library, topic, *values, **how)


@contextmanager
def reading(library: Library, topic: str, partition: int = 0, **how: int) -> Iterator[Consumer]:
    """A consumer of one partition, from its beginning, without a group."""
    with library.consuming(**how) as consumer:
        consumer.assign(topic, {partition: None})
        yield consumer


def receive(consumer: Consumer, count: int) -> list[Received]:
    """Wait for so many records, and take no more."""
    deadline_s = time.monotonic() + LIMIT_S
    records: list[Received] = []
    while len(records) < count:
        assert time.monotonic() < deadline_s, f"{len(records)} of {count} records came"
        records += consumer.poll(0.2, count - len(records))
    return records


def values_of(records: Sequence[Received]) -> list[bytes]:
    return [record.value for record in records]


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    """Ask again and again.

    Raises:
        AssertionError: it did not become true in time.
    """
    deadline_s = time.monotonic() + LIMIT_S
    while not is_true():
        assert time.monotonic() < deadline_s, f"not within {LIMIT_S} s: {what}"
        time.sleep(0.02)
