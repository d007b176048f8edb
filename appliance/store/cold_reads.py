"""Reads and checks frames and ConsumeQueue units that are not in memory, on a thread.

`read` runs on a thread, `take_up` on the loop. A place is the log position of a frame, or
(partition handle, offset) if the unit that points to the frame must be read first.

Damage may be temporary. An unreadable sector, or a frame that failed its CRCs, is read again past
the page cache when it is next requested and some time has passed: one second, then twice as long
each time, up to a minute. Layer 2.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from typing import Final

from _core.bytes.layout import FRAME_HEADER_SIZE
from _core.log.view import LONE_BYTES, NEAR_BYTES, WINDOW_BYTES, Block
from _core.state.projections import Projections
from appliance.model import ColdPlace
from appliance.store.damage import Damage
from appliance.store.log.commit_log import CommitLog
from appliance.store.log.frame_kinds import WHOLE
from appliance.store.log.frame_reader import FrameReader
from appliance.store.queue.consume_queue import ConsumeQueues
from appliance.store.queue.unit_reader import UnitReader, UnitsFound
from appliance.system.clock import Clock
from appliance.system.files import FileSystem
from appliance.units import NS_PER_MS

RETRY_MIN_NS: Final = 1_000 * NS_PER_MS
RETRY_MAX_NS: Final = 60_000 * NS_PER_MS


@dataclass(slots=True)
class ColdRead:
    """The result of a read on a thread.

    Attributes:
        asked: log positions of the frames that were read.
        blocks: intact frames, including some after the requested ones.
        faults: (size in bytes, fault) of damaged frames, by log position.
        units: the results for the requested units.
    """

    asked: list[int] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    faults: dict[int, tuple[int, str]] = field(default_factory=dict)
    units: list[UnitsFound] = field(default_factory=list)


class ColdReader:
    """Reads frames and units that the loop needs and that are not in memory."""

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
        """By position of a damaged frame: the wait before the next retry."""
        self._retries: list[tuple[int, int]] = []
        """A heap of (time from which a frame may be read again in monotonic ns, its position)."""
        log.view.fill = self._frames.read_hot

    def read(self, places: list[ColdPlace], *, is_sparse: bool = False) -> ColdRead:
        """Read and check; may run on any thread.

        Stops once the frames fill half of the memory for frames: request the others again.

        Args:
            places: what to read.
            is_sparse: the bytes between them will not be needed.
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
        positions = sorted(pos for pos in positions if pos >= self._log.start_pos)
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
        """Apply the result of `read`; on the loop.

        Args:
            read: the result.
            known: damage reported before; entries that are readable again are removed.

        Returns:
            New damage.

        Raises:
            StorageError: a unit file could not be repaired, for a reason other than a full disk.
        """
        damage = []
        for block in read.blocks:
            self._log.view.put(block)
        for pos in read.asked:
            if pos in self._waits_ns and pos not in read.faults:
                self._heal(pos, known)
        for pos, (size, fault) in read.faults.items():
            if pos < self._log.start_pos:
                continue  # it was freed meanwhile
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
            # The files of a topic that was deleted meanwhile are removed on purpose.
            is_deleted = found.units is not None and found.units.partition.topic.deleted
            if found.damage is not None and not is_deleted:
                damage.append(found.damage)
        return damage

    def _heal(self, pos: int, known: list[Damage]) -> None:
        """Note that a damaged frame is intact again."""
        del self._waits_ns[pos]
        if pos < self._log.start_pos:
            return
        path, offset = self._log.path_of(pos)
        known[:] = [each for each in known if each.path != path or each.offset != offset]

    def retry_damaged(self, known: list[Damage]) -> None:
        """Permit another read of damaged frames whose wait is over; on the loop.

        Args:
            known: as in `take_up`; a frame may also have been read together with one near it.
        """
        for pos in [pos for pos in self._waits_ns if self._log.view.holds(pos)]:
            self._heal(pos, known)
        now_ns = self._clock.monotonic_ns()
        while self._retries and self._retries[0][0] <= now_ns:
            _, pos = heappop(self._retries)
            if pos < self._log.start_pos:
                self._waits_ns.pop(pos, None)
                self._log.view.forget_damaged(pos)
                continue
            self._log.drop_cache(pos)
            self._log.view.forget_damaged(pos)
