"""Whatever of a checkpoint is missing, stale or damaged: as the table says, and the same broker."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from _core.bytes.layout import RUN_IDS, RUN_TIMERS
from appliance.store.checkpoint import COPY_SIZE, SavedState
from appliance.store.recovery.decisions import DECISIONS, REASONS, TAILS, End, Fault, Found, Stop
from appliance.store.runs.run_files import RunEntry
from appliance.store.state import snapshot
from appliance.store.state.group_frames import (
    GROUP_SAVED,
    OFFSET_COMMITTED,
    GroupFrame,
    OffsetEntry,
)
from tests.support.harness.broker_harness import BrokerHarness, Digest, with_topic
from tests.support.harness.checkpoints import PATHS, newest_of, read_every_unit, take_checkpoint
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Producer, Record, by_level, delay

PARTS: Final = ("present", "missing", "stale", "damaged")
USER_IDS: Final = tuple(b"id-%d" % number for number in range(12))


def play(harness: BrokerHarness, number: int) -> None:
    """Records, timers with and without ids, replaced and cancelled ones, groups, producers."""
    harness.produce("t", 0, [Record(b"%d" % n) for n in range(4)], Producer(7, 0, number * 4))
    for nth in range(8):
        user_id = USER_IDS[(number * 3 + nth) % len(USER_IDS)]
        record = Record(b"timer %d" % nth, headers=delay(1_000 * (nth + 1), user_id))
        harness.produce("t", nth % 2, [record])
    harness.produce("t", 1, [Record(b"level", headers=by_level(4))])
    harness.cancel_timer("t", USER_IDS[number])
    harness.tick(2_500)
    topic = harness.topic()
    group = f"g{number % 2}"
    harness.broker.groups.save_group(GroupFrame(op=GROUP_SAVED, group=group, generation=number))
    entry = OffsetEntry(
        op=OFFSET_COMMITTED, group=group, topic_id=topic.topic_id, partition=0, offset=number
    )
    harness.broker.groups.commit_offsets([entry])
    harness.flush()


@dataclass(frozen=True)
class Played:
    """A disk with three saved states and frames after the last one, and what follows from it.

    Attributes:
        harness: the broker, as a crash now would find it.
        states: saved states, oldest first.
        runs: by kind, a run that only the newest state needs, and one that the state before has.
        place: of the newer copy in the checkpoint file.
        stale_copies: what both places held before.
        earlier: every file as it was when the state before the last one was saved.
        expected: what a start from the log alone finds.
    """

    harness: BrokerHarness
    states: tuple[SavedState, ...]
    runs: dict[int, tuple[RunEntry, RunEntry]]
    place: int
    stale_copies: tuple[bytes, bytes]
    earlier: dict[Path, bytes]
    expected: Digest


@pytest.fixture(scope="module")
def played() -> Played:
    harness = with_topic(2)
    states, files = [], []
    for number in range(3):
        files.append(harness.disk.files())
        play(harness, number)
        job = take_checkpoint(harness)
        assert job.error is None
        assert job.saved is not None
        states.append(job.saved)
    play(harness, 3)
    newest = newest_of(harness.disk)
    assert newest.states == (states[2], states[1])
    place = newest.sequence % 2
    before = files[2][PATHS.checkpoint], files[1][PATHS.checkpoint]
    # The newer copy replaced that of the first state, the older one that of the start.
    stale = [b"", b""]
    stale[place] = before[0][place * COPY_SIZE :][:COPY_SIZE]
    stale[1 - place] = before[1][(1 - place) * COPY_SIZE :][:COPY_SIZE]
    bare = harness.disk.crashed("kept", random.Random(0))
    for path in (PATHS.consume_queue, PATHS.timer, PATHS.index, PATHS.control):
        bare.remove_tree(path)
    bare.unlink(PATHS.checkpoint)
    expected = BrokerHarness(bare, harness.clock, harness.config).digest(USER_IDS)
    assert expected.pending
    runs = own_runs(harness.disk, states)
    return Played(harness, tuple(states), runs, place, (stale[0], stale[1]), files[2], expected)


@dataclass(frozen=True)
class Case:
    """What was done to the disk."""

    abort: str = "present"
    newer: str = "present"
    older: str = "present"
    control: str = "present"
    timers: str = "present"
    ids: str = "present"
    units: str = "present"


def spoil(played: Played, case: Case) -> SimFileSystem:
    """A copy of the disk on which that was done."""
    disk = played.harness.disk.crashed("kept", random.Random(0))
    if case.abort == "missing":
        disk.unlink(PATHS.abort)
    place = played.place
    spoil_copy(disk, played, place, case.newer)
    spoil_copy(disk, played, 1 - place, case.older)
    newest, before = played.states[2], played.states[1]
    path = PATHS.snapshot(newest.number)
    spoil_file(disk, path, case.control, played.earlier[PATHS.snapshot(before.number)])
    for kind, harm in ((RUN_TIMERS, case.timers), (RUN_IDS, case.ids)):
        path, older = (each.path(PATHS) for each in played.runs[kind])
        spoil_file(disk, path, harm, played.earlier[older])
    if case.units == "missing":
        disk.remove_tree(PATHS.consume_queue / "t")
        return disk
    for path in [path for path in disk.files() if PATHS.consume_queue in path.parents]:
        spoil_file(disk, path, case.units, played.earlier[path])
    return disk


def own_runs(disk: SimFileSystem, states: list[SavedState]) -> dict[int, tuple[RunEntry, RunEntry]]:
    """By kind, a run that only the newest state needs, and one that the state before has."""
    found = {}
    newest, before = (
        snapshot.read(disk, PATHS.snapshot(state.number), state).runs
        for state in (states[2], states[1])
    )
    for kind in (RUN_TIMERS, RUN_IDS):
        (own,) = [each for each in newest if each.kind == kind and each not in before]
        found[kind] = own, next(each for each in before if each.kind == kind)
    return found


def spoil_copy(disk: SimFileSystem, played: Played, place: int, harm: str) -> None:
    file = disk.open(PATHS.checkpoint)
    if harm == "missing":
        file.pwritev([bytes(COPY_SIZE)], place * COPY_SIZE)
    elif harm == "stale":
        file.pwritev([played.stale_copies[place]], place * COPY_SIZE)
    elif harm == "damaged":
        disk.flip(PATHS.checkpoint, place * COPY_SIZE + 50, 0x20)


def spoil_file(disk: SimFileSystem, path: Path, harm: str, earlier: bytes) -> None:
    if harm == "missing":
        disk.unlink(path)
    elif harm == "stale":
        file = disk.open(path)
        file.truncate(0)
        file.pwritev([earlier], 0)
    elif harm == "damaged":
        disk.flip(path, len(disk.files()[path]) // 2, 0x20)


def expected_state(played: Played, case: Case) -> SavedState | None:
    """The state that a start must begin from, by the rules of docs/RECOVERY.md."""
    first, before, newest = played.states
    copies = {
        "newer": {"present": (newest, before), "stale": (first,)}.get(case.newer, ()),
        "older": {"present": (before, first), "stale": ()}.get(case.older, ()),
    }
    # The newer place holds the older copy once it is stale.
    order = ("older", "newer") if case.newer == "stale" else ("newer", "older")
    is_whole = case.control == case.timers == case.ids == "present"
    if case.units == "missing":
        return None
    for state in itertools.chain.from_iterable(copies[name] for name in order):
        if state is not newest or is_whole:
            return state
    return None


def fault_of_newest(case: Case) -> Fault | None:
    """The reason that a start must report for not using the newest state."""
    if case.control != "present":
        return Fault.CONTROL_MISSING if case.control == "missing" else Fault.CONTROL_DAMAGED
    if case.units == "missing":
        return Fault.UNITS_MISSING
    for harm in (case.timers, case.ids):
        if harm != "present":
            return Fault.RUNS_MISSING if harm == "missing" else Fault.RUNS_DAMAGED
    return None


def check(played: Played, case: Case) -> None:
    """Start on what is left: from the right state, as the right kind of start, with all of it."""
    harness = BrokerHarness(spoil(played, case), played.harness.clock, played.harness.config)
    report, expected = harness.report, expected_state(played, case)
    assert report.checkpoint == (0 if expected is None else expected.number), (case, report)
    rejected = {each.number: each.fault for each in report.rejected}
    fault = fault_of_newest(case) if case.newer == "present" else None
    assert rejected.get(played.states[2].number) == fault, (case, report)
    has_copy = "present" in (case.newer, case.older) or "stale" in (case.newer, case.older)
    assert report.is_clean == (case.abort == "missing" and has_copy)
    assert report.epoch > played.harness.broker.epoch
    assert report.applied == (0 if expected is None else expected.applied)
    assert report.damage == ()
    if case.units in ("stale", "damaged"):
        read_every_unit(harness)
    assert harness.digest(USER_IDS) == played.expected, case


def fraction(units: str, newer: str) -> Iterator[Case]:
    """A quarter of all combinations, in which any five of the six parts take each of theirs.

    The sixth part follows from the others (a fractional factorial design): only a fault that takes
    one certain condition of all six at once could be in the other three quarters.
    """
    indices = range(len(PARTS))
    first = PARTS.index(units) + PARTS.index(newer)
    for abort, older, control, timers in itertools.product(
        ("present", "missing"), indices, indices, indices
    ):
        ids = (first + older + control + timers) % len(PARTS)
        yield Case(abort, newer, PARTS[older], PARTS[control], PARTS[timers], PARTS[ids], units)


@pytest.mark.parametrize("newer", PARTS)
@pytest.mark.parametrize("units", PARTS)
def test_a_start_on_any_combination_is_as_the_table_says(
    played: Played, units: str, newer: str
) -> None:
    cases = list(fraction(units, newer))
    assert len(cases) == 128
    for case in cases:
        check(played, case)


def test_the_cases_have_all_that_any_five_parts_can_be() -> None:
    cases = [case for units in PARTS for newer in PARTS for case in fraction(units, newer)]
    names = ("newer", "older", "control", "timers", "ids", "units")
    for chosen in itertools.combinations(names, 5):
        seen = {tuple(getattr(case, name) for name in ("abort", *chosen)) for case in cases}
        assert len(seen) == 2 * len(PARTS) ** 5


def test_the_table_has_an_answer_for_everything() -> None:
    assert set(DECISIONS) == set(itertools.product(Stop, Found))
    assert set(TAILS) == set(itertools.product(Stop, End))
    assert set(REASONS) == set(Fault)
