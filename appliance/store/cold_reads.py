"""What is not in memory, read and checked on a thread: frames, and ConsumeQueue units.

`read` runs on a thread, `take_up` on the loop. A place is the log position of a frame, or
(partition handle, offset) where the unit that names the frame must be read first.

What is damaged may heal: a sector that could not be read is read again, and a frame that failed its
CRCs is read again past the kernel's cache, when somebody asks for it and some time has passed: one
second, then twice as long each time, up to a minute. Layer 2.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from typing import Final

from _core.layout import FRAME_HEADER_SIZE
from _core.log_view import LONE_BYTES, NEAR_BYTES, WINDOW_BYTES, Block
from _core.projections import Projections
from appliance.clock import Clock
from appliance.fs import FileSystem
from appliance.model import ColdPlace
from appliance.store.commit_log import CommitLog
from appliance.store.consume_queue import ConsumeQueues
from appliance.store.frame_reads import FrameReader
from appliance.store.recovery import Damage
from appliance.store.unit_reader import WHOLE, UnitReader, UnitsFound
from appliance.units import NS_PER_MS

RETRY_MIN_NS: Final = 1_000 * NS_PER_MS
RETRY_MAX_NS: Final = 60_000 * NS_PER_MS


@dataclass(slots=True)
class ColdRead:
    """What a thread found.

    Attributes:
        asked: positions of the frames that were read.
        blocks: whole frames, also some that follow what was asked for.
        faults: bytes, and what is wrong, of damaged frames by their log position.
        units: of the partitions whose units were asked for.
    """

    asked: list[int] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    faults: dict[int, tuple[int, str]] = field(default_factory=dict)
    units: list[UnitsFound] = field(default_factory=list)


class ColdReader:
    """Reads what the paths of the loop found to be cold."""

    def __init__(
        self,
        clock: Clock,
        fs: FileSystem,
        log: CommitLog,
        queues: ConsumeQueues,
        projections: Projections,
    ) -> None:
        self._clock = clock
        self._log = log
        self._queues = queues
        self._projections = projections
        self._units = UnitReader(fs, queues, log)
        self._frames = FrameReader(log)
        self._waits_ns: dict[int, int] = {}
        """Damaged frames by position, and how long to wait before the next try."""
        self._retries: list[tuple[int, int]] = []
        """When a frame may be asked for again (monotonic ns), and its position: a heap."""
        log.view.fill = self._frames.read_hot

    def read(self, places: list[ColdPlace], *, is_sparse: bool = False) -> ColdRead:
        """Read and check; may run on any thread.

        Not all of them, if they take half of the memory for frames: ask again for the others.

        Args:
            places: what to read.
            is_sparse: nobody will ask for what lies between them.
        """
        read = ColdRead()
        positions: list[int] = []
        for place in places:
            if isinstance(place, int):
                positions.append(place)
                continue
            handle, offset = place
            partition = self._projections.partitions[handle]
            if partition is None:
                continue
            found = self._units.read(partition, offset)
            read.units.append(found)
            for pos, size, fault in found.frames:
                if fault == WHOLE:
                    positions.append(pos)
                else:
                    read.faults[pos] = size, fault
        room = self._log.view.size_max // 2
        end = -1
        positions.sort()
        for pos, following in pairwise([*positions, positions[-1]] if positions else []):
            if pos < end or pos in read.faults:
                continue
            size = LONE_BYTES if is_sparse and following - pos > NEAR_BYTES else WINDOW_BYTES
            if read.blocks and room < size:
                break
            read.asked.append(pos)
            block = self._frames.read(pos, size)
            if isinstance(block, str):
                read.faults[pos] = FRAME_HEADER_SIZE, block
                continue
            read.blocks.append(block)
            room -= max(block.size, size)
            end = pos + block.size
        return read

    def take_up(self, read: ColdRead, known: list[Damage]) -> list[Damage]:
        """Let the loop have what `read` found; on the loop.

        Args:
            read: what it returned.
            known: damage that was told of before; what healed is taken out.

        Returns:
            What is damaged and was not known.

        Raises:
            StorageError: a file of units could not be mended, though there was room.
        """
        damage = []
        for block in read.blocks:
            self._log.view.put(block)
        for pos in read.asked:
            if pos in self._waits_ns and pos not in read.faults:
                self._heal(pos, known)
        for pos, (size, fault) in read.faults.items():
            self._log.view.mark_damaged(pos)
            wait_ns = min(self._waits_ns.get(pos, RETRY_MIN_NS // 2) * 2, RETRY_MAX_NS)
            self._waits_ns[pos] = wait_ns
            heappush(self._retries, (self._clock.monotonic_ns() + wait_ns, pos))
            path, offset = self._log.path_of(pos)
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

    def _heal(self, pos: int, known: list[Damage]) -> None:
        """A frame that was damaged is whole now."""
        del self._waits_ns[pos]
        path, offset = self._log.path_of(pos)
        known[:] = [each for each in known if each.path != path or each.offset != offset]

    def retry_damaged(self, known: list[Damage]) -> None:
        """Let damaged frames be asked for again that have waited long enough; on the loop.

        Args:
            known: as with `take_up`; a frame may also have come with what was read near it.
        """
        for pos in [pos for pos in self._waits_ns if self._log.view.holds(pos)]:
            self._heal(pos, known)
        now_ns = self._clock.monotonic_ns()
        while self._retries and self._retries[0][0] <= now_ns:
            _, pos = heappop(self._retries)
            self._log.drop_cache(pos)
            self._log.view.forget_damaged(pos)
