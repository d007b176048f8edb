"""Watches how full the file system of the data is, and refuses new records in time.

 loop     `step`, ten times a second, finds that a second is over
 thread   `SpaceJob.run` asks the file system, which may block
 loop     `end` compares the answer with the lines, logs a crossing, and sets `LogTail.is_refusing`

 ok --warn_percent--> warn --refuse_percent, or no room for a segment--> refusing

A line counts as crossed back HYSTERESIS_POINTS below it, so that a disk at a line does not
alternate. Below the line, the log itself finds that there is no room (`CommitLog.is_full`). That
ends when a segment was made; until then one is tried again as soon as it may fit.

Layer 2; the time comes from the clock alone.
"""

import logging
import math
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.config.disk import NEVER_PERCENT
from appliance.errors import StorageError
from appliance.model import DiskState, DiskStatus
from appliance.store.log.commit_log import CommitLog
from appliance.system.clock import Clock
from appliance.system.files import FileSystem
from appliance.units import GIB, KIB, MIB, MS_PER_SECOND, NS_PER_MS

HYSTERESIS_POINTS: Final = 2
"""Percentage points below a line at which it counts as crossed back."""

CHECK_NS: Final = MS_PER_SECOND * NS_PER_MS
"""Interval of the checks: at 1 GB/s a disk of 100 GB gets a percent fuller in this time."""

SAMPLE_NS: Final = 10 * CHECK_NS
SAMPLES_MAX: Final = 31
"""The rate is that of the last five minutes: shorter ones follow every burst."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class SpaceJob:
    """Asks how full a file system is.

    Attributes:
        found: used and available bytes; None if it failed.
        error: why it failed.
    """

    fs: FileSystem
    directory: Path
    found: tuple[int, int] | None = None
    error: StorageError | None = None

    def run(self) -> None:
        """Ask; may run on any thread. Keeps a StorageError for `DiskSpace.end`."""
        try:
            self.found = self.fs.usage(self.directory)
        except StorageError as error:
            self.error = error


class DiskSpace:
    """How full the disk is, and what follows from it. All methods run on the loop.

    Attributes:
        state: how full, as of the last step.
        check_count: how often the file system has answered.
        is_over_expire: it is fuller than `expire_percent` permits.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        fs: FileSystem,
        directory: Path,
        log: CommitLog,
        segment_size_bytes: int,
        warn_percent: int,
        refuse_percent: int,
        expire_percent: int = NEVER_PERCENT,
    ) -> None:
        """Watch the file system of a directory; call `check` before the first request.

        Args:
            clock, fs: of the broker.
            directory: holds the data.
            log: the log, ready to append.
            segment_size_bytes: what the log needs at a time.
            warn_percent, refuse_percent, expire_percent: the lines, in percent of the file system.
        """
        self._clock = clock
        self._fs = fs
        self._directory = directory
        self._log = log
        self._segment_size_bytes = segment_size_bytes
        self._warn_percent = warn_percent
        self._refuse_percent = refuse_percent
        self._expire_percent = expire_percent
        self._job: SpaceJob | None = None
        self._began_full = False
        """The log was full when the job began, so that its figures are those of a full disk."""
        self._checked_ns: int | None = None
        self._has_failed = False
        self._used_bytes = self._free_bytes = 0
        self._samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES_MAX)
        """Monotonic time and room at that time, oldest first."""
        self._is_over_warn = self._is_over_refuse = False
        self.state: DiskState = "ok"
        self._logged: DiskState = "ok"
        self.check_count = 0
        self.is_over_expire = False

    # Checks

    def step(self) -> SpaceJob | None:
        """Return a job to run on a thread and then pass to `end`; None if none is needed yet.

        Call it about ten times a second.
        """
        self._log.note_spare()
        was_refusing = self.state == "refusing"
        self._update()
        now_ns = self._clock.monotonic_ns()
        is_due = self._checked_ns is None or now_ns - self._checked_ns >= CHECK_NS
        # The log noticed a full disk before the next check: refuse with figures of this moment.
        is_due |= self.state == "refusing" and not was_refusing
        if self._job is not None:
            return None
        if not is_due:
            self._log_change()
            return None
        self._checked_ns = now_ns
        self._began_full = self._log.is_full
        self._job = SpaceJob(self._fs, self._directory)
        return self._job

    def end(self, job: SpaceJob) -> None:
        """Take the result of a job. The last figures stay if it failed."""
        assert job is self._job
        self._job = None
        if job.found is None:
            if not self._has_failed:
                _log.warning("cannot tell how full the disk is: %s", job.error)
            self._has_failed = True
            self._log_change()
            return
        self._has_failed = False
        self.check_count += 1
        self._used_bytes, self._free_bytes = job.found
        self._log.may_have_room = self._free_bytes >= self._segment_size_bytes
        self._note_sample()
        self._update()
        if self._log.is_full and not self._began_full:
            self.hurry()  # the answer may be of before: the next one is logged
        else:
            self._log_change()

    def hurry(self) -> None:
        """Let the next step ask, although the last answer is younger than a second."""
        self._checked_ns = None

    def check(self) -> None:
        """Check at once, on this thread."""
        job = self.step()
        if job is not None:
            job.run()
            self.end(job)

    # State

    def _update(self) -> None:
        self._is_over_warn = self._is_over(self._warn_percent, was_over=self._is_over_warn)
        self._is_over_refuse = self._is_over(self._refuse_percent, was_over=self._is_over_refuse)
        self.is_over_expire = self._is_over(self._expire_percent, was_over=self.is_over_expire)
        if self._log.is_full or self._is_over_refuse:
            self.state = "refusing"
        else:
            self.state = "warn" if self._is_over_warn else "ok"
        # Without the flag, the log accepts what still fits into its last segment.
        self._log.tail.is_refusing = self._is_over_refuse
        # If the log noticed it after the last check, the figures are those of before.
        has_figures = self._free_bytes < self._segment_size_bytes
        self._log.tail.full_text = self._refusal_of("the broker's disk", has_figures=has_figures)

    def _is_over(self, percent: int, *, was_over: bool) -> bool:
        if percent >= NEVER_PERCENT:
            return False
        line = percent - HYSTERESIS_POINTS if was_over else percent
        # A file system without a size is never full.
        return self._used_bytes * 100 >= line * self._total_bytes > 0

    def _log_change(self) -> None:
        """Log another state than the last one that was logged, once the figures are those of it."""
        before, self._logged = self._logged, self.state
        if self.state == before:
            return
        disk = self.name
        match self.state:
            case "refusing":
                line = self._refusal_of(disk, has_figures=True)
            case "warn" if before == "ok":
                line = (
                    f"{disk} is filling up, {self.figures}: new records are refused from "
                    f"{self._refuse_percent}% on (disk.refuse_percent); free space on it"
                )
            case _:
                line = f"{disk} has room again, {self.figures}"
        if before == "refusing":
            line += ": new records are accepted"
        _log.warning("%s", line)

    @property
    def is_pressed(self) -> bool:
        """The disk fills up: what frees space on it no longer waits for a quiet hour."""
        return self.state != "ok"

    @property
    def expire_until_percent(self) -> int:
        """Where `is_over_expire` ends."""
        return self._expire_percent - HYSTERESIS_POINTS

    @property
    def refusal(self) -> str | None:
        """Why new records are refused, with what to do; None if they are accepted."""
        return self._log.tail.full_text if self.state == "refusing" else None

    def _refusal_of(self, disk: str, *, has_figures: bool) -> str:
        if self._is_over_refuse and not self._log.is_full:
            return (
                f"{disk} is almost full, {self.figures}: new records and topics are "
                f"refused until less than {self._refuse_percent - HYSTERESIS_POINTS}% is used: "
                "free space on it, or raise disk.refuse_percent"
            )
        figures = f", {self.figures}" if has_figures else ""
        return (
            f"{disk} is full{figures}: new records and topics are refused "
            f"until there is room for a segment of {_size(self._segment_size_bytes)}: free space "
            "on it"
        )

    @property
    def name(self) -> str:
        """What the log calls it."""
        return f"the disk of {self._directory}"

    @property
    def figures(self) -> str:
        """How full it is, for people."""
        return (
            f"{self._used_percent:.1f}% used, {_size(self._free_bytes)} of "
            f"{_size(self._total_bytes)} free"
        )

    # Figures

    @property
    def _total_bytes(self) -> int:
        return self._used_bytes + self._free_bytes

    @property
    def _used_percent(self) -> float:
        return 100 * self._used_bytes / max(1, self._total_bytes)

    def _note_sample(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if not self._samples or now_ns - self._samples[-1][0] >= SAMPLE_NS:
            self._samples.append((now_ns, self._room_bytes))

    @property
    def _room_bytes(self) -> int:
        # Space is taken a segment at a time: what the last ones have left makes it smooth.
        return self._free_bytes + self._log.unwritten_bytes

    @property
    def seconds_until_full(self) -> float:
        """When nothing is left at the rate of the last minutes; NaN if that does not grow."""
        if not self._samples:
            return math.nan
        since_ns, room_then = self._samples[0]
        elapsed_ns = self._clock.monotonic_ns() - since_ns
        room = self._room_bytes
        if elapsed_ns < SAMPLE_NS or room >= room_then:
            return math.nan
        return room / (room_then - room) * elapsed_ns / 1e9

    def status(self) -> DiskStatus:
        """Return state and figures."""
        seconds = self.seconds_until_full
        return DiskStatus(
            state=self.state,
            total_bytes=self._total_bytes,
            free_bytes=self._free_bytes,
            used_percent=round(self._used_percent, 1),
            log_bytes=self._log.size_bytes,
            seconds_until_full=None if math.isnan(seconds) else int(seconds),
            refusal=self.refusal,
        )


def _size(size_bytes: int) -> str:
    """Return a size in its largest unit that keeps it above 1."""
    for name, unit in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} bytes"
