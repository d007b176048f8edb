"""How fast the log is read as tables: the scanner alone, and Spark beside Parquet of the same rows.

    make bench-tables                          # or: python -m perf.tables
    python -m perf.tables --records 200000 --rounds 1 --without-spark

A broker takes records of 1 KiB, whose timestamps spread over 24 hours: once without compression,
once with zstd by the client. Parquet files of the same rows are written beside, uncompressed and
with zstd. Every round measures each case once, in turn; the table has medians. The bounds are those
that the project sets itself; exit status 1 if one is missed.
"""

import argparse
import importlib.util
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from confluent_kafka import Producer

from compat.tables.selection import Selection
from compat.tables.table import Query, open_plan, tasks
from perf.brokers import Served, create_topics, find_broker_command, new_directory
from perf.figures import Figure
from perf.machine import BenchError, build_directory, machine_line

RECORDS: Final = 1_000_000
VALUE_BYTES: Final = 1_024
START_MS: Final = 1_780_000_000_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
PARTITIONS: Final = 4
GB: Final = 1e9
WORDS: Final = 4_096


@dataclass(frozen=True, slots=True)
class Bound:
    """A ratio of two cases that must hold: `case` takes at most `at_most` times `of`."""

    name: str
    case: str
    of: str
    at_most: float


BOUNDS: Final = (
    Bound("full scan, of uncompressed Parquet's speed (>= 0.7)", "full", "parquet full", 1 / 0.7),
    Bound(
        "full scan of zstd, of zstd Parquet's speed (>= 0.9)",
        "zstd full",
        "parquet zstd full",
        1 / 0.9,
    ),
    Bound("without bodies, times Parquet (<= 2.5)", "no bodies", "parquet no bodies", 2.5),
)
SCANNER_MIN: Final = 3.0
"""GB/s on one core, CRCs checked."""


@dataclass(slots=True)
class Measured:
    """Seconds of each case, by round."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def take(self, case: str, work: Callable[[], object]) -> None:
        """Measure a case once."""
        begin = time.perf_counter()
        work()
        self.seconds.setdefault(case, []).append(time.perf_counter() - begin)

    def median(self, case: str) -> float:
        return Figure(tuple(self.seconds[case])).median


def values(seed: int) -> Iterator[bytes]:
    """Texts of VALUE_BYTES, which compress about as well as JSON does."""
    rng = random.Random(seed)
    words = [rng.randbytes(rng.randint(2, 6)).hex().encode() for _ in range(WORDS)]
    texts = [b" ".join(rng.choices(words, k=160))[:VALUE_BYTES] for _ in range(512)]
    while True:
        yield from texts


def make_store(place: Path, records: int, codec: str) -> Path:
    """Let a broker take the records; return its data directory."""
    data = place / f"data-{codec}"
    command = [str(find_broker_command()), "serve", "--data-dir", str(data)]
    with (place / "log").open("a") as log:
        served = Served([*command, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"], log)
        create_topics(served.address, ("plain",), PARTITIONS, {})
        settings: dict[str, Any] = {"bootstrap.servers": served.address, "log_level": 3}
        settings |= {"compression.type": codec, "linger.ms": 20, "batch.size": 1 << 20}
        producer = Producer(settings)
        for number, value in zip(range(records), values(1), strict=False):
            at_ms = START_MS + number * DAY_MS // records
            while True:
                try:
                    producer.produce(
                        "plain",
                        value,
                        key=b"%d" % number,
                        partition=number % PARTITIONS,
                        timestamp=at_ms,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(120):
            raise BenchError("records were not accepted")
        served.stop(is_signalled=True)
    return data


def write_parquet(data: Path, target: Path, compression: str) -> None:
    """Write the messages as Parquet, a file for each task."""
    target.mkdir()
    query = Query(table="messages")
    for number, task in enumerate(tasks(open_plan(data), query)):
        path = target / f"{number:05d}.parquet"
        with pq.ParquetWriter(path, query.schema, compression=compression) as writer:
            for batch in task.batches():
                writer.write_batch(batch)


def scan(data: Path, query: Query) -> int:
    """Read a table in this process; return its rows."""
    rows = 0
    for task in tasks(open_plan(data), query):
        for batch in task.batches():
            rows += batch.num_rows
    return rows


HOUR: Final = Selection(timestamps=(START_MS + 9 * HOUR_MS, START_MS + 10 * HOUR_MS))
NO_BODIES: Final = ("topic", "partition", "offset", "store_timestamp")


def measure_scanner(measured: Measured, data: Path, packed: Path) -> None:
    """The cases without Spark, on one core."""
    measured.take("plan", lambda: open_plan(data))
    measured.take("scanner", lambda: scan(data, Query()))
    measured.take("scanner, no CRC", lambda: scan(data, Query(verifies=False)))
    measured.take("scanner, zstd", lambda: scan(packed, Query()))
    measured.take("scanner, one hour", lambda: scan(data, Query(selection=HOUR)))
    measured.take("scanner, queues", lambda: scan(data, Query(table="queues")))


class Spark:
    """A session, and what is measured in it."""

    def __init__(self, data: Path, packed: Path, plain: Path, zstd: Path) -> None:
        from compat.spark import session

        settings = {"spark.master": "local[2]", "spark.ui.enabled": "false"}
        settings |= {"spark.log.level": "OFF", "spark.ui.showConsoleProgress": "false"}
        self.session = session("bench-tables", settings)
        self._data, self._packed, self._plain, self._zstd = data, packed, plain, zstd

    def ours(self, data: Path, **options: Any) -> Any:
        """A table as a DataFrame."""
        reader = self.session.read.format("latermq").option("path", str(data))
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load()

    def parquet(self, path: Path) -> Any:
        return self.session.read.parquet(str(path))

    def measure(self, measured: Measured) -> None:
        """Measure each case once."""
        from pyspark.sql import functions as f

        def drained(frame: Any) -> None:
            frame.write.format("noop").mode("overwrite").save()

        def counted(frame: Any) -> None:
            frame.groupBy("topic", "partition", f.date_trunc("hour", "store_timestamp")).agg(
                f.count("*"), f.max("offset")
            ).collect()

        hour = {"startTimestamp": str(HOUR.timestamps[0]), "endTimestamp": str(HOUR.timestamps[1])}
        measured.take("empty", lambda: drained(self.ours(self._data, endTimestamp="1")))
        measured.take("full", lambda: drained(self.ours(self._data)))
        measured.take("parquet full", lambda: drained(self.parquet(self._plain)))
        measured.take("zstd full", lambda: drained(self.ours(self._packed)))
        measured.take("parquet zstd full", lambda: drained(self.parquet(self._zstd)))
        measured.take(
            "no bodies",
            lambda: counted(self.ours(self._data, table="queues", columns=",".join(NO_BODIES))),
        )
        measured.take("parquet no bodies", lambda: counted(self.parquet(self._plain)))
        measured.take("one hour", lambda: drained(self.ours(self._data, **hour)))


def report(measured: Measured, size: int, *, with_spark: bool) -> bool:
    """Print the table and the bounds; return whether all are met."""
    print("| case | median s | least .. most | GB/s of the log |")
    print("|---|---|---|---|")
    for case, seconds in measured.seconds.items():
        median = measured.median(case)
        rate = "" if "hour" in case or case in ("plan", "empty") else f"{size / GB / median:.2f}"
        print(f"| {case} | {median:.3f} | {min(seconds):.3f} .. {max(seconds):.3f} | {rate} |")
    print()
    speed = size / GB / measured.median("scanner")
    verdicts = [(f"scanner, GB/s on one core (>= {SCANNER_MIN})", speed, speed >= SCANNER_MIN)]
    if with_spark:
        for bound in BOUNDS:
            ratio = measured.median(bound.case) / measured.median(bound.of)
            shown = ratio if bound.at_most > 2 else 1 / ratio
            verdicts.append((bound.name, shown, ratio <= bound.at_most))
        fixed = measured.median("empty")
        share = (measured.median("one hour") - fixed) / (measured.median("full") - fixed)
        verdicts.append(("one hour of 24, share of a full scan (<= 0.10)", share, share <= 0.1))
    for name, found, is_met in verdicts:
        print(f"{name}: {found:.2f}, {'met' if is_met else 'MISSED'}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"memory of this process at most {peak:.0f} MiB")
    return all(is_met for _, _, is_met in verdicts)


@contextmanager
def prepared(records: int) -> Iterator[tuple[Path, Path, Path, Path]]:
    """Two stores, and Parquet of the same rows."""
    with build_directory() as directory, new_directory(directory) as place:
        data, packed = make_store(place, records, "none"), make_store(place, records, "zstd")
        plain, zstd = place / "plain", place / "zstd"
        write_parquet(data, plain, "none")
        write_parquet(data, zstd, "zstd")
        yield data, packed, plain, zstd


def run(options: argparse.Namespace) -> bool:
    """Measure and print."""
    print(machine_line())
    with prepared(options.records) as (data, packed, plain, zstd):
        plan = open_plan(data)
        rows = scan(data, Query())
        if rows != options.records or scan(packed, Query()) != rows:
            raise BenchError(f"{rows} rows of {options.records} records")
        print(f"{rows} records, {plan.end / GB:.2f} GB, {options.rounds} rounds\n")
        with_spark = not options.without_spark and importlib.util.find_spec("pyspark") is not None
        spark = Spark(data, packed, plain, zstd) if with_spark else None
        measured = Measured()
        if spark is not None:
            spark.measure(Measured())  # the first one loads classes
        for _ in range(options.rounds):
            measure_scanner(measured, data, packed)
            if spark is not None:
                spark.measure(measured)
        return report(measured, plan.end, with_spark=with_spark)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without-spark", action="store_true")
    options = parser.parse_args()
    try:
        return 0 if run(options) else 1
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
