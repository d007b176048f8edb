"""Reads the records of pending timers from the log, for people. Any thread. Layer 4."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Final

from appliance.find import FOUND_MAX_BYTES
from appliance.offline.frame_items import Frame, Item, PartialFrame
from appliance.pending_timers import ListedTimer
from appliance.store.keys.log_part import LogPart
from appliance.units import KIB

READ_TOGETHER: Final = 64
"""Timers whose frames are read in one go, each frame once."""

WHOLE_BYTES: Final = 64 * KIB
"""Frames up to this size are always read whole, which takes no longer."""

WITHOUT_VALUES: Final = ("value", "headers")

UNREADABLE: Final = "its record cannot be read at present"


class TimerReader:
    """Reads timers of one part of the log.

    Args:
        part: the part; the caller closes it.
        place: the function `MovedFrames.place` of the log.
        partitions: topic and partition by handle; None for those that are deleted.
        has_values: items have the values and headers of records too.
        is_checked: checksums are verified. Else no more of a large frame is read than its timers
            need, and what they say must fit together: enough to look at them, not to act on them.
    """

    def __init__(
        self,
        part: LogPart,
        place: Callable[[int], int],
        partitions: Mapping[int, tuple[str, int] | None],
        *,
        has_values: bool,
        is_checked: bool = True,
    ) -> None:
        self._part = part
        self._place = place
        self._partitions = partitions
        self._has_values = has_values
        self._is_checked = is_checked
        self._partial: dict[int, PartialFrame | None] = {}
        """Large frames by position; None for those that must be read whole."""

    def read(self, timers: Sequence[ListedTimer], goes_on: Callable[[], bool]) -> list[Item]:
        """Return an item for each of the first timers.

        An item has the names that those of `find` have. A timer whose frame cannot be read has
        `problem` instead of the fields of its record.

        Args:
            timers: any timers.
            goes_on: called often; the result ends soon after it returns False, as it does once it
                has FOUND_MAX_BYTES of records. It is empty only if there are no timers.

        Raises:
            StorageError: the log cannot be read.
        """
        found: list[Item] = []
        size_bytes = 0
        rest = iter(timers)
        while some := list(islice(rest, READ_TOGETHER)):
            for item in self._items(some):
                found.append(item)
                size_bytes += sum(len(item.get(name) or b"") for name in ("key", "value"))
                if size_bytes >= FOUND_MAX_BYTES:
                    return found
            if not goes_on():
                break
        return found

    def _items(self, timers: Sequence[ListedTimer]) -> list[Item]:
        placed = sorted((self._place(timer[1]), timer) for timer in timers)
        found: dict[ListedTimer, Item] = {}
        if not self._is_checked:
            found = self._in_parts(placed)
        whole = [each for each in placed if each[1] not in found]
        for pos, some in groupby(whole, key=itemgetter(0)):
            data = self._part.view_at(pos)
            frame = None if data is None else Frame(pos, data)
            for _, timer in some:
                fields = None if frame is None else self._item(frame, timer)
                found[timer] = fields or self._unreadable(timer)
        return [found[timer] for timer in timers]

    def _in_parts(self, placed: Sequence[tuple[int, ListedTimer]]) -> dict[ListedTimer, Item]:
        """Return items of timers in large frames, without a look at the rest of these."""
        found: dict[ListedTimer, Item] = {}
        for pos, timer in placed:
            if pos not in self._partial:
                parts = self._part.parts_at(pos)
                is_large = parts is not None and parts.size > WHOLE_BYTES
                self._partial[pos] = PartialFrame(pos, parts) if parts and is_large else None
            frame = self._partial[pos]
            if frame is None:
                continue
            try:
                item = self._item(frame, timer)
            except ValueError:
                item = None
            if item is not None and item["due"] == timer[0] and "problem" not in item:
                found[timer] = item
        # What was read of a segment that is gone may be that of another frame.
        is_there = self._part.has_segments({item["position"] for item in found.values()})
        return found if is_there else {}

    def _item(self, frame: Frame, timer: ListedTimer) -> Item | None:
        """Return the item of a timer; None if the frame does not have it."""
        fields = frame.timer(*timer[1:3])
        if fields is None:
            return None
        fields["stored_at"] = frame.stored_at(fields)
        fields["position"] = frame.pos
        if not self._has_values:
            for name in WITHOUT_VALUES:
                fields.pop(name, None)
        topic, partition = self._partitions[timer[3]] or (None, None)
        return {"topic": topic, "partition": partition} | fields

    def _unreadable(self, timer: ListedTimer) -> Item:
        topic, partition = self._partitions[timer[3]] or (None, None)
        item: Item = {"topic": topic, "partition": partition}
        item |= {"accept_position": timer[1], "index": timer[2], "due": timer[0]}
        return item | {"problem": UNREADABLE}
