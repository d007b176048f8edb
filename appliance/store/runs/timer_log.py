"""The TimerLog: run files of timers in the order of due times, in which a reader can seek.

    timerlog/00000000000000000009

The rows are those of a run of timers, in the order of delivery. The directory has the due time of
the first row of each block. So a start reads the blocks of the timers that are due next. Layer 2;
any thread.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from appliance.store.runs.indexed_run import Directory, IndexedReader, IndexedWriter

DIRECTORY: Final = Directory(
    key=struct.Struct(">q"),
    key_at=16,  # where a row of either kind has its due time
    place=struct.Struct(">qqIII"),
    end=struct.Struct(">qI"),
    name="a TimerLog file",
)


class TimerLogWriter(IndexedWriter):
    """Writes one file of the TimerLog."""

    directory = DIRECTORY


class TimerLogReader(IndexedReader):
    """Reads one file of the TimerLog, from any due time on."""

    directory = DIRECTORY

    def blocks_from(self, due_ms: int) -> Iterator[bytes]:
        """Yield the blocks that may have a row due from a time on, epoch ms, each one checked.

        Raises:
            StorageError: it cannot be read.
            CorruptionError: the next block is damaged; all blocks yielded before are valid.
        """
        first = bisect_left(range(self.place_count), due_ms, key=self.key) - 1
        return self._blocks_of(max(first, 0))
