"""Samples the memory of a process: a line for each sample, until the process ends.

    python -m perf.attacks.memory_samples PID

A process of its own: a thread beside those of hundreds of attackers would sample too seldom to see
memory that is held for some milliseconds.
"""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

SAMPLE_S: Final = 0.003


def main() -> None:
    """Print seconds of the monotonic clock and RssAnon in bytes."""
    page_bytes = os.sysconf("SC_PAGESIZE")
    place = Path(f"/proc/{int(sys.argv[1])}/statm")
    # It may end before the first sample as well.
    with suppress(ProcessLookupError, FileNotFoundError), place.open("rb", buffering=0) as statm:
        while True:
            statm.seek(0)
            _, resident, shared, *_ = map(int, statm.read().split())
            if not resident:
                break
            print(time.monotonic(), (resident - shared) * page_bytes, flush=True)
            time.sleep(SAMPLE_S)


if __name__ == "__main__":
    main()
