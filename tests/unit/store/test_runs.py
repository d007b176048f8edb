"""Runs of timers and ids: what is loaded is what a replay would have made."""

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from _core.bytes.layout import RUN_DUE, RUN_IDS, RUN_TIMERS
from appliance.errors import CorruptionError, StorageError
from appliance.store.runs.merging import read_rows
from appliance.store.runs.run_files import (
    CompletedRow,
    IdRow,
    RunEntry,
    RunReader,
    TimerRow,
    decode_entry,
    encode_entry,
)
from appliance.store.runs.runs_job import GROWTH, SLACK_ROWS, first_to_merge
from appliance.units import MIB
from tests.support.compiled import timer_calls as calls
from tests.support.harness.saved_history import (
    FRAMES,
    PATHS,
    Play,
    checkpoint,
    drain,
    new_disk,
    new_runs,
)
from tests.support.oracles.timer_history import TimerHistory, new_projections, replay
from tests.support.simulator.sim_fs import SimFileSystem


def names(disk: SimFileSystem) -> set[Path]:
    return {
        path for path in disk.files() if path.parent in (PATHS.timer, PATHS.timer_log, PATHS.index)
    }


# What is loaded


@pytest.mark.parametrize("slack", [0, SLACK_ROWS], ids=["merged at once", "merged by size"])
@pytest.mark.parametrize("seed", range(12))
def test_loading_runs_and_replaying_the_rest_is_a_full_replay(
    seed: int, slack: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.store.runs.runs_job.SLACK_ROWS", slack)
    play = Play(seed)
    for pos in sorted(play.rng.sample(play.ends, play.rng.randrange(1, 30))):
        play.go_to(pos)
        play.checkpoint()
    play.restart(play.runs.entries, play.pos)
    play.go_to(play.ends[-1])
    expected = play.expected_state()
    assert expected["pending"] == len(play.history.pending) > 0
    assert expected["ids"]
    assert play.state() == expected


@pytest.mark.parametrize("seed", range(0, 40, 2))
def test_timers_that_are_loaded_later_are_those_of_a_full_replay(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are counted at once; what frames do to them does not wait until they are loaded."""
    monkeypatch.setattr("appliance.store.runs.timer_memory.LOADED_AT_ONCE", -1)
    monkeypatch.setattr("appliance.store.runs.timer_memory.NEAR_PIECES", 0)
    monkeypatch.setattr("appliance.store.runs.timer_load.ROWS_AT_ONCE", 7)
    play = Play(seed)
    lives = sorted(play.rng.sample(play.ends[5:-5], 8))
    lazy = 0
    for pos, following in zip(lives, [*lives[1:], play.ends[-1]], strict=True):
        play.go_to(pos)
        counts = play.checkpoint()  # none if a topic was deleted while timers were left to load
        play.restart(play.runs.entries, pos, counts)
        lazy += play.runs.timer_memory.load is not None
        for end in [each for each in play.ends if pos < each <= following]:
            if play.rng.random() < 0.2:
                play.load_some()
            play.go_to(end)
        assert play.projections.due.pending == pending_at(play, play.pos)
    assert play.state() == play.expected_state()
    assert lazy


def pending_at(play: Play, pos: int) -> int:
    projections = new_projections(forget_pos=play.forget_pos)
    replay(projections, play.log, 0, pos)
    return projections.due.pending


@pytest.mark.parametrize("seed", range(100, 106))
def test_runs_of_many_lives_add_up(seed: int) -> None:
    """Each life loads what the one before saved, and at times applies frames again."""
    play = Play(seed)
    for pos in sorted(play.rng.sample(play.ends, 12)):
        play.go_to(pos)
        play.checkpoint()
        saved = play.runs.entries
        later = [end for end in play.ends if pos <= end <= pos + 2_000]
        play.go_to(play.rng.choice(later))
        play.restart(saved, pos)
    play.go_to(play.ends[-1])
    assert play.state() == play.expected_state()


def test_a_store_where_nothing_happens_gets_no_files() -> None:
    play = Play(1)
    play.checkpoint()
    assert play.runs.entries == ()
    assert not names(play.disk)
    play.go_to(play.ends[-1])
    play.checkpoint()
    entries, files = play.runs.entries, names(play.disk)
    play.checkpoint()
    assert (play.runs.entries, names(play.disk)) == (entries, files)
    assert play.runs.delta_bytes == 0


def test_what_is_not_saved_is_counted_and_asks_for_a_checkpoint() -> None:
    play = Play(2)
    play.runs = new_runs(play.disk, play.projections, delta_max_bytes=100_000)
    assert not play.runs.is_due
    play.go_to(play.ends[-1])
    assert play.runs.delta_bytes >= 100_000
    assert play.runs.is_due
    job = play.runs.freeze(play.pos)
    assert not play.runs.is_due
    job.run()
    play.runs.end(job)
    assert (play.runs.delta_bytes, play.runs.is_due) == (0, False)


def test_entries_are_read_as_they_were_written() -> None:
    play = Play(3)
    play.go_to(play.ends[-1])
    play.checkpoint()
    assert [entry.kind for entry in play.runs.entries] == [RUN_TIMERS, RUN_DUE, RUN_IDS]
    for entry in play.runs.entries:
        assert decode_entry(b"\xff" + encode_entry(entry), 1) == entry


# Merges


def rows_in(play: Play) -> list[TimerRow | CompletedRow | IdRow]:
    paths = [entry.path(PATHS) for entry in play.runs.entries]
    return [row for path in paths for row in read_rows(play.disk, path)]


def test_a_merge_of_everything_leaves_what_is_pending_and_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("appliance.store.runs.runs_job.SLACK_ROWS", -(1 << 40))
    play = Play(4)
    for pos in sorted({*play.rng.sample(play.ends, 6), play.ends[-1]}):
        play.go_to(pos)
        play.checkpoint()
    rows = rows_in(play)
    timers = [(row.accept_pos, row.index) for row in rows if isinstance(row, TimerRow)]
    by_due = sorted(play.history.pending, key=lambda key: (play.history.pending[key].due_ms, key))
    assert timers == sorted(play.history.pending) + by_due
    assert not [row for row in rows if isinstance(row, CompletedRow)]
    ids = [row for row in rows if isinstance(row, IdRow)]
    assert len(ids) == len(play.expected_state()["ids"])  # type: ignore[arg-type]
    assert {row.topic_id for row in ids} <= set(play.history.topics)
    assert len(play.runs.entries) == 3


def simulated_rows(rng: random.Random, steps: int, added: int) -> tuple[int, int, int]:
    """(rows written, rows there are in the end, most runs) when nothing is ever completed."""
    runs: list[int] = []
    written = most = 0
    for _ in range(steps):
        new = rng.randrange(added // 2, added * 2)
        total = sum(runs) + new
        first = first_to_merge(runs, new, total)
        made = sum(runs[first:]) + new
        runs[first:] = [made]
        written += made
        most = max(most, len(runs))
    return written, sum(runs), most


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_written_few_times_and_lie_in_few_runs(seed: int) -> None:
    rng = random.Random(seed)
    for steps in (10, 100, 1_000, 10_000):
        written, total, most = simulated_rows(rng, steps, 1_000)
        orders = 1.0
        while (GROWTH + 1) ** orders < steps:
            orders += 1
        assert written <= total * (orders + 1)
        assert most <= (GROWTH + 1) * (orders + 1)


def test_rows_that_say_nothing_any_more_are_bounded() -> None:
    """A million timers wait, and each checkpoint sees a tenth of them go and others come."""
    runs: list[int] = [1_000_000]
    written = 0
    for _ in range(300):
        new = 200_000  # as many completed as pushed
        first = first_to_merge(runs, new, 1_000_000)
        # A merge of everything leaves what is pending; others are taken to leave all.
        runs[first:] = [1_000_000 if first == 0 else sum(runs[first:]) + new]
        written += runs[-1]
        assert sum(runs) <= 2 * 1_000_000 + SLACK_ROWS
    assert written <= 300 * new * 4


# Failures


@pytest.mark.parametrize("seed", range(4))
def test_what_a_failed_checkpoint_did_not_save_is_in_the_next(seed: int) -> None:
    play = Play(seed)
    failed = 0
    for pos in sorted(play.rng.sample(play.ends, 12)):
        play.go_to(pos)
        before = names(play.disk)
        call = play.disk.calls + play.rng.randrange(1, 12)
        play.disk.fail_at(call, OSError(5, "Input/output error"))
        job = play.runs.freeze(pos)
        try:
            job.run()
        except StorageError:
            play.runs.abandon(job)
            failed += 1
            assert play.runs.delta_bytes > 0
        else:
            play.runs.end(job)
        play.disk.heal()
        assert names(play.disk) >= before
    assert failed
    play.checkpoint()
    play.restart(play.runs.entries, play.pos)
    assert play.state() == play.expected_state()


def test_a_disk_that_stays_full_costs_no_memory_for_each_try() -> None:
    play = Play(7)
    play.disk.free = 0
    for pos in play.ends[: FRAMES // 2]:
        play.go_to(pos)
        job = play.runs.freeze(pos)
        with suppress(StorageError):  # nothing is to be saved yet
            job.run()
        play.runs.abandon(job)
    assert 0 < play.runs.delta_bytes < 2 * MIB
    play.disk.free = 1 << 30
    play.checkpoint()
    play.restart(play.runs.entries, play.pos)
    assert play.state() == play.expected_state()


def test_a_name_is_used_once_and_a_failed_checkpoint_leaves_no_file() -> None:
    play = Play(5, says_due=True)
    play.go_to(play.ends[150])
    job = play.runs.freeze(play.pos)
    play.disk.free = 100
    with pytest.raises(StorageError):
        job.run()
    assert not names(play.disk)
    play.runs.abandon(job)
    play.disk.free = 1 << 30
    play.checkpoint()
    tried = (RUN_TIMERS, 2)
    assert tried in {(entry.kind, entry.number) for entry in play.runs.entries}
    before = {entry.kind: entry.number for entry in play.runs.entries}
    play.runs = new_runs(play.disk, play.projections)
    play.go_to(play.ends[-1])
    play.checkpoint()
    assert {entry.kind: entry.number - 1 for entry in play.runs.entries} == before


def test_keep_deletes_runs_that_nobody_names_and_nothing_else() -> None:
    play = Play(6)
    for pos in (play.ends[100], play.ends[200]):
        play.go_to(pos)
        play.checkpoint()
    kept = play.runs.entries[:1]
    play.disk.open(PATHS.timer / "notes", create=True).close()
    play.runs.keep(kept)
    assert names(play.disk) == {kept[0].path(PATHS), PATHS.timer / "notes"}


def test_a_damaged_run_is_left_alone_by_a_merge_and_found_by_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = Play(7)
    play.go_to(play.ends[150])
    play.checkpoint()
    damaged = play.runs.entries[0]
    play.disk.open(damaged.path(PATHS)).pwritev([b"\xff"], damaged.size // 2)
    play.go_to(play.ends[-1])
    monkeypatch.setattr("appliance.store.runs.runs_job.SLACK_ROWS", -(1 << 40))
    job = play.runs.freeze(play.pos)
    job.run()
    play.runs.end(job)
    assert [error.path for error in job.damage] == [damaged.path(PATHS)]
    timers = [entry for entry in play.runs.entries if entry.kind == RUN_TIMERS]
    assert timers[0] == damaged
    assert len(timers) == 2
    with pytest.raises(CorruptionError) as caught:
        drain(play.runs.check(play.runs.entries))
    assert caught.value.path == damaged.path(PATHS)


# Damage


@pytest.fixture(scope="module")
def small() -> Play:
    """A few rows of each kind, in two runs each."""
    play = Play(9, frames=24, says_due=True)
    for pos in (play.ends[12], play.ends[-1]):
        play.go_to(pos)
        play.checkpoint()
    assert len(play.runs.entries) == 6
    return play


def assert_refused(play: Play, entries: Sequence[RunEntry], path: Path) -> None:
    """By `check`, before anything was taken in."""
    projections = new_projections()
    runs = new_runs(play.disk, projections)
    with pytest.raises(CorruptionError) as caught:
        drain(runs.check(entries))
    assert caught.value.path == path
    assert projections.due.pending == projections.ids.count == 0


@pytest.mark.parametrize("which", range(6))
def test_any_flipped_bit_and_any_other_length_of_a_run_is_found(small: Play, which: int) -> None:
    entry = small.runs.entries[which]
    path = entry.path(PATHS)
    file = small.disk.open(path)
    whole = file.pread(entry.size, 0)
    for at in range(entry.size):
        file.pwritev([bytes([whole[at] ^ 1 << small.rng.randrange(8)])], at)
        assert_refused(small, small.runs.entries, path)
        file.pwritev([whole[at : at + 1]], at)
    for size in (*range(entry.size), entry.size + 1):
        file.truncate(size)
        assert_refused(small, small.runs.entries, path)
        # A read without the expected length refuses it as well.
        with pytest.raises(CorruptionError):
            list(read_rows(small.disk, path))
        file.pwritev([whole], 0)
        file.truncate(entry.size)
    drain(small.runs.check(small.runs.entries))


def test_a_missing_run_and_one_in_the_place_of_another_are_found(small: Play) -> None:
    first, second = (entry.path(PATHS) for entry in small.runs.entries[:2])
    aside = PATHS.timer / "aside"
    small.disk.rename(first, aside)
    with pytest.raises(StorageError) as caught:
        drain(small.runs.check(small.runs.entries))
    assert caught.value.is_missing
    small.disk.rename(second, first)
    assert_refused(small, small.runs.entries[:1], first)
    small.disk.rename(first, second)
    small.disk.rename(aside, first)
    drain(small.runs.check(small.runs.entries))


def test_another_whole_run_of_the_same_name_and_size_is_found(small: Play) -> None:
    first, *others = small.runs.entries
    file_says = RunReader(small.disk, first.path(PATHS))
    assert len(list(file_says.blocks())) == 1  # whole by itself
    file_says.close()
    assert_refused(small, (replace(first, crc=first.crc ^ 1), *others), first.path(PATHS))
    assert_refused(small, (replace(first, rows=first.rows + 1), *others), first.path(PATHS))


def test_runs_that_do_not_follow_each_other_are_refused(small: Play) -> None:
    older, newer = small.runs.entries[:2]
    assert_refused(small, (newer, older), older.path(PATHS))
    odd = RunEntry(kind=9, number=1, size=1, crc=1, rows=1, from_pos=0, to_pos=0)
    assert_refused(small, (odd,), odd.path(PATHS))


def test_blocks_that_changed_places_are_found() -> None:
    disk, projections = new_disk(), new_projections()
    runs = new_runs(disk, projections)
    memtable = projections.memtable
    assert memtable is not None
    for number in range(20_000):
        calls.note_pushed(memtable, number, number, 0, topic_id=1, partition=0)
    log = bytes(TimerHistory(random.Random(1)).log)  # topic 1
    replay(projections, log, 0, len(log))
    checkpoint(runs, 1)
    entry, _ = runs.entries
    assert entry.rows == 20_000
    reader = RunReader(disk, entry.path(PATHS))
    sizes = [len(block) + 12 for block in reader.blocks()]
    reader.close()
    assert sizes[0] == sizes[1]
    file = disk.open(entry.path(PATHS))
    start = entry.size - 12 - sum(sizes)
    blocks = file.pread(2 * sizes[0], start)
    file.pwritev([blocks[sizes[0] :] + blocks[: sizes[0]]], start)
    with pytest.raises(CorruptionError):
        drain(runs.check(runs.entries))
