"""Notices when a master's lease ends and comes back. Layer 6; on the event loop."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from appliance.replication.lease import NO_LEASE, Lease
from appliance.units import MS_PER_SECOND

_log = logging.getLogger(__name__)

CHECK_MIN_S: Final = 0.01


class LeaseWatch:
    """Writes the lines of the log about a lease, and tells those who wait for it.

    Nothing depends on it for safety: whoever releases an answer asks the lease itself.
    """

    def __init__(self, lease: Lease, changed: Callable[[], None]) -> None:
        """Watch a lease that the master does not hold yet.

        Args:
            changed: called after it ended or came back.
        """
        self._lease, self._changed = lease, changed
        self._was_held = self._is_stopped = False
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Find out what changed; call it after each renewal, and after `is_required` changed."""
        if self._is_stopped:
            return
        lease = self._lease
        is_held = lease.is_held
        if is_held and self._timer is None and lease.is_required:
            delay_s = max(CHECK_MIN_S, lease.left_ms() / MS_PER_SECOND)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)
        if is_held is self._was_held:
            return
        self._was_held = is_held
        if not is_held:
            _log.warning("has no lease, acknowledges and delivers nothing: %s", NO_LEASE)
        elif lease.is_required:
            _log.info("has a lease of %d ms", lease.duration_ms)
        self._changed()

    def stop(self) -> None:
        """Look no more, whatever is called."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        self.look()
