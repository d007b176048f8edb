"""What the debug log says of the requests of one connection, and of their answers.

Exists only while that level is on: a session without a trace calls nothing. Produce and Fetch are
traced like all others. Layer 5: runs on the event loop.
"""

import logging
from collections import deque
from dataclasses import dataclass
from typing import Final

from _core.paths.traced import TRACE_ANSWERED, TRACE_PARKED, TRACE_SILENT
from appliance.log_text import quoted_bytes
from appliance.system.clock import Clock
from compat.kafka.dispatch import REGISTRY

_NS_PER_US: Final = 1_000

_OUTCOMES: Final = {TRACE_ANSWERED: "ready", TRACE_PARKED: "parked", TRACE_SILENT: "none"}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Unanswered:
    """A request whose answer has not left yet."""

    facts: str
    handled_ns: int
    is_parked: bool


class RequestTrace:
    """What a session tells of its requests; see `Session.trace`."""

    def __init__(self, clock: Clock, peer: str) -> None:
        """Listen to one connection.

        Args:
            clock: measures how long things take.
            peer: the client's address and port.
        """
        self._clock = clock
        self._peer = peer
        self._began_ns = 0
        self._unanswered: deque[_Unanswered] = deque()

    @staticmethod
    def make_if_wanted(clock: Clock, peer: str) -> "RequestTrace | None":
        """Make a trace if the log has the level for it; the arguments are those of the class."""
        return RequestTrace(clock, peer) if _log.isEnabledFor(logging.DEBUG) else None

    @property
    def unanswered_count(self) -> int:
        """Requests whose answers have not left yet."""
        return len(self._unanswered)

    def begin(self) -> None:
        """A request is about to be handled."""
        self._began_ns = self._clock.monotonic_ns()

    def end(self, header: tuple[int, int, int, bytes | None], size: int, outcome: int) -> None:
        """A request was handled.

        Args:
            header: API key, version and correlation id as the client sent them, and what it calls
                itself, None if it does not say.
            size: bytes of the request.
            outcome: one of TRACE_ANSWERED, TRACE_PARKED and TRACE_SILENT.
        """
        now_ns = self._clock.monotonic_ns()
        key, version, correlation_id, client_id = header
        api = REGISTRY.find_key(key)
        facts = (
            f"api={key if api is None else api.name} version={version} "
            f"client_id={'none' if client_id is None else quoted_bytes(client_id)} "
            f"correlation_id={correlation_id} peer={self._peer}"
        )
        _log.debug(
            "request %s bytes=%d took_us=%d answer=%s",
            facts,
            size,
            (now_ns - self._began_ns) // _NS_PER_US,
            _OUTCOMES[outcome],
        )
        if outcome != TRACE_SILENT:
            self._unanswered.append(_Unanswered(facts, now_ns, outcome == TRACE_PARKED))

    def leave(self, count: int) -> None:
        """The answers to the next `count` requests were handed to the transport."""
        now_ns = self._clock.monotonic_ns()
        for _ in range(count):
            request = self._unanswered.popleft()
            _log.debug(
                "answer %s waited_us=%d parked=%s",
                request.facts,
                (now_ns - request.handled_ns) // _NS_PER_US,
                "yes" if request.is_parked else "no",
            )
