"""Memory that the host does not take back between two measurements.

The first touch of memory in a virtual machine goes through the hypervisor and costs ten times as
much as later ones. A host that reclaims free memory does so two seconds after it became free, so
that a run of three seconds is as fast as the luck that it has with its pages. Memory in use stays.
So a benchmark holds most of it, and fills the rest with the page cache of one file: what a run
writes replaces pages of that file, as on a machine in use.
"""

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

KEPT_BYTES: Final = 7_000_000_000
"""Not held: for brokers and clients, and for the page cache."""

FILLER_BYTES: Final = KEPT_BYTES + 500_000_000
"""More than there is place for, so that it can fill all of it."""

FREE_BYTES: Final = 300_000_000
"""With less free than this, the rest is in use."""

_CHUNK_BYTES: Final = 1 << 20


class WarmMemory:
    """Keeps the machine's memory in use."""

    def __init__(self, filler: Path) -> None:
        self._filler = filler
        self._buffer = bytearray(_CHUNK_BYTES)

    def fill(self) -> None:
        """Read the filler into the page cache until next to no memory is free."""
        with self._filler.open("rb", buffering=0) as file:
            while _free_bytes() > FREE_BYTES:
                for _ in range(64):
                    if not file.readinto(self._buffer):
                        return


@contextmanager
def warm_memory(directory: Path) -> Iterator[WarmMemory]:
    """Hold all memory but KEPT_BYTES; `directory` gets a file of FILLER_BYTES meanwhile."""
    available_bytes = psutil.virtual_memory().available
    held = None
    if available_bytes > KEPT_BYTES + _CHUNK_BYTES:
        held = mmap.mmap(-1, available_bytes - KEPT_BYTES)
        address = ctypes.addressof(ctypes.c_char.from_buffer(held))
        ctypes.memset(address, 1, len(held))
    filler = directory / "filler"
    try:
        zeros = bytes(_CHUNK_BYTES)
        with filler.open("wb", buffering=0) as file:
            for _ in range(min(FILLER_BYTES, available_bytes) // _CHUNK_BYTES):
                file.write(zeros)
        yield WarmMemory(filler)
    finally:
        filler.unlink(missing_ok=True)
        del held


def _free_bytes() -> int:
    return int(psutil.virtual_memory().free)


def reclaim_cpu_s() -> float:
    """CPU seconds that the kernel has spent on making memory free in threads of its own."""
    spent_s = 0.0
    for process in psutil.process_iter(["name"]):
        if process.info["name"].startswith("kswapd"):
            times = process.cpu_times()
            spent_s += float(times.user + times.system)
    return spent_s
