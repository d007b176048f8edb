"""What a sync flush gains in a recycled segment, and what the zeros after each write are good for.

    .venv/bin/python -m perf.micro_recycled DIR...

Appends to a file of each directory and calls fdatasync after each append: to a file that is only
allocated, and to one with the bytes of an earlier segment that are no longer in the page cache. An
append does not end with a page. Once the rest of its last page is left as it is, so that the kernel
has to read it; once zeros are written there, as the log does. Prints the medians, in ms.
"""

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Final

from appliance.units import KIB, MIB, PAGE_SIZE_BYTES

FILE_SIZE: Final = 128 * MIB
APPENDS: Final = ((1_000, 500), (64 * KIB + 1_000, 300), (MIB + 1_000, 80))
ROUNDS: Final = 5
KINDS: Final = ("new", "old bytes", "old bytes, zeros after")


def prepare(path: Path, *, has_old: bool) -> int:
    """Make the file, durable and not in the page cache; return its descriptor."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.posix_fallocate(fd, 0, FILE_SIZE)
    if has_old:
        block = os.urandom(MIB)
        for offset in range(0, FILE_SIZE, MIB):
            os.pwrite(fd, block, offset)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return fd


def time_appends(fd: int, size: int, count: int, *, has_zeros: bool) -> list[float]:
    """Append and sync `count` times; return how long each took, in ms."""
    data = os.urandom(size)
    took = []
    offset = 0
    for _ in range(count):
        zeros = bytes(-(offset + size) % PAGE_SIZE_BYTES if has_zeros else 0)
        began = time.perf_counter()
        os.pwritev(fd, [data, zeros], offset)
        os.fdatasync(fd)
        took.append((time.perf_counter() - began) * 1_000)
        offset += size
    return took


def measure(directory: Path, size: int, count: int) -> None:
    """Print the medians for appends of one size."""
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}
    path = directory / "micro_recycled"
    for number in range(ROUNDS):
        for kind in KINDS[number % 3 :] + KINDS[: number % 3]:
            fd = prepare(path, has_old=kind != "new")
            try:
                took[kind] += time_appends(fd, size, count, has_zeros=kind.endswith("after"))
            finally:
                os.close(fd)
                path.unlink()
    medians = {kind: statistics.median(times) for kind, times in took.items()}
    said = ", ".join(f"{kind} {medians[kind]:.3f}" for kind in KINDS)
    ratio = medians[KINDS[2]] / medians["new"]
    print(f"{directory} append={size}: {said} ms; zeros after / new: {ratio:.2f}", flush=True)


def main() -> None:
    """Measure every directory."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", nargs="+", type=Path)
    for directory in parser.parse_args().directory:
        for size, count in APPENDS:
            measure(directory, size, count)


if __name__ == "__main__":
    main()
