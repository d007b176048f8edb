"""Brokers and disks with a fault on purpose: the enumeration of crash states finds each.

Each fault is one line that somebody might forget. Were one of these not found, then the states that
`test_crash_states.py` looks at, or what it asks of them, would be too few.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from _core.log.pointers import Pointers
from appliance.broker import Broker
from appliance.store.checkpoint import CheckpointFile, SavedState
from appliance.store.log import commit_log
from appliance.store.log.commit_log import CommitLog
from appliance.store.log.flush_job import FlushJob
from appliance.store.paths import DataPaths
from tests.support.harness.configs import DATA_DIR
from tests.support.harness.crash_check import LOG
from tests.support.harness.crash_points import CrashPoints
from tests.support.harness.crash_states import Enumeration
from tests.support.harness.small_files import WATERMARK_STEP_BYTES

SEEDS: Final = (25, 0)
"""Runs; in the first one a process is killed, and the next goes on with what it left."""

Break = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Left:
    """A sync that is left out: of the files in a directory, or of the directory itself."""

    directory: Path
    operation: str


class LyingDisk(CrashPoints):
    """One kind of sync does nothing."""

    left_out: Left

    def lies(self, operation: str, path: Path) -> bool:
        place = path if operation == "fsync" else path.parent
        return operation == self.left_out.operation and place == self.left_out.directory


LEFT_OUT: Final = {
    "of segments": Left(LOG, "fdatasync"),
    "of the names of segments": Left(LOG, "fsync"),
    "of the name of the abort file": Left(DATA_DIR, "fsync"),
    "of state snapshots": Left(DATA_DIR / "control", "fdatasync"),
    "of the names of state snapshots": Left(DATA_DIR / "control", "fsync"),
    "of runs of timers": Left(DATA_DIR / "timer", "fdatasync"),
    "of the names of runs of ids": Left(DATA_DIR / "index", "fsync"),
}


def answered_before_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broker, "flushed_pos", property(lambda self: self.committed_pos))


def visible_before_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    def pointers(start: int, *, sync_flush: bool) -> Pointers:
        return Pointers(start, sync_flush=False)

    monkeypatch.setattr(commit_log, "Pointers", pointers)


def checkpoint_before_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    begin_flush = CommitLog.begin_flush

    def begin(self: CommitLog) -> FlushJob | None:
        job = begin_flush(self)
        if job is not None:
            self._checkpoint.write(job.target, job.target + WATERMARK_STEP_BYTES)
        return job

    monkeypatch.setattr(CommitLog, "begin_flush", begin)


def earlier_state_removed_too_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    save = CheckpointFile.save

    def remove_and_save(self: CheckpointFile, saved: SavedState, flushed: int) -> None:
        for state in self.states:
            self._fs.unlink(DataPaths(DATA_DIR).snapshot(state.number))
        save(self, saved, flushed)

    monkeypatch.setattr(CheckpointFile, "save", remove_and_save)


def served_before_it_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kill the kernel still has bytes that the disk has not."""
    monkeypatch.setattr(CommitLog, "_cut", lambda *_: None)


BROKERS: Final[tuple[Break, ...]] = (
    answered_before_the_flush,
    visible_before_the_flush,
    checkpoint_before_the_log,
    earlier_state_removed_too_soon,
    served_before_it_is_synced,
)


def play(disk: type[CrashPoints]) -> None:
    for seed in SEEDS:
        Enumeration(seed, "sync", disk()).play()


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_sync_that_is_left_out_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LyingDisk, "left_out", LEFT_OUT[name], raising=False)
    with pytest.raises(AssertionError, match="a crash before call"):
        play(LyingDisk)


@pytest.mark.parametrize("broken", BROKERS)
def test_an_order_that_is_wrong_is_found(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError, match="a crash before call"):
        play(CrashPoints)
