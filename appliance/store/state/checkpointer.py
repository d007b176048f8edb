"""Takes checkpoints while the broker serves, and a last one when it stops.

 loop     `step` copies whatever may change and freezes the memtable, then encodes slice by slice
 thread   `CheckpointJob.run` writes and syncs runs, units and state snapshot, then writes their
          names into the checkpoint, then removes files that no copy names
 loop     `end`

Runs of many rows are merged beside that: `begin_merge`, `RunsMerge.run` on another thread, then
`end_merge`.

The checkpoint names only durable files, and no position after the flushed one. If the disk is full,
the present checkpoint remains and the next attempt follows later. Layer 2.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from appliance.errors import CorruptionError, StorageError
from appliance.log_text import quoted
from appliance.store.checkpoint import SavedState
from appliance.store.log.data_files import DataFiles
from appliance.store.paths import parse_segment_name
from appliance.store.queue.consume_queue import ConsumeQueues, UnitSyncJob
from appliance.store.runs.run_files import RunEntry, run_directory
from appliance.store.runs.run_set import Runs
from appliance.store.runs.runs_job import RunsJob
from appliance.store.runs.runs_merge import RunsMerge
from appliance.store.state import snapshot
from appliance.store.state.snapshot import ControlState
from appliance.store.state.state import Capture, State, encode_control
from appliance.units import MS_PER_HOUR, MS_PER_SECOND, NS_PER_MS

GROWTH_FACTOR: Final = 4
"""A state is saved again when the log has grown by this many times its size, so that most bytes
written are bytes of the log."""

AGE_SAVED_NS: Final = 6 * MS_PER_HOUR * NS_PER_MS
"""A log that grows slowly is saved this often: a crash costs the age that records have gained since
the last state, and a broker that crashes every day must still expire them."""

RETRY_NS: Final = 5 * MS_PER_SECOND * NS_PER_MS
"""The minimum time between a failed checkpoint and the next attempt."""

PARTITIONS_PER_SLICE: Final = 128
"""Partitions whose units are written in one slice: about a millisecond."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class CheckpointJob:
    """The part of one checkpoint that runs on a thread.

    Attributes:
        error: the error that ended it; None if it succeeded.
        saved: the state that it saved; None if it failed.
    """

    owner: "Checkpointer"
    control: ControlState
    values: Sequence[bytes]
    runs: RunsJob
    units: UnitSyncJob
    flushed: int
    has_runs: bool = False
    has_units: bool = False
    error: StorageError | CorruptionError | None = None
    saved: SavedState | None = None

    def run(self) -> None:
        """Write all files; may run on any thread.

        Raises:
            StorageError: a sync failed; the process must stop.
        """
        try:
            self._run()
        except CorruptionError as error:
            self.error = error
        except StorageError as error:
            self.error = error
            if error.is_fatal:
                raise

    def _run(self) -> None:
        owner = self.owner
        self.runs.run()
        self.has_runs = True
        self.units.run()
        self.has_units = True
        self.control = replace(
            self.control, runs=self.runs.entries, has_timer_log=self.runs.has_timer_log
        )
        path = owner.paths.snapshot(self.control.number)
        try:
            size, crc = snapshot.write(owner.fs, path, encode_control(self.control, self.values))
        except StorageError:
            with suppress(StorageError):
                owner.fs.unlink(path)
            raise
        saved = SavedState(self.control.applied, self.control.number, size, crc)
        owner.checkpoint.save(saved, self.flushed)
        self.saved = saved
        # The next checkpoint retries files that cannot be removed.
        with suppress(StorageError):
            owner.remove_unnamed(self.control)


class Checkpointer:
    """Takes a checkpoint when one is due. All methods except `remove_unnamed` run on the loop.

    Attributes:
        fs, paths, checkpoint: as passed to the constructor.
        snapshot_bytes: size of the newest state snapshot, without counts of timers, which nobody
            carries; 0 if there is none.
        failure: the error that ended the last attempt or kept it from merging older runs; None if
            there was none.
    """

    def __init__(
        self,
        files: DataFiles,
        *,
        queues: ConsumeQueues,
        state: State,
        runs: Runs,
        interval_bytes: int,
        kept: Mapping[int, ControlState],
    ) -> None:
        """Continue from the checkpoint that recovery loaded.

        Args:
            files, queues: the files.
            state, runs: the state to save.
            interval_bytes: minimum growth of the log between two checkpoints.
            kept: state snapshots of the states that the checkpoint names, by number.
        """
        self.fs, self.paths, self.checkpoint = files.fs, files.paths, files.checkpoint
        self._clock, self._log = files.clock, files.log
        self._queues = queues
        self._state = state
        self._runs = runs
        self._interval_bytes = interval_bytes
        self._known = dict(kept)
        # Include states whose file is missing: if it reappears, its number must not be in use.
        named = [state.number for state in self.checkpoint.states]
        self._number = max((0, *kept, *named, *self._numbers_in_use()))
        last = self.checkpoint.last
        newest = last.states[:1] if last is not None else ()
        self._applied = newest[0].applied if newest else -1
        self.snapshot_bytes = 0
        if newest:
            control = kept.get(newest[0].number)
            self.snapshot_bytes = newest[0].size - (control.counts_size if control else 0)
        self._size = newest[0].size if newest else 0
        if newest and newest[0].number in kept:
            self._size += sum(entry.size for entry in kept[newest[0].number].runs)
        self._saved_age = (
            kept[newest[0].number].age if newest and newest[0].number in kept else None
        )
        self._capture: Capture | None = None
        self._job: CheckpointJob | None = None
        self._failed_ns: int | None = None
        self._saved_ns = self._clock.monotonic_ns()
        self._is_asked = False
        self.failure: StorageError | CorruptionError | None = None
        self._is_debug = _log.isEnabledFor(logging.DEBUG)
        self._began_ns = self._merge_began_ns = 0

    def _numbers_in_use(self) -> list[int]:
        names = map(parse_segment_name, self.fs.list_dir(self.paths.control))
        return [number for number in names if number is not None]

    # When

    @property
    def is_capturing(self) -> bool:
        """A checkpoint is being captured: call `step` again soon."""
        return self._capture is not None

    @property
    def saved_pos(self) -> int:
        """Log position up to which the newest saved state has everything; -1: there is none."""
        return self._applied

    @property
    def lag_bytes(self) -> int:
        """Size of the log that the newest saved state does not have."""
        return self._log.pointers.committed - max(self._applied, self._log.start_pos)

    def ask(self) -> None:
        """Request a checkpoint as soon as possible, even if little has changed."""
        self._is_asked = True

    def _is_due(self) -> bool:
        failed_ns = self._failed_ns
        if failed_ns is not None and self._clock.monotonic_ns() - failed_ns < RETRY_NS:
            return False
        if self._is_asked or self._applied < 0 or self._runs.is_due:
            return True
        grown = self._log.pointers.committed - self._applied
        if grown and self._clock.monotonic_ns() - self._saved_ns >= AGE_SAVED_NS:
            return True
        return grown >= max(self._interval_bytes, GROWTH_FACTOR * self._size)

    def step(self) -> CheckpointJob | None:
        """Continue a checkpoint, or begin one that is due; call it at the end of a turn.

        Returns:
            A job to run on a thread and then pass to `end`, or None.
        """
        if self._job is not None or not self._is_end_of_turn():
            return None
        if self._capture is None and self._is_due():
            self._begin()
        capture = self._capture
        if capture is not None and self._go_on(capture) and self._is_flushed(capture):
            self._job = self._hand_over(capture)
        return self._job

    def _go_on(self, capture: Capture) -> bool:
        """Do a slice of the loop's work; return True when all of it is done, False if it failed."""
        if not capture.step():
            return False
        try:
            return not self._queues.save_some(self._unsaved, partitions_max=PARTITIONS_PER_SLICE)
        except StorageError as error:
            if error.is_fatal:
                raise
            self._give_up(error)
            return False

    def _give_up(self, error: StorageError) -> None:
        self.abandon()
        self._failed_ns = self._clock.monotonic_ns()
        self.failure = error
        _log.warning("checkpoint %d failed, the last one stays: %s", self._number, error)

    def _is_end_of_turn(self) -> bool:
        """Memory and log agree, and all frames are written."""
        return not (self._log.tail.has_pending or self._state.groups.has_gathered)

    def _is_flushed(self, capture: Capture) -> bool:
        return self._log.pointers.flushed >= capture.control.applied

    # One checkpoint

    def _begin(self) -> Capture:
        log, tail = self._log, self._log.tail
        assert self._is_end_of_turn()
        self._number += 1
        self._began_ns = self._clock.monotonic_ns()
        applied = log.pointers.committed
        # Capture position, state and timers at the same moment: later frames belong to the next.
        self._capture = Capture(
            self._state,
            ControlState(
                number=self._number,
                start=log.start_pos,
                applied=applied,
                last_pos=tail.last_pos,
                last_crc=tail.last_crc,
                epoch=tail.epoch,
                lost=tuple(self._state.lost),
                damage=tuple(self._state.damage),
            ),
        )
        self._runs_job = self._runs.freeze(applied)
        self._unsaved = iter([each for each in self._state.projections.partitions if each])
        return self._capture

    def _hand_over(self, capture: Capture) -> CheckpointJob:
        self._capture = None
        return CheckpointJob(
            self,
            capture.control,
            capture.values,
            self._runs_job,
            self._queues.sync_job(),
            self._log.pointers.flushed,
        )

    def end(self, job: CheckpointJob) -> None:
        """Note that a job has run, successfully or not."""
        assert job is self._job
        self._job = None
        if job.has_runs:
            self._runs.end(job.runs)
        else:
            self._runs.abandon(job.runs)
        if job.has_units:
            self._queues.end_sync(job.units)
        self.failure = job.error or next(iter(job.runs.damage), self._runs.merge_error)
        if job.saved is None:
            self._failed_ns = self._clock.monotonic_ns()
            self._log_failure(job.control.number, self.failure)
            return
        self._failed_ns = None
        self._saved_ns = self._clock.monotonic_ns()
        self._is_asked = False
        self._applied = job.saved.applied
        self._saved_age = job.control.age
        self._size = job.saved.size + sum(entry.size for entry in job.control.runs)
        self.snapshot_bytes = job.saved.size - job.control.counts_size
        if self._is_debug:
            _log.debug(
                "checkpoint number=%d applied=%d bytes=%d took_ms=%d",
                job.saved.number,
                job.saved.applied,
                self._size,
                (self._clock.monotonic_ns() - self._began_ns) // NS_PER_MS,
            )

    def _log_failure(self, number: int, error: Exception | None) -> None:
        if self._is_debug:
            _log.debug("checkpoint failed number=%d reason=%s", number, quoted(str(error)))

    def remove_unnamed(self, newest: ControlState) -> None:
        """Remove the files of states that no copy names any longer; on the thread of the job."""
        named = {state.number for state in self.checkpoint.states}
        # Recorded first: if the removal fails, the next checkpoint still finds the files.
        self._known[newest.number] = newest
        self._known = {
            number: control for number, control in self._known.items() if number in named
        }
        entries: dict[tuple[int, int], RunEntry] = {}
        for control in self._known.values():
            entries.update(((entry.kind, entry.number), entry) for entry in control.runs)
        self._runs.keep(entries.values())
        for number in self._numbers_in_use():
            if number not in named:
                self.fs.unlink(self.paths.snapshot(number))

    # Merges

    def begin_merge(self) -> RunsMerge | None:
        """Return a merge to run on a thread and then pass to `end_merge`, or None."""
        merge = self._runs.begin_merge()
        if merge is not None:
            self._merge_began_ns = self._clock.monotonic_ns()
        return merge

    def end_merge(self, merge: RunsMerge) -> None:
        """Note that a merge has run, successfully or not."""
        self._runs.end_merge(merge)
        if merge.error is not None:
            self.failure = merge.error
            _log.warning("older runs could not be merged, and stay: %s", merge.error)
        elif self._is_debug:
            _log.debug(
                "merge directory=%s runs=%d rows=%d left=%d took_ms=%d",
                run_directory(self.paths, merge.kind).name,
                len(merge.runs),
                sum(entry.rows for entry in merge.runs),
                merge.made.rows if merge.made is not None else 0,
                (self._clock.monotonic_ns() - self._merge_began_ns) // NS_PER_MS,
            )

    def drop_merge(self) -> None:
        """Forget a merge whose thread has ended; its file goes with the next checkpoint."""
        self._runs.drop_merge()

    # Stop

    def abandon(self) -> None:
        """Give up a checkpoint that is being captured; no job may run."""
        if self._capture is not None:
            self._capture.abandon()
            self._capture = None
            self._runs.abandon(self._runs_job)

    def finish(self) -> StorageError | CorruptionError | None:
        """Take a last checkpoint at the end of the log, all of which is flushed.

        It saves the age of the store, even if the log has not grown since the last one: what a stop
        does not save counts as a stop, and is in doubt for an hour.

        No other job may run. A failure is harmless: the next start replays more.

        Returns:
            The error if it failed, otherwise None.

        Raises:
            StorageError: a sync failed; this is not a clean stop.
        """
        if self._job is not None:  # its thread has ended, but `end` was not called
            if isinstance(self._job.error, StorageError) and self._job.error.is_fatal:
                raise self._job.error
            self.end(self._job)
        self.abandon()
        if self._applied == self._log.pointers.committed and self._saved_age == self._state.age:
            return None
        capture = self._begin()
        while self.is_capturing and not self._go_on(capture):
            pass
        if self.is_capturing:
            job = self._job = self._hand_over(capture)
            job.run()
            self.end(job)
        return self.failure
