"""Runs are merged on a thread of their own: checkpoints are saved meanwhile, and a stop ends it."""

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from _core.bytes.layout import RUN_TIMERS
from appliance.errors import StorageError
from appliance.run_merging import RunMerging
from appliance.store.runs.runs_merge import RunsMerge
from appliance.thread_jobs import ThreadJobs
from tests.support.harness.live_broker import LiveBroker, until
from tests.support.values.kafka_records import Record, delay

HOUR_MS = 3_600_000
EACH = 10


class HeldMerges:
    """Merges that wait before they run.

    Attributes:
        begun: merges whose thread has come so far.
        gate: opens for them.
        error: what they raise, None for nothing.
    """

    def __init__(self) -> None:
        self.begun: list[RunsMerge] = []
        self.gate = threading.Event()
        self.error: StorageError | None = None
        self._run = RunsMerge.run

    def run(self, merge: RunsMerge) -> None:
        self.begun.append(merge)
        while not (self.gate.wait(0.001) or merge.is_stopped):
            pass
        if self.error is not None:
            merge.error = self.error
            raise self.error
        self._run(merge)


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldMerges]:
    held = HeldMerges()
    monkeypatch.setattr(RunsMerge, "run", lambda merge: held.run(merge))  # noqa: PLW0108 (binds)
    yield held
    held.gate.set()


class Scheduling:
    """Schedules some records, and saves them, again and again."""

    def __init__(self, live: LiveBroker) -> None:
        self.live = live
        self.runs = live.broker.checkpoints._runs
        self.runs.at_once_rows = 0
        self.count = 0

    async def save_some(self) -> None:
        client = await self.live.connect()
        for _ in range(EACH):
            self.count += 1
            record = Record(b"%d" % self.count, headers=delay(HOUR_MS))
            assert (await client.produce("t", 0, [record])).error == 0
        checkpoints = self.live.broker.checkpoints
        # One that is asked for while another is in progress is forgotten when that one ends.
        await until(lambda: checkpoints._job is None and not checkpoints.is_capturing)
        checkpoints.ask()
        await until(lambda: checkpoints.saved_pos == self.live.broker.committed_pos)

    def rows(self) -> list[int]:
        return [entry.rows for entry in self.runs.entries if entry.kind == RUN_TIMERS]


async def test_checkpoints_are_saved_while_runs_are_merged(
    tmp_path: Path, merges: HeldMerges
) -> None:
    async with LiveBroker(tmp_path) as live:
        scheduling = Scheduling(live)
        while not merges.begun:
            await scheduling.save_some()
        (merge,) = merges.begun
        for _ in range(3):
            await scheduling.save_some()
        assert scheduling.rows() == [EACH] * (scheduling.count // EACH)
        assert set(merge.runs) < set(scheduling.runs.entries)
        merges.gate.set()
        await until(lambda: merge.made in scheduling.runs.entries)
        assert not set(merge.runs) & set(scheduling.runs.entries)
        await scheduling.save_some()
    async with LiveBroker(tmp_path) as live:
        assert live.broker.report.checkpoint
        assert live.broker.report.rejected == ()
        assert live.broker.pending_timers == scheduling.count


async def test_a_stop_ends_a_merge(tmp_path: Path, merges: HeldMerges) -> None:
    async with LiveBroker(tmp_path) as live:
        scheduling = Scheduling(live)
        while not merges.begun:
            await scheduling.save_some()
    (merge,) = merges.begun
    assert merge.is_stopped
    assert merge.made is None
    directory = tmp_path / "data" / "timer"
    assert f"{merge.number:020}" not in [path.name for path in directory.iterdir()]
    async with LiveBroker(tmp_path) as live:
        assert live.broker.pending_timers == scheduling.count


async def test_a_stop_amid_a_merge_is_final_also_without_a_pump(
    tmp_path: Path, merges: HeldMerges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a slave that merges is promoted, and its runs go on with the master's pump."""
    errors: list[Exception] = []

    def guard(step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 (whatever it is)
            errors.append(error)

    async with LiveBroker(tmp_path) as live:
        scheduling = Scheduling(live)
        monkeypatch.setattr(live.server.pump._merging, "step", lambda: None)
        for _ in range(6):
            await scheduling.save_some()
        await live.server.pump.stop()
        checkpoints = live.broker.checkpoints
        merging = RunMerging(ThreadJobs(asyncio.get_running_loop(), guard), checkpoints)
        merging.step()
        await until(lambda: len(merges.begun) == 1)
        assert await merging.stop() is None
        guard(lambda: merging._end(merges.begun[0]))  # it may be reported only now
        assert errors == []
        assert merges.begun[0].made is None
        assert checkpoints.begin_merge() is not None  # the next one is free to begin


@pytest.mark.parametrize("is_stopping", [False, True])
async def test_a_sync_of_a_merge_that_fails_ends_the_broker(
    tmp_path: Path, merges: HeldMerges, is_stopping: bool
) -> None:
    merges.error = StorageError(tmp_path / "run", "fdatasync", errno.EIO, "broken")
    assert merges.error.is_fatal
    async with LiveBroker(tmp_path) as live:
        scheduling = Scheduling(live)
        while not merges.begun:
            await scheduling.save_some()
        pump = live.server.pump
        assert not pump.has_failed
        if not is_stopping:
            merges.gate.set()
            await until(lambda: pump.has_failed)
    assert pump.failure.result() is merges.error
