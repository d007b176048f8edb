"""One run of a broker, again and again, of which each time another call of the disk fails."""

import errno
import random
from dataclasses import dataclass
from typing import Final, Literal, get_args

from appliance.config import Config
from appliance.errors import StorageError
from tests.support.broker_rig import BrokerRig
from tests.support.configs import small_config
from tests.support.crash_check import CrashChecker
from tests.support.crash_run import CrashRun, Refused
from tests.support.crash_states import CHUNK_RECORDS
from tests.support.sim_fs import DISK_SIZE_BYTES, CrashMode, SimFileSystem
from tests.support.small_files import repeatable_ids, small_reach

SEED: Final = 5
MODES: Final[tuple[CrashMode, ...]] = get_args(CrashMode)

How = Literal["once", "for good", "after half of it"]
End = Literal["played", "refused", "fatal"]

PAUSE_MS: Final = 300
"""After which a disk that was full is asked for room again."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Which call fails, from 1, how, and with what.

    With ENOSPC for good the disk is full: from that call on nothing can grow.
    """

    number: int
    code: int
    how: How


@dataclass(frozen=True, slots=True)
class Told:
    """How one run ended, and on how many disks a broker was started after it."""

    end: End
    states: int


class FailingRun:
    """A run in which everything happens that writes: group commits, rolls, checkpoints, reads of
    what is cold, a clean stop.
    """

    def __init__(self) -> None:
        config = small_config(delivery_chunk_records=CHUNK_RECORDS)
        self.run = CrashRun(random.Random(SEED), config=config, may_fail=True)
        self.checkpoints = 0
        self._full_at = 0

    def play(self, failure: Failure | None = None) -> End:
        """Go on until the end, a refusal, or an error that ends the process."""
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
            run.rig.make_cold()
            run.consume()
            run.idle()
        run.flush()
        run.close()

    def _go_on_after_refusal(self) -> End:
        """What was taken is served; with room on the disk, all goes on without a restart."""
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
    """How many calls the run makes if none fails; it is what it is meant to be."""
    with small_reach(), repeatable_ids(SEED):
        failing = FailingRun()
        assert failing.play() == "played"
        assert failing.checkpoints == 2
        assert failing.run.rig.broker.wrote_pos > failing.run.config.segment_size_bytes
    return failing.run.disk.calls


def look_at(failure: Failure) -> Told:
    """Play with one failure, then start on what each kind of crash leaves.

    Raises:
        AssertionError: something that was acknowledged is gone, or was never asked for.
    """
    with small_reach(), repeatable_ids(SEED):
        failing = FailingRun()
        run = failing.run
        try:
            end = failing.play(failure)
            run.disk.observer = lambda: None
            checker = CrashChecker(run.config)
            for mode in MODES:
                left = run.disk.crashed(mode, random.Random(failure.number))
                if left.free < run.config.segment_size_bytes:
                    start_without_room(left.crashed("killed", random.Random(0)), run.config)
                left.free = DISK_SIZE_BYTES
                checker.check(left, run.known(mode))
        except Exception as error:
            raise AssertionError(f"{failure}\n{run.disk.trace()}\n{error}") from error
    return Told(end, checker.distinct)


def start_without_room(disk: SimFileSystem, config: Config) -> None:
    """A start on a full disk serves, or says that the disk is full."""
    try:
        rig = BrokerRig(disk, config=config)
    except StorageError as error:
        if not error.is_disk_full:
            raise
    else:
        assert not rig.report.damage


def look_at_all(failures: list[Failure]) -> list[Told]:
    """`look_at` each, for a pool of processes."""
    return [look_at(failure) for failure in failures]
