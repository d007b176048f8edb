"""How fast the log is read as tables: the scanner alone, and Spark beside Parquet of the same rows.

    make bench-tables                          # or: python -m perf.tables
    python -m perf.tables --records 200000 --rounds 1 --without-spark

A broker takes records of 1 KiB, whose timestamps spread over 24 hours: once without compression,
once with zstd by the client. Parquet files of the same rows are written beside, uncompressed and
with zstd, and a broker runs on the log, for Spark's own Kafka source (`make clients` gets it).
Every round measures each case once, in turn; the table has medians. The bounds are those
that the project sets itself; exit status 1 if one is missed.
"""

import argparse
import importlib.util
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer

from appliance.units import GIB, MIB
from compat.tables.table import Query, open_plan, tasks
from perf.brokers import Served, create_topics, find_broker_command, new_directory
from perf.machine import BenchError, build_directory, machine_line
from perf.table_cases import HOUR, HOUR_MS, START_MS, Measured, Stores

RECORDS: Final = 1_000_000
VALUE_BYTES: Final = 1_024
DAY_MS: Final = 24 * HOUR_MS
PARTITIONS: Final = 4
GB: Final = 1e9
WORDS: Final = 4_096
ITEMS: Final = 20_000
ITEMS_EACH: Final = 9
"""As many as are longer than VALUE_BYTES."""

ROW_GROUP_BYTES: Final = 64 * MIB
SMALL_SEGMENT_BYTES: Final = 32 * MIB


@dataclass(frozen=True, slots=True)
class Bound:
    """How many times as fast as another case one must be.

    Attributes:
        name: what to print.
        case, of: the two cases.
        least: what is wanted; None if the ratio is shown only.
    """

    name: str
    case: str
    of: str
    least: float | None


BOUNDS: Final = (
    Bound("full scan, of uncompressed Parquet's speed", "full", "parquet full", 0.7),
    Bound("full scan of zstd, of zstd Parquet's speed", "zstd full", "parquet zstd full", 0.9),
    Bound("full scan, of the speed of a source that reads nothing", "full", "canned", None),
    Bound("full scan, times Spark's Kafka source", "as Kafka's columns", "Kafka source", 3),
    Bound("without bodies, of Parquet's speed", "no bodies", "parquet no bodies", 0.4),
    Bound("export, times df.write.parquet, both with snappy", "export", "df.write.parquet", 2.5),
    Bound("export uncompressed, times the same", "export none", "df.write.parquet none", 2.5),
    Bound(
        "export with zstd, times the same at the same level",
        "export zstd",
        "df.write.parquet zstd",
        None,
    ),
    Bound(
        "export with zstd, times the same at Spark's own level",
        "export zstd",
        "df.write.parquet zstd at its own level",
        None,
    ),
)
SCANNER_MIN: Final = 3.0
"""GB/s on one core, CRCs checked."""
GROWTHS: Final = (("plan", None), ("scanner", None), ("full", "empty"))
"""Cases that are measured with a tenth of the data as well, and the case that is their fixed part.
"""
GROWTH_MAX: Final = 12.0
"""Times as long with ten times the data: in proportion, and a fifth for what is noise."""


def values(seed: int) -> Iterator[bytes]:
    """Orders as JSON of VALUE_BYTES, as services send them: no two are equal.

    What repeats are names of fields, words and prices; ids and hashes do not.
    """
    rng = random.Random(seed)
    words = [rng.randbytes(rng.randint(2, 6)).hex() for _ in range(WORDS)]
    items = [
        f'{{"sku":"{rng.getrandbits(40):010X}","name":"{" ".join(rng.choices(words, k=3))}",'
        f'"quantity":{rng.randint(1, 9)},"price":{rng.randint(99, 99_999)},"currency":"EUR"}}'
        for _ in range(ITEMS)
    ]
    number = 0
    while True:
        number += 1
        head = (
            f'{{"order":{number},"id":"{rng.getrandbits(128):032x}","status":"placed",'
            f'"customer":{{"id":{rng.getrandbits(32)},"city":"{rng.choice(words)}"}},"items":['
        )
        order = (head + ",".join(rng.choices(items, k=ITEMS_EACH))).encode()
        yield order[: VALUE_BYTES - 2] + b"]}"


def serve(data: Path, log: IO[str], segment_bytes: int = GIB) -> Served:
    """Start a broker."""
    config = data.with_suffix(".toml")
    # A segment must hold the largest frame.
    frame_bytes = min(segment_bytes // 8, 4 * MIB)
    config.write_text(
        f"store.segment_size_bytes = {segment_bytes}\n"
        f"limits.record_size_max_bytes = {frame_bytes}\n"
        f"limits.decompressed_size_max_bytes = {frame_bytes}\n"
        f"delay.delivery_batch_max_bytes = {MIB}\n"
    )
    command = [str(find_broker_command()), "serve", "--data-dir", str(data)]
    command += ["--config", str(config), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    return Served(command, log)


def make_store(data: Path, records: int, codec: str, segment_bytes: int = GIB) -> Path:
    """Let a broker take the records; return its data directory."""
    with (data.parent / "log").open("a") as log:
        served = serve(data, log, segment_bytes)
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
            group: list[pa.RecordBatch] = []
            for batch in task.batches():
                group.append(batch)
                if sum(each.nbytes for each in group) >= ROW_GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(group))
                    group.clear()
            if group:
                writer.write_table(pa.Table.from_batches(group))


def scan(data: Path, query: Query) -> int:
    """Read a table in this process; return its rows."""
    rows = 0
    for task in tasks(open_plan(data), query):
        for batch in task.batches():
            rows += batch.num_rows
    return rows


def measure_scanner(measured: Measured, stores: Stores) -> None:
    """The cases without Spark, on one core."""
    data = stores.data
    measured.take("plan", lambda: open_plan(data))
    measured.take("plan, a tenth", lambda: open_plan(stores.tenth))
    measured.take("scanner, a tenth", lambda: scan(stores.tenth, Query()))
    measured.take("scanner", lambda: scan(data, Query()))
    measured.take("scanner, no CRC", lambda: scan(data, Query(verifies=False)))
    measured.take("scanner, zstd", lambda: scan(stores.packed, Query()))
    measured.take("scanner, one hour", lambda: scan(data, Query(selection=HOUR)))
    measured.take("scanner, queues", lambda: scan(data, Query(table="queues")))


def report(measured: Measured, size: int) -> bool:
    """Print the table and the bounds; return whether all are met."""
    print("| case | median s | least .. most | GB/s of the log |")
    print("|---|---|---|---|")
    for case, seconds in measured.seconds.items():
        median = measured.median(case)
        is_part = "hour" in case or "tenth" in case or case in ("plan", "empty")
        rate = "" if is_part else f"{size / GB / median:.2f}"
        print(f"| {case} | {median:.3f} | {min(seconds):.3f} .. {max(seconds):.3f} | {rate} |")
    print()
    verdicts = []
    if "scanner" in measured.seconds:
        speed = size / GB / measured.median("scanner")
        name = f"scanner, GB/s on one core (>= {SCANNER_MIN})"
        verdicts.append((name, speed, speed >= SCANNER_MIN))
    for bound in BOUNDS:
        if {bound.case, bound.of} <= measured.seconds.keys():
            ratio = measured.median(bound.of) / measured.median(bound.case)
            wanted = "" if bound.least is None else f" (>= {bound.least})"
            verdicts.append((bound.name + wanted, ratio, ratio >= (bound.least or 0)))
    if {"empty", "full", "one hour"} <= measured.seconds.keys():
        fixed = measured.median("empty")
        share = (measured.median("one hour") - fixed) / (measured.median("full") - fixed)
        verdicts.append(("one hour of 24, share of a full scan (<= 0.10)", share, share <= 0.1))
    verdicts += growths(measured)
    for name, found, is_met in verdicts:
        print(f"{name}: {found:.2f}, {'met' if is_met else 'MISSED'}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"memory of this process at most {peak:.0f} MiB")
    return all(is_met for _, _, is_met in verdicts)


def growths(measured: Measured) -> Iterator[tuple[str, float, bool]]:
    """Yield a name, how many times as long ten times the data takes, and whether that is linear."""
    for case, fixed_case in GROWTHS:
        tenth = f"{case}, a tenth"
        if {case, tenth, fixed_case or case} <= measured.seconds.keys():
            fixed = 0.0 if fixed_case is None else measured.median(fixed_case)
            ratio = (measured.median(case) - fixed) / (measured.median(tenth) - fixed)
            name = f"{case}, ten times the data (<= {GROWTH_MAX:.0f})"
            yield name, ratio, ratio <= GROWTH_MAX


def peak_mib(data: Path) -> float:
    """Return the most MiB that a process has in memory that plans and scans a log."""
    # Not by getrusage, which counts what this process had before the other program began.
    program = (
        "import sys; from pathlib import Path; from perf.tables import Query, scan; "
        "scan(Path(sys.argv[1]), Query()); print(Path('/proc/self/status').read_text())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(data)], capture_output=True, text=True, check=True
    )
    (line,) = (each for each in done.stdout.splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


@contextmanager
def prepared(records: int) -> Iterator[Stores]:
    """The stores, Parquet of the same rows, and a broker."""
    with build_directory() as directory, new_directory(directory) as place:
        data = make_store(place / "data", records, "none")
        stores = Stores(
            place=place,
            data=data,
            packed=make_store(place / "packed", records, "zstd"),
            small=make_store(place / "small", records // 5, "none", SMALL_SEGMENT_BYTES),
            tenth=make_store(place / "tenth", records // 10, "none"),
            plain=place / "plain",
            zstd=place / "zstd",
            address="",
        )
        write_parquet(data, stores.plain, "none")
        write_parquet(data, stores.zstd, "zstd")
        with (place / "log").open("a") as log:
            served = serve(data, log)
            try:
                yield replace(stores, address=served.address)
            finally:
                served.stop(is_signalled=True)


def run(options: argparse.Namespace) -> bool:
    """Measure and print."""
    print(machine_line())
    with prepared(options.records) as stores:
        plan = open_plan(stores.data)
        rows = scan(stores.data, Query())
        if rows != options.records or scan(stores.packed, Query()) != rows:
            raise BenchError(f"{rows} rows of {options.records} records")
        print(f"{rows} records, {plan.end / GB:.2f} GB, {options.rounds} rounds\n")
        spark = None
        if not options.without_spark and importlib.util.find_spec("pyspark") is not None:
            from perf.spark_cases import Spark

            spark = Spark(stores)
        measured = Measured(options.only)
        if spark is not None:
            spark.measure(Measured(options.only))  # the first one loads classes
        for _ in range(options.rounds):
            measure_scanner(measured, stores)
            if spark is not None:
                spark.measure(measured)
        is_met = report(measured, plan.end)
        least, most = peak_mib(stores.tenth), peak_mib(stores.data)
        print(f"memory of a process that scans: a tenth {least:.0f} MiB, all {most:.0f} MiB")
        for name, mib in ({} if spark is None else spark.worker_peaks()).items():
            print(f"memory of a Python process of Spark, {name}: {mib:.0f} MiB")
        return is_met


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="a regular expression of cases")
    parser.add_argument("--without-spark", action="store_true")
    options = parser.parse_args()
    try:
        return 0 if run(options) else 1
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
