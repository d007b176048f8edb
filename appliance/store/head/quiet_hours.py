"""The hours in which data that lives on may be moved so that segments can be freed.

Layer 2; the time comes from the clock, its time zone from the machine.
"""

from collections.abc import Callable, Set

from appliance.system.clock import Clock, local_hour


class QuietHours:
    """What `store.delete_when` permits. Runs on the loop."""

    def __init__(
        self,
        clock: Clock,
        hours: Set[int],
        is_pressed: Callable[[], bool],
        *,
        hour_of: Callable[[int], int] = local_hour,
    ) -> None:
        """Permit work in some hours.

        Args:
            clock: its wall time counts: a wrong one costs writes at the wrong time, and no data.
            hours: of the day, 0 to 23; without any, all.
            is_pressed: the disk fills up, so that no hour is waited for.
            hour_of: the hour of an instant, epoch ms.
        """
        self._clock = clock
        self._hours = hours
        self._is_pressed = is_pressed
        self._hour_of = hour_of

    def may_carry(self) -> bool:
        """Return whether work that costs writes may begin now; what has begun goes on."""
        if not self._hours or self._hour_of(self._clock.wall_ms()) in self._hours:
            return True
        return self._is_pressed()
