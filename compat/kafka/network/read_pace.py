"""When a connection must rest, so that the others get a turn. Layer 3; does no I/O and no clock."""

from typing import Final

from appliance.loop_share import PIECE_NS, LoopShare
from appliance.units import KIB

BURST_BYTES: Final = 512 * KIB
"""Bytes read from one connection while others wait: less than half a millisecond."""


class ReadPace:
    """What one connection reads and what its requests take.

    Attributes:
        window_bytes: size of the buffer that the next read may fill. While reads fill it, uvloop
            reads up to 32 times in a row, whatever else is due.
        must_rest: it read a burst or took a whole piece of the loop's time since its last rest.
    """

    __slots__ = ("_burst_bytes", "_share", "must_rest", "window_bytes")

    def __init__(self, now_ns: int) -> None:
        """Begin with nothing read.

        Args:
            now_ns: monotonic ns.
        """
        self._share = LoopShare(now_ns)
        self._burst_bytes = 0
        self.window_bytes = 0
        self.must_rest = False

    @property
    def is_light(self) -> bool:
        """Whether the connection took little of the loop's time lately."""
        return self._share.is_light

    def note_read(self, count: int) -> None:
        """Note a read of so many bytes."""
        self._burst_bytes = self._burst_bytes + count if count == self.window_bytes else 0
        if self._burst_bytes >= BURST_BYTES:
            self.must_rest = True

    def note_round(self, began_ns: int, ended_ns: int) -> None:
        """Note that its requests were handled between two instants (monotonic ns)."""
        self._share.spend(began_ns, ended_ns)
        if ended_ns - began_ns > PIECE_NS:
            self.must_rest = True

    def end_rest(self) -> None:
        """Note that the others had their turn."""
        self._burst_bytes = 0
        self.must_rest = False
