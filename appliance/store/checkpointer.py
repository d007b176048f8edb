"""Takes checkpoints while the broker serves, and a last one when it stops.

 loop     `step`: what may change is noted, runs are frozen; then all is encoded, slice by slice
 thread   `CheckpointJob.run`: runs, units and control file are written and synced, then the
          checkpoint names them, then what no copy names is removed
 loop     `end`

The checkpoint names nothing that is not durable, and no position beyond what is flushed. If there
is no room the present one stays as it is, and it is tried again later. Layer 2.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from appliance.clock import Clock
from appliance.errors import CorruptionError, StorageError
from appliance.fs import FileSystem
from appliance.store import control_file
from appliance.store.checkpoint import CheckpointFile, SavedState
from appliance.store.commit_log import CommitLog
from appliance.store.consume_queue import ConsumeQueues, UnitSyncJob
from appliance.store.control_file import ControlState
from appliance.store.paths import DataPaths, parse_segment_name
from appliance.store.run_files import RunEntry
from appliance.store.runs import Runs, RunsJob
from appliance.store.state import Capture, State, encode_control
from appliance.units import MS_PER_SECOND, NS_PER_MS

GROWTH_FACTOR: Final = 4
"""A state is saved again when the log grew by so many times its size: the log stays the bulk of
what is written."""

RETRY_NS: Final = 5 * MS_PER_SECOND * NS_PER_MS
"""A full disk is tried again at most this often."""

PARTITIONS_PER_SLICE: Final = 128
"""Partitions whose units are written in one slice: about a millisecond."""

IDLE_NS: Final = 500 * NS_PER_MS
"""When nothing was flushed for so long, the checkpoint says how far the log is durable."""


class CheckpointJob:
    """What a thread does for one checkpoint.

    Attributes:
        error: why it came to nothing; None once it is done.
        saved: the state that it named.
    """

    def __init__(
        self,
        checkpointer: "Checkpointer",
        capture: Capture,
        runs: RunsJob,
        units: UnitSyncJob,
        flushed: int,
    ) -> None:
        self._owner = checkpointer
        self._capture = capture
        self.units = units
        self._flushed = flushed
        self.runs = runs
        self.control = capture.control
        self.has_runs = False
        self.has_units = False
        self.error: StorageError | CorruptionError | None = None
        self.saved: SavedState | None = None

    def run(self) -> None:
        """Write it all; may run on any thread.

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
        owner = self._owner
        self.runs.run()
        self.has_runs = True
        self.units.run()
        self.has_units = True
        self.control = replace(self.control, runs=self.runs.entries)
        path = owner.paths.control_file(self.control.number)
        try:
            size, crc = control_file.write(
                owner.fs, path, encode_control(self.control, self._capture.values)
            )
        except StorageError:
            with suppress(StorageError):
                owner.fs.unlink(path)
            raise
        saved = SavedState(self.control.applied, self.control.number, size, crc)
        owner.checkpoint.save(saved, self._flushed)
        self.saved = saved
        # What cannot be removed is tried again with the next one.
        with suppress(StorageError):
            owner.remove_unnamed(self.control)


class MarkJob:
    """Says how far the log is durable, and nothing else."""

    def __init__(self, checkpoint: CheckpointFile, flushed: int) -> None:
        self._checkpoint = checkpoint
        self._flushed = flushed
        self.error: StorageError | None = None

    def run(self) -> None:
        """Write it; may run on any thread.

        Raises:
            StorageError: it failed; the process must stop.
        """
        try:
            self._checkpoint.note_flushed(self._flushed)
        except StorageError as error:
            self.error = error
            raise


class Checkpointer:
    """Knows when a checkpoint is due, and takes it. All but `remove_unnamed` is the loop's.

    Attributes:
        fs, paths, checkpoint: as given.
        failure: why the last one that was tried came to nothing, or could not merge older runs;
            None if all went well.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        fs: FileSystem,
        paths: DataPaths,
        log: CommitLog,
        checkpoint: CheckpointFile,
        queues: ConsumeQueues,
        state: State,
        runs: Runs,
        interval_bytes: int,
        kept: Mapping[int, ControlState],
    ) -> None:
        """Begin with what a start has found.

        Args:
            clock: for pauses.
            fs, paths, log, checkpoint, queues: the files.
            state, runs: what is saved.
            interval_bytes: the log grows by so much, at least, between two checkpoints.
            kept: control files of the states that the checkpoint names, by number.
        """
        self.fs = fs
        self.paths = paths
        self.checkpoint = checkpoint
        self._clock = clock
        self._log = log
        self._queues = queues
        self._state = state
        self._runs = runs
        self._interval_bytes = interval_bytes
        self._known = dict(kept)
        # Also that of a state whose file is missing: what comes back must not be another one.
        named = [state.number for state in checkpoint.states]
        self._number = max((0, *kept, *named, *self._numbers_in_use()))
        newest = checkpoint.last.states[:1] if checkpoint.last is not None else ()
        self._applied = newest[0].applied if newest else -1
        self._size = newest[0].size if newest else 0
        if newest and newest[0].number in kept:
            self._size += sum(entry.size for entry in kept[newest[0].number].runs)
        self._capture: Capture | None = None
        self._job: CheckpointJob | MarkJob | None = None
        self._failed_ns: int | None = None
        self._is_asked = False
        self.failure: StorageError | CorruptionError | None = None
        self._seen = (-1, clock.monotonic_ns())

    def _numbers_in_use(self) -> list[int]:
        names = map(parse_segment_name, self.fs.list_dir(self.paths.control))
        return [number for number in names if number is not None]

    # When

    @property
    def is_capturing(self) -> bool:
        """A checkpoint is being taken, and `step` has more to do for it soon."""
        return self._capture is not None

    def ask(self) -> None:
        """Take one as soon as can be, however little is new."""
        self._is_asked = True

    def _is_due(self) -> bool:
        failed_ns = self._failed_ns
        if failed_ns is not None and self._clock.monotonic_ns() - failed_ns < RETRY_NS:
            return False
        if self._is_asked or self._applied < 0 or self._runs.is_due:
            return True
        grown = self._log.pointers.committed - self._applied
        return grown >= max(self._interval_bytes, GROWTH_FACTOR * self._size)

    def step(self) -> CheckpointJob | MarkJob | None:
        """Go on with a checkpoint, or begin one that is due; call it at the end of a turn.

        Returns:
            What a thread is to run now, and `end` to be told then.
        """
        if self._job is not None or not self._is_end_of_turn():
            return None
        if self._capture is None and self._is_due():
            self._begin()
        if self._capture is None:
            self._job = self._mark_when_idle()
        elif self._go_on(self._capture) and self._is_flushed(self._capture):
            self._job = self._hand_over(self._capture)
        return self._job

    def _go_on(self, capture: Capture) -> bool:
        """A slice of what the loop has to do; True when that is all, or nothing came of it."""
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
        assert self._capture is not None
        self._capture.abandon()
        self._capture = None
        self._runs.abandon(self._runs_job)
        self._failed_ns = self._clock.monotonic_ns()
        self.failure = error

    def _is_end_of_turn(self) -> bool:
        """Everything that was applied is in the log, and the other way round."""
        return not (self._log.tail.has_pending or self._state.groups.has_gathered)

    def _is_flushed(self, capture: Capture) -> bool:
        return self._log.pointers.flushed >= capture.control.applied

    def _mark_when_idle(self) -> MarkJob | None:
        flushed, now_ns = self._log.pointers.flushed, self._clock.monotonic_ns()
        if flushed != self._seen[0]:
            self._seen = flushed, now_ns
        told = self.checkpoint.last
        if told is not None and told.flushed >= flushed:
            return None
        return None if now_ns - self._seen[1] < IDLE_NS else MarkJob(self.checkpoint, flushed)

    # One checkpoint

    def _begin(self) -> Capture:
        log, tail = self._log, self._log.tail
        assert self._is_end_of_turn()
        self._number += 1
        applied = log.pointers.committed
        # All three at the same moment: what is appended from now on belongs to the next one.
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
        self._runs_job = self._runs.freeze(applied, self._clock.wall_ms())
        self._unsaved = iter([each for each in self._state.projections.partitions if each])
        return self._capture

    def _hand_over(self, capture: Capture) -> CheckpointJob:
        self._capture = None
        return CheckpointJob(
            self, capture, self._runs_job, self._queues.sync_job(), self._log.pointers.flushed
        )

    def end(self, job: CheckpointJob | MarkJob) -> None:
        """A job has run; whatever came of it."""
        assert job is self._job
        self._job = None
        if isinstance(job, MarkJob):
            return
        if job.has_runs:
            self._runs.end(job.runs)
        else:
            self._runs.abandon(job.runs)
        if job.has_units:
            self._queues.end_sync(job.units)
        self.failure = job.error or next(iter(job.runs.damage), None)
        if job.saved is None:
            self._failed_ns = self._clock.monotonic_ns()
            return
        self._failed_ns = None
        self._is_asked = False
        self._applied = job.saved.applied
        self._size = job.saved.size + sum(entry.size for entry in job.control.runs)

    def remove_unnamed(self, newest: ControlState) -> None:
        """Remove the files of states that no copy names any more; on the thread of the job."""
        named = {state.number for state in self.checkpoint.states}
        # Named first: should the removal fail, the files are found by the next one.
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
                self.fs.unlink(self.paths.control_file(number))

    # Stop

    def finish(self) -> StorageError | CorruptionError | None:
        """Take a last checkpoint, of the end of the log, all of which is flushed.

        Nothing else may run any more. A failure is no harm: the next start replays more.

        Returns:
            Why there is none, if so.

        Raises:
            StorageError: a sync failed; this is no clean stop.
        """
        if self._job is not None:  # its thread has come to its end, and nobody was told
            if isinstance(self._job.error, StorageError) and self._job.error.is_fatal:
                raise self._job.error
            self.end(self._job)
        if self._capture is not None:
            self._capture.abandon()
            self._capture = None
            self._runs.abandon(self._runs_job)
        if self._applied == self._log.pointers.committed:
            return None
        capture = self._begin()
        while self.is_capturing and not self._go_on(capture):
            pass
        if self.is_capturing:
            job = self._job = self._hand_over(capture)
            job.run()
            self.end(job)
        return self.failure
