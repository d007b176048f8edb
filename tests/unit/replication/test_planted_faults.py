"""Six faults, planted into pairs of the simulator, are each found within a bounded number of runs.

Each is what somebody could write by mistake. The runs are those of `test_pair_schedules`, with the
same faults of machines and the same checks, so this is what those checks are worth.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest

from _core.paths.parked_fetch import ParkedFetch
from appliance.broker import Broker
from appliance.replication.lease import Lease
from appliance.store import diverged, follower, message_store
from appliance.store.follower import Follower
from appliance.store.log.data_files import DataFiles
from appliance.store.recovery.start import Start
from tests.support.compiled import timer_calls
from tests.support.pair import operator
from tests.support.pair.node import UNDAMAGED
from tests.support.pair.run import Plan, play, simulation

RUNS_MAX: Final = 80
"""Every fault is found in fewer runs than that."""

FIRST_SEED: Final = 9_000_000

HEALS_WITHIN_MS: Final = 3_000
"""A pair that does not heal costs as much as it is given; whole ones need less than that."""

Patch = pytest.MonkeyPatch


def acknowledge_before_the_slave_has_it(patch: Patch) -> None:
    """What a sync master has written counts as what its slave has."""
    commit = Broker.commit

    def commit_and_count(self: Broker) -> list[ParkedFetch]:
        woken = commit(self)
        return [*woken, *self.replicated(self.committed_pos)]

    patch.setattr(Broker, "commit", commit_and_count)


def promote_without_a_new_epoch(patch: Patch) -> None:
    """A slave goes on in the epoch of the master that it followed."""
    choose = message_store.identify

    def identify(files: DataFiles, start: Start, config: Any) -> int:
        epoch = choose(files, start, config)
        return start.scan.epoch if start._is_slave else epoch

    patch.setattr(message_store, "identify", identify)


def deliver_on_the_slave(patch: Patch) -> None:
    """A slave takes timers that are due out of its queue, as a master does that delivers them."""
    step = Follower.step_job

    def step_job(self: Follower) -> Any:
        due = self._start.state.projections.due
        timer_calls.pop(due, self._clock.wall_ms(), 1_000)
        return step(self)

    patch.setattr(Follower, "step_job", step_job)


def truncate_too_little(patch: Patch) -> None:
    """The first frame that the master lacks stays."""

    def cut_log(files: DataFiles, pos: int) -> None:
        size = int.from_bytes(files.log.files.read_raw(pos, follower.SIZE_END)[-4:], "big")
        diverged.cut_log(files, pos + size)

    patch.setattr(follower, "cut_log", cut_log)


def trust_the_marks_of_the_master(patch: Patch) -> None:
    """A slave takes the flushed marks in the master's frames for its own."""
    patch.setattr(Start, "own_from", property(lambda _: 0))


def acknowledge_without_a_lease(patch: Patch) -> None:
    """A master goes on with acks=1 when its slave may have been promoted."""
    patch.setattr(Lease, "is_held", property(lambda _: True))


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault and what finds it.

    Attributes:
        plant: puts it into the code.
        found: a part of what is said of it.
        replication, flush: of the pairs in which it matters most.
    """

    plant: Callable[[Patch], None]
    found: str
    replication: str = "sync"
    flush: str = "sync"


PLANTED: Final = (
    Planted(acknowledge_before_the_slave_has_it, "LOST"),
    Planted(promote_without_a_new_epoch, "acknowledged in epoch"),
    Planted(deliver_on_the_slave, "LOST"),
    Planted(acknowledge_without_a_lease, "an earlier master acknowledged"),
    Planted(truncate_too_little, "did not heal"),
    # With sync replication little of a slave's log is not flushed.
    Planted(trust_the_marks_of_the_master, UNDAMAGED, replication="async"),
)


@pytest.mark.parametrize("planted", PLANTED, ids=[each.plant.__name__ for each in PLANTED])
def test_planted_fault_is_found(planted: Planted, monkeypatch: Patch) -> None:
    monkeypatch.setattr(operator, "CONNECTED_MS", HEALS_WITHIN_MS)
    planted.plant(monkeypatch)
    seen: list[str] = []
    runs = 0
    with simulation():
        for seed in itertools.count(FIRST_SEED):
            plan = Plan.of(seed)
            if (plan.replication, plan.flush) != (planted.replication, planted.flush):
                continue
            runs += 1
            seen += play(seed).faults
            if any(planted.found in each for each in seen):
                return
            assert runs < RUNS_MAX, f"not found in {runs} runs; what was seen: {seen}"
