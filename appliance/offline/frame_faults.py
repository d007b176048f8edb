"""Describes the fault of a frame: what was expected and what was found. Layer 4."""

from typing import Final

from _core.bytes.crc32c import crc32c
from _core.bytes.layout import (
    AT_CRC,
    AT_KIND,
    AT_MAGIC,
    BATCH_AT_CRC,
    BATCH_CRC_START,
    FRAME_HEADER_SIZE,
    FRAME_MAGIC,
)
from _core.log.frames import FAULTS, read_header
from _core.state.scan import EPOCH_FELL

_BY_TEXT: Final = {text: name for name, text in FAULTS.items()}
_NO_MAGIC, _BAD_KIND, _BAD_SIZE, _MISPLACED, _BAD_CRC, _BAD_BATCH = 1, 3, 4, 5, 6, 7


def explain(data: memoryview, pos: int, fault: str, is_there: bool) -> tuple[str, str]:
    """Describe what was expected and found in place of a frame.

    Args:
        data: the bytes from there on, up to the next whole frame.
        pos: their log position.
        fault: the fault that the scan reports.
        is_there: the segment exists.

    Returns:
        The descriptions of what was expected and what was found.
    """
    whole = f"a whole frame at log position {pos}"
    if not is_there:
        return f"the segment that continues at log position {pos}", "no such file"
    if len(data) < FRAME_HEADER_SIZE or fault == EPOCH_FELL:
        return whole, fault
    header = read_header(data)
    number = _BY_TEXT.get(fault, -1)
    if number == _NO_MAGIC:
        found = int.from_bytes(data[AT_MAGIC : AT_MAGIC + 2], "big")
        return f"{whole}, with magic {FRAME_MAGIC:#06x}", f"{found:#06x}"
    if number == _BAD_KIND:
        return whole, f"the unknown kind {data[AT_KIND]}"
    if number == _BAD_SIZE:
        parts = ", ".join(
            f"{name.replace('_', ' ')} {header[name]}"
            for name in ("size", "tables_size", "visible_size", "held_size")
        )
        return whole, f"sizes that do not add up: {parts}"
    if number == _MISPLACED:
        return whole, f"a frame of log position {header['position']}"
    if number == _BAD_CRC:
        stored = int.from_bytes(data[AT_CRC : AT_CRC + 4], "big")
        return (
            f"{whole}, of which header and tables have CRC32C {stored:#010x}",
            f"{_frame_crc(data, header):#010x}",
        )
    if number == _BAD_BATCH:
        return whole, _batch_fault(data, header)
    return whole, fault


def _frame_crc(data: memoryview, header: dict[str, int]) -> int:
    tables_end = FRAME_HEADER_SIZE + header["tables_size"]
    covered = bytes(data[:AT_CRC]) + bytes(data[FRAME_HEADER_SIZE:tables_end])
    for start, size in _batches(header):
        covered += bytes(data[start : start + min(size, BATCH_CRC_START)])
    return crc32c(covered)


def _batches(header: dict[str, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    visible = FRAME_HEADER_SIZE + header["tables_size"]
    held = visible + header["visible_size"]
    return (visible, header["visible_size"]), (held, header["held_size"])


def _batch_fault(data: memoryview, header: dict[str, int]) -> str:
    names = ("visible", "held")
    for name, (start, size) in zip(names, _batches(header), strict=True):
        batch = data[start : start + size]
        if size == 0:
            continue
        stored = int.from_bytes(batch[BATCH_AT_CRC : BATCH_AT_CRC + 4], "big")
        computed = crc32c(bytes(batch[BATCH_CRC_START:]))
        if stored != computed:
            return (
                f"its {name} batch at byte {start} of the frame with CRC32C {computed:#010x} "
                f"instead of {stored:#010x}"
            )
    return FAULTS[_BAD_BATCH]
