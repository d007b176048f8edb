"""A damaged place in the data directory. Layer 2; does no I/O."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that were durable and are no longer readable.

    Attributes:
        path, offset, size: their place.
        fault: what is wrong with them.
        is_repaired: they are derived from the log and were rebuilt from it.
    """

    path: Path
    offset: int
    size: int
    fault: str
    is_repaired: bool = False

    def __str__(self) -> str:
        return f"{self.path} is damaged at byte {self.offset}, {self.size} bytes: {self.fault}"
