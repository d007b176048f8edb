"""Frees the first segments of a slave's log once its master has freed them.

A master carries what lives on in a segment before it frees it, and says in each BEAT where its log
begins and ends. The slave follows once all up to that end is durable and in a saved state of its
own: then its log is complete by itself, as that of the master was. Layer 2.
"""

import logging
from dataclasses import replace
from typing import Final

from appliance.store.head.head_freer import RETRY_NS, FreeJob
from appliance.store.log.data_files import DataFiles
from appliance.store.log.segment import FreedSegment
from appliance.store.state.checkpointer import Checkpointer
from appliance.store.state.state import State
from appliance.units import counted

NO_SPARE: Final = 0
"""A slave keeps no freed file for a later segment."""

_log = logging.getLogger(__name__)


class FollowedHead:
    """Frees what the master freed. All methods run on the loop.

    Attributes:
        freed_bytes: bytes of segments freed since the start.
    """

    def __init__(
        self, files: DataFiles, state: State, checkpoints: Checkpointer, left: list[FreedSegment]
    ) -> None:
        """Wait for the master.

        Args:
            files: the log and the checkpoint.
            state: forgets what is freed.
            checkpoints: saves the state first.
            left: freed segments, ascending, whose files could not be removed yet.
        """
        self._files, self._log = files, files.log
        self._state = state
        self._checkpoints = checkpoints
        self._left = left
        self._freeing = 0, 0
        """Segments that a job removes, and their bytes."""
        self._failed_ns: int | None = None
        self._start_pos = 0
        self._needed_pos = 0
        self.freed_bytes = 0

    def note_master(self, start_pos: int, committed_pos: int) -> None:
        """Note where the master's log begins, and where it ended at that moment.

        Args:
            start_pos, committed_pos: log positions, as the master says.
        """
        if start_pos > self._start_pos:
            self._start_pos, self._needed_pos = start_pos, max(start_pos, committed_pos)

    def forget_master(self) -> None:
        """Note that the log begins anew, perhaps as that of another master."""
        self._start_pos = self._needed_pos = 0

    def step(self, durable_pos: int) -> FreeJob | None:
        """Free what can be freed.

        Args:
            durable_pos: the end of the whole frames that are durable.

        Returns:
            A job to run on a thread and then pass to `end`, or None.
        """
        if self._left and self._is_rested():
            return self._remove()
        cut = max((base for base in self._log.files.bases if base <= self._start_pos), default=0)
        if cut <= self._log.start_pos or durable_pos < self._needed_pos:
            return None
        if self._checkpoints.saved_pos < self._needed_pos:
            self._checkpoints.ask()
            return None
        self._left += self._log.forget_head(cut)
        self._state.projections.moved.start = cut
        self._state.damage = [each for each in self._state.damage if each.pos >= cut]
        return self._remove()

    def _is_rested(self) -> bool:
        failed_ns = self._failed_ns
        return failed_ns is None or self._files.clock.monotonic_ns() - failed_ns >= RETRY_NS

    def _remove(self) -> FreeJob:
        """Remove all files that are left, the first one first: a later one alone leaves a gap."""
        checkpoint = self._files.checkpoint
        checkpoint.log = replace(checkpoint.log, start=self._log.start_pos)
        self._freeing = len(self._left), sum(segment.size for segment in self._left)
        return FreeJob(self._files, self._left, self._log.pointers.flushed, NO_SPARE)

    def end(self, job: FreeJob) -> None:
        """Note that a job has run."""
        count = self._freeing[0] - len(job.freed)
        size = self._freeing[1] - sum(segment.size for segment in job.freed)
        self.freed_bytes += size
        if count:
            _log.info(
                "freed %s, %d bytes, as the master did; the log begins at %d",
                counted(count, "segment"),
                size,
                self._log.start_pos,
            )
        self._failed_ns = None
        if job.error is not None:
            self._failed_ns = self._files.clock.monotonic_ns()
            _log.warning("a freed segment cannot be removed, it is tried again: %s", job.error)
