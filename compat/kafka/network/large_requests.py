"""Large requests are received beside the event loop, once their memory is granted.

The loop reads the first part of a request, finds that it is large, and hands its buffer to a
thread. It handles the request when all of it is there. The thread receives only while clients that
ask for little are served and would wait. Otherwise the loop receives, which is a tenth faster. It
also receives what the thread cannot take. Layer 5.
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, cast

from _core.bytes.receive_loop import LargeInput
from _core.paths.session import Session
from appliance.loop_turns import LoopTurns
from appliance.metrics import Metrics
from appliance.system.clock import Clock
from appliance.system.receive_thread import ReceiveThread
from appliance.units import KIB
from compat.kafka.network.memory_budget import LARGE_BYTES, Claim

REST_MIN_BYTES: Final = 512 * KIB
"""If less than this is missing, the loop receives it."""


def find_claim(session: Session, address: str) -> Claim | None:
    """Return what the request that is arriving needs, if it is large.

    Args:
        session: of its connection.
        address: of its client.
    """
    size_bytes = session.wanted_bytes
    if size_bytes <= LARGE_BYTES:
        return None
    return Claim(session.requests, size_bytes, address)


class Receiver(Protocol):
    """A connection."""

    session: Session

    def take_back(self) -> None:
        """Handle the request in the buffer that was lent: all of it is there."""


@dataclass(frozen=True, slots=True)
class _Receipt:
    """A request that the thread receives.

    Args:
        receiver: its connection.
        transport: of that.
        read_bytes: how much of it the loop had read.
    """

    receiver: Receiver
    transport: asyncio.Transport
    read_bytes: int


class LargeRequests:
    """The thread, and whose requests it receives."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        guard: Callable[[Callable[[], None]], None],
        metrics: Metrics,
        clock: Clock,
        turns: LoopTurns,
    ) -> None:
        """Begin without requests; the first large one starts the thread.

        Args:
            loop: calls back.
            guard: runs a step of the loop.
            metrics: counts what the thread receives.
            clock: for what `turns` is asked.
            turns: of the loop; they say who was served lately.
        """
        self._loop = loop
        self._guard = guard
        self._metrics = metrics
        self._clock = clock
        self._turns = turns
        self._thread: ReceiveThread | None = None
        self._is_over = False
        self._receipts: dict[LargeInput, _Receipt] = {}

    def receives(self, receiver: Receiver, transport: asyncio.Transport) -> bool:
        """Return whether the thread receives the rest of a request that was granted.

        If so, nothing else may read from the transport, until the receiver takes its buffer back.

        Args:
            receiver: whose request it is.
            transport: of its connection.
        """
        session = receiver.session
        if session.lent is not None:
            return True
        if session.wanted_bytes - session.partial_bytes < REST_MIN_BYTES:
            return False
        is_alone = not self._turns.serves_light(self._clock.monotonic_ns())
        if is_alone or not self._has_thread():
            return False
        assert self._thread is not None
        given = session.lend_input()
        if given is None:  # it is asked for again at the end of the round
            return False
        receipt = _Receipt(receiver, transport, given.received_bytes)
        connection = cast(socket.socket, transport.get_extra_info("socket"))
        if not self._thread.try_begin(given, connection.fileno()):
            session.take_back()
            return False
        self._receipts[given] = receipt
        return True

    def give_up(self, session: Session) -> None:
        """End the receipt of a request whose connection is lost, if there is one."""
        if session.lent is None:
            return
        self._receipts.pop(session.lent, None)
        if self._thread is not None:
            self._thread.cancel(session.lent)

    def free(self, spent: LargeInput | None) -> None:
        """Free the memory of a request that was handled."""
        if self._thread is not None and spent is not None:
            self._thread.free(spent)

    def shutdown(self) -> None:
        """End the thread; connections may still be lost after this."""
        self._is_over = True
        self._receipts.clear()
        if self._thread is not None:
            self._loop.remove_reader(self._thread.fileno())
            self._thread.shutdown()
            self._thread = None

    def _has_thread(self) -> bool:
        if self._thread is None and not self._is_over:
            try:
                self._thread = ReceiveThread()
            except (OSError, RuntimeError):  # no descriptor or no thread is left
                return False
            self._loop.add_reader(self._thread.fileno(), self._guard, self._end)
        return self._thread is not None

    def _end(self) -> None:
        if self._thread is None:
            return
        for given in self._thread.take_ended():
            receipt = self._receipts.pop(given, None)
            if receipt is None:  # it was given up
                continue
            self._metrics.received_bytes += given.received_bytes - receipt.read_bytes
            if given.received_bytes == given.wanted_bytes:
                receipt.receiver.take_back()
            else:  # the client closed the connection, or it broke
                receipt.transport.close()
