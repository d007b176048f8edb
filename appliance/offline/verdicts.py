"""The log ranges that earlier starts declared lost, collected before the log is read. Layer 4.

The head of each segment repeats all verdicts before it, so only the last segment must be scanned
for further ones.
"""

from typing import Final

from _core.bytes.layout import FRAME_HEADER_SIZE, KIND_HEAD, KIND_VERDICT
from _core.log.frames import check, read_header
from _core.state.projections import Projections
from _core.state.scan import LogScan
from appliance.errors import CorruptionError
from appliance.offline.data_dir import DataDir
from appliance.store.log.frame_kinds import WHOLE
from appliance.store.state.control_frames import Ranges, decode_head, decode_verdict

SLICE_BYTES: Final = 1 << 24


def find_verdicts(data: DataDir) -> Ranges:
    """Return the (from, to) log positions that a start declared lost, ascending."""
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
        Projections(id_key=bytes(16)),
        log.segments[-1:],
        log.read_into,
        lambda kind, _topic_id, payload, _epoch: _note(found, kind, payload),
        known_flushed=data.checkpoint.flushed,
        watermark=data.checkpoint.watermark,
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
        return  # the walk reads this frame again and reports the fault
