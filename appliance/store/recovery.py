"""What a start found: told in the log, in `/readyz` while it goes on, and to tests. Layer 2."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a start has come; `total_bytes` is 0 while it is not known."""

    phase: str
    recovered_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that were once durable and are not readable now.

    Attributes:
        path, offset, size: where they are.
        fault: what is wrong with them.
        is_mended: they followed from the log, and were made anew.
    """

    path: Path
    offset: int
    size: int
    fault: str
    is_mended: bool = False

    def __str__(self) -> str:
        return f"{self.path} is damaged at byte {self.offset}, {self.size} bytes: {self.fault}"


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The outcome of a start.

    Attributes:
        is_clean: the last broker stopped as it should.
        frames: valid frames replayed.
        end_pos: where the log ends now.
        cut_bytes: about how many bytes of a torn tail were dropped.
        damage: every damaged part, in order.
        epoch: the epoch that this start serves in.
    """

    is_clean: bool
    frames: int
    end_pos: int
    cut_bytes: int
    damage: tuple[Damage, ...]
    epoch: int

    def __str__(self) -> str:
        stop = "a clean" if self.is_clean else "an unclean"
        cut = f", torn tail cut ({self.cut_bytes} bytes)" if self.cut_bytes else ""
        found = f", {len(self.damage)} damaged parts" if self.damage else ""
        return (
            f"recovered after {stop} stop: {self.frames} frames, {self.end_pos} bytes"
            f"{cut}{found}; epoch {self.epoch}"
        )
