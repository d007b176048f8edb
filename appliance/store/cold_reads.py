"""What is not in memory, read and checked on a thread: frames, and ConsumeQueue units.

`read` runs on a thread, `take_up` on the loop. A place is the log position of a frame, or
(partition handle, offset) where the unit that names the frame must be read first. Layer 2.
"""

from dataclasses import dataclass, field
from typing import Final

from _core.frames import check, read_header
from _core.layout import FRAME_HEADER_SIZE
from _core.projections import Projections
from appliance.errors import StorageError
from appliance.fs import FileSystem
from appliance.model import ColdPlace
from appliance.store.commit_log import CommitLog
from appliance.store.consume_queue import ConsumeQueues
from appliance.store.recovery import Damage
from appliance.store.unit_reader import WHOLE, UnitReader, UnitsFound
from appliance.units import KIB

READ_AHEAD_BYTES: Final = 256 * KIB
"""Read and checked behind a cold frame that is wanted: what LogView asks the kernel about."""


@dataclass(slots=True)
class ColdRead:
    """What a thread found.

    Attributes:
        frames: bytes, and what is wrong or "whole", of each frame by its log position; also of
            whole ones that follow what was asked for.
        units: of the partitions whose units were asked for.
    """

    frames: dict[int, tuple[int, str]] = field(default_factory=dict)
    units: list[UnitsFound] = field(default_factory=list)


class ColdReader:
    """Reads what the paths of the loop found to be cold."""

    def __init__(
        self, fs: FileSystem, log: CommitLog, queues: ConsumeQueues, projections: Projections
    ) -> None:
        self._log = log
        self._queues = queues
        self._projections = projections
        self._units = UnitReader(fs, queues, log)

    def read(self, places: list[ColdPlace]) -> ColdRead:
        """Read and check; may run on any thread."""
        read = ColdRead()
        for place in places:
            if isinstance(place, int):
                self._read_frame(read, place)
                continue
            handle, offset = place
            partition = self._projections.partitions[handle]
            if partition is None:
                continue
            found = self._units.read(partition, offset)
            read.units.append(found)
            for pos, size, fault in found.frames:
                read.frames[pos] = size, fault
                if fault == WHOLE:
                    self._read_ahead(read, pos + size)
        return read

    def _read_frame(self, read: ColdRead, pos: int) -> None:
        if pos in read.frames:
            return
        try:
            frame = self._log.read_frame(pos, FRAME_HEADER_SIZE)
            read.frames[pos] = len(frame), check(frame, pos)
            if read.frames[pos][1] == WHOLE:
                self._read_ahead(read, pos + len(frame))
        except StorageError as error:
            read.frames.setdefault(pos, (FRAME_HEADER_SIZE, str(error)))

    def _read_ahead(self, read: ColdRead, pos: int) -> None:
        """Who reads a frame will read the next ones too."""
        try:
            data = memoryview(self._log.read(pos, READ_AHEAD_BYTES))
        except StorageError:
            return  # whoever wants what is there will be told
        while data and check(data, pos) == WHOLE:
            size = read_header(data)["size"]
            read.frames[pos] = size, WHOLE
            data = data[size:]
            pos += size

    def take_up(self, read: ColdRead, known: list[Damage]) -> list[Damage]:
        """Let the loop have what `read` found; on the loop.

        Args:
            read: what it returned.
            known: damage that was told of before.

        Returns:
            What is damaged and was not known.

        Raises:
            StorageError: a file of units could not be mended, though there was room.
        """
        damage = []
        for pos, (size, fault) in read.frames.items():
            if fault == WHOLE:
                self._log.view.mark_resident(pos, size)
                continue
            path, offset = self._log.path_of(pos)
            if self._log.view.is_whole(pos):
                self._log.view.mark_damaged(pos)
            if not any(each.path == path and each.offset == offset for each in known):
                damage.append(Damage(path, offset, size, fault))
        for found in read.units:
            if found.units is not None:
                self._queues.take_up(found.units)
            # Of a topic that was deleted meanwhile the files are gone, as they should be.
            is_deleted = found.units is not None and found.units.partition.topic.deleted
            if found.damage is not None and not is_deleted:
                damage.append(found.damage)
        return damage
