"""One pass over the log of a data directory, in slices, that reports faults. Layer 4."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from _core.bytes.layout import FRAME_HEADER_SIZE
from _core.log.frames import FAULTS
from _core.state.check import LogCheck
from appliance.errors import FormatVersionError
from appliance.offline.data_dir import DataDir
from appliance.offline.findings import Fault, Findings
from appliance.offline.frame_faults import explain
from appliance.offline.log_state import LogState
from appliance.offline.verdicts import find_verdicts
from appliance.store.log.frame_kinds import newer_frame_error
from appliance.units import MIB

SLICE_BYTES: Final = 16 * MIB
"""Bytes of the log between two reports of progress."""


class LogWalk:
    """Applies the frames of a log to a state.

    Args:
        data: the directory.
        findings: receives the faults.
        new_state: makes the state; its argument receives the faults of control frames.
        wants_positions: see `slices`.
        wants_contradictions: report frames that are whole but contradict others.

    Attributes:
        state: the state after the frames so far.
    """

    def __init__(
        self,
        data: DataDir,
        findings: Findings,
        new_state: Callable[[Callable[[int, str, str], None]], LogState],
        *,
        wants_positions: bool = False,
        wants_contradictions: bool = True,
    ) -> None:
        self._data = data
        self._findings = findings
        self._damage_count = 0
        self._wants_contradictions = wants_contradictions
        self.state = new_state(self._control_fault)
        self.state.projections.first_known_pos = data.log.start
        self._scan = LogCheck(
            self.state.projections,
            data.log.segments,
            data.log.read_into,
            self.state.apply_control,
            known_flushed=data.checkpoint.flushed,
            watermark=data.checkpoint.watermark,
            written=data.log.written_ranges,
            verdicts=find_verdicts(data),
        )
        self._scan.keeps_positions = wants_positions

    @property
    def pos(self) -> int:
        """The log position after the last frame; finally the end of the log."""
        return self._scan.pos

    @property
    def frames(self) -> int:
        """Whole frames so far."""
        return self._scan.frames

    @property
    def epoch(self) -> int:
        """The epoch of the last frame."""
        return self._scan.epoch

    @property
    def last_frame(self) -> tuple[int, int]:
        """Log position and CRC of the last frame; -1 and 0 before the first."""
        return self._scan.last_pos, self._scan.last_crc

    @property
    def damage(self) -> list[tuple[int, int, str]]:
        """(from, to, what is wrong) of each damaged part before `pos`."""
        return self._scan.damage

    def slices(self, size: int = SLICE_BYTES, stops: Sequence[int] = ()) -> Iterator[list[int]]:
        """Walk the log.

        Args:
            size: bytes of a slice.
            stops: ascending log positions; a slice ends there if a frame ends there.

        Yields:
            After about every `size` bytes, and at the end, the positions of the frames since the
            last slice; an empty list without `wants_positions`.

        Raises:
            FormatVersionError: a frame is of a newer version.
        """
        is_done = False
        while not is_done:
            pos = self._scan.pos
            following = next((stop for stop in stops if stop > pos), pos + size)
            is_done = self._scan.step(min(size, following - pos))
            self._report()
            if self._scan.newer_version:
                raise self._newer_version()
            yield self._scan.take_positions()

    def _newer_version(self) -> FormatVersionError:
        pos = self._scan.pos
        header = bytes(self._data.log.bytes_at(pos, FRAME_HEADER_SIZE))
        return newer_frame_error(*self._data.log.place_of(pos), header)

    def _report(self) -> None:
        for begin, end, why in self._scan.take_unreadable():
            self._fault_at(begin, "bytes that can be read", f"cannot be read: {why}", end - begin)
        for pos, expected, found in self._scan.take_faults():
            if self._wants_contradictions:
                self._fault_at(pos, expected, found)
        for begin, end, fault in self._scan.damage[self._damage_count :]:
            log = self._data.log
            known = log.place_of(begin)[0] if log.segments else None
            is_there = known is not None and self._data.fs.exists(known)
            data = log.bytes_of_frame(begin, end - begin)
            expected, found = explain(data, begin, fault, is_there)
            self._fault_at(begin, expected, found, end - begin)
        self._damage_count = len(self._scan.damage)

    def _control_fault(self, offset: int, expected: str, found: str) -> None:
        if self._wants_contradictions:
            self._fault_at(self._scan.pos + offset, expected, found)

    def _fault_at(self, pos: int, expected: str, found: str, size: int | None = None) -> None:
        path, offset = self._data.log.place_of(pos)
        self._findings.fault(Fault(path, offset, expected, found, size, pos))

    def note_tail(self) -> None:
        """Report the bytes after the end of the log, unless a clean stop leaves them so."""
        scan, flushed = self._scan, self._data.checkpoint.flushed
        if self._data.is_live:
            return
        if scan.pos < flushed and not any(begin == scan.pos for begin, _, _ in scan.damage):
            expected = f"the log up to position {flushed}, as the checkpoint says"
            self._fault_at(scan.pos, expected, "its end", flushed - scan.pos)
        if scan.tail_fault is None:
            return
        size = scan.garbage_end - scan.pos
        if size <= 0 and not scan.has_leftovers:
            return
        fault = scan.tail_fault if scan.tail_fault != FAULTS[1] else "no whole frame"
        self._findings.note(
            *self._data.log.place_of(scan.pos),
            f"the log ends here with a torn tail of about {max(size, 0)} bytes ({fault}); none of "
            "it was flushed, and the next start cuts it off",
        )
