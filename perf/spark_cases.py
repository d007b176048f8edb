"""What `perf.tables` measures in Spark. It is imported only where PySpark is installed."""

import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import functions as f

from compat.spark import session
from compat.tables.table import Query, open_plan, tasks
from perf.brokers import find_broker_command
from perf.canned_source import CannedSource
from perf.machine import REPOSITORY, BenchError
from perf.table_cases import HOUR, NO_BODIES, Measured, Stores

JARS: Final = REPOSITORY / "build" / "clients" / "spark_connector" / "jars"
KAFKA_COLUMNS: Final = "key,value,topic,partition,offset,timestamp,timestampType"
KIB: Final = 1024
ZSTD_LEVEL: Final = 1
"""Of an export. Spark's own is 3, which takes more time for smaller files."""


class Spark:
    """A session, and what is measured in it."""

    def __init__(self, stores: Stores) -> None:
        settings = {"spark.master": "local[2]", "spark.ui.enabled": "false"}
        settings |= {"spark.log.level": "OFF", "spark.ui.showConsoleProgress": "false"}
        settings |= {"spark.driver.memory": "2g"}
        jars = sorted(map(str, JARS.glob("*.jar")))
        settings["spark.driver.extraClassPath"] = ":".join(jars)
        self.session = session("bench-tables", settings)
        self.session.dataSource.register(CannedSource)
        self.has_connector = bool(jars)
        self._stores = stores
        self._written = 0
        self._canned = self._make_canned()

    def _make_canned(self) -> tuple[Path, int]:
        """Write one batch as the scanner makes it; return its file, and how many make a scan."""
        found = tasks(open_plan(self._stores.data), Query())
        first = next(found[0].batches())
        count = sum(batch.num_rows for task in found for batch in task.batches())
        path = self._stores.place / "canned.arrow"
        with pa.ipc.new_file(path, first.schema) as writer:
            writer.write_batch(first)
        return path, round(count / first.num_rows)

    def ours(self, data: Path, **options: Any) -> Any:
        """A table as a DataFrame."""
        return self.session.read.format("latermq").options(**options).load(str(data))

    def parquet(self, path: Path) -> Any:
        """Parquet files as a DataFrame."""
        return self.session.read.parquet(str(path))

    def canned(self) -> Any:
        """As many rows as the log has, without reading it."""
        path, batches = self._canned
        options = {"path": str(path), "batches": batches, "tasks": 2}
        return self.session.read.format("canned").options(**options).load()

    def kafka(self) -> Any:
        """The topic, from the broker."""
        reader = self.session.read.format("kafka").option("subscribe", "plain")
        return reader.option("kafka.bootstrap.servers", self._stores.address).load()

    def measure(self, measured: Measured) -> None:
        """Measure each case once."""
        data, packed = self._stores.data, self._stores.packed
        hour = {"startTimestamp": str(HOUR.timestamps[0]), "endTimestamp": str(HOUR.timestamps[1])}
        measured.take("empty", lambda: drained(self.ours(data, endTimestamp="1")))
        measured.take("full", lambda: drained(self.ours(data)))
        measured.take("full, a tenth", lambda: drained(self.ours(self._stores.tenth)))
        measured.take("canned", lambda: drained(self.canned()))
        measured.take("parquet full", lambda: drained(self.parquet(self._stores.plain)))
        measured.take("zstd full", lambda: drained(self.ours(packed)))
        measured.take("parquet zstd full", lambda: drained(self.parquet(self._stores.zstd)))
        measured.take(
            "no bodies",
            lambda: counted(self.ours(data, table="queues", columns=",".join(NO_BODIES))),
        )
        measured.take("parquet no bodies", lambda: counted(self.parquet(self._stores.plain)))
        measured.take("one hour", lambda: drained(self.ours(data, **hour)))
        if self.has_connector:
            columns = {"columns": KAFKA_COLUMNS}
            measured.take("as Kafka's columns", lambda: drained(self.ours(data, **columns)))
            measured.take("Kafka source", lambda: drained(self.kafka()))
        # Both choose snappy by themselves.
        self._measure_writing(measured, "export", partial(self._export, None))
        self._measure_writing(measured, "df.write.parquet", partial(self._write_parquet, None))
        for name, spark_name in (("none", "uncompressed"), ("zstd", "zstd")):
            self._measure_writing(measured, f"export {name}", partial(self._export, name))
            write = partial(self._write_parquet, spark_name)
            self._measure_writing(measured, f"df.write.parquet {name}", write)
        name, write = "df.write.parquet zstd at its own level", partial(self._write_parquet, "zstd")
        self._measure_writing(measured, name, partial(write, level=None))

    def _measure_writing(self, measured: Measured, name: str, write: Callable[[], None]) -> None:
        measured.take(name, write)
        self._remove_written()

    def _export(self, compression: str | None) -> None:
        command = [str(find_broker_command()), "export", str(self._stores.data)]
        command += ["--out", str(self._new_target())]
        command += [] if compression is None else ["--compression", compression]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchError(f"export failed: {done.stderr}")

    def _write_parquet(self, compression: str | None, level: int | None = ZSTD_LEVEL) -> None:
        writer = self.ours(self._stores.data).write
        if level is not None:
            writer = writer.option("parquet.compression.codec.zstd.level", str(level))
        if compression is not None:
            writer = writer.option("compression", compression)
        writer.parquet(str(self._new_target()))

    def _new_target(self) -> Path:
        """Return a directory to write to, which does not exist."""
        self._written += 1
        return self._stores.place / f"written-{self._written}"

    def _remove_written(self) -> None:
        """Remove what was written. To remove a GB takes as long as to write it in some formats."""
        for path in self._stores.place.glob("written-*"):
            shutil.rmtree(path)

    def worker_peaks(self) -> dict[str, float]:
        """Return the most MiB that a Python process of Spark has in memory, by sizes of parts."""
        found = {}
        for name, store in (("32 MiB", self._stores.small), ("1 GiB", self._stores.data)):
            for split in ("16m", "1g"):
                for pid in self._workers():
                    (Path("/proc") / str(pid) / "clear_refs").write_text("5")
                drained(self.ours(store, splitBytes=split))
                peaks = [_peak_kib(pid) for pid in self._workers()]
                found[f"segments of {name}, parts of {split}"] = max(peaks) / KIB
        return found

    def _workers(self) -> list[int]:
        """The processes that Spark's daemons forked off."""
        listed = subprocess.run(
            ["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True
        ).stdout.splitlines()[1:]
        fields = (line.split(None, 2) for line in listed)
        rows = [(int(pid), int(parent), args) for pid, parent, args in fields]
        java = self.session.sparkContext._gateway.proc.pid
        daemons = {pid for pid, parent, args in rows if parent == java and "daemon" in args}
        return [pid for pid, parent, _ in rows if parent in daemons]


def _peak_kib(pid: int) -> int:
    status = (Path("/proc") / str(pid) / "status").read_text()
    (line,) = (each for each in status.splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1])


def drained(frame: Any) -> None:
    """Compute all rows, and keep none."""
    frame.write.format("noop").mode("overwrite").save()


def counted(frame: Any) -> None:
    """Count by topic, partition and hour."""
    hour = f.date_trunc("hour", "store_timestamp")
    frame.groupBy("topic", "partition", hour).agg(f.count("*"), f.max("offset")).collect()
