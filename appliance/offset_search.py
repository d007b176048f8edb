"""Finds the record of a partition for a time or for a log position.

A frame's header holds the running maximum: the highest timestamp of its partition so far. It never
falls, so a binary search finds the first frame that reaches a time. Deleted records count in it,
though they cannot be the answer; where they hide it, a bounded number of frames is scanned.
Layer 3; does no I/O of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from _core.bytes.batch import batch_header, find_timestamp, highest_timestamp
from _core.bytes.layout import BATCH_HEADER_SIZE, FRAME_HEADER_SIZE
from _core.log.view import LogView
from _core.queue.frame_finder import FrameFinder
from _core.queue.partition import Partition
from appliance.errors import ColdFrameError, RequestError, WorkError
from appliance.store.state.epoch_starts import EpochStarts
from appliance.units import KIB

FRAMES_LOOKED_THROUGH_MAX: Final = 4_096
"""Frames scanned by one call; that takes about ten milliseconds."""

NO_RECORD: Final = (1 << 63) - 1
"""Stands for a log position after every record."""

AT_ONCE_MAX_BYTES: Final = 16 * KIB
"""A batch of at most so many bytes is searched at once."""

UNPACKED_AT_ONCE_MAX_BYTES: Final = 64 * KIB
"""The same if it is compressed, for what it unpacks to: a fifth of a millisecond."""

Decompress: TypeAlias = Callable[[int, memoryview, int | None], bytes]
"""It raises RequestError, which has `is_too_large` set if the maximum is exceeded."""

_Result = TypeVar("_Result")

_CODEC_MASK: Final = 7
_LOG_APPEND_TIME: Final = 8
_ANY_TIME: Final = -(1 << 63)


class OffsetSearch:
    """Finds offsets by the timestamps of records, or by their log positions.

    Attributes:
        looked_count: frames looked at so far, two microseconds each.
    """

    def __init__(
        self,
        view: LogView,
        epochs: EpochStarts,
        decompress: Decompress,
        *,
        can_wait: bool = False,
    ) -> None:
        """Read a log.

        Args:
            view: the log.
            epochs: where each epoch starts.
            decompress: (codec, record section, maximum size or None) -> plain bytes.
            can_wait: raise WorkError instead of work that may take long; whoever has done it on a
                thread repeats the call.
        """
        self.looked_count = 0
        self._view = view
        self._epochs = epochs
        self._finder = FrameFinder(view)
        self._decompress = decompress
        self._results: dict[object, Any] | None = {} if can_wait else None
        """What threads have found, until `forget_results`."""

    def for_request(self) -> "OffsetSearch":
        """Return a search of the same log for one request, which waits for long work."""
        return OffsetSearch(self._view, self._epochs, self._decompress, can_wait=True)

    def forget_results(self) -> None:
        """Forget what threads have found: the item that asked for it is answered."""
        if self._results:
            self._results.clear()

    def find(self, queue: Partition, timestamp_ms: int) -> tuple[int, int] | None:
        """Find the first record at which the running maximum of timestamps reaches a time.

        Returns:
            (offset, its timestamp in epoch ms), or None if no visible record reaches it. Where
            deleted records hide it, the result may be an earlier record, never a later one.
            Damaged frames are skipped.

        Raises:
            ColdFrameError: a frame must be read from the disk first; then repeat the call.
            WorkError: a batch must be unpacked first, if this search can wait.
        """
        low = self._first_offset(queue, "running_max", timestamp_ms)
        header = None
        for _ in range(FRAMES_LOOKED_THROUGH_MAX):
            header = self._header_from(queue, low, queue.visible_offset)
            if header is None:
                return None
            if header["max_timestamp"] >= timestamp_ms:
                found = self._find_in_frame(header, low, timestamp_ms)
                if found is not None:
                    return found
            low = max(low, _end_of(header))
        assert header is not None
        return self._find_in_frame(header, queue.start_offset, _ANY_TIME)

    def find_stored(self, queue: Partition, stored_ms: int) -> tuple[int, int] | None:
        """Find the first record that became visible at a time or later, by this broker's clock.

        A held record becomes visible by its delivery. Where the clock was set back, records of the
        hours that it showed twice may be passed over or not.

        Returns:
            (offset, the time when it was stored, epoch ms), or None if no visible record is as new.

        Raises:
            ColdFrameError: as `find`.
        """
        offset = self._first_offset(queue, "store_time_ms", stored_ms)
        header = self._header_from(queue, offset, queue.visible_offset)
        return None if header is None else (offset, header["store_time_ms"])

    def find_highest(self, queue: Partition) -> tuple[int, int] | None:
        """Find the first visible record with the highest timestamp; None if there is no record.

        Where a deleted record had the highest, only the last frames are scanned.

        Raises:
            ColdFrameError: as `find`.
        """
        start = queue.start_offset
        first = self._header_from(queue, start, queue.visible_offset)
        header = self._header_before(queue, queue.visible_offset)
        if first is None or header is None:
            return None
        if first["running_max"] < header["running_max"]:
            return self.find(queue, header["running_max"])
        best = None
        for _ in range(FRAMES_LOOKED_THROUGH_MAX):
            if header is None:
                break
            if header["base_offset"] < start:
                header["max_timestamp"] = self._highest_in_frame(header, start)
            if best is None or header["max_timestamp"] >= best["max_timestamp"]:
                best = header
            header = self._header_before(queue, header["base_offset"])
        assert best is not None
        return self._find_in_frame(best, start, best["max_timestamp"])

    def find_position(self, queue: Partition, pos: int) -> int:
        """Find the first visible record at or after log position `pos`; the end if there is none.

        Carried records count where they were first, so that positions rise with offsets.

        Raises:
            ColdFrameError: as `find`.
        """
        return self._first_offset(queue, "origin", pos)

    def positions_from(self, queue: Partition, offset: int) -> tuple[int, int]:
        """Where the first frame with a visible record from `offset` on lies, and where it lay.

        It may be damaged: what cannot be read now may be readable later.

        Returns:
            Its log position, and the position of the frame that first held its records: another one
            if they were carried. Of damaged carried records the latter is at most that of the next
            ones, or their own position. NO_RECORD for both if there is no record.

        Raises:
            ColdFrameError: as `find`.
        """
        while offset < queue.visible_offset:
            if self._look(queue, offset):
                return self._finder.header["position"], self._finder.header["origin"]
            following = self._next_offset()
            pos = _damaged_position(queue, offset)
            if pos is not None:
                header = None
                if offset < queue.carried_end:
                    header = self._header_from(queue, following, queue.visible_offset)
                return pos, pos if header is None else min(pos, header["origin"])
            offset = following
        return NO_RECORD, NO_RECORD

    def skip_damaged(self, queue: Partition, offset: int, pos: int) -> int:
        """Return the first visible offset from `offset` on that is not damaged below `pos`.

        Raises:
            ColdFrameError: as `find`.
        """
        while offset < queue.visible_offset and not self._look(queue, offset):
            following = self._next_offset()
            damaged = _damaged_position(queue, offset)
            if damaged is not None and damaged >= pos:
                break
            offset = min(following, queue.visible_offset)
        return offset

    def find_end_of_epoch(self, queue: Partition, epoch: int) -> tuple[int, int] | None:
        """Find where in a partition the records of an epoch, and of all before it, end.

        Returns:
            (the last epoch up to it that is known, offset), or None if there was no such epoch yet.

        Raises:
            ColdFrameError: as `find`.
        """
        found = self._epochs.find_end(epoch)
        if found is None:
            return None
        known, end_pos = found
        return known, queue.next_offset if end_pos is None else self.find_position(queue, end_pos)

    def _first_offset(self, queue: Partition, field: str, least: int) -> int:
        """Return where the frames begin that have `least` or more in a field that rises.

        The highest timestamp so far rises with offsets, and so does the position of the frame that
        first held the records. The position does not, once records were carried.
        """
        low, high = queue.start_offset, queue.visible_offset
        while low < high:
            middle = (low + high) // 2
            header = self._header_from(queue, middle, high)
            if header is None or header[field] >= least:
                high = middle
            else:
                low = _end_of(header)
        return low

    def _header_from(self, queue: Partition, offset: int, stop: int) -> dict[str, int] | None:
        """The header of the first intact frame with a record in [`offset`, `stop`), or None."""
        while offset < stop:
            if self._look(queue, offset):
                return self._finder.header
            offset = self._next_offset()
        return None

    def _header_before(self, queue: Partition, offset: int) -> dict[str, int] | None:
        """The header of the last intact frame with a record before `offset`, None if none."""
        offset -= 1
        while offset >= queue.start_offset:
            if self._look(queue, offset):
                return self._finder.header
            self._next_offset()
            offset = self._finder.first_offset - 1
        return None

    def _look(self, queue: Partition, offset: int) -> bool:
        self.looked_count += 1
        return self._finder.look(queue, offset)

    def _next_offset(self) -> int:
        """The offset after a lost record. Raises ColdFrameError if it is only not in memory."""
        if self._finder.place is not None:
            raise ColdFrameError(self._finder.place)
        return self._finder.next_offset

    def _read(self, frame_pos: int, pos: int, size: int) -> bytes:
        """Return bytes of a frame without waiting for the disk; a bad sector raises no SIGBUS."""
        data = self._view.read_hot(frame_pos, pos, size)
        if data is None:
            raise ColdFrameError(frame_pos)
        return data

    def _find_in_frame(
        self, header: dict[str, int], offset: int, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """Find the first record of a frame, at or after `offset`, that reaches a time."""
        batch = self._batch(header)
        return self._aside(
            (header["position"], offset, timestamp_ms),
            batch,
            lambda plain: batch.find(plain, offset, timestamp_ms),
        )

    def _highest_in_frame(self, header: dict[str, int], start: int) -> int:
        """Return the highest timestamp of a frame's records from `start` on, -1 if none is left."""
        batch = self._batch(header)
        return self._aside(
            (header["position"], start, None),
            batch,
            lambda plain: batch.highest(plain, start),
        )

    def _batch(self, header: dict[str, int]) -> "_Batch":
        frame_pos = header["position"]
        pos = frame_pos + FRAME_HEADER_SIZE + header["tables_size"]
        data = memoryview(self._read(frame_pos, pos, header["visible_size"]))
        return _Batch(batch_header(data), header["base_offset"], data[BATCH_HEADER_SIZE:])

    def _plain(self, batch: "_Batch", size_max: int | None = None) -> bytes | memoryview:
        codec = batch.fields["attributes"] & _CODEC_MASK
        return self._decompress(codec, batch.section, size_max) if codec else batch.section

    def _plain_at_once(self, batch: "_Batch") -> bytes | memoryview | None:
        """Return the records of a batch if that takes no time worth mentioning, else None."""
        if self._results is None:
            return self._plain(batch)
        if len(batch.section) > AT_ONCE_MAX_BYTES:
            return None
        try:
            return self._plain(batch, UNPACKED_AT_ONCE_MAX_BYTES)
        except RequestError as error:
            if not getattr(error, "is_too_large", False):
                raise
            return None

    def _aside(
        self, key: object, batch: "_Batch", search: Callable[[bytes | memoryview], _Result]
    ) -> _Result:
        """Return the result of a search in a batch; a thread searches in a large one first."""
        results = self._results
        if results is None or key not in results:
            plain = self._plain_at_once(batch)
            if plain is not None:
                return search(plain)
            assert results is not None

            def run() -> None:
                try:
                    results[key] = search(self._plain(batch))
                except (ValueError, RequestError) as error:
                    results[key] = error

            raise WorkError(run)
        result: _Result | Exception = results[key]
        if isinstance(result, Exception):
            raise result
        return result


@dataclass(frozen=True, slots=True)
class _Batch:
    """The visible batch of a frame, as it is in the log.

    Attributes:
        fields: of its header.
        base_offset: of the frame; that in the header of the batch may be older.
        section: the bytes after the header.
    """

    fields: dict[str, int]
    base_offset: int
    section: memoryview

    @property
    def _has_one_time(self) -> bool:
        return bool(self.fields["attributes"] & _LOG_APPEND_TIME)

    def find(self, plain: bytes | memoryview, start: int, least: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record that is neither before nor below."""
        stamp = self.fields["max_timestamp"]
        if self._has_one_time and stamp < least:
            return None
        found = find_timestamp(
            plain,
            self.fields["count"],
            base_offset=self.base_offset,
            base_timestamp=self.fields["base_timestamp"],
            start=start,
            least=_ANY_TIME if self._has_one_time else least,
        )
        return found if found is None or not self._has_one_time else (found[0], stamp)

    def highest(self, plain: bytes | memoryview, start: int) -> int:
        """Return the highest timestamp from an offset on, -1 if no record is left."""
        if self._has_one_time:
            found = self.find(plain, start, _ANY_TIME)
            return -1 if found is None else found[1]
        return highest_timestamp(
            plain,
            self.fields["count"],
            base_offset=self.base_offset,
            base_timestamp=self.fields["base_timestamp"],
            start=start,
        )


def _end_of(header: dict[str, int]) -> int:
    """The offset after a frame's last record."""
    return header["base_offset"] + header["last_delta"] + 1


def _damaged_position(queue: Partition, offset: int) -> int | None:
    """The position of the damaged frame of an offset; None if its records are lost for good."""
    unit = queue.unit(offset)
    return None if unit is None or unit[1] <= 0 else unit[0]
