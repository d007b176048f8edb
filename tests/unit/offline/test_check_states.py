"""Saved states are checked by themselves, and against what follows from the log."""

import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from _core.bytes.layout import RUN_DUE, RUN_IDS, RUN_TIMERS
from appliance.offline import log_rows
from appliance.store import checkpoint
from appliance.store.checkpoint import COPY_SIZE, SavedState
from appliance.store.paths import DataPaths
from appliance.store.runs.run_files import RunEntry, RunWriter
from appliance.store.runs.timer_log import TimerLogWriter
from appliance.store.state import snapshot
from appliance.store.state.snapshot import HEAD, ControlState
from appliance.system.files import OsFileSystem
from tests.support.harness import offline_scenario as scenario
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.command_line import CommandLine
from tests.support.harness.configs import DATA_DIR, small_config
from tests.support.harness.crash_points import CrashPoints
from tests.support.harness.crash_run import CrashRun
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Record, delay

PATHS: Final = DataPaths(DATA_DIR)
CONTROL: Final = PATHS.snapshot(1)
TIMERS: Final = PATHS.timer / ("0" * 19 + "1")
TIMER_LOG: Final = PATHS.timer_log / ("0" * 19 + "1")
IDS: Final = PATHS.index / ("0" * 19 + "1")


@pytest.fixture
def disk() -> SimFileSystem:
    return scenario.stopped()


@pytest.mark.parametrize("path", [CONTROL, TIMERS, TIMER_LOG, IDS])
def test_a_file_of_a_state_that_is_missing(disk: SimFileSystem, path: Path) -> None:
    disk.unlink(path)
    (fault, *_) = scenario.check(disk).faults
    assert (fault.path, fault.offset, fault.found) == (path, 0, "no such file")


@pytest.mark.parametrize("seed", range(20))
def test_a_bit_of_a_state_that_is_flipped(disk: SimFileSystem, seed: int) -> None:
    rng = random.Random(seed)
    path = rng.choice((CONTROL, TIMERS, TIMER_LOG, IDS))
    offset = rng.randrange(len(disk.files()[path]))
    disk.flip(path, offset, 1 << rng.randrange(8))
    faults = scenario.check(disk).faults
    assert path in {fault.path for fault in faults}, (path, offset)


@pytest.mark.parametrize("path", [CONTROL, TIMERS, TIMER_LOG, IDS])
def test_a_file_of_a_state_that_was_cut(disk: SimFileSystem, path: Path) -> None:
    disk.open(path).truncate(len(disk.files()[path]) - 1)
    assert path in {fault.path for fault in scenario.check(disk).faults}


# States that are whole and wrong


def forge(disk: SimFileSystem, change: Callable[[ControlState], ControlState]) -> None:
    """Change what the state snapshot says, with all sums right."""
    (saved,) = {state for copy in copies(disk) if copy for state in copy.states}
    control = snapshot.read(disk, CONTROL, saved)
    changed = change(control)
    values = [snapshot.encode_value(v.kind, v.payload, v.topic_id) for v in changed.values]
    parts = [snapshot.encode_head(changed), snapshot.encode_small_values(changed), *values]
    size, crc = snapshot.write(disk, CONTROL, parts)
    name_state(disk, SavedState(changed.applied, changed.number, size, crc))


def copies(disk: SimFileSystem) -> list[checkpoint.Checkpoint | None]:
    raw = disk.files()[PATHS.checkpoint]
    return [checkpoint.decode(raw[at : at + COPY_SIZE]) for at in (0, COPY_SIZE)]


def name_state(disk: SimFileSystem, state: SavedState) -> None:
    for place, copy in enumerate(copies(disk)):
        if copy is not None and copy.states:
            data = checkpoint.encode(replace(copy, states=(state,)))
            disk.open(PATHS.checkpoint).pwritev([data], place * COPY_SIZE)


def with_partition(control: ControlState, at: int, value: int) -> ControlState:
    """The first partition's row with another number at a byte."""
    rows = bytearray(control.partitions)
    struct.pack_into(">q", rows, at, value)
    return replace(control, partitions=bytes(rows))


def without(control: ControlState, kind: int) -> ControlState:
    return replace(control, values=[value for value in control.values if value.kind != kind])


WRONG: Final[dict[str, tuple[Callable[[ControlState], ControlState], str, str]]] = {
    "next offset": (
        lambda control: with_partition(control, 16, 21),
        "partition 1 0 next offset: 22",
        "partition 1 0 next offset: 21",
    ),
    "log bytes": (
        lambda control: with_partition(control, 32, 7),
        f"partition 1 0 log bytes: {scenario.QUEUE_BYTES}",
        "partition 1 0 log bytes: 7",
    ),
    "next producer id": (
        lambda control: replace(control, next_producer_id=5),
        "head next producer id: 1000",
        "head next producer id: 5",
    ),
    "epoch": (
        lambda control: replace(control, epoch=3),
        f"head epoch: {scenario.EPOCH}",
        "head epoch: 3",
    ),
    "last frame": (
        lambda control: replace(control, last_pos=8),
        f"head last position: {scenario.LAST_FRAME_POS}",
        "head last position: 8",
    ),
    "totals": (
        lambda control: replace(control, totals=(1, *control.totals[1:])),
        "total records accepted: 24",
        "total records accepted: 1",
    ),
    "levels": (
        lambda control: replace(control, level_offsets=(4,)),
        "level 1: nothing",
        "level 1: (4,)",
    ),
    "a topic too few": (
        lambda control: without(control, 5),
        "topic 1: ('orders', ",
        "topic 1: nothing",
    ),
    "a group's offset too few": (
        lambda control: without(control, 6),
        "offset billing 1 1: OffsetEntry(",
        "offset billing 1 1: nothing",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_snapshot_that_says_something_else(disk: SimFileSystem, what: str) -> None:
    change, expected, found = WRONG[what]
    forge(disk, change)
    faults = scenario.check(disk).faults
    assert {fault.path for fault in faults} == {CONTROL}
    fault = faults[0]
    assert fault.expected.startswith(expected)
    assert fault.found == found
    data = disk.files()[CONTROL]
    assert fault.offset < len(data)
    if not fault.found.endswith("nothing") and not fault.found.startswith("head"):
        assert fault.offset > HEAD.size


def test_producers_that_a_broker_has_forgotten_are_not_missed(disk: SimFileSystem) -> None:
    """They were idle for long; the log still has them."""
    forge(disk, lambda control: without(control, 65))
    assert scenario.check(disk).faults == []


def test_a_state_at_no_frame(disk: SimFileSystem) -> None:
    forge(disk, lambda control: replace(control, applied=control.applied - 8))
    (fault,) = scenario.check(disk).faults
    assert fault.path == CONTROL
    assert fault.expected.startswith("a position where a frame ends")
    assert fault.found == f"{scenario.LOG_END - 8}"


def rewrite_run(disk: SimFileSystem, kind: int, change: Callable[[bytes], bytes]) -> None:
    """Change the rows of the one run of a kind, with all sums right."""

    def changed(control: ControlState) -> ControlState:
        (entry,) = [run for run in control.runs if run.kind == kind]
        old = disk.files()[entry.path(PATHS)]
        size, count = struct.unpack_from(">II", old, 32)
        rows = change(old[40 : 40 + size])
        disk.unlink(entry.path(PATHS))
        made = write_run(disk, entry, rows, count)
        return replace(control, runs=tuple(made if run == entry else run for run in control.runs))

    forge(disk, changed)


def write_run(disk: SimFileSystem, entry: RunEntry, rows: bytes, count: int) -> RunEntry:
    make = TimerLogWriter if entry.kind == RUN_DUE else RunWriter
    writer = make(
        disk,
        PATHS,
        kind=entry.kind,
        number=entry.number,
        from_pos=entry.from_pos,
        to_pos=entry.to_pos,
    )
    writer.append(rows, count)
    made = writer.finish()
    assert made is not None
    return made


def test_a_run_with_another_due_time(disk: SimFileSystem) -> None:
    rewrite_run(disk, RUN_TIMERS, lambda rows: rows[:23] + b"\xaa" + rows[24:])
    (fault,) = scenario.check(disk).faults
    assert (fault.path, fault.offset) == (TIMERS, 40)
    assert fault.expected.startswith(
        f"the pending timer of record 0 of the frame at {scenario.PENDING_POS}, "
        "due 1767232800000, topic id 1, "
    )
    assert fault.found.startswith(
        f"the pending timer of record 0 of the frame at {scenario.PENDING_POS}, due 17672328"
    )
    assert fault.found != fault.expected


def test_a_run_with_a_timer_of_its_own(disk: SimFileSystem) -> None:
    rewrite_run(disk, RUN_TIMERS, lambda rows: rows[:11] + b"\x07" + rows[12:])
    first, second = scenario.check(disk).faults
    assert first.expected.startswith(
        f"the pending timer of record 0 of the frame at {scenario.PENDING_POS}"
    )
    assert first.found == "none"
    assert second.expected == "none"
    assert second.found.startswith(
        f"the pending timer of record 7 of the frame at {scenario.PENDING_POS}"
    )
    assert (second.path, second.offset) == (TIMERS, 40)


def test_a_timer_log_with_another_due_time(disk: SimFileSystem) -> None:
    rewrite_run(disk, RUN_DUE, lambda rows: rows[:23] + bytes([rows[23] ^ 1]) + rows[24:])
    (fault,) = scenario.check(disk).faults
    assert fault.path == PATHS.timer_log
    assert fault.expected.endswith(" pending timers, those of the log")
    assert fault.found.endswith(" pending timers, or others")


def test_a_count_of_pending_timers_that_is_wrong(disk: SimFileSystem) -> None:
    def changed(control: ControlState) -> ControlState:
        assert control.pending is not None
        return replace(control, pending=control.pending[:-1] + b"\x09")

    forge(disk, changed)
    (fault,) = scenario.check(disk).faults
    assert fault.path == CONTROL
    assert (fault.expected, fault.found) == ("pending timers 1 0 0: 1", "pending timers 1 0 0: 9")


def test_a_run_with_an_id_in_another_state(disk: SimFileSystem) -> None:
    rewrite_run(disk, RUN_IDS, lambda rows: rows[:48] + bytes([5 - rows[48]]) + rows[49:])
    (fault,) = scenario.check(disk).faults
    assert (fault.path, fault.offset) == (IDS, 40)
    assert fault.expected != fault.found


def test_what_was_damaged_since_is_no_fault_of_the_state(disk: SimFileSystem) -> None:
    disk.flip(scenario.LOG / ("0" * 20), scenario.FIRST_TIMERS_POS + 33, 1)
    checked = scenario.check(disk)
    assert [fault.position for fault in checked.faults] == [scenario.FIRST_TIMERS_POS]
    assert [note.path for note in checked.notes] == [CONTROL]


def test_files_that_nothing_names_are_a_note(disk: SimFileSystem) -> None:
    disk.open(PATHS.timer / ("0" * 19 + "9"), create=True).pwritev([b"left over"], 0)
    checked = scenario.check(disk)
    assert checked.faults == []
    assert [(note.path, note.text[:6]) for note in checked.notes] == [(PATHS.timer, "1 file")]


# Long runs


@pytest.mark.parametrize("seed", range(4))
def test_whatever_a_broker_does_its_states_follow_from_its_log(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several checkpoints, merged runs, ids, deleted topics, groups; also after a crash."""
    monkeypatch.setattr(log_rows, "FOLD_BYTES", 4096)
    run = CrashRun(
        random.Random(seed),
        CrashPoints(),
        config=small_config(delivery_chunk_records=16, checkpoint_interval_bytes=1 << 16),
    )
    run.start()
    for _ in range(6):
        run.play_rounds(2)
        run.flush()
        run.harness.broker._store.checkpoints.ask()
        complete_checkpoint(run.harness)
        left = run.disk.crashed("kept", random.Random(0))
        checked = scenario.check(left, slice_bytes=2048)
        assert checked.faults == [], f"seed {seed}"
        assert checked.report.states >= 1
    run.harness.broker.close()
    assert scenario.check(run.disk).faults == [], f"seed {seed}"


def complete_checkpoint(harness: BrokerHarness) -> None:
    """Let a checkpoint that is wanted be taken to its end."""
    checkpoints = harness.broker._store.checkpoints
    while True:
        job = checkpoints.step()
        if job is not None:
            job.run()
            checkpoints.end(job)
            return


def test_a_real_directory_with_many_timers(tmp_path: Path, command: CommandLine) -> None:
    root = tmp_path / "data"
    config = small_config(data_dir=root)
    harness = BrokerHarness(OsFileSystem(), config=config)  # type: ignore[arg-type]
    harness.create_topic("jobs", 3)
    for number in range(60):
        user_id = b"id-%d" % (number % 20)
        harness.produce("jobs", number % 3, [Record(b"x", headers=delay(60_000 + number, user_id))])
    harness.tick(60_020)
    harness.broker.close()
    assert "1 saved states" in command.ok(f"check {root}").stdout
