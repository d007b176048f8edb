"""A clock that moves only when a test says so."""

from typing import Final

from appliance.units import NS_PER_MS

START_MS: Final = 1_767_225_600_000
"""2026-01-01T00:00:00Z, where virtual time begins by default."""

FIRST_EPOCH: Final = 189_388_800
"""The leader epoch of a first start at START_MS: the seconds since 2020."""


class VirtualClock:
    """A `Clock` that `advance_ms` moves; `step_ms` sets its wall time alone."""

    __slots__ = ("_monotonic_ns", "_suspended_ns", "_wall_ns")

    def __init__(self, *, wall_ms: int = START_MS, monotonic_ns: int = 0) -> None:
        self._wall_ns = wall_ms * NS_PER_MS
        self._monotonic_ns = monotonic_ns
        self._suspended_ns = 0

    def wall_ms(self) -> int:
        return self._wall_ns // NS_PER_MS

    def wall_ns(self) -> int:
        return self._wall_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def boottime_ns(self) -> int:
        return self._monotonic_ns + self._suspended_ns

    def suspend_ms(self, duration_ms: int) -> None:
        """Let time pass while the machine is suspended: its monotonic time stands."""
        assert duration_ms >= 0
        self._wall_ns += duration_ms * NS_PER_MS
        self._suspended_ns += duration_ms * NS_PER_MS

    def advance_ms(self, duration_ms: int) -> None:
        """Let `duration_ms` (0 or more) pass on all clocks."""
        self.advance_ns(duration_ms * NS_PER_MS)

    def advance_ns(self, duration_ns: int) -> None:
        """Let `duration_ns` (0 or more) pass on all clocks."""
        assert duration_ns >= 0, "time passes forwards; step_ms sets the wall clock back"
        self._wall_ns += duration_ns
        self._monotonic_ns += duration_ns

    def advance_to_ms(self, wall_ms: int) -> None:
        """Let time pass until the wall clock shows `wall_ms`, not before now."""
        self.advance_ns(wall_ms * NS_PER_MS - self._wall_ns)

    def step_ms(self, step_ms: int) -> None:
        """Set the wall clock forwards or back, as an operator or NTP does; no time passes."""
        self._wall_ns += step_ms * NS_PER_MS
