"""Value types that more than one layer hands around. Layer 1; does no I/O."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class TimerState:
    """What is known of the timer that a user's id names in one topic.

    `unknown` also covers ids that fired or were cancelled longer ago than they are remembered.
    """

    state: Literal["pending", "cancelled", "delivered", "unknown"]
    due_at: int | None = None
    """Due time in epoch ms, None if unknown."""
    partition: int | None = None
