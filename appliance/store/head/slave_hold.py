"""Keeps segments that a connected slave still lacks, up to a bound. Layer 2.

The bytes that are kept for the slave count from the moment at which they could be freed otherwise:
the segments themselves, and what the log grows by meanwhile. Beyond the bound, or on a full disk,
the slave is given up until its next connection. It then copies the log anew.
"""

import logging
from typing import Final

from appliance.store.log.commit_log import CommitLog

NOBODY: Final = (1 << 63) - 1
"""The position of a slave that lacks nothing, or of none."""

_log = logging.getLogger(__name__)


class SlaveHold:
    """What the log keeps for its slave. Runs on the loop.

    Attributes:
        held_bytes: kept for the slave alone, at this moment.
        has_given_up: it was too much; true until the connection of the slave ends.
    """

    def __init__(self, log: CommitLog, *, bytes_max: int) -> None:
        """Hold nothing.

        Args:
            log: of a master.
            bytes_max: most bytes that are kept for the slave; 0: none.
        """
        self._log = log
        self._bytes_max = bytes_max
        self._slave_pos = NOBODY
        self._began_pos: int | None = None
        self.held_bytes = 0
        self.has_given_up = False

    def note_slave(self, pos: int | None) -> None:
        """Note what the slave has.

        Args:
            pos: log position up to which it has the log on its disk; 0 if that is not known yet;
                None: no slave is connected.
        """
        if pos is None:
            self.has_given_up = False
        self._slave_pos = NOBODY if pos is None or self.has_given_up else pos

    def limit(self, cut: int) -> int:
        """Return the part of a cut that the slave does not need; all of it if it needs all.

        Args:
            cut: log position up to which the log may be freed otherwise.
        """
        bases = [each for each in self._log.files.bases if each <= min(cut, self._slave_pos)]
        return max(bases) if bases and bases[-1] > self._log.start_pos else cut

    def is_held(self, cut: int) -> bool:
        """Return whether the segments below a cut must wait for the slave.

        Args:
            cut: log position up to which nothing else needs the log.
        """
        if cut <= self._slave_pos:
            self._end()
            return False
        log, wrote = self._log, self._log.pointers.wrote
        if self._began_pos is None:
            self._began_pos = wrote
            _log.info(
                "the log to %d is kept for the slave, which has it to %d", cut, self._slave_pos
            )
        self.held_bytes = cut - log.start_pos + wrote - self._began_pos
        is_short = log.is_full or log.tail.is_refusing
        if self.held_bytes <= self._bytes_max and not is_short:
            return True
        why = "the disk is full" if is_short else "replication.keep_for_slave_bytes"
        _log.warning(
            "the slave is given up: %d bytes are kept for it, which has the log to %d (%s); it "
            "copies the log anew",
            self.held_bytes,
            self._slave_pos,
            why,
        )
        self.has_given_up = True
        self._slave_pos = NOBODY
        self._end()
        return False

    def _end(self) -> None:
        self._began_pos = None
        self.held_bytes = 0
