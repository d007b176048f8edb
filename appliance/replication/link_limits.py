"""Limits of a connection between master and slave, and when a slave has caught up.

Layer 3; does no I/O.
"""

from dataclasses import dataclass

from appliance.replication.wire import DATA_SIZE_MAX_BYTES
from appliance.units import MIB


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Times and sizes; both nodes have the same ones, except for the back-off.

    Attributes:
        silence_ms: a connection is lost if nothing arrives for so long, or if the handshake takes
            so long.
        beat_ms: a master sends a BEAT, and a slave an ACK, at least that often.
        window_bytes: most bytes that the master sends and the slave has not acknowledged as
            received.
        piece_bytes: most bytes of the log in one message.
        back_off_min_ms, back_off_max_ms: the first and the longest pause of a slave before it
            connects again; each is twice the one before.
    """

    silence_ms: int = 2_000
    beat_ms: int = 500
    window_bytes: int = 8 * MIB
    piece_bytes: int = DATA_SIZE_MAX_BYTES
    back_off_min_ms: int = 100
    back_off_max_ms: int = 2_000

    def __post_init__(self) -> None:
        assert 0 < 2 * self.beat_ms <= self.silence_ms
        assert 0 < self.back_off_min_ms <= self.back_off_max_ms
        assert 0 < self.piece_bytes <= DATA_SIZE_MAX_BYTES
        assert 2 * self.piece_bytes <= self.window_bytes


class CatchUp:
    """Decides when a slave has caught up with a log that grows meanwhile.

    It has once it acknowledged the position that the master had committed at that moment. Under
    load it never does, as the last bytes are always on their way. So there are rounds, as in Raft:
    a round ends when the slave has what was committed when the round began, and it has caught up
    after a round that took no longer than `round_ms`.
    """

    __slots__ = ("_began_ms", "_round_ms", "_target_pos")

    def __init__(self, *, committed_pos: int, now_ms: int, round_ms: int) -> None:
        self._target_pos = committed_pos
        self._began_ms = now_ms
        self._round_ms = round_ms

    def is_reached(self, *, acked_pos: int, committed_pos: int, now_ms: int) -> bool:
        """Return whether the slave has caught up.

        Args:
            acked_pos: what the slave has acknowledged as durable.
            committed_pos: what the master has committed now.
            now_ms: boottime.
        """
        if acked_pos < self._target_pos:
            return False
        if acked_pos >= committed_pos or now_ms - self._began_ms <= self._round_ms:
            return True
        self._target_pos, self._began_ms = committed_pos, now_ms
        return False
