"""Merges of many rows beside checkpoints: they change no state, and hold up no checkpoint."""

import random
from pathlib import Path

import pytest

from _core.bytes.layout import RUN_DUE, RUN_IDS, RUN_TIMERS
from appliance.errors import CorruptionError, StorageError
from appliance.store.runs.run_files import RunEntry
from appliance.store.runs.runs_job import RunsJob, first_at_once
from appliance.store.runs.runs_merge import RunsMerge
from tests.support.harness.broker_harness import with_topic
from tests.support.harness.checkpoints import take_checkpoint
from tests.support.harness.saved_history import PATHS, Play
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Record, delay

AT_ONCE = 6


class MergingPlay(Play):
    """A history whose runs are merged beside its checkpoints, in any order of their steps.

    Attributes:
        saved: what the last checkpoint that was saved names.
    """

    def __init__(self, seed: int, *, says_due: bool | None = None, keeps_ids: bool = True) -> None:
        super().__init__(seed, says_due=says_due, keeps_ids=keeps_ids)
        self.runs.at_once_rows = AT_ONCE
        self.saved: tuple[RunEntry, ...] = ()
        self.saved_pos = 0
        self.job: RunsJob | None = None
        self.merge: RunsMerge | None = None
        self.is_run = self.is_merged = False
        self.merge_count = self.left_count = 0

    def go_on_saving(self) -> None:
        """Begin a checkpoint, run its job, or end it."""
        if self.job is None:
            self.job, self.is_run = self.runs.freeze(self.pos), False
        elif not self.is_run:
            self.job.run()
            self.saved, self.saved_pos, self.is_run = self.job.entries, self.job.pos, True
            self.runs.keep(self.saved)
        else:
            self.runs.end(self.job)
            self.job = None

    def go_on_merging(self) -> None:
        """Begin a merge, run it, or end it."""
        if self.merge is None:
            self.merge, self.is_merged = self.runs.begin_merge(), False
        elif not self.is_merged:
            self.merge.run()
            self.is_merged = True
        else:
            self.runs.end_merge(self.merge)
            self.merge_count += 1
            self.merge = None

    def crash(self) -> None:
        """Begin again with what the last checkpoint has."""
        self.job = self.merge = None
        self.restart(self.saved, self.saved_pos)
        self.runs.at_once_rows = AT_ONCE


@pytest.mark.parametrize("keeps_ids", [True, False], ids=["all ids in memory", "ids in runs"])
@pytest.mark.parametrize("seed", range(12))
def test_merges_beside_checkpoints_change_nothing(
    seed: int, keeps_ids: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.store.runs.runs_job.SLACK_ROWS", 40 * (seed % 3))
    play = MergingPlay(seed, keeps_ids=keeps_ids)
    while play.pos < play.ends[-1]:
        match play.rng.randrange(40):
            case 0 if play.saved:
                play.crash()
            case step if step < 14:
                play.go_on_saving()
            case step if step < 28:
                play.go_on_merging()
            case _:
                play.go_to(next(end for end in play.ends if end > play.pos))
    assert play.merge_count
    assert play.state() == play.expected_state()
    play.crash()
    play.go_to(play.ends[-1])
    assert play.state() == play.expected_state()


def prepared(seed: int = 4, *, says_due: bool = True) -> MergingPlay:
    """A history in runs of which many are to be merged."""
    play = MergingPlay(seed, says_due=says_due)
    play.runs.at_once_rows = 0
    for pos in play.ends[10::20]:
        play.go_to(pos)
        for _ in range(3):
            play.go_on_saving()
    return play


def of_kind(entries: tuple[RunEntry, ...], kind: int) -> list[RunEntry]:
    return [entry for entry in entries if entry.kind == kind]


def begun(play: MergingPlay) -> RunsMerge:
    merge = play.runs.begin_merge()
    assert merge is not None
    return merge


def test_a_merge_puts_one_run_in_the_place_of_several_once_no_checkpoint_is_under_way() -> None:
    play = prepared()
    merge = begun(play)
    assert merge.kind == RUN_TIMERS
    assert len(merge.runs) > 2
    assert play.runs.begin_merge() is None  # one at a time
    play.go_to(play.ends[-1])
    play.go_on_saving()
    merge.run()
    play.go_on_saving()
    play.runs.end_merge(merge)
    assert merge.runs[0] in play.saved
    play.go_on_saving()
    timers = of_kind(play.runs.entries, RUN_TIMERS)
    assert merge.made in timers
    assert not set(merge.runs) & set(timers)
    assert merge.made is not None
    assert len(timers) == timers.index(merge.made) + 2  # that of the checkpoint meanwhile
    play.restart(play.runs.entries, play.pos)
    assert play.state() == play.expected_state()


def test_each_kind_is_merged_once_between_two_checkpoints() -> None:
    play = prepared()
    kinds = []
    while (merge := play.runs.begin_merge()) is not None:
        kinds.append(merge.kind)
        merge.run()
        play.runs.end_merge(merge)
    assert kinds == [RUN_TIMERS, RUN_DUE, RUN_IDS]
    for _ in range(3):
        play.go_on_saving()
    play.restart(play.runs.entries, play.pos)
    assert play.state() == play.expected_state()


def files(disk: SimFileSystem) -> set[Path]:
    return {path for path in disk.files() if path.parent == PATHS.timer}


def test_the_file_of_a_merge_stays_until_it_is_named_and_goes_if_it_is_dropped() -> None:
    play = prepared()
    merge = begun(play)
    play.go_on_saving()
    merge.run()
    assert merge.made is not None
    path = merge.made.path(PATHS)
    play.go_on_saving()  # it deletes what nobody names
    assert path in files(play.disk)
    play.go_on_saving()
    play.runs.drop_merge()
    for _ in range(2):
        play.go_on_saving()
    assert path not in files(play.disk)


def test_the_file_of_a_merge_and_its_name_are_durable_before_a_checkpoint_can_name_it() -> None:
    play = prepared()
    merge = begun(play)
    merge.run()
    assert merge.made is not None
    path = merge.made.path(PATHS)
    after_cut = play.disk.crashed("dropped", random.Random(1))
    assert after_cut.files().get(path) == play.disk.files()[path]


def test_a_merge_that_is_stopped_leaves_no_file_and_the_runs_as_they_are() -> None:
    play = prepared()
    entries, before = play.runs.entries, files(play.disk)
    merge = begun(play)
    merge.stop()
    merge.run()
    play.runs.end_merge(merge)
    assert (play.runs.entries, files(play.disk)) == (entries, before)


def test_a_merge_whose_runs_were_replaced_meanwhile_is_nobodys() -> None:
    play = prepared()
    merges = [begun(play)]
    merges[0].run()
    play.runs.end_merge(merges[0])
    merge = begun(play)
    assert merge.kind == RUN_DUE
    play.runs._has_log = False  # as after damage to it: the next checkpoint writes it anew
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(play.runs, "_log_mode", lambda **_: "anew")
        play.go_on_saving()
    for _ in range(2):
        play.go_on_saving()
    entries = play.runs.entries
    merge.run()
    play.runs.end_merge(merge)
    assert play.runs.entries == entries
    play.restart(entries, play.pos)
    assert play.state() == play.expected_state()


@pytest.mark.parametrize("is_damaged", [True, False], ids=["damaged", "full"])
def test_a_merge_that_fails_leaves_the_runs_says_why_and_is_tried_after_a_checkpoint(
    is_damaged: bool,
) -> None:
    play = prepared()
    entries, before = play.runs.entries, files(play.disk)
    merge = begun(play)
    spare = play.disk.free
    if is_damaged:
        entry = merge.runs[1]
        octet = play.disk.open(entry.path(PATHS)).pread(1, entry.size // 2)
        play.disk.open(entry.path(PATHS)).pwritev([bytes([octet[0] ^ 1])], entry.size // 2)
    else:
        play.disk.free = 100
    merge.run()
    play.runs.end_merge(merge)
    expected = CorruptionError if is_damaged else StorageError
    assert isinstance(play.runs.merge_error, expected)
    assert (play.runs.entries, files(play.disk)) == (entries, before)
    play.disk.free = spare
    again = play.runs.begin_merge()
    assert again is not None
    assert again.kind != RUN_TIMERS  # that one failed already
    again.run()
    play.runs.end_merge(again)
    for _ in range(3):
        play.go_on_saving()
    last = begun(play)
    assert last.kind == RUN_TIMERS
    last.run()
    play.runs.end_merge(last)
    assert (play.runs.merge_error is None) == (not is_damaged)


def test_a_damaged_timer_log_is_written_anew_after_a_merge_has_found_it() -> None:
    play = prepared()
    first = begun(play)
    first.run()
    play.runs.end_merge(first)
    merge = begun(play)
    assert merge.kind == RUN_DUE
    path, size = merge.runs[1].path(PATHS), merge.runs[1].size
    octet = play.disk.open(path).pread(1, size // 2)
    play.disk.open(path).pwritev([bytes([octet[0] ^ 1])], size // 2)
    merge.run()
    play.runs.end_merge(merge)
    assert isinstance(play.runs.merge_error, CorruptionError)
    assert not play.runs.has_timer_log
    for _ in range(3):
        play.go_on_saving()
    assert play.runs.has_timer_log
    assert not set(merge.runs) & set(play.runs.entries)
    play.restart(play.runs.entries, play.pos)
    assert play.state() == play.expected_state()


def entry(rows: int, number: int = 1) -> RunEntry:
    return RunEntry(kind=RUN_TIMERS, number=number, size=1, crc=1, rows=rows, from_pos=0, to_pos=1)


def test_a_checkpoint_merges_few_rows_and_no_run_that_is_being_merged() -> None:
    rng = random.Random(5)
    merged = 0
    for _ in range(2_000):
        runs = [entry(rng.randrange(1, 900), number) for number in range(rng.randrange(12))]
        at = rng.randrange(len(runs) + 1)
        merging = runs[rng.randrange(at + 1) : at]
        first = first_at_once(
            runs, rng.randrange(2_000), rng.randrange(3_000), merging=merging, rows_max=1_000
        )
        assert sum(run.rows for run in runs[first:]) <= 1_000
        assert not set(runs[first:]) & set(merging)
        merged += len(runs) - first
    assert merged > 1_000


def test_checkpoints_of_a_replay_merge_all_themselves() -> None:
    """Nothing else does then, and a long one has thousands of them."""
    play = MergingPlay(4)
    play.runs.at_once_rows = 0
    count = 0
    for pos in play.ends[::6]:
        play.go_to(pos)
        job = play.runs.freeze(pos, is_replay=True)
        job.run()
        play.runs.end(job)
        count += 1
    assert count > 40
    assert len(of_kind(play.runs.entries, RUN_IDS)) < 12


def test_a_failed_merge_is_a_failure_of_the_checkpoints_until_one_succeeds() -> None:
    harness = with_topic()
    checkpoints = harness.broker.checkpoints
    checkpoints._runs.at_once_rows = 0
    for number in range(4):
        harness.produce("t", 0, [Record(b"%d" % number, headers=delay(60_000))])
        take_checkpoint(harness)
    merge = checkpoints.begin_merge()
    assert merge is not None
    spare, harness.disk.free = harness.disk.free, 10
    merge.run()
    checkpoints.end_merge(merge)
    assert checkpoints.failure is merge.error is not None
    harness.disk.free = spare
    take_checkpoint(harness)
    assert checkpoints.failure is merge.error
    merge = checkpoints.begin_merge()
    assert merge is not None
    merge.run()
    checkpoints.end_merge(merge)
    take_checkpoint(harness)
    assert checkpoints.failure is None
