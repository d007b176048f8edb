"""Reads the records of pending timers from the log, for people. Any thread. Layer 4."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final

from appliance.find import FOUND_MAX_BYTES
from appliance.offline.frame_items import Frame, Item
from appliance.pending_timers import ListedTimer
from appliance.store.keys.log_part import LogPart

READ_TOGETHER: Final = 64
"""Timers whose frames are read in one go, each frame once."""

WITHOUT_VALUES: Final = ("value", "headers")

UNREADABLE: Final = "its record cannot be read at present"


class TimerReader:
    """Reads timers of one part of the log.

    Args:
        part: the part; the caller closes it.
        place: the function `MovedFrames.place` of the log.
        partitions: topic and partition by handle; None for those that are deleted.
        has_values: items have the values and headers of records too.
    """

    def __init__(
        self,
        part: LogPart,
        place: Callable[[int], int],
        partitions: Mapping[int, tuple[str, int] | None],
        *,
        has_values: bool,
    ) -> None:
        self._part = part
        self._place = place
        self._partitions = partitions
        self._has_values = has_values

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
        by_place: dict[int, list[ListedTimer]] = {}
        for timer in timers:
            by_place.setdefault(self._place(timer[1]), []).append(timer)
        items: dict[ListedTimer, Item] = {}
        for pos in sorted(by_place):
            items |= self._items_at(pos, by_place[pos])
        return [items[timer] for timer in timers]

    def _items_at(self, pos: int, timers: Sequence[ListedTimer]) -> dict[ListedTimer, Item]:
        data = self._part.view_at(pos)
        found: dict[tuple[int, int], Item] = {}
        if data is not None:
            frame = Frame(pos, data)
            numbers = frame.timer_numbers({timer[1:3] for timer in timers})
            read = frame.timers(set(numbers.values()))
            found = {(each["accept_position"], each["index"]): each for each in read}
            for each in read:
                each["stored_at"] = frame.stored_at(each)
                each["position"] = pos
        items = {}
        for timer in timers:
            topic, partition = self._partitions[timer[3]] or (None, None)
            item: Item = {"topic": topic, "partition": partition}
            fields = found.get(timer[1:3])
            if fields is None:
                item |= {"accept_position": timer[1], "index": timer[2], "due": timer[0]}
                item["problem"] = UNREADABLE
            else:
                item |= fields
            if not self._has_values:
                for name in WITHOUT_VALUES:
                    item.pop(name, None)
            items[timer] = item
        return items
