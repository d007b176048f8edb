"""The clock of one machine of a `World`: it shows another time than the others, and runs off."""

from typing import Final

from appliance.units import NS_PER_MS
from tests.support.simulator.virtual_clock import START_MS
from tests.support.simulator.world import World

PARTS: Final = 1_000_000


class NodeClock:
    """A `Clock` that follows the world.

    Attributes:
        offset_ns: how far its wall clock is ahead.
    """

    __slots__ = ("_boot_ns", "_ppm", "_world", "offset_ns")

    def __init__(self, world: World, *, offset_ms: int = 0, ppm: int = 0) -> None:
        """Set the clock.

        Args:
            world: whose time it follows.
            offset_ms: so far its wall clock is ahead.
            ppm: so many millionths it runs faster.
        """
        self._world = world
        self._ppm = ppm
        self._boot_ns = 1_000_000 * NS_PER_MS
        self.offset_ns = offset_ms * NS_PER_MS

    def _passed_ns(self) -> int:
        now_ns = self._world.now_ns
        return now_ns + now_ns * self._ppm // PARTS

    def wall_ns(self) -> int:
        return START_MS * NS_PER_MS + self.offset_ns + self._passed_ns()

    def wall_ms(self) -> int:
        return self.wall_ns() // NS_PER_MS

    def monotonic_ns(self) -> int:
        return self._boot_ns + self._passed_ns()

    boottime_ns = monotonic_ns  # no machine of a world is suspended

    def world_ns(self, monotonic_ns: int) -> int:
        """Return the first instant of the world at which `monotonic_ns` is reached."""
        passed_ns = monotonic_ns - self._boot_ns
        found = passed_ns * PARTS // (PARTS + self._ppm)
        while found + found * self._ppm // PARTS < passed_ns:
            found += 1
        return found

    def world_of_wall_ns(self, wall_ns: int) -> int:
        """Return the first instant of the world at which the wall clock shows `wall_ns`."""
        passed_ns = wall_ns - START_MS * NS_PER_MS - self.offset_ns
        return self.world_ns(self._boot_ns + passed_ns)
