"""What starts have judged lost, found before the log is gone through. Layer 4.

The head of each segment repeats all verdicts before it, so those of the last segment are what is
left to look for.
"""

from typing import Final

from _core.frames import check, read_header
from _core.layout import FRAME_HEADER_SIZE, KIND_HEAD, KIND_VERDICT
from _core.log_scan import LogScan
from _core.projections import Projections
from appliance.errors import CorruptionError
from appliance.offline.data_dir import DataDir
from appliance.store.control_frames import Ranges, decode_head, decode_verdict
from appliance.store.log_presence import WHOLE

SLICE_BYTES: Final = 1 << 24


def find_verdicts(data: DataDir) -> Ranges:
    """All (from, to) log positions of what a start judged lost, ascending."""
    log = data.log
    found: set[tuple[int, int]] = set()
    if not log.segments:
        return ()
    for base, size in log.segments:
        frame = bytes(log.bytes_at(base, min(size, FRAME_HEADER_SIZE)))
        if len(frame) < FRAME_HEADER_SIZE or read_header(frame)["kind"] != KIND_HEAD:
            continue
        frame = bytes(log.bytes_at(base, max(read_header(frame)["size"], 0)))
        if check(frame, base) == WHOLE:
            _note(found, KIND_HEAD, _payload_of(frame))
    scan = LogScan(
        Projections(level_count=1, id_key=bytes(16), fired_id_memory_ms=0),
        log.segments[-1:],
        log.read_into,
        lambda kind, _topic_id, payload, _epoch: _note(found, kind, payload),
        known_flushed=data.checkpoint.flushed,
        reach=data.checkpoint.reach,
        written=log.written_ranges,
    )
    while not scan.step(SLICE_BYTES):
        pass
    return tuple(sorted(found))


def _payload_of(frame: bytes) -> bytes:
    size = read_header(frame)["tables_size"]
    return frame[FRAME_HEADER_SIZE : FRAME_HEADER_SIZE + size]


def _note(found: set[tuple[int, int]], kind: int, payload: bytes) -> None:
    try:
        if kind == KIND_HEAD:
            found.update(decode_head(payload).lost)
        elif kind == KIND_VERDICT:
            found.update(decode_verdict(payload).lost)
    except CorruptionError:
        return  # the walk meets it again, and tells
