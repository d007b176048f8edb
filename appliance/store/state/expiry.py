"""What is old enough to expire: the clock that the store ages by, and the marks of the log's age.

Everything that expires has a log position: that of its frame. It expires when that position is
below the one that `position_before` returns, so that no wall clock deletes anything. Layer 2; does
no I/O.
"""

from collections.abc import Callable

from appliance.store.state.age_clock import AgeClock
from appliance.store.state.log_ages import LogAges


class Expiry:
    """The age of a store, and of each part of its log. Runs on the loop.

    Attributes:
        age_clock, ages: the parts, which the state saves.
        visible_end: returns the log position after the last visible frame.
    """

    def __init__(self, age_clock: AgeClock, ages: LogAges, visible_end: Callable[[], int]) -> None:
        """Continue from what the state saved.

        Args:
            age_clock, ages: the clock and the marks.
            visible_end: returns the log position after the last visible frame.
        """
        self.age_clock = age_clock
        self.ages = ages
        self.visible_end = visible_end

    def step(self) -> None:
        """Read the clocks and mark how old the log is; call it before looking for what expired."""
        self._note(self.age_clock.step())

    def confirm(self) -> int:
        """Trust the wall clock at once; return by how many milliseconds everything ages."""
        jump_ms = self.age_clock.confirm()
        self._note(jump_ms)
        return jump_ms

    def advance(self, advance: Callable[[], None], by_ms: int) -> None:
        """Advance a virtual wall clock, and let everything age by as much.

        Args:
            advance: advances it.
            by_ms: by so much.
        """
        self.step()
        advance()
        self._note(self.age_clock.follow(by_ms))

    def _note(self, jump_ms: int) -> None:
        if jump_ms:
            self.ages.raise_doubtful(jump_ms)
        age_clock = self.age_clock
        self.ages.note(self.visible_end(), age_clock.age_ms, is_certain=age_clock.is_certain)

    def position_before(self, limit_ms: int) -> int:
        """Return a log position: all below it is older than a limit, as of the last `step`.

        It is the highest that is known; 0 if there is none. O(log of the number of marks).
        """
        return self.ages.position_of(self.age_clock.age_ms - limit_ms)
