"""Lets records expire before their retention is over while the disk is too full, if so configured.

Beyond `disk.expire_percent` the records of the first segment expire, and no others (of the first
ones, if freeing a single one would cost more than it gives). When that segment is freed and the
disk is still too full, those of the next one follow. So nothing expires that gives no space back:
if something else keeps the first segment, the rest stays. A pending timer never expires. How full
the disk is decides, and no clock.

A segment in which nothing can expire is moved to the end for the sake of those after it, unless
more than three quarters of the log never expires. Layer 3; does no I/O. Runs on the loop.
"""

import logging
from typing import Final

from appliance.retention import Cleanup, Retention
from appliance.store.disk_space import DiskSpace
from appliance.store.head.head_freer import POOR_PART, HeadFreer
from appliance.store.log.commit_log import CommitLog
from appliance.units import counted

CHECKS_AWAITED: Final = 2
"""Checks of the disk after a segment was freed: the first may have begun before."""

CHECKS_UNTIL_KEPT: Final = 30
"""If a segment is not freed after this many checks, a second each, the log says so. What keeps it
may have changed by then: its records expire again."""

_log = logging.getLogger(__name__)


class EarlyExpiry:
    """Expires the records of one segment after another.

    Attributes:
        is_active: the disk is too full.
        expired_records: offsets that expired early since the start.
    """

    def __init__(
        self,
        retention: Retention,
        log: CommitLog,
        disk_space: DiskSpace,
        head_freer: HeadFreer,
        *,
        takes_all: bool,
    ) -> None:
        """Start idle.

        Args:
            retention: expires the records.
            log, disk_space, head_freer: of the store.
            takes_all: also records of topics that keep theirs for ever.
        """
        self._retention = retention
        self._log = log
        self._disk_space = disk_space
        self._head_freer = head_freer
        self._takes_all = takes_all
        self._sweep: Cleanup | None = None
        self._freed_until = 0
        """What is freed in all when the segment of what expired is; 0 if none is awaited."""
        self._check_count = 0
        """Checks of the disk when something last changed."""
        self._moved_until = 0
        """Where the log ended when a segment without a record that can expire was first moved; 0 if
        some have expired since."""
        self._rest_bytes = 0
        """Bytes of the log when all of it had been moved, and nothing expired; 0 if some did."""
        self._began_with = 0
        self._has_warned = False
        self.is_active = False
        self.expired_records = 0

    def step(self) -> None:
        """Expire the next segment's records if the disk needs it; call about ten times a second."""
        if self._disk_space.is_over_expire and not self.is_active:
            self._begin()
        elif self.is_active and not self._disk_space.is_over_expire:
            self._end()
        if not self.is_active or self._sweep is not None or self._has_to_wait():
            return
        cut = self._head_freer.next_cut()
        if cut is None or cut > self._log.pointers.visible:
            return
        if self._log.is_head_shared:
            self._warn("a snapshot or a backup shares it, so that freeing it gives no space back")
            return
        self._freed_until = self._head_freer.freed_bytes + cut - self._log.start_pos
        self._sweep = Cleanup(below_pos=cut, takes_all=self._takes_all, done=self._note_expired)
        self._retention.ask_early(self._sweep)

    def _note_expired(self) -> None:
        assert self._sweep is not None
        count = sum(self._sweep.expired.values())
        self.expired_records += count
        if self._sweep.error is not None:
            self._freed_until = 0  # a full disk has no reserve left: try again
        elif self._is_worth_moving(self._sweep, count):
            self._head_freer.require(self._sweep.below_pos)
        self._sweep = None
        self._check_count = self._disk_space.check_count
        self._head_freer.hurry()

    def _is_worth_moving(self, sweep: Cleanup, count: int) -> bool:
        """Whether what is left in the first segment is moved, so that the next ones can follow.

        Args:
            sweep: has expired what can expire in it.
            count: number of these records.
        """
        if count:
            self._moved_until = self._rest_bytes = 0
            return True
        wrote, size = self._log.pointers.wrote, self._log.pointers.wrote - self._log.start_pos
        if self._moved_until and self._log.start_pos >= self._moved_until:
            # The estimate was wrong. Without this, the log would be copied again and again.
            self._moved_until, self._rest_bytes = 0, size
        stays_bytes = max(sweep.left_bytes + self._head_freer.timers_bytes, self._rest_bytes)
        if stays_bytes > POOR_PART * size:
            return False
        self._moved_until = self._moved_until or wrote
        return True

    def _has_to_wait(self) -> bool:
        """Whether the space of what has expired is not counted as free yet."""
        checks = self._disk_space.check_count - self._check_count
        if self._head_freer.freed_bytes < self._freed_until:
            if checks < CHECKS_UNTIL_KEPT:
                return True
            self._warn("something in it is still needed (docs/RETENTION.md)")
            self._freed_until = 0
            return False
        if self._freed_until:
            self._freed_until = 0
            self._check_count = self._disk_space.check_count
            return True
        if checks < CHECKS_AWAITED:
            self._disk_space.hurry()
            return True
        return False

    # What the log says

    def _begin(self) -> None:
        self.is_active = True
        self._began_with = self.expired_records
        self._moved_until = self._rest_bytes = 0
        self._has_warned = False
        self._check_count = self._disk_space.check_count - CHECKS_AWAITED
        disk = self._disk_space
        _log.warning(
            "%s is too full, %s: records expire before their retention is over, those of the "
            "oldest segment first, until less than %d%% is used (disk.expire_percent)",
            disk.name,
            disk.figures,
            disk.expire_until_percent,
        )

    def _end(self) -> None:
        self.is_active = False
        disk = self._disk_space
        _log.warning(
            "%s has room again, %s: no more records expire before their retention is over; %s did",
            disk.name,
            disk.figures,
            counted(self.expired_records - self._began_with, "record"),
        )

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "nothing more expires although %s is too full: the first segment of the log is "
                "not freed, %s",
                self._disk_space.name,
                why,
            )
