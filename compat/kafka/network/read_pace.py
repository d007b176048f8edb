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

    __slots__ = ("_burst_bytes", "_of_address", "_share", "must_rest", "window_bytes")

    def __init__(self, now_ns: int, of_address: LoopShare) -> None:
        """Begin with nothing read.

        Args:
            now_ns: monotonic ns.
            of_address: what all connections of its address take.
        """
        self._share = LoopShare(now_ns)
        self._of_address = of_address
        self._burst_bytes = 0
        self.window_bytes = 0
        self.must_rest = False

    @property
    def is_light(self) -> bool:
        """Whether the connection, and its address, took little of the loop's time lately."""
        return self._share.is_light and self._of_address.is_light

    def note_read(self, count: int, began_ns: int, ended_ns: int) -> int:
        """Note a read of so many bytes between two instants (monotonic ns); return what it took."""
        self._spend(began_ns, ended_ns)
        self._burst_bytes = self._burst_bytes + count if count == self.window_bytes else 0
        if self._burst_bytes >= BURST_BYTES:
            self.must_rest = True
        return ended_ns - began_ns

    def note_round(self, began_ns: int, ended_ns: int) -> None:
        """Note that its requests were handled between two instants (monotonic ns)."""
        self._spend(began_ns, ended_ns)
        if ended_ns - began_ns > PIECE_NS:
            self.must_rest = True

    def end_rest(self) -> None:
        """Note that the others had their turn."""
        self._burst_bytes = 0
        self.must_rest = False

    def _spend(self, began_ns: int, ended_ns: int) -> None:
        self._share.spend(began_ns, ended_ns)
        self._of_address.spend(began_ns, ended_ns)
