"""A start: finds the newest saved state that is whole and fits the log, and replays what follows.

 judge      each state that a checkpoint copy names, newest first: control file, the log, runs
 load       control state, then timers and ids; or nothing, if no state will do
 replay     every frame behind it

What is found decides by the tables in `decisions`. Nothing of a state is taken up before all of it
was checked. Nothing of the log is changed here, and of what follows from it only what a long replay
would pile up in memory: a start that is refused leaves the directory as it was. Layer 2.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from _core.frames import read_header
from _core.layout import AT_CRC, FRAME_HEADER_SIZE, KIND_TOPIC
from _core.log_scan import LogScan
from appliance.clock import Clock
from appliance.errors import CorruptionError, StorageError
from appliance.fs import FileSystem
from appliance.store import control_file, control_frames
from appliance.store.checkpoint import CheckpointFile, SavedState
from appliance.store.commit_log import CommitLog
from appliance.store.consume_queue import UNITS_IN_MEMORY_MAX, ConsumeQueues
from appliance.store.control_file import PARTITION, ControlState, KnownDamage
from appliance.store.decisions import DECISIONS, Decision, Fault, Found, Stop
from appliance.store.frame_kinds import newer_frame_error
from appliance.store.log_knowledge import LogKnowledge, is_covered
from appliance.store.log_presence import LogPresence
from appliance.store.paths import DataPaths
from appliance.store.recovery import Progress, Rejected
from appliance.store.run_files import RunEntry
from appliance.store.runs import Runs
from appliance.store.state import State
from appliance.units import MIB

SCAN_SLICE_BYTES: Final = 16 * MIB
"""Replayed between two turns of the event loop: about ten milliseconds."""

READ_AHEAD_BYTES: Final = 64 * MIB
"""The kernel is asked so early for what is replayed next, and reads it meanwhile."""


class Start:
    """One start; `run` it to its end, then everything is in the attributes.

    Attributes:
        is_own: the checkpoint is about this log.
        knowledge: what the replay learned late.
        state, runs, queues: what follows from the log, and the files of timers, ids and units.
        decision: what was done with what was found.
        loaded: the state that was begun from, None if there was none.
        rejected: saved states that could not be used, and why.
        applied: log position where the replay began.
        scan: the replay.
        flushed: log position up to which the checkpoint knew it to be durable, -1 for unknown.
        kept: control files of the states that the checkpoint still names and that could be read.
    """

    state: State
    runs: Runs
    queues: ConsumeQueues
    scan: LogScan
    decision: Decision
    knowledge: LogKnowledge

    def __init__(
        self,
        *,
        clock: Clock,
        fs: FileSystem,
        paths: DataPaths,
        log: CommitLog,
        checkpoint: CheckpointFile,
        presence: LogPresence,
        new_state: Callable[[], State],
    ) -> None:
        """Touches nothing yet.

        Args:
            clock: for timers whose ids are long forgotten.
            fs: files.
            paths: where they are.
            log: its segments are open.
            checkpoint: is open.
            presence: says whether the checkpoint is about this log.
            new_state: makes an empty state.
        """
        self._clock = clock
        self._fs = fs
        self._paths = paths
        self._log = log
        self._checkpoint = checkpoint
        self._new_state = new_state
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
        """Runs that did not fit on the disk are tried again when more than that is unsaved."""
        self._has_reset_units = False
        self._has_orphans = True

    def run(self, stop: Stop) -> Iterator[Progress]:
        """Find a state, load it, and replay the log; yields between slices.

        Nothing is changed but files that follow from the log, and those only if the replay is long.

        Args:
            stop: how the last broker stopped.

        Raises:
            StorageError: the log could not be read.
            FormatVersionError: it was written by a newer latermq.
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
        told = self._checkpoint.last
        if told is not None and self.is_own:
            self.flushed = told.flushed
        knowledge = LogKnowledge(told.log.epoch if told is not None else -1)
        yield from self._replay(knowledge)
        while knowledge.learn(self.scan, self.state):
            # What came late in the log changes what was read before it.
            if self._rests_on_lost(knowledge):
                assert self.loaded is not None
                why = "a start after it judged a part of the log lost that it rests on"
                self._reject(self.loaded, Fault.OTHER_LOG, why)
                self.loaded = self._control = None
                self.decision = DECISIONS[stop, Found.NONE]
            self._has_orphans = True
            self._begin()
            if self.loaded is not None and self._control is not None:
                yield from self._load(self.loaded, self._control)
            yield from self._replay(knowledge)
        self.knowledge = knowledge

    def _rests_on_lost(self, knowledge: LogKnowledge) -> bool:
        """Whether the state that was loaded has taken up what was judged lost later."""
        control = self._control
        if control is None:
            return False
        return any(
            start < control.applied and not is_covered((start, end), list(control.lost))
            for start, end in knowledge.verdicts
        )

    def finish(self) -> None:
        """Change what a start changes of the files that follow from the log.

        Raises:
            StorageError: files of ConsumeQueues could not be removed.
        """
        self._reset_units()
        self._remove_orphans()
        self._believe()

    def _reset_units(self) -> None:
        if self.decision.resets_units and not self._has_reset_units:
            self._has_reset_units = True
            self.queues.reset()

    def _begin(self) -> None:
        """An empty state, also after one that could not be loaded to its end."""
        self.state = self._new_state()
        self.runs = Runs(self._fs, self._paths, self.state.projections)
        self.runs.open()
        self.queues = ConsumeQueues(self._fs, self._paths, self.state.projections.blocks)

    # Judge

    def _read(self, saved: SavedState) -> ControlState:
        try:
            control = control_file.read(self._fs, self._paths.control_file(saved.number), saved)
        except StorageError as error:
            self._knows_runs &= error.is_missing
            raise
        self._named_runs += control.runs
        self.kept[saved.number] = control
        return control

    def _keep(self, saved: SavedState) -> None:
        """An older state than the one that was loaded stays in reserve, if its file is whole."""
        with suppress(StorageError, CorruptionError):
            self._read(saved)

    def _try(self, saved: SavedState) -> Iterator[Progress]:
        """Load a saved state if it is whole and fits."""
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
            told = f"{control.settings}, now {self.state.settings}"
            self._reject(saved, Fault.OTHER_SETTINGS, told)
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
            for done in self.runs.check(control.runs):
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
        """Why the log that is here is not the one that a state follows from; None if it is."""
        if not self.is_own:
            return "it belongs to another cluster"
        if not self._log.files.reaches(control.applied) or self._log.start_pos != control.start:
            return (
                f"the log reaches from {control.start} to {control.applied} there, and begins at "
                f"{self._log.start_pos} here or has a gap or an earlier end"
            )
        try:
            found = self._log.read_header(control.last_pos)
        except StorageError as error:
            return str(error)
        if len(found) == FRAME_HEADER_SIZE:
            header = read_header(found)
            crc = int.from_bytes(found[AT_CRC:], "big")
            end = header["phys_offset"] + header["size"]
            if (header["phys_offset"], crc, end) == (
                control.last_pos,
                control.last_crc,
                control.applied,
            ):
                return None
        return f"another frame is at {control.last_pos}"

    def _lacks_units(self, control: ControlState) -> bool:
        """Whether there are records, and of none of their topics a directory of units.

        What is missing, short or wrong of single topics is made anew when it is read; a topic that
        was deleted since has none. Were all of them missing, a replay takes less time.
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
            now_ms = self._clock.wall_ms()
            for _ in self.runs.load(control.runs, control.applied, now_ms):
                yield Progress("loading", 0, 0)
            self.state.projections.restore_level_states(control.level_states)
        except (StorageError, CorruptionError, ValueError, KeyError, IndexError) as error:
            # What was checked a moment ago is otherwise now, or a hand made it: begin anew.
            self._begin()
            self._reject(saved, Fault.RUNS_DAMAGED, error)
            return
        self.loaded = saved
        self.applied = control.applied
        self._control = control

    def _believe(self) -> None:
        """The next checkpoint goes on from what is true of this one."""
        states = [each for each in self._checkpoint.states if each.number in self.kept]
        self._checkpoint.believe(states, is_own=self.is_own)

    def _remove_orphans(self) -> None:
        """Remove runs that no state names: starts that were killed in a replay have left them."""
        if self._has_orphans and self._checkpoint.last is not None and self._knows_runs:
            with suppress(StorageError):
                self.runs.keep(self._named_runs)
        self._has_orphans = False

    @property
    def damage(self) -> tuple[KnownDamage, ...]:
        """What was known to be damaged before the replay."""
        return () if self._control is None else self._control.damage

    @property
    def last_frame(self) -> tuple[int, int]:
        """Log position and CRC of the last frame; -1 and 0 if there is none."""
        if self.scan.frames == 0 and self._control is not None:
            return self._control.last_pos, self._control.last_crc
        return self.scan.last_pos, self.scan.last_crc

    # Replay

    def _replay(self, knowledge: LogKnowledge) -> Iterator[Progress]:
        log, control, told = self._log, self._control, self._checkpoint.last
        start = log.start_pos if control is None else control.applied
        if control is None:
            self.runs.begin(log.start_pos)
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
            reach=told.reach if told is not None and self.is_own else -1,
            written=log.written_ranges,
            verdicts=knowledge.verdicts,
            topics=knowledge.topics(),
            salt=self._salt,
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

    def _bound_memory(self) -> None:
        """What a long log would pile up goes to files as it does while the broker serves."""
        projections = self.state.projections
        for partition in projections.partitions:
            if partition is not None and partition.unsaved_count > UNITS_IN_MEMORY_MAX:
                self._reset_units()
                self.queues.save(partition)
        # Else a mark for each frame of the whole log would pile up.
        projections.advance_visible(self.scan.pos)
        if self.runs.is_due and self.runs.delta_bytes > self._retried_at_bytes:
            self._remove_orphans()
            job = self.runs.freeze(self.scan.pos, self._clock.wall_ms())
            try:
                job.run()
            except StorageError as error:
                self.runs.abandon(job)
                if error.is_fatal or not error.is_disk_full:
                    raise
                # A try costs as much as there is: were each slice to try again, no start would end.
                self._retried_at_bytes = 2 * self.runs.delta_bytes
            else:
                self.runs.end(job)
