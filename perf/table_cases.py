"""What the cases of `perf.tables` share: the stores, the seconds, and what is selected."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from compat.tables.selection import Selection
from perf.figures import Figure

START_MS: Final = 1_780_000_000_000
HOUR_MS: Final = 3_600_000
HOUR: Final = Selection(timestamps=(START_MS + 9 * HOUR_MS, START_MS + 10 * HOUR_MS))
NO_BODIES: Final = ("topic", "partition", "offset", "store_timestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """What is read.

    Attributes:
        place: a directory for more.
        data, packed: data directories, of records without compression and with zstd.
        small: a fifth of the former in segments of 32 MiB.
        tenth: a tenth of it.
        plain, zstd: directories of Parquet files of the same rows.
        address: of a broker that runs on `data`.
    """

    place: Path
    data: Path
    packed: Path
    small: Path
    tenth: Path
    plain: Path
    zstd: Path
    address: str


@dataclass(slots=True)
class Measured:
    """Seconds of each case, by round.

    Attributes:
        only: a regular expression; the cases that it does not match are left out.
        seconds: by case.
    """

    only: str = ""
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def take(self, case: str, work: Callable[[], object]) -> None:
        """Measure a case once."""
        if not re.search(self.only, case):
            return
        begin = time.perf_counter()
        work()
        self.seconds.setdefault(case, []).append(time.perf_counter() - begin)

    def median(self, case: str) -> float:
        """Return the median of a case."""
        return Figure(tuple(self.seconds[case])).median
