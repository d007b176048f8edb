"""Log lines about delay requests that cannot be met.

Most clients show their user the code INVALID_RECORD and hide the sentence that comes with it, so
the operator finds the reason here. A line never has a value of any other header, a key or a body.
A source that repeats itself fills no disk: its lines are limited, and so are those of all sources.
The metrics `delay_refused` and `delay_passed` count everything. Layer 5; reads the clock that it is
given.
"""

import logging
from typing import Final

from _core.paths.delay_notices import DelayNotice
from appliance.log_text import quoted, quoted_bytes
from appliance.system.clock import Clock
from appliance.units import NS_PER_MS

INTERVAL_MS: Final = 10_000

SOURCE_LINES_MAX: Final = 5
"""Lines of one address in each interval: enough to show several topics that are wrong."""

LINES_MAX: Final = 100
"""Lines in each interval, which also bounds how many addresses are remembered."""

MESSAGE_MAX_CHARS: Final = 500
"""More than any message has: a quoted value of 64 bytes has 256 characters at most."""

_log = logging.getLogger(__name__)


class DelayReports:
    """Writes the lines."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms = -INTERVAL_MS
        self._lines: dict[str, int] = {}
        self._line_count = 0
        self._left_out = 0

    def report(self, address: str, peer: str, notices: list[DelayNotice]) -> None:
        """Log what became of the delay requests of one client.

        Args:
            address: its IP address, by which lines are limited.
            peer: the same with its port.
            notices: from `DelayNotices.take`.
        """
        for notice in notices:
            if self._may_log(address):
                _log.warning("%s peer=%s left_out=%d", _facts(notice), peer, self._left_out)
                self._left_out = 0
            else:
                self._left_out += 1

    def _may_log(self, address: str) -> bool:
        """Return whether a source may have a line now; if so, count it."""
        now_ms = self._clock.monotonic_ns() // NS_PER_MS
        if now_ms - self._began_ms >= INTERVAL_MS:
            self._began_ms = now_ms
            self._lines.clear()
            self._line_count = 0
        of_address = self._lines.get(address, 0)
        if of_address >= SOURCE_LINES_MAX or self._line_count >= LINES_MAX:
            return False
        self._lines[address] = of_address + 1
        self._line_count += 1
        return True


def _facts(notice: DelayNotice) -> str:
    client_id = "none" if notice.client_id is None else quoted_bytes(notice.client_id)
    place = f"topic={quoted(notice.topic)} partition={notice.partition}"
    if notice.count:
        what = f"delay request passed {place} offset={notice.offset} records={notice.count}"
    else:
        what = f"delay request refused {place} record={notice.record}"
    message = quoted(notice.message, char_count_max=MESSAGE_MAX_CHARS)
    return f"{what} reason={notice.reason} message={message} client_id={client_id}"
