"""A random history of timers and ids, and the runs that save it at some places."""

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

from _core.state.partition_rows import pending_rows
from _core.state.projections import Projections
from appliance.store.paths import DataPaths
from appliance.store.runs.run_files import RunEntry
from appliance.store.runs.run_set import Runs
from appliance.store.runs.saved_ids import SavedIds
from appliance.store.runs.timer_memory import SavedCounts
from tests.support.harness.configs import DATA_DIR
from tests.support.oracles.timer_history import (
    ID_KEY,
    TimerHistory,
    copy_topics,
    new_projections,
    replay,
    state_of,
)
from tests.support.simulator.sim_fs import SimFileSystem

PATHS: Final = DataPaths(DATA_DIR)
FRAMES: Final = 300


def new_disk() -> SimFileSystem:
    disk = SimFileSystem()
    for directory in PATHS.directories():
        disk.make_dirs(directory)
    return disk


def new_runs(disk: SimFileSystem, projections: Projections, **options: Any) -> Runs:
    runs = Runs(disk, PATHS, projections, **options)
    runs.open()
    return runs


def checkpoint(runs: Runs, pos: int) -> None:
    job = runs.freeze(pos)
    job.run()
    assert not job.damage
    runs.end(job)


def drain(steps: Iterator[int]) -> None:
    for _ in steps:
        pass


class Play:
    """A history, a replay of it that makes runs at some places, and their disk.

    Each second history was written by an older latermq: its frames do not say the due times of the
    timers that they complete, so that the TimerLog is made of the runs of timers.

    Args:
        seed: of the history.
        frames: that it has.
        says_due: whether they say due times; None: by the seed.
        keeps_ids: all ids are in memory; else those that a checkpoint saves are in the runs alone.
    """

    def __init__(
        self,
        seed: int,
        *,
        frames: int = FRAMES,
        says_due: bool | None = None,
        keeps_ids: bool = True,
    ) -> None:
        self.rng = random.Random(seed)
        self.history = TimerHistory(self.rng)
        self.history.says_due = seed % 2 == 0 if says_due is None else says_due
        self.history.play(frames)
        self.log = bytes(self.history.log)
        self.ends = self.history.ends
        # Each history forgets some ids.
        self.forget_pos = self.ends[len(self.ends) // 2]
        self.disk = new_disk()
        self.projections = new_projections(forget_pos=self.forget_pos)
        self._keeps_ids = keeps_ids
        self.runs = self._new_runs()
        self.runs.begin(0)
        self.pos = 0

    def _new_runs(self) -> Runs:
        runs = new_runs(self.disk, self.projections)
        if not self._keeps_ids:
            runs.ids = SavedIds(self.disk, PATHS, self.projections, 0)
        return runs

    def go_to(self, pos: int) -> None:
        replay(self.projections, self.log, self.pos, pos)
        self.pos = pos

    def checkpoint(self) -> SavedCounts | None:
        """Save the timers and ids, and return how many timers are pending; None: not known."""
        self.projections.due.advance_wheels(self.history.now_ms, 1 << 40)
        pending, minutes = pending_rows(self.projections), self.projections.due.wheels.save()
        checkpoint(self.runs, self.pos)
        return None if pending is None or minutes is None else SavedCounts(pending, minutes)

    def restart(
        self, entries: Sequence[RunEntry], pos: int, counts: SavedCounts | None = None
    ) -> None:
        """Begin again with what a checkpoint at `pos` named; with counts, load timers later."""
        at_pos = new_projections()
        replay(at_pos, self.log, 0, pos)
        self.projections = new_projections(bytes(16), forget_pos=self.forget_pos)
        self.projections.set_id_key(ID_KEY)
        self.runs = self._new_runs()
        drain(self.runs.check(entries, counts))
        copy_topics(at_pos, self.projections)
        drain(self.runs.load(entries, pos, has_timer_log=True, counts=counts))
        self.projections.levels.restore(at_pos.levels.all())
        self.pos = pos

    def load_some(self) -> bool:
        """Load a block of what is left; return whether more is."""
        load = self.runs.timer_memory.load
        if load is None or load.is_done:
            return False
        load.take(load.read())
        return True

    def state(self) -> dict[str, object]:
        while self.load_some():
            pass
        return state_of(self.projections)

    def expected_state(self) -> dict[str, object]:
        """That of a full replay up to the same position."""
        projections = new_projections(forget_pos=self.forget_pos)
        replay(projections, self.log, 0, self.pos)
        return state_of(projections)
