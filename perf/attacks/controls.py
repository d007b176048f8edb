"""Controls: they take what broker and good client share with attackers, and ask the broker nothing.

What a control costs the good client is not the broker's.
"""

import os
import subprocess
import sys
from typing import Final

from perf.attacks.arena import Arena

CHUNK_BYTES: Final = 4 << 20
FILE_BYTES: Final = 256 << 20


def burn_processors(arena: Arena) -> None:
    """A process for each processor that computes and sends nothing."""
    spin = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)]
    arena.linger()
    for process in processes:
        process.kill()
        process.wait()


def sync_files(arena: Arena) -> None:
    """Writes 4 MB to another file of the same disk and syncs it, again and again."""
    place = arena.broker.stderr_path.parent / "control"
    chunk, count = os.urandom(CHUNK_BYTES), 0
    with place.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, FILE_BYTES)
        while not arena.is_over:
            os.pwrite(file.fileno(), chunk, count * CHUNK_BYTES % FILE_BYTES)
            os.fdatasync(file.fileno())
            count += 1
    place.unlink()
    arena.notes.append(f"{count * CHUNK_BYTES / 1e6:,.0f} MB")
