"""What a sync flush gains when the zeros of a segment were written before.

    .venv/bin/python -m perf.micro_prewritten DIR...

Appends to a file of each directory and calls fdatasync after each append: to a file that is only
allocated, and to one whose zeros were written and synced. Name a directory on each file system that
you want to compare. Prints the medians of both, their ratio, and how long the zeros take.
"""

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Final

from appliance.units import KIB, MIB

FILE_SIZE: Final = 64 * MIB
APPENDS: Final = ((4 * KIB, 300), (64 * KIB, 300), (MIB, 60))
ROUNDS: Final = 5


def seconds_of_zeros(fd: int) -> float:
    """Write and sync the zeros of the whole file; return how long that took."""
    began = time.perf_counter()
    zeros = bytes(MIB)
    for offset in range(0, FILE_SIZE, MIB):
        os.pwrite(fd, zeros, offset)
    os.fsync(fd)
    return time.perf_counter() - began


def seconds_of_appends(fd: int, size: int, count: int) -> float:
    """Append and sync `count` times; return how long that took."""
    data = os.urandom(size)
    began = time.perf_counter()
    for number in range(count):
        os.pwrite(fd, data, number * size)
        os.fdatasync(fd)
    return time.perf_counter() - began


def measure(directory: Path, size: int, count: int) -> None:
    """Print the medians for appends of one size, in ms."""
    took: dict[bool, list[float]] = {False: [], True: []}
    zeros = []
    path = directory / "micro_prewritten"
    for number in range(2 * ROUNDS):
        is_prewritten = number % 4 in (1, 2)  # each is first as often as the other
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(fd, 0, FILE_SIZE)
            os.fsync(fd)
            if is_prewritten:
                zeros.append(seconds_of_zeros(fd))
            took[is_prewritten].append(seconds_of_appends(fd, size, count) / count)
        finally:
            os.close(fd)
            path.unlink()
    allocated, prewritten = (1_000 * statistics.median(took[each]) for each in (False, True))
    print(
        f"{directory} append={size} allocated={allocated:.3f} ms prewritten={prewritten:.3f} ms "
        f"ratio={prewritten / allocated:.2f} zeros={1_000 * statistics.median(zeros):.0f} ms"
    )


def main() -> None:
    """Measure every directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="+", type=Path)
    for directory in parser.parse_args().directory:
        for size, count in APPENDS:
            measure(directory, size, count)


if __name__ == "__main__":
    main()
