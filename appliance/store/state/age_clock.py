"""The clock that records age by: it never goes back, and no wrong clock of the machine moves it.

    age  |            ,--- the wall clock agreed for an hour: the stop is added
         |        ---'
         |   ----'  a stop: the age stays as it was saved
         '-------------------------------------------- wall clock

It counts the time that the broker runs, by the monotonic clock. A stop, or any other jump of the
wall clock, counts only after both clocks have agreed for an hour, or when the operator confirms it:
until then the jump may be a mistake that would expire every record. A jump backwards never counts,
nor does the one that takes it back, however long after: the age stands for the latest wall clock
that was trusted, until an operator confirms an earlier one. Nor does a jump count in the first hour
of a store, whose first wall clock may have been wrong; nor before 2020, where a machine without a
battery clock begins. Layer 2; does no I/O.
"""

import logging
from dataclasses import dataclass
from typing import Final

from appliance.store.state.epoch_starts import YEAR_2020_MS
from appliance.system.clock import Clock
from appliance.units import MS_PER_HOUR, MS_PER_SECOND, NS_PER_MS, format_duration_ms

AGREED_MS: Final = MS_PER_HOUR
"""How long the clocks must agree before a jump of the wall clock counts."""

TOLERANCE_MS: Final = 5 * MS_PER_SECOND
"""The clocks agree if they differ by at most this: NTP slews a clock by 1.8 s in an hour."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SavedAge:
    """What a state snapshot keeps of the clock.

    Attributes:
        age_ms: the age when it was saved.
        wall_ms: what a wall clock showed then if it was right, epoch ms.
    """

    age_ms: int
    wall_ms: int


class AgeClock:
    """Milliseconds since the store was made, as far as that is certain. Runs on the loop.

    Attributes:
        age_ms: as of the last `step`.
        jump_ms: how far the wall clock is ahead of it; 0 if they agree, or if it is behind.
        is_certain: the wall clock agrees with the age.
    """

    def __init__(self, clock: Clock, saved: SavedAge | None = None) -> None:
        """Continue from a saved age, or from 0."""
        self._clock = clock
        self._wall_ms, self._mono_ms = self._read()
        self.age_ms = 0 if saved is None else saved.age_ms
        self.jump_ms = 0
        self.is_certain = True
        # The age that the wall clock stands for is its reading plus this.
        self._to_age_ms = self.age_ms - (self._wall_ms if saved is None else saved.wall_ms)
        self._agreed_from_ms = self._mono_ms
        self._agreed_offset_ms = self._wall_ms - self._mono_ms
        self._is_trusted = saved is not None

    def _read(self) -> tuple[int, int]:
        return self._clock.wall_ms(), self._clock.monotonic_ns() // NS_PER_MS

    @property
    def saved(self) -> SavedAge | None:
        """What to save; None until the wall clock of a new store is trusted.

        A wrong wall clock is not in it, and a jump that is in doubt stays so.
        """
        if not self._is_trusted:
            return None
        return SavedAge(self.age_ms, self.age_ms - self._to_age_ms)

    def age_at(self, wall_ms: int) -> int:
        """The age of the store at an instant, epoch ms, by the wall clock that was trusted last."""
        return wall_ms + self._to_age_ms

    def step(self) -> int:
        """Read the clocks.

        Returns:
            By how many milliseconds the age jumped, beside the time that has passed; usually 0.
        """
        before_ms = self._mono_ms
        self._wall_ms, self._mono_ms = self._read()
        self.age_ms += self._mono_ms - before_ms
        offset_ms = self._wall_ms - self._mono_ms
        if abs(offset_ms - self._agreed_offset_ms) > TOLERANCE_MS:
            self._agreed_offset_ms = offset_ms
            self._agreed_from_ms = self._mono_ms
        has_agreed = self._mono_ms - self._agreed_from_ms >= AGREED_MS
        if not self._is_trusted:
            self._to_age_ms = self.age_ms - self._wall_ms
            self._is_trusted = has_agreed and self._wall_ms >= YEAR_2020_MS
        ahead_ms = self._wall_ms + self._to_age_ms - self.age_ms
        self.jump_ms = ahead_ms if ahead_ms > TOLERANCE_MS else 0
        self.is_certain = abs(ahead_ms) <= TOLERANCE_MS
        if self.is_certain:
            self.age_ms += max(0, ahead_ms)
            return 0
        # One that is behind is wrong, or was: taking that back must expire nothing.
        return self._adopt(ahead_ms) if has_agreed and ahead_ms > 0 else 0

    def confirm(self) -> int:
        """Trust the wall clock at once: the operator says that it is right.

        If it is ahead, its jump counts; if it is behind, later jumps count from there.

        Returns:
            As `step`.
        """
        return self.step() or self._adopt(self.jump_ms)

    def follow(self, by_ms: int) -> int:
        """Age by as much as a virtual wall clock was advanced since the last `step`.

        Returns:
            As `step`.
        """
        age_ms = self.age_ms + by_ms
        return self.step() or self._adopt(age_ms - self.age_ms)

    def _adopt(self, ahead_ms: int) -> int:
        jump_ms = max(0, ahead_ms)
        self.age_ms += jump_ms
        self.jump_ms = 0
        self.is_certain = True
        self._to_age_ms = self.age_ms - self._wall_ms
        if jump_ms:
            _log.info(
                "the wall clock is trusted again: records age by %s", format_duration_ms(jump_ms)
            )
        return jump_ms
