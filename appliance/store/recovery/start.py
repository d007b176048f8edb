"""A start: finds the newest saved state that is intact and fits the log, and replays the rest.

 check      each state that a checkpoint copy names, newest first: state snapshot, the log, runs
 load       control state, then timers and ids; or nothing, if no state is usable
 replay     every frame after it

The tables in `decisions` decide what to do. A state is loaded only after all of it was checked. The
log is not changed here, and derived files only where a long replay would otherwise accumulate too
much in memory: a refused start leaves the log as it was. Layer 2.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from _core.bytes.layout import AT_CRC, FRAME_HEADER_SIZE, KIND_TOPIC
from _core.log.frames import read_header
from _core.state.scan import LogScan
from appliance.errors import CorruptionError, StorageError
from appliance.store.checkpoint import NOT_OWN, SavedState
from appliance.store.log.data_files import DataFiles
from appliance.store.log.frame_kinds import newer_frame_error
from appliance.store.queue.consume_queue import UNITS_IN_MEMORY_MAX, ConsumeQueues
from appliance.store.recovery.decisions import DECISIONS, Decision, Fault, Found, Stop
from appliance.store.recovery.log_knowledge import LogKnowledge, is_covered
from appliance.store.recovery.log_presence import LogPresence
from appliance.store.recovery.report import Progress, Rejected
from appliance.store.runs.run_files import RunEntry
from appliance.store.runs.run_set import Runs
from appliance.store.runs.timer_memory import MEMORY_BYTES, SavedCounts
from appliance.store.state import control_frames, snapshot
from appliance.store.state.snapshot import PARTITION, ControlState, KnownDamage
from appliance.store.state.state import State
from appliance.units import MIB

SCAN_SLICE_BYTES: Final = 16 * MIB
"""Replayed between two turns of the event loop: about ten milliseconds."""

READ_AHEAD_BYTES: Final = 64 * MIB
"""How far ahead of the replay the kernel is asked to read the log."""


class Start:
    """One start; the attributes hold its results once `run` has ended.

    Attributes:
        is_own: the checkpoint describes this log.
        knowledge: verdicts and topics that the replay found late.
        state, runs, queues: the derived state, and the files of timers, ids and units.
        decision: the decision that was applied.
        loaded: the state that was loaded, None if there was none.
        rejected: saved states that could not be used, and why.
        applied: log position at which the replay began.
        scan: the replay.
        flushed: durable log position in the checkpoint, -1 for unknown.
        kept: state snapshots of the states that the checkpoint names and that could be read, by
            number.
    """

    state: State
    runs: Runs
    queues: ConsumeQueues
    scan: LogScan
    decision: Decision
    knowledge: LogKnowledge

    def __init__(
        self,
        files: DataFiles,
        *,
        presence: LogPresence,
        new_state: Callable[[], State],
        is_slave: bool = False,
        timer_memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        """Touch nothing yet.

        Args:
            files: the segments and the checkpoint are open.
            presence: says whether the checkpoint describes this log.
            new_state: makes an empty state.
            is_slave: no frame was written by this node.
            timer_memory_bytes: memory of timers that are due later than soon.
        """
        self._fs, self._paths, self._clock = files.fs, files.paths, files.clock
        self._log, self._checkpoint = files.log, files.checkpoint
        self._new_state = new_state
        self._is_slave = is_slave
        self._timer_memory_bytes = timer_memory_bytes
        self.is_own = presence.is_own
        self._salt = presence.salt
        self.loaded: SavedState | None = None
        self.rejected: list[Rejected] = []
        self.kept: dict[int, ControlState] = {}
        self.applied = 0
        self.flushed = -1
        self._control: ControlState | None = None
        self._named_runs: list[RunEntry] = []
        self._knows_runs = True
        self._retried_at_bytes = 0
        """After a full disk, runs are written again once more than this many bytes are unsaved."""
        self._has_begun = False
        self._has_reset_units = False
        self._has_orphans = True
        self._followed = 0
        """Where an empty log begins that `follow` goes on with."""
        self._last_frame: tuple[int, int] | None = None
        """As of the begin of the last `follow`."""
        self._unbounded = 0
        """Bytes followed since memory was bounded."""

    def run(self, stop: Stop) -> Iterator[Progress]:
        """Find a state, load it, and replay the log; yield between slices.

        Only derived files are changed, and only if the replay is long.

        Args:
            stop: how the last broker stopped.

        Raises:
            StorageError: the log could not be read.
            FormatVersionError: a newer latermq wrote to the log.
        """
        self._begin()
        for saved in self._checkpoint.states:
            if self.loaded is None:
                yield from self._try(saved)
            else:
                self._keep(saved)
        found = Found.NONE
        if self.loaded is not None:
            found = Found.EARLIER if self.rejected else Found.NEWEST
        self.decision = DECISIONS[stop, found]
        last = self._checkpoint.last
        if last is not None and self.is_own:
            self.flushed = last.flushed
        knowledge = LogKnowledge(last.log.epoch if last is not None else -1)
        yield from self._replay(knowledge)
        while knowledge.learn(self.scan, self.state, start=self._log.start_pos):
            # Frames found late change the meaning of earlier ones: replay again.
            if self._includes_lost(knowledge):
                assert self.loaded is not None
                why = "it includes a part of the log that a later start declared lost"
                self._reject(self.loaded, Fault.OTHER_LOG, why)
                self.loaded = self._control = None
                self.decision = DECISIONS[stop, Found.NONE]
            self._has_orphans = True
            self._begin()
            if self.loaded is not None and self._control is not None:
                yield from self._load(self.loaded, self._control)
            yield from self._replay(knowledge)
        self.knowledge = knowledge

    def _includes_lost(self, knowledge: LogKnowledge) -> bool:
        """Return whether the loaded state includes frames that were declared lost later."""
        control = self._control
        if control is None:
            return False
        return any(
            start < control.applied and not is_covered((start, end), list(control.lost))
            for start, end in knowledge.verdicts
        )

    def finish(self) -> None:
        """Make the changes to derived files that a start must make.

        Raises:
            StorageError: files of ConsumeQueues could not be removed.
        """
        self._reset_units()
        self._remove_orphans()
        self._adopt_states()

    def _reset_units(self) -> None:
        if self.decision.resets_units and not self._has_reset_units:
            self._has_reset_units = True
            self.queues.reset()

    def _begin(self) -> None:
        """Make an empty state, also in place of one that could not be loaded completely."""
        if self._has_begun:
            self.runs.close()
        self._has_begun = True
        self.state = self._new_state()
        self.runs = Runs(
            self._fs,
            self._paths,
            self.state.projections,
            timer_memory_bytes=self._timer_memory_bytes,
        )
        self.runs.open()
        self.queues = ConsumeQueues(self._fs, self._paths, self.state.projections.blocks)

    # Check

    def _read(self, saved: SavedState) -> ControlState:
        try:
            control = snapshot.read(self._fs, self._paths.snapshot(saved.number), saved)
        except StorageError as error:
            self._knows_runs &= error.is_missing
            raise
        self._named_runs += control.runs
        self.kept[saved.number] = control
        return control

    def _keep(self, saved: SavedState) -> None:
        """Keep an older state than the loaded one in reserve, if its file is intact."""
        with suppress(StorageError, CorruptionError):
            self._read(saved)

    def _try(self, saved: SavedState) -> Iterator[Progress]:
        """Load a saved state if it is intact and fits the log."""
        try:
            control = self._read(saved)
        except StorageError as error:
            fault = Fault.CONTROL_MISSING if error.is_missing else Fault.CONTROL_DAMAGED
            self._reject(saved, fault, error)
            return
        except CorruptionError as error:
            self._reject(saved, Fault.CONTROL_DAMAGED, error)
            return
        if control.settings != self.state.settings:
            change = f"{control.settings}, now {self.state.settings}"
            self._reject(saved, Fault.OTHER_SETTINGS, change)
            return
        misfit = self._find_misfit(control)
        if misfit is not None:
            self._reject(saved, Fault.OTHER_LOG, misfit)
            return
        if self._lacks_units(control):
            self._reject(saved, Fault.UNITS_MISSING, f"none is in {self._paths.consume_queue}")
            return
        try:
            total = sum(entry.size for entry in control.runs)
            for done in self.runs.check(control.runs, self._counts(control)):
                yield Progress("checking", done, total)
        except StorageError as error:
            fault = Fault.RUNS_MISSING if error.is_missing else Fault.RUNS_DAMAGED
            self._reject(saved, fault, error)
            return
        except CorruptionError as error:
            self._reject(saved, Fault.RUNS_DAMAGED, error)
            return
        yield from self._load(saved, control)

    def _reject(self, saved: SavedState, fault: Fault, why: object) -> None:
        self.kept.pop(saved.number, None)
        self.rejected.append(Rejected(saved.number, saved.applied, fault, str(why)))

    def _find_misfit(self, control: ControlState) -> str | None:
        """Return why a state does not fit this log; None if it does."""
        if not self.is_own:
            return "it belongs to another cluster"
        # What was freed since then was carried before: the state or a later frame has it.
        if not self._log.files.reaches(control.applied) or self._log.start_pos < control.start:
            return (
                f"it needs the log from {control.start} to {control.applied}; the log begins at "
                f"{self._log.start_pos}, has a gap or ends earlier"
            )
        try:
            found = self._log.read_header(control.last_pos)
        except StorageError as error:
            return str(error)
        if len(found) == FRAME_HEADER_SIZE:
            header = read_header(found)
            crc = int.from_bytes(found[AT_CRC:], "big")
            end = header["position"] + header["size"]
            if (header["position"], crc, end) == (
                control.last_pos,
                control.last_crc,
                control.applied,
            ):
                return None
        return f"a different frame is at log position {control.last_pos}"

    def _lacks_units(self, control: ControlState) -> bool:
        """Return whether there are records, but no topic has a directory of units.

        Missing, short or wrong units of single topics are rebuilt when they are read; a topic that
        was deleted since has none. If all are missing, a replay takes less time.
        """
        with_records = {
            topic_id
            for topic_id, _, start, following, _, _ in PARTITION.iter_unpack(control.partitions)
            if following > start
        }
        names = [
            control_frames.decode_topic(value.payload).name
            for value in control.values
            if value.kind == KIND_TOPIC and value.topic_id in with_records
        ]
        directory = self._paths.consume_queue
        return bool(names) and not any(self._fs.exists(directory / name) for name in names)

    # Load

    def _load(self, saved: SavedState, control: ControlState) -> Iterator[Progress]:
        try:
            for _ in self.state.restore(control):
                yield Progress("loading", 0, 0)
            loading = self.runs.load(
                control.runs,
                control.applied,
                has_timer_log=control.has_timer_log,
                counts=self._counts(control),
                now_ms=self._clock.wall_ms(),
            )
            for _ in loading:
                yield Progress("loading", 0, 0)
            self.state.projections.levels.restore(control.level_offsets)
        except (StorageError, CorruptionError, ValueError, KeyError, IndexError) as error:
            # The files changed since the check, or were forged: start over with an empty state.
            self._begin()
            self._reject(saved, Fault.RUNS_DAMAGED, error)
            return
        self.loaded = saved
        self.applied = control.applied
        self._control = control

    def _counts(self, control: ControlState) -> SavedCounts | None:
        """Return what a load in pieces needs; None if all timers must be loaded now."""
        if control.pending is None or not control.has_timer_log or control.lost:
            return None
        return SavedCounts(control.pending, control.due_minutes)

    def _adopt_states(self) -> None:
        """Base the next checkpoint on the verified parts of this one."""
        states = [each for each in self._checkpoint.states if each.number in self.kept]
        self._checkpoint.adopt(states, is_own=self.is_own)

    def _remove_orphans(self) -> None:
        """Remove runs that no state names, left by starts that were killed during a replay."""
        if self._has_orphans and self._checkpoint.last is not None and self._knows_runs:
            with suppress(StorageError):
                self.runs.keep(self._named_runs)
        self._has_orphans = False

    @property
    def damage(self) -> tuple[KnownDamage, ...]:
        """The damage that was known before the replay."""
        return () if self._control is None else self._control.damage

    @property
    def last_frame(self) -> tuple[int, int]:
        """Log position and CRC of the last frame; -1 and 0 if there is none."""
        if self.scan.frames:
            return self.scan.last_pos, self.scan.last_crc
        if self._last_frame is not None:
            return self._last_frame
        if self._control is not None:
            return self._control.last_pos, self._control.last_crc
        return -1, 0

    @property
    def own_from(self) -> int:
        """Flushed marks of frames from this log position on refer to this disk."""
        last = self._checkpoint.last
        if self._is_slave:
            return NOT_OWN
        return last.log.own_from if last is not None and self.is_own else 0

    # Replay

    def _replay(self, knowledge: LogKnowledge) -> Iterator[Progress]:
        log, control, last = self._log, self._control, self._checkpoint.last
        start = log.start_pos if control is None else control.applied
        if control is None:
            self.runs.begin(log.start_pos)
            self.state.projections.first_known_pos = log.start_pos
        self.applied = start
        segments = log.segments_from(start, drop_cache=self.decision.drops_cache)
        self.scan = scan = LogScan(
            self.state.projections,
            segments,
            log.read_into,
            knowledge.listen(self.state.apply_control),
            start=start,
            epoch=0 if control is None else control.epoch,
            lost=() if control is None else control.lost,
            known_flushed=self.flushed,
            watermark=last.watermark if last is not None and self.is_own else -1,
            written=log.written_ranges,
            verdicts=knowledge.verdicts,
            topics=knowledge.topics(),
            salt=self._salt,
            own_from=self.own_from,
        )
        total = sum(size for _, size in segments)
        log.read_ahead(scan.pos, READ_AHEAD_BYTES)
        while not scan.step(SCAN_SLICE_BYTES):
            log.read_ahead(scan.pos + READ_AHEAD_BYTES - SCAN_SLICE_BYTES, SCAN_SLICE_BYTES)
            self._bound_memory()
            yield Progress("replaying", scan.pos - start, total)
        if scan.newer_version:
            raise newer_frame_error(*log.path_of(scan.pos), log.read_header(scan.pos))
        yield Progress("finishing", scan.pos - start, total)

    def begin_at(self, pos: int) -> None:
        """Let an empty log begin at a log position; `follow` then goes on from there."""
        self.runs.begin(pos)
        self.state.projections.first_known_pos = pos
        self._followed = pos

    def follow(self, end: int) -> None:
        """Go on with a replay that has ended, over frames that were appended since.

        The timers stay in memory: the checkpoints of a slave save them. What may be read is said
        by others, who must say it often: a mark for each frame waits for that.

        Args:
            end: log position after the last of them; all are whole.

        Raises:
            CorruptionError: a frame is damaged, or does not fit the log. All before it are applied.
        """
        before, knowledge = self.scan, self.knowledge
        start = max(before.pos, self._followed)
        self._last_frame = self.last_frame
        self.scan = scan = LogScan(
            self.state.projections,
            self._log.segments_from(start, drop_cache=False),
            self._log.read_into,
            knowledge.listen(self.state.apply_control),
            start=start,
            epoch=before.epoch,
            lost=before.lost_ranges,
            watermark=end,
            topics=knowledge.topics(),
            salt=before.salt or self._salt,
            own_from=end,
        )
        while scan.pos < end and not scan.step(end - scan.pos):
            pass
        if scan.pos != end or scan.damage or scan.unknown:
            path, offset = self._log.path_of(scan.pos)
            fault = scan.tail_fault or "it does not fit the frames before it"
            raise CorruptionError(path, offset, "a frame of the master's log", fault)
        self._unbounded += end - start
        if self._unbounded >= SCAN_SLICE_BYTES:
            self._unbounded = 0
            self._bound_units()

    def _bound_memory(self) -> None:
        """Write units and timers of a long replay to files, as while the broker serves."""
        self._bound_units()
        # Otherwise a mark for each frame of the whole log would accumulate.
        self.state.projections.advance_visible(self.scan.pos)
        self._bound_runs()

    def _bound_units(self) -> None:
        for partition in self.state.projections.partitions:
            if partition is None:
                continue
            if max(partition.unsaved_count, partition.moved_count) > UNITS_IN_MEMORY_MAX:
                self._reset_units()
                self.queues.save(partition)

    def _bound_runs(self) -> None:
        if self.runs.is_due and self.runs.delta_bytes > self._retried_at_bytes:
            self._remove_orphans()
            job = self.runs.freeze(self.scan.pos, is_replay=True)
            try:
                job.run()
            except StorageError as error:
                self.runs.abandon(job)
                if error.is_fatal or not error.is_disk_full:
                    raise
                # An attempt costs time in proportion to the unsaved bytes: retrying in each slice
                # would make the start take quadratic time.
                self._retried_at_bytes = 2 * self.runs.delta_bytes
            else:
                self.runs.end(job)
