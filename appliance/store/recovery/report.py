"""The results of recovery, for the log and for tests, and its progress for `/readyz`. Layer 2."""

from dataclasses import dataclass

from appliance.store.damage import Damage
from appliance.store.recovery.decisions import REASONS, Fault
from appliance.units import MIB


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of recovery; `total_bytes` is 0 while it is unknown."""

    phase: str
    recovered_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """A saved state that recovery could not use."""

    number: int
    applied: int
    fault: Fault
    detail: str

    def __str__(self) -> str:
        return (
            f"checkpoint {self.number} at log position {self.applied} is not used, "
            f"{self.fault.value}: {REASONS[self.fault]} ({self.detail})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """The outcome of recovery.

    Attributes:
        is_clean: the last broker stopped cleanly.
        frames: number of valid frames replayed.
        end_pos: the end of the log after recovery.
        cut_bytes: approximate size of the torn tail that was cut.
        damage: all known damage, in order, including that found by earlier starts.
        epoch: the epoch of this start.
        checkpoint: number of the saved state from which the replay began; 0: none.
        applied: log position at which the replay began.
        replayed_bytes: size of the log from there to its end.
        duration_ms: duration of the whole recovery.
        rejected: saved states that could not be used.
        skips: what allocators skip because lost frames may have used it, as sentences.
        lost_bytes: bytes that this start declared lost for good.
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
        origin = f"checkpoint {self.checkpoint} at log position {self.applied}"
        if not self.checkpoint:
            origin = "no checkpoint"
        cut = f", torn tail cut ({self.cut_bytes} bytes)" if self.cut_bytes else ""
        found = f", {len(self.damage)} damaged parts" if self.damage else ""
        return (
            f"recovered after {stop} stop: {origin}, replayed {self.frames} frames, "
            f"{self.replayed_bytes / MIB:.1f} MiB, in {self.duration_ms} ms; the log ends at "
            f"{self.end_pos}{cut}{found}; epoch {self.epoch}"
        )
