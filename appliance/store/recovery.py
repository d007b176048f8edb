"""What a start found: told in the log, in `/readyz` while it goes on, and to tests. Layer 2."""

from dataclasses import dataclass
from pathlib import Path

from appliance.store.decisions import REASONS, Fault
from appliance.units import MIB


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
class Rejected:
    """A saved state that a start could not use."""

    number: int
    applied: int
    fault: Fault
    detail: str

    def __str__(self) -> str:
        return (
            f"checkpoint {self.number} at {self.applied} is not used, {self.fault.value}: "
            f"{REASONS[self.fault]} ({self.detail})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """The outcome of a start.

    Attributes:
        is_clean: the last broker stopped as it should.
        frames: valid frames replayed.
        end_pos: where the log ends now.
        cut_bytes: about how many bytes of a torn tail were dropped.
        damage: every damaged part that is known, in order, those of earlier starts too.
        epoch: the epoch that this start serves in.
        checkpoint: number of the saved state that it began from; 0: from nothing.
        applied: log position where the replay began.
        replayed_bytes: of the log, from there to its end.
        duration_ms: how long all of it took.
        rejected: saved states that could not be used.
        skips: what allocators skip, since lost frames may have given it.
        lost_bytes: that this start judged lost for good.
    """

    is_clean: bool
    frames: int
    end_pos: int
    cut_bytes: int
    damage: tuple[Damage, ...]
    epoch: int
    checkpoint: int = 0
    applied: int = 0
    replayed_bytes: int = 0
    duration_ms: int = 0
    rejected: tuple[Rejected, ...] = ()
    skips: tuple[str, ...] = ()
    lost_bytes: int = 0

    def __str__(self) -> str:
        stop = "a clean" if self.is_clean else "an unclean"
        begun = f"checkpoint {self.checkpoint} at {self.applied}"
        if not self.checkpoint:
            begun = "no checkpoint"
        cut = f", torn tail cut ({self.cut_bytes} bytes)" if self.cut_bytes else ""
        found = f", {len(self.damage)} damaged parts" if self.damage else ""
        return (
            f"recovered after {stop} stop: {begun}, replayed {self.frames} frames, "
            f"{self.replayed_bytes / MIB:.1f} MiB, in {self.duration_ms} ms; the log ends at "
            f"{self.end_pos}{cut}{found}; epoch {self.epoch}"
        )
