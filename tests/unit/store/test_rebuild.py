"""The log is the only source of truth: everything else may be gone, or wrong, at a start."""

import random
from typing import Final

import pytest

from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import DATA_DIR
from tests.support.harness.crash_check import DERIVED, RECURS_MS
from tests.support.harness.crash_points import CrashPoints
from tests.support.harness.crash_requests import end_recurrences
from tests.support.harness.crash_run import USER_IDS, CrashRun
from tests.support.oracles.broker_model import visible_in
from tests.support.simulator.sim_fs import SimFileSystem

SEED: Final = 4


@pytest.fixture
def played() -> CrashRun:
    """A run that has ended cleanly, with records, timers, ids, producers and a deleted topic."""
    run = CrashRun(random.Random(SEED))
    run.play()
    return run


def start(run: CrashRun, disk: SimFileSystem) -> BrokerHarness:
    return BrokerHarness(disk, run.clock, run.config)


def left_by(run: CrashRun) -> CrashPoints:
    return run.disk.crashed("kept", random.Random(0))


def test_a_broker_whose_derived_files_are_gone_is_the_same(played: CrashRun) -> None:
    bare = left_by(played)
    for path in DERIVED:
        bare.remove_tree(path)
    expected = start(played, left_by(played)).digest(USER_IDS)
    assert start(played, bare).digest(USER_IDS) == expected
    assert expected.pending
    assert any(offsets for _, _, offsets in expected.groups)
    assert any(group for _, group, _ in expected.groups)
    assert any(state[0] == "pending" for _, _, state in expected.ids)
    assert any(producers for topic in expected.topics for *_, producers in topic[4])


def test_a_broker_of_nothing_but_its_segments_is_the_same(played: CrashRun) -> None:
    """What an operator gets who copies `commitlog/` alone; only the epoch cannot rise."""
    copy = CrashPoints()
    copy.make_dirs(DATA_DIR / "commitlog")
    for path, content in left_by(played).files().items():
        if path.parent.name == "commitlog":
            copy.open(path, create=True).pwritev([content], 0)
    expected = start(played, left_by(played)).digest(USER_IDS)
    assert start(played, copy).digest(USER_IDS) == expected


def test_a_rebuilt_broker_delivers_when_and_what_is_due(played: CrashRun) -> None:
    bare = left_by(played)
    for path in DERIVED:
        bare.remove_tree(path)
    harness, model = start(played, bare), played.models[-1]
    count = 0
    end_ms = harness.clock.wall_ms() + RECURS_MS
    while (wake_ms := harness.broker.next_wake_ms()) is not None:
        if wake_ms > end_ms and model.recurring():
            (model,) = end_recurrences(harness, [model])
            continue
        assert wake_ms <= (model.next_due_ms() or wake_ms)  # one cancelled may wake it too
        harness.clock.advance_to_ms(max(wake_ms, harness.clock.wall_ms()))
        delivered = harness.deliver_all()
        assert delivered == model.deliver_all(harness.clock.wall_ms())
        count += delivered
    assert count > 0
    assert visible_in(harness) == model.visible()


def test_a_live_broker_and_its_rebuild_agree() -> None:
    """One that never stopped, compared with one that replays its log."""
    run = CrashRun(random.Random(SEED + 1))
    run.start()
    run.play_rounds(6)
    run.flush()
    rebuilt = start(run, left_by(run))
    assert run.harness.digest(USER_IDS) == rebuilt.digest(USER_IDS)
