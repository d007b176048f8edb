"""Brokers and disks with a fault on purpose: the enumeration of crash states finds each.

Each fault is one line that somebody might forget. Were one of these not found, then the states that
`test_crash_states.py` looks at, or what it asks of them, would be too few.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from _core.pointers import Pointers
from appliance.broker import Broker
from appliance.store import commit_log
from appliance.store.commit_log import CommitLog
from tests.support.configs import DATA_DIR
from tests.support.crash_check import LOG
from tests.support.crash_run import CrashPoints
from tests.support.crash_states import Enumeration

SEEDS: Final = (1, 0)
"""Runs; in the first one a process is killed, and the next goes on with what it left."""

Break = Callable[[pytest.MonkeyPatch], None]


class LogNotSynced(CrashPoints):
    """No sync of a segment does anything."""

    def lies(self, operation: str, path: Path) -> bool:
        return operation == "fdatasync" and path.parent == LOG


class NewSegmentNotNamed(CrashPoints):
    """The directory of the log is never synced."""

    def lies(self, operation: str, path: Path) -> bool:
        return operation == "fsync" and path == LOG


class AbortNotNamed(CrashPoints):
    """The directory that holds the abort file is never synced."""

    def lies(self, operation: str, path: Path) -> bool:
        return operation == "fsync" and path == DATA_DIR


DISKS: Final[tuple[type[CrashPoints], ...]] = (
    LogNotSynced, NewSegmentNotNamed, AbortNotNamed,
)  # fmt: skip


def answered_before_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broker, "flushed_pos", property(lambda self: self.committed_pos))


def visible_before_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    def pointers(start: int, *, sync_flush: bool) -> Pointers:
        return Pointers(start, sync_flush=False)

    monkeypatch.setattr(commit_log, "Pointers", pointers)


def served_before_it_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kill the kernel still has bytes that the disk has not."""
    monkeypatch.setattr(CommitLog, "_cut", lambda *_: None)


BROKERS: Final[tuple[Break, ...]] = (
    answered_before_the_flush,
    visible_before_the_flush,
    served_before_it_is_synced,
)


def play(disk: type[CrashPoints]) -> None:
    for seed in SEEDS:
        Enumeration(seed, "sync", disk()).play()


@pytest.mark.parametrize("disk", DISKS)
def test_a_sync_that_is_left_out_is_found(disk: type[CrashPoints]) -> None:
    with pytest.raises(AssertionError, match="a crash before call"):
        play(disk)


@pytest.mark.parametrize("broken", BROKERS)
def test_an_order_that_is_wrong_is_found(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError, match="a crash before call"):
        play(CrashPoints)
