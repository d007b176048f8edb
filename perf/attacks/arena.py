"""What an attack is, and what it may use."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from appliance.config.config import Config
from perf.attacks import requests
from perf.attacks.broker import ObservedBroker
from perf.attacks.requests import Wire

GOOD_TOPIC: Final = "good"
PER_CONNECTION_BYTES: Final = 64 << 10
"""docs/CONFIGURATION.md: by so much for each connection the limit can be exceeded."""


@dataclass
class Arena:
    """The broker, and everything that an attack holds.

    Attributes:
        broker: is attacked.
        seconds: how long a round of a flood lasts.
        notes: figures and words for the last column.
        faults: what the attack found to be wrong.
        connection_count: the most that it had at a time.
    """

    broker: ObservedBroker
    seconds: float
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    connection_count: int = 0
    _wires: list[Wire] = field(default_factory=list)
    _is_counted: bool = False
    _closed_bytes: int = 0
    _end_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        """What is sent from now on is the attack, and counts."""
        self.close_all()
        self._closed_bytes = 0
        self.connection_count = 0
        self.begin_round()

    def begin_round(self) -> None:
        """Close what the round before left open; a flood lasts for `seconds` from now on."""
        self.close_all()
        self._end_s = time.monotonic() + self.seconds

    @property
    def is_over(self) -> bool:
        """The time of a flood is over, or the broker has ended."""
        return time.monotonic() >= self._end_s or self.broker.has_ended

    @property
    def sent_bytes(self) -> int:
        return self._closed_bytes + sum(wire.sent_bytes for wire in self._wires)

    def connect(
        self, address: str = "", *, limit_s: float = requests.LIMIT_S, receive_bytes: int = 0
    ) -> Wire:
        """A connection, closed at the end of the attack; to the Kafka address unless given."""
        wire = Wire(address or self.broker.address, limit_s=limit_s, receive_bytes=receive_bytes)
        with self._lock:
            self._wires.append(wire)
            self.connection_count = max(self.connection_count, len(self._wires))
        return wire

    def close(self, wire: Wire) -> None:
        with self._lock:
            self._wires.remove(wire)
            self._closed_bytes += wire.sent_bytes
        wire.close()

    def close_all(self) -> None:
        for wire in list(self._wires):
            self.close(wire)

    def ask(self, request: bytes) -> bytes:
        """Send one request on a connection of its own and return the answer."""
        wire = self.connect()
        try:
            return wire.ask(request)
        finally:
            self.close(wire)

    def time(self, what: str, request: bytes) -> bytes:
        """Do the same, and note how long it took."""
        begin_s = time.monotonic()
        try:
            return self.ask(request)
        except OSError as error:
            self.notes.append(f"{what}: {error}")
            return b""
        finally:
            self.notes.append(f"{what} {(time.monotonic() - begin_s) * 1e3:,.0f} ms")

    def side_by_side(self, count: int, work: Callable[[int], None]) -> None:
        """Do work on so many threads; a connection that the broker closes ends its thread."""

        def run(index: int) -> None:
            with suppress(OSError):
                work(index)

        threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def linger(self) -> None:
        """Hold everything until the time is over."""
        while not self.is_over:
            time.sleep(0.05)

    def create_topics(self, names: Sequence[str], partition_count: int) -> None:
        """Create topics, some at a time."""
        step = max(1, 1_000 // partition_count)
        for at in range(0, len(names), step):
            counts = dict.fromkeys(names[at : at + step], partition_count)
            self.ask(requests.create_topics(counts))


Parts = frozenset[str]


@dataclass(frozen=True, slots=True)
class Attack:
    """One row of the table.

    Args:
        name: for --only.
        run: attacks; its docstring says what it does and what it costs the attacker.
        is_flood: it goes on for some seconds; else it is one request, or a few.
        prepare: what others did before.
        config: settings of the broker, as TOML.
        holds: what it makes the broker hold beside requests and answers, see `limit_bytes`.
        file_limit: open files that the broker may have.
        is_unread: nobody reads the broker's standard error.
        is_control: it asks the broker nothing; what it costs the good client is not the broker's.
    """

    name: str
    run: Callable[[Arena], None]
    is_flood: bool = True
    prepare: Callable[[Arena], None] | None = None
    config: str = ""
    holds: Parts = frozenset()
    file_limit: int | None = None
    is_unread: bool = False
    is_control: bool = False


def limit_bytes(config: Config, holds: Parts, before_bytes: int, connection_count: int) -> int:
    """The memory that docs/CONFIGURATION.md allows.

    What the broker had before; network.inflight_max_bytes and 64 KiB for each connection; and of
    `holds`: `request`, one request more; `cache`, frames that were read; `unpacked`, one batch
    unpacked, twice (what a decompressor returns is copied); `offsets`, their quota.
    """
    parts = {
        "request": config.request_size_max_bytes,
        "cache": config.cache_size_bytes,
        "unpacked": 2 * config.decompressed_size_max_bytes,
        "offsets": config.offset_total_size_max_bytes,
    }
    connections = connection_count * PER_CONNECTION_BYTES
    held = sum(parts[part] for part in holds)
    return before_bytes + config.inflight_max_bytes + connections + held
