"""Log lines that a client causes: a few for each address, so that nobody fills the disk.

Whoever sends malformed requests, or connects in vain, could otherwise write as many lines as it
likes, and hide those of others. Lines are limited by kind and address, by kind, and in all. At the
end of the interval one line says how many more there were. The metrics count everything. What is
remembered is bounded, whatever clients do.

Lines at the level of debugging are not limited. Layer 1; reads the clock that it is given, and
belongs to the loop's thread.
"""

import logging
from collections import Counter
from typing import Final, Literal, TypeAlias

from appliance.log_text import quoted
from appliance.system.clock import Clock
from appliance.units import NS_PER_MS

INTERVAL_MS: Final = 10_000

SOURCE_LINES_MAX: Final = 5
"""Lines of one kind and address in each interval: enough to show several topics that are wrong."""

KIND_LINES_MAX: Final = 30
"""Lines of one kind, so that no kind hides the others."""

LINES_MAX: Final = 50
"""Lines in each interval."""

SOURCES_MAX: Final = 1_000
"""Kinds and addresses whose lines were left out; further addresses are counted together."""

SUMMARIES_MAX: Final = 20
"""Lines about what was left out. Those with most lines are named, the rest is added up by kind."""

OTHERS: Final = "others"
"""Stands for the addresses that are counted together."""

LineKind: TypeAlias = Literal[
    "delay request",
    "refused connection",
    "closed connection",
    "internal error",
    "admin connection",
    "changed topic",
    "producer",
    "replication",
    "amplification",
    "large commits",
]
"""A closed set, which bounds the number of summaries."""

assert SOURCE_LINES_MAX < KIND_LINES_MAX < LINES_MAX

ANYBODY: Final = "anybody"
"""Stands for the address where it is not known: only the limit of the kind holds."""

_log = logging.getLogger(__name__)

_Source: TypeAlias = tuple[LineKind, str]


class ClientLog:
    """Writes the lines.

    Args:
        clock: its monotonic time counts.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms = -INTERVAL_MS
        self._written: Counter[_Source] = Counter()
        self._written_of_kind: Counter[LineKind] = Counter()
        self._left_out: Counter[_Source] = Counter()

    @property
    def remembered_count(self) -> int:
        """Sources that are remembered, at most LINES_MAX + SOURCES_MAX and one for each kind."""
        return len(self._written) + len(self._left_out)

    def write(
        self,
        log: logging.Logger,
        level: int,
        source: _Source,
        message: str,
        *facts: object,
        error: Exception | None = None,
    ) -> None:
        """Write a line, or count it as left out.

        Args:
            log: whose line it is.
            level: of `logging`.
            source: the kind of line, and the IP address of the client that causes it or ANYBODY.
            message, facts: as for `Logger.log`. What a client chose must be quoted in them.
            error: its traceback follows the line.
        """
        self.tick()
        kind, address = source
        is_full = (
            self._written.total() >= LINES_MAX
            or self._written_of_kind[kind] >= KIND_LINES_MAX
            or (self._written[source] >= SOURCE_LINES_MAX and address != ANYBODY)
        )
        if is_full:
            self._leave_out(source)
            return
        self._written[source] += 1
        self._written_of_kind[kind] += 1
        log.log(level, message, *facts, exc_info=error)

    def _leave_out(self, source: _Source) -> None:
        if source not in self._left_out and len(self._left_out) >= SOURCES_MAX:
            source = source[0], OTHERS
        self._left_out[source] += 1

    def tick(self) -> None:
        """If the interval is over, say what was left out of it, and begin the next one.

        Called by every `write`, and about once a second, so that the last lines are counted too.
        """
        now_ms = self._clock.monotonic_ns() // NS_PER_MS
        if now_ms - self._began_ms < INTERVAL_MS:
            return
        self._began_ms = now_ms
        if self._left_out:
            self._summarise()
        self._written.clear()
        self._written_of_kind.clear()
        self._left_out.clear()

    def _summarise(self) -> None:
        most = self._left_out.most_common()
        rest: Counter[_Source] = Counter()
        for (kind, _), count in most[SUMMARIES_MAX:]:
            rest[kind, OTHERS] += count
        for (kind, address), count in (*most[:SUMMARIES_MAX], *rest.items()):
            _log.warning(
                "left out %d lines kind=%s address=%s interval_ms=%d",
                count,
                quoted(kind),
                address,
                INTERVAL_MS,
            )
