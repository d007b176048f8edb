"""The fetches of one connection that wait, and for what."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from compat.kafka.network.parked_fetches import ParkedFetches


class Parked:
    """A fetch of records that are not in memory."""

    answered = False
    cold = (5,)
    wait_ms = 10
    timer = None


def test_a_read_of_the_disk_is_one_of_the_client_s_address() -> None:
    """Addresses take turns for the threads that read."""
    asked: list[tuple[tuple[int, ...], str]] = []

    def read_cold(places: tuple[int, ...], then: Callable[[], None], address: str) -> None:
        asked.append((places, address))

    server: Any = SimpleNamespace(
        pump=SimpleNamespace(read_cold=read_cold),
        broker=SimpleNamespace(config=SimpleNamespace(fetch_wait_max_ms=1_000)),
        loop=SimpleNamespace(call_later=lambda *_: None),
        guard=None,
    )
    connection: Any = SimpleNamespace(address="192.0.2.1")
    parked: Any = Parked()
    ParkedFetches(server, connection).add(parked)
    assert asked == [((5,), "192.0.2.1")]
