"""A log in memory that both sides of replication can use, with frames of a simple form.

A frame is u32 size | u32 CRC | i32 epoch | payload; it may cross the end of a segment, which frames
of the real log never do. The CRC covers the epoch, the position and the payload.
"""

import random
from struct import Struct
from typing import Final
from zlib import crc32

from appliance.errors import FreedPositionError
from appliance.replication.logs import NO_CLUSTER, NO_POS, ReplicaError
from appliance.store.log.watermark import WatermarkJob
from appliance.store.runs.saved_ids import IdLookup

CLUSTER: Final = bytes(range(16))
SEGMENT_SIZE_BYTES: Final = 1 << 16

_HEAD: Final = Struct(">IIi")
_FRAME_SIZE_MAX: Final = 1 << 20


def make_frame(pos: int, epoch: int, payload: bytes) -> bytes:
    """Return a frame as it stands at a position."""
    crc = crc32(b"%d %d %s" % (pos, epoch, payload))
    return _HEAD.pack(_HEAD.size + len(payload), crc, epoch) + payload


class MemoryLog:
    """The log of a node, of either role.

    Attributes:
        node, cluster, start_pos: as the protocols have them.
        diverged: what `truncate` cut off.
        calls: cuts and restarts, as text.
        read_sizes: what `read` was asked for.
    """

    def __init__(self, node: int, *, start_pos: int = 0, cluster: bytes = NO_CLUSTER) -> None:
        self.node = node
        self.cluster = cluster
        self.start_pos = start_pos
        self.epoch = 0
        self.format_version = 1
        self.segment_size_bytes = SEGMENT_SIZE_BYTES
        self.flushed_pos = start_pos
        self.last_pos = NO_POS
        self.last_crc = 0
        self.diverged = b""
        self.calls: list[str] = []
        self.read_sizes: list[int] = []
        self._data = bytearray()
        self._frames: dict[int, tuple[int, int]] = {}
        self._whole_pos = start_pos

    @property
    def data(self) -> bytes:
        """The whole frames."""
        return bytes(self._data[: self._whole_pos - self.start_pos])

    @property
    def committed_pos(self) -> int:
        return self._whole_pos

    @property
    def visible_pos(self) -> int:
        return min(self.flushed_pos, self._whole_pos)

    @property
    def end_pos(self) -> int:
        return self._whole_pos

    def frames(self) -> list[tuple[int, tuple[int, int]]]:
        """Return each frame's position, and its epoch and CRC, in order."""
        return list(self._frames.items())

    def write(self, epoch: int, *payloads: bytes) -> None:
        """Append frames as a master does."""
        self.cluster = CLUSTER
        for payload in payloads:
            self.append(self._whole_pos, make_frame(self._whole_pos, epoch, payload))

    def free(self, start_pos: int) -> None:
        """Free the log below a position."""
        del self._data[: start_pos - self.start_pos]
        self._frames = {pos: frame for pos, frame in self._frames.items() if pos >= start_pos}
        self.start_pos = start_pos

    def epochs(self) -> list[tuple[int, int]]:
        found: dict[int, int] = {}
        for pos, (epoch, _) in self._frames.items():
            found.setdefault(epoch, pos)
        return list(found.items())

    @property
    def acknowledges_received(self) -> bool:
        return False

    def crc_at(self, pos: int) -> int | None:
        frame = self._frames.get(pos)
        return None if frame is None else frame[1]

    def read(self, pos: int, size: int) -> bytes:
        if pos < self.start_pos:
            raise FreedPositionError(pos, self.start_pos)
        size = min(size, SEGMENT_SIZE_BYTES - pos % SEGMENT_SIZE_BYTES)
        self.read_sizes.append(size)
        begin = pos - self.start_pos
        return bytes(self._data[begin : min(begin + size, self._whole_pos - self.start_pos)])

    def append(self, pos: int, data: bytes) -> IdLookup | None:
        expected = self.start_pos + len(self._data)
        assert pos == expected, f"append at {pos}, not {expected}"
        self._data += data
        while self._apply():
            pass
        return None

    def end_lookup(self, lookup: IdLookup) -> IdLookup | None:
        raise AssertionError("this log knows no ids")

    def begin_raise(self) -> WatermarkJob | None:
        return None

    def end_raise(self, job: WatermarkJob) -> None:
        raise AssertionError("this log has no watermark")

    def flush(self) -> int:
        self.flushed_pos = self._whole_pos
        return self.flushed_pos

    def truncate(self, pos: int, *, may_be_acknowledged: bool = False) -> None:
        assert pos == self._whole_pos or pos in self._frames, f"{pos} is inside a frame"
        if pos < self._whole_pos:
            self.calls.append(f"truncate {pos}")
            self.diverged = self.data[pos - self.start_pos :]
        self._frames = {at: frame for at, frame in self._frames.items() if at < pos}
        del self._data[pos - self.start_pos :]
        self._whole_pos = pos
        self.flushed_pos = min(self.flushed_pos, pos)
        self.last_pos = max(self._frames, default=NO_POS)
        self.epoch, self.last_crc = self._frames.get(self.last_pos, (0, 0))

    def restart(self, start_pos: int) -> None:
        self.calls.append(f"restart {start_pos}")
        self.start_pos = self._whole_pos = self.flushed_pos = start_pos
        self.cluster = NO_CLUSTER
        self.epoch = self.last_crc = 0
        self.last_pos = NO_POS
        self._data.clear()
        self._frames.clear()

    def _apply(self) -> bool:
        begin = self._whole_pos - self.start_pos
        if len(self._data) - begin < _HEAD.size:
            return False
        size, crc, epoch = _HEAD.unpack_from(self._data, begin)
        if not _HEAD.size <= size <= _FRAME_SIZE_MAX:
            raise self._refuse(begin)
        if len(self._data) - begin < size:
            return False
        payload = bytes(self._data[begin + _HEAD.size : begin + size])
        if make_frame(self._whole_pos, epoch, payload) != self._data[begin : begin + size]:
            raise self._refuse(begin)
        self._frames[self._whole_pos] = epoch, crc
        self.last_pos, self.last_crc, self.epoch = self._whole_pos, crc, epoch
        self.cluster = CLUSTER
        self._whole_pos += size
        return True

    def _refuse(self, begin: int) -> ReplicaError:
        del self._data[begin:]
        return ReplicaError(f"no frame at {self._whole_pos}")


def filled(node: int, *epochs: int, count: int = 20, size_max: int = 10_000) -> MemoryLog:
    """A log with `count` frames in each epoch; logs with the same epochs are equal."""
    log = MemoryLog(node)
    for epoch in epochs:
        chance = random.Random(epoch)
        log.write(epoch, *(chance.randbytes(chance.randrange(size_max)) for _ in range(count)))
    return log
