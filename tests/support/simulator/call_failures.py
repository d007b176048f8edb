"""Replays of one run of a broker, in each of which another call of the disk fails."""

import errno
import random
from dataclasses import dataclass
from typing import Final, Literal, get_args

from appliance.config.config import Config
from appliance.errors import StorageError
from appliance.store.state.checkpointer import RETRY_NS
from appliance.units import NS_PER_MS
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import small_config
from tests.support.harness.crash_check import CrashChecker
from tests.support.harness.crash_run import CrashRun, Refused
from tests.support.harness.crash_states import CHUNK_RECORDS
from tests.support.harness.small_files import repeatable_ids, small_watermark
from tests.support.simulator.sim_fs import DISK_SIZE_BYTES, CrashMode, SimFileSystem

SEED: Final = 5
MODES: Final[tuple[CrashMode, ...]] = get_args(CrashMode)

How = Literal["once", "for good", "after half of it"]
End = Literal["played", "refused", "fatal"]

PAUSE_MS: Final = RETRY_NS // NS_PER_MS
"""Longer than the pauses of the log and of the checkpointer after the disk was full."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Which call fails (from 1), how, and with which error.

    With ENOSPC "for good" the disk is full: from that call on no file can grow.
    """

    number: int
    code: int
    how: How
    modes: tuple[CrashMode, ...] = MODES
    """The kinds of crash after it."""


def some_modes(number: int) -> tuple[CrashMode, ...]:
    """Two kinds of crash; all of them come in turn."""
    return MODES[number % len(MODES)], MODES[(number + 3) % len(MODES)]


@dataclass(frozen=True, slots=True)
class Played:
    """How one run ended, and on how many disks a broker was started after it."""

    end: End
    states: int


class FailingRun:
    """A run with every kind of disk access: group commits, rolls, checkpoints, cold reads, a clean
    stop.
    """

    def __init__(self) -> None:
        # What is full here is full to the last byte, not beyond a line of the operator.
        config = small_config(delivery_chunk_records=CHUNK_RECORDS, disk_refuse_percent=100)
        self.run = CrashRun(random.Random(SEED), config=config, may_fail=True)
        self.checkpoints = 0
        self._full_at = 0

    def play(self, failure: Failure | None = None) -> End:
        """Run until the end, a refusal, or an error that ends the process."""
        if failure is not None:
            self._arm(failure)
        try:
            self._play(2)
        except StorageError:
            return "fatal"
        except Refused:
            return self._go_on_after_refusal()
        return "played"

    def _arm(self, failure: Failure) -> None:
        if failure.code == errno.ENOSPC and failure.how == "for good":
            self._full_at = failure.number
            self.run.disk.observer = self._fill
            return
        self.run.disk.fail_at(
            failure.number,
            OSError(failure.code, "injected"),
            sticky=failure.how == "for good",
            short_write=failure.how == "after half of it",
        )

    def _fill(self) -> None:
        if self.run.disk.calls + 1 == self._full_at:
            self.run.disk.free = 0

    def _play(self, rounds: int) -> None:
        run = self.run
        run.start()
        for _ in range(rounds):
            run.play_rounds(1)
            self.checkpoints += run.checkpoint()
            run.harness.make_cold()
            run.consume()
            run.idle()
        run.flush()
        run.close()

    def _go_on_after_refusal(self) -> End:
        """Check that accepted records are served, and that with room the broker recovers."""
        run = self.run
        try:
            run.consume()
            run.disk.heal()
            run.disk.observer = lambda: None
            run.disk.free = DISK_SIZE_BYTES
            run.clock.advance_ms(PAUSE_MS)
            run.play_rounds(1)
            assert run.checkpoint()
            run.consume()
        except StorageError:
            return "fatal"
        return "refused"


def call_count() -> int:
    """How many calls the run makes if none fails; checks the run itself."""
    with small_watermark(), repeatable_ids(SEED):
        failing = FailingRun()
        assert failing.play() == "played"
        assert failing.checkpoints == 2
        assert failing.run.harness.broker.wrote_pos > failing.run.config.segment_size_bytes
    return failing.run.disk.calls


def play_and_check(failure: Failure) -> Played:
    """Play with one failure, then start on what crashes leave.

    Raises:
        AssertionError: something acknowledged is lost, or something appeared that was never sent.
    """
    with small_watermark(), repeatable_ids(SEED):
        failing = FailingRun()
        run = failing.run
        try:
            end = failing.play(failure)
            run.disk.observer = lambda: None
            checker = CrashChecker(run.config)
            for mode in failure.modes:
                left = run.disk.crashed(mode, random.Random(failure.number))
                if left.free < run.config.segment_size_bytes:
                    start_without_room(left.crashed("killed", random.Random(0)), run.config)
                left.free = DISK_SIZE_BYTES
                checker.check(left, run.known(mode))
        except Exception as error:
            raise AssertionError(f"{failure}\n{run.disk.trace()}\n{error}") from error
    return Played(end, checker.distinct)


def start_without_room(disk: SimFileSystem, config: Config) -> None:
    """Check that a start on a full disk serves, or reports that the disk is full."""
    try:
        harness = BrokerHarness(disk, config=config)
    except StorageError as error:
        if not error.is_disk_full:
            raise
    else:
        assert not harness.report.damage


def play_all(failures: list[Failure]) -> list[Played]:
    """Call `play_and_check` for each, in a pool of processes."""
    return [play_and_check(failure) for failure in failures]
