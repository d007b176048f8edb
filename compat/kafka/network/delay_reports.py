"""Log lines about delay requests that are not met.

Most clients show their user the code INVALID_RECORD and hide the sentence that comes with it, so
the operator finds the reason here. A line never has a value of any other header, a key or a body.
Lines of one address are limited (`appliance.client_log`); the metrics `delay_refused` and
`delay_passed` count everything. Layer 5.
"""

import logging
from typing import Final

from _core.paths.delay_notices import DelayNotice
from appliance.client_log import ClientLog
from appliance.log_text import quoted, quoted_bytes

MESSAGE_MAX_CHARS: Final = 500
"""More than any message has: a quoted value of 64 bytes has 256 characters at most."""

_log = logging.getLogger(__name__)


class DelayReports:
    """Writes the lines.

    Args:
        lines: limits them.
    """

    def __init__(self, lines: ClientLog) -> None:
        self._lines = lines

    def report(self, address: str, peer: str, notices: list[DelayNotice]) -> None:
        """Log what became of the delay requests of one client.

        Args:
            address: its IP address, by which lines are limited.
            peer: the same with its port.
            notices: from `DelayNotices.take`.
        """
        for notice in notices:
            text = f"{_facts(notice)} peer={peer}"
            self._lines.write(_log, logging.WARNING, ("delay request", address), "%s", text)


def _facts(notice: DelayNotice) -> str:
    client_id = "none" if notice.client_id is None else quoted_bytes(notice.client_id)
    place = f"topic={quoted(notice.topic)} partition={notice.partition}"
    if notice.count:
        what = f"delay request passed {place} offset={notice.offset} records={notice.count}"
    else:
        record = "all" if notice.record < 0 else notice.record
        what = f"delay request refused {place} record={record}"
    message = quoted(notice.message, char_count_max=MESSAGE_MAX_CHARS)
    return f"{what} reason={notice.reason} message={message} client_id={client_id}"
