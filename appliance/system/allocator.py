"""Memory that was freed, and when the C library gives it back to the system. Layer 1.

glibc maps a large block by itself, and unmaps it when it is freed. But it raises the size from
which it does so to that of the largest block that was freed, up to 32 MiB, and then keeps twice as
much free memory at the end of its heap: after one request of 30 MB the process stays 60 MB larger.
Free memory between blocks that are used stays in any case, unless somebody asks for it.
"""

import ctypes
from typing import Final

from appliance.units import MIB, MS_PER_SECOND

MAPPED_BYTES: Final = 4 * MIB
"""A larger block is mapped by itself: more than a connection keeps for its next request."""

TOP_BYTES: Final = 32 * MIB
"""Free memory that may stay at the end of the heap; less costs page faults under load."""

GROWTH_BYTES: Final = 32 * MIB
"""Free memory is given back once the process is larger by so much than after the last time."""

CALM_MS: Final = 3 * MS_PER_SECOND
"""And has not grown for so long: what is needed again at once is not given back."""

JITTER_BYTES: Final = 4 * MIB
"""Growth that does not count as such."""

PAUSE_MS: Final = 10 * MS_PER_SECOND
"""The shortest time between two times. Each takes 0.1 ms for a MiB that is given back."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def give_back_large_blocks() -> bool:
    """Have large blocks given back whenever they are freed; call it before there are threads.

    Returns:
        False if the C library is not glibc, and nothing changed.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        return False
    return bool(
        library.mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        and library.mallopt(_M_TRIM_THRESHOLD, TOP_BYTES)
    )


def give_back_free_memory() -> None:
    """Give back the free pages between blocks. Other threads wait meanwhile if they allocate."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


class FreeMemoryPolicy:
    """Decides when free memory is given back, from the size of the process."""

    def __init__(self, now_ms: int, size_bytes: int) -> None:
        """Start with a process of that size, at `now_ms` (monotonic ms)."""
        self._size_bytes = size_bytes
        """After the last time; less if it became smaller by itself."""
        self._largest_bytes = size_bytes
        self._grew_ms = now_ms
        self._gave_ms = now_ms - PAUSE_MS
        self._is_giving = False

    def step(self, now_ms: int, size_bytes: int) -> bool:
        """Look at the size of the process; return whether to give back free memory now.

        The size at the next call is that of afterwards.
        """
        if self._is_giving:
            self._is_giving = False
            self._size_bytes = self._largest_bytes = size_bytes
        self._size_bytes = min(self._size_bytes, size_bytes)
        if size_bytes > self._largest_bytes + JITTER_BYTES:
            self._largest_bytes = size_bytes
            self._grew_ms = now_ms
        is_calm = now_ms - self._grew_ms >= CALM_MS and now_ms - self._gave_ms >= PAUSE_MS
        if size_bytes - self._size_bytes < GROWTH_BYTES or not is_calm:
            return False
        self._gave_ms = now_ms
        self._is_giving = True
        return True
