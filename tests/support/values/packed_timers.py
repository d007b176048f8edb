"""Timers as the compiled queue takes them in bulk."""

import struct
from array import array

from _core.timers.due_queue import DueQueue
from tests.support.compiled import timer_calls as calls

Timer = tuple[int, int, int, int]  # due_ms, position, record_index, partition

TIMER = struct.Struct("=qqii")
START_MS = 1_780_000_000_000


def pack(timers: list[Timer]) -> bytes:
    packed = bytearray(len(timers) * TIMER.size)
    for i, timer in enumerate(timers):
        TIMER.pack_into(packed, i * TIMER.size, *timer)
    return bytes(packed)


def pack_arrivals(arrivals: list[int]) -> bytes:
    """Timers given as ms after START_MS << 20 | number: fast enough for a million."""
    words = array("q", bytes(len(arrivals) * TIMER.size))
    numbers = [arrival & 0xFFFFF for arrival in arrivals]
    words[0::3] = array("q", [START_MS + (arrival >> 20) for arrival in arrivals])
    words[1::3] = array("q", [number * 100 for number in numbers])
    words[2::3] = array("q", [number % 16 << 32 for number in numbers])
    return words.tobytes()


def pop_all(queue: DueQueue, now_ms: int, limit: int = 2048) -> list[Timer]:
    popped: list[Timer] = []
    while chunk := calls.pop_packed(queue, now_ms, limit):
        popped += TIMER.iter_unpack(chunk)
    return popped
