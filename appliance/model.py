"""Value types that more than one layer hands around. Layer 1; does no I/O."""

from dataclasses import dataclass
from typing import Literal

TimerStateName = Literal["pending", "cancelled", "delivered", "unknown"]


@dataclass(frozen=True, slots=True)
class TimerState:
    """What is known of the timer that a user's id names in one topic.

    `unknown` also covers ids that fired or were cancelled longer ago than they are remembered.
    """

    state: TimerStateName
    due_at: int | None = None
    """Due time in epoch ms, None if unknown."""
    partition: int | None = None
