"""Reads the dead letters of a running broker from its log. Layer 5.

The frames of records are looked up on the event loop, in slices, and read on the thread of
searches.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from _core.queue.partition import Partition
from appliance.broker import Broker
from appliance.dead_letters import Place
from appliance.errors import ColdFrameError, FindError, NotReadyError
from appliance.find import FOUND_MAX_BYTES
from appliance.offline.frame_items import Item
from appliance.offset_search import NO_RECORD
from appliance.pump import Pump

LOOKED_UP_TOGETHER: Final = 64
"""Offsets whose frames are found in one turn of the loop, two microseconds each."""

COLD_READS_MAX: Final = 100
"""Frames read to find an offset; more of them are damaged."""

Shape = Callable[[Item], Item]
"""Function of a record as `Finder.records_at` returns it."""


@dataclass(frozen=True, slots=True)
class ReadPart:
    """What was read of a partition.

    Attributes:
        items: records in order.
        next_offset: where to go on.
        unreadable_pos: log position of the frame that holds that offset and cannot be read, or -1.
    """

    items: list[Item]
    next_offset: int
    unreadable_pos: int = -1


class DeadReading:
    """Reads records of partitions of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def record(self, pump: Pump, partition: Partition, offset: int) -> Item:
        """Return the record at an offset.

        Raises:
            FindError: it cannot be read.
            NotReadyError: the broker is stopping.
        """
        part = await self.read(pump, partition, offset, offset + 1, lambda: True)
        if not part.items:
            place = Place(partition.index, offset)
            raise FindError("gone", f"record {place} of {partition.topic.name} cannot be read")
        return part.items[0]

    async def read(
        self,
        pump: Pump,
        partition: Partition,
        start: int,
        stop: int,
        in_time: Callable[[], bool],
        *,
        shape: Shape = lambda item: item,
    ) -> ReadPart:
        """Read the records from an offset to before another; at least one offset is passed.

        What cannot be read is left out.

        Args:
            pump: of the broker.
            partition: whose records.
            start, stop: of the offsets.
            in_time: the call ends soon after it returns False.
            shape: makes of each record, on the thread, what is returned of it.

        Raises:
            NotReadyError: the broker is stopping.
        """
        stop = min(stop, partition.visible_offset)
        bad_pos = -1
        while True:
            places, end = await self._look_up(pump, partition, start, stop, in_time)
            if not places:
                return ReadPart([], max(end, start + 1))
            part = await self._read_frames(pump, places, end, in_time, shape)
            if part.next_offset > start:
                return part
            # It may have been carried elsewhere since it was looked up.
            if part.unreadable_pos == bad_pos:
                return ReadPart([], places[1][1] if len(places) > 1 else end)
            bad_pos = part.unreadable_pos

    async def _look_up(
        self,
        pump: Pump,
        partition: Partition,
        start: int,
        stop: int,
        in_time: Callable[[], bool],
    ) -> tuple[list[tuple[int, int]], int]:
        """Return position and first offset of the frames from an offset on, and where they end."""
        places: list[tuple[int, int]] = []
        offset, cold_reads = start, 0
        while offset < stop and (not places or in_time()):
            try:
                pos, _ = self._broker.search.positions_from(partition, offset)
            except ColdFrameError as error:
                cold_reads += 1
                if cold_reads > COLD_READS_MAX:
                    offset, cold_reads = offset + 1, 0
                else:
                    await pump.cold(error.place)
                continue
            if pos == NO_RECORD:
                return places, stop
            if not places or places[-1][0] != pos:
                places.append((pos, offset))
            offset, cold_reads = offset + 1, 0
            if (offset - start) % LOOKED_UP_TOGETHER == 0:
                await let_others(pump)
        return places, offset

    async def _read_frames(
        self,
        pump: Pump,
        places: list[tuple[int, int]],
        end: int,
        in_time: Callable[[], bool],
        shape: Shape,
    ) -> ReadPart:
        """Read frames on a thread, up to FOUND_MAX_BYTES of their records."""
        finder, part = self._broker.begin_find()
        stops = [*(first for _, first in places[1:]), end]

        def read() -> ReadPart:
            found: list[Item] = []
            size_bytes = 0
            for (pos, first), stop in zip(places, stops, strict=True):
                if found and (size_bytes >= FOUND_MAX_BYTES or pump.is_stopped or not in_time()):
                    return ReadPart(found, first)
                items = finder.records_at(pos, first, stop)
                if items is None:
                    return ReadPart(found, first, pos)
                for item in items:
                    if "problem" in item:
                        continue
                    found.append(shape(item))
                    size_bytes += size_of(item)
                    if size_bytes >= FOUND_MAX_BYTES:
                        return ReadPart(found, item["offset"] + 1)
            return ReadPart(found, end)

        try:
            return await pump.find(read)
        finally:
            part.close()
            self._broker.key_index.end_search()


def size_of(item: Item) -> int:
    """Return how many bytes key, value and headers of a record have."""
    size = len(item["key"] or b"") + len(item["value"] or b"")
    return size + sum(len(name) + len(value or b"") for name, value in item.get("headers", ()))


async def let_others(pump: Pump) -> None:
    """Let the event loop serve others.

    Raises:
        NotReadyError: the broker is stopping.
    """
    await asyncio.sleep(0)
    check_running(pump)


def check_running(pump: Pump) -> None:
    """Raise NotReadyError if the broker is stopping."""
    if pump.is_stopped:
        raise NotReadyError("the broker is stopping")
