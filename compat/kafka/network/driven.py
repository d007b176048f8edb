"""What a server of Kafka clients needs of the broker and of what drives it: a master or a slave.

`appliance.broker` and `appliance.pump` are a master's, `appliance.slave_broker` and
`appliance.slave_pump` a slave's. Layer 5.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from _core.paths.parked_fetch import ParkedFetch
from _core.paths.session import Session
from appliance.client_log import ClientLog
from appliance.client_paths import ControlPlane
from appliance.metrics import Metrics
from appliance.model import ColdPlace
from appliance.store.log.commit_log import CommitLog
from appliance.work_thread import WorkThread
from compat.kafka.node import ControlBroker


class ServedBroker(ControlBroker, Protocol):
    """A broker, as its clients see it."""

    @property
    def leads(self) -> bool:
        """It is a master: it accepts records and coordinates groups."""

    @property
    def metrics(self) -> Metrics: ...

    @property
    def client_log(self) -> ClientLog: ...

    @property
    def log(self) -> CommitLog: ...

    @property
    def replicated_pos(self) -> int:
        """Log position up to which nothing waits for a slave."""

    @property
    def flushed_pos(self) -> int:
        """The end of the part of the log that is on the disk."""

    def open_session(self, answer_control_plane: ControlPlane) -> Session:
        """Return a new Kafka connection."""

    def note_client(self, address: str) -> None:
        """Note the IP address of the client whose requests are handled next."""

    def check_lease(self) -> bool:
        """Return `has_lease`, and refuse batches from now on if it is False."""


class Releases(Protocol):
    """What may leave a broker at this moment; `appliance.release` is a master's."""

    @property
    def local_pos(self) -> int:
        """Log position up to which answers may leave that wait for this machine alone."""

    @property
    def is_backed_up(self) -> bool:
        """So much waits for the disk that a new request would wait too long."""

    @property
    def unflushed_ms(self) -> int:
        """The age of the oldest unflushed byte in ms; 0 if there is none."""

    def positions(self) -> tuple[int, int]:
        """Return the log position for most answers, and that for those that need no slave."""


class Driver(Protocol):
    """What drives a broker."""

    @property
    def release(self) -> Releases:
        """Decides what may leave."""

    work: WorkThread
    progressed: Callable[[list[ParkedFetch]], None]
    failure: asyncio.Future[BaseException]
    is_stopped: bool

    @property
    def has_failed(self) -> bool:
        """Nothing may be accepted or acknowledged any more."""

    def start(self) -> None:
        """Begin to do what happens by itself."""

    async def stop(self) -> None:
        """Stop, and wait for what is in flight."""

    def end_turn(self) -> None:
        """End a turn of the loop in which requests were handled."""

    def fail(self, error: BaseException) -> None:
        """Record an error that cannot be repaired in place."""

    def read_cold(
        self, places: Sequence[ColdPlace], then: Callable[[], None], address: str = ""
    ) -> None:
        """Read and check frames and units on a thread, then call `then` on the loop."""
