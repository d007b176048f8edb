"""The hourly tables, computed by Spark from the facts. Layer 5.

Nothing here depends on the time zone of the session: hours and days are computed from microseconds.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from compat.pipeline.layout import AGGREGATES, FACTS, Partition
from compat.pipeline.manifest import DataFile, Manifest

_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US

_ENDS: Final = ("delivered", "cancelled", "replaced", "deleted")
_PENDING: Final = " - ".join(["accepted", *_ENDS])


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a commit, as DataFrames.

    Attributes:
        spark: the session.
        root: the output directory.
        manifest: the commit.
    """

    spark: SparkSession
    root: Path
    manifest: Manifest

    def hourly(self, partitions: frozenset[Partition]) -> DataFrame:
        """Return the rows of `hourly` for some partitions."""
        of = self.manifest.files_of
        messages = self._read("messages", of("messages", partitions), "store_timestamp", "size")
        accepted = self._read("accepted", of("accepted", partitions), "accepted_at")
        completed = self._read(
            "completed", of("completed", partitions), "completed_at", "delay_state"
        )
        names = ("messages", "bytes", "accepted", *_ENDS)
        counts = _summed(
            names,
            [
                _counted(
                    messages, "store_timestamp", names, messages=F.lit(1), bytes=F.col("size")
                ),
                _counted(accepted, "accepted_at", names, accepted=F.lit(1)),
                _counted(completed, "completed_at", names, **_ends()),
            ],
        )
        backlog = (
            f"before + SUM({_PENDING}) OVER (PARTITION BY topic, date ORDER BY hour) AS backlog"
        )
        before = self._pairs(partitions, self._backlogs_before(sorted(partitions)))
        return counts.join(F.broadcast(before), ["topic", "date"]).selectExpr(
            "topic", "date", "hour", *names, backlog
        )

    def lateness(self, partitions: frozenset[Partition]) -> DataFrame:
        """Return the rows of `lateness` for some partitions, which are those of the due dates."""
        files = _overlapping(self.manifest, partitions, by="due")
        delivered = self._read("completed", files, "due_at", "delay_state", "lateness_ms")
        wanted = self._pairs(partitions, [0] * len(partitions)).drop("before")
        return (
            delivered.where("delay_state = 'delivered'")
            .select("topic", _date("due_at"), _hour("due_at"), "lateness_ms")
            .join(F.broadcast(wanted), ["topic", "date"], "left_semi")
            .groupBy("topic", "date", "hour")
            .agg(
                F.count("*").alias("delivered"),
                *[
                    F.expr(f"percentile_disc({share}) WITHIN GROUP (ORDER BY lateness_ms)")
                    .cast("long")
                    .alias(name)
                    for name, share in (("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99))
                ],
                F.max("lateness_ms").alias("max_ms"),
            )
        )

    def outcomes(self, partitions: frozenset[Partition]) -> DataFrame:
        """Return the rows of `outcomes` for some partitions."""
        files = _overlapping(self.manifest, partitions, by="accepted")
        accepted = self._read(
            "accepted", self.manifest.files_of("accepted", partitions), "accepted_at"
        )
        completed = self._read("completed", files, "accepted_at", "delay_state")
        wanted = self._pairs(partitions, [0] * len(partitions)).drop("before")
        names = ("accepted", *_ENDS)
        return (
            _summed(
                names,
                [
                    _counted(accepted, "accepted_at", names, accepted=F.lit(1)),
                    _counted(completed, "accepted_at", names, **_ends()),
                ],
            )
            .join(F.broadcast(wanted), ["topic", "date"], "left_semi")
            .selectExpr(
                *("topic", "date", "hour"),
                *names,
                f"{_PENDING} AS pending",
            )
        )

    def _backlogs_before(self, partitions: Sequence[Partition]) -> list[int]:
        """Return the timers pending when each date begins, by the numbers of rows of facts."""
        changes: dict[str, dict[str, int]] = {}
        for table, sign in (("accepted", 1), ("completed", -1)):
            for file in self.manifest.files_of(table):
                topic, date = file.partition
                dates = changes.setdefault(topic, {})
                dates[date] = dates.get(date, 0) + sign * file.rows
        found = {
            topic: (sorted(dates), [0, *accumulate(dates[date] for date in sorted(dates))])
            for topic, dates in changes.items()
        }
        none: tuple[list[str], list[int]] = [], [0]
        return [
            found.get(topic, none)[1][bisect_left(found.get(topic, none)[0], date)]
            for topic, date in partitions
        ]

    def _pairs(self, partitions: Iterable[Partition], before: Sequence[int]) -> DataFrame:
        rows = [(*each, value) for each, value in zip(sorted(partitions), before, strict=True)]
        schema = StructType(
            [
                StructField("topic", StringType()),
                StructField("text", StringType()),
                StructField("before", LongType()),
            ]
        )
        made = self.spark.createDataFrame(rows, schema)
        return made.select("topic", F.to_date("text").alias("date"), "before")

    def _read(self, table: str, files: Sequence[DataFile], *columns: str) -> DataFrame:
        """Read columns of some files; topic and date come from their paths."""
        fields = [FACTS[table].field(name) for name in columns]
        schema = from_arrow_schema(pa.schema(fields))
        schema = schema.add("topic", StringType()).add("date", DateType())
        if not files:
            return self.spark.createDataFrame([], schema)
        # Not `as_uri`, which escapes characters that Hadoop does not unescape.
        base = f"file://{self.root.absolute()}"
        paths = [f"{base}/{file.path}" for file in files]
        reader = self.spark.read.schema(schema).option("basePath", f"{base}/{table}")
        return reader.parquet(*paths)


def _overlapping(
    manifest: Manifest, partitions: frozenset[Partition], *, by: str
) -> list[DataFile]:
    """Return the files of completions that may have timers of some dates."""
    dates: dict[str, list[str]] = {}
    for topic, date in partitions:
        dates.setdefault(topic, []).append(date)
    return [
        file
        for file in manifest.files_of("completed")
        if (span := file.due if by == "due" else file.accepted) is not None
        and span.holds(dates.get(file.partition[0], ()))
    ]


def _hour(column: str) -> Column:
    return F.expr(f"timestamp_micros(unix_micros({column}) DIV {_HOUR_US} * {_HOUR_US})").alias(
        "hour"
    )


def _date(column: str) -> Column:
    return F.expr(f"date_from_unix_date(INT(unix_micros({column}) DIV {_DAY_US}))").alias("date")


def _ends() -> dict[str, Column]:
    return {name: F.expr(f"INT(delay_state = '{name}')") for name in _ENDS}


def _counted(facts: DataFrame, instant: str, names: Sequence[str], **values: Column) -> DataFrame:
    """Return one row for each fact, with what it adds to each sum."""
    sums = [values.get(name, F.lit(0)).cast("long").alias(name) for name in names]
    return facts.select("topic", _date(instant), _hour(instant), *sums)


def _summed(names: Sequence[str], parts: Sequence[DataFrame]) -> DataFrame:
    everything = parts[0]
    for part in parts[1:]:
        everything = everything.unionByName(part)
    sums = [F.sum(name).alias(name) for name in names]
    return everything.groupBy("topic", "date", "hour").agg(*sums)


def due(counts: DataFrame) -> DataFrame:
    """Return the rows of `due` from counts by topic and hour, of each part of the log."""
    hours = F.expr("timestamp_micros(hour_us)")
    return (
        counts.groupBy("topic", "hour_us")
        .agg(F.sum("pending").alias("pending"))
        .select("topic", hours.alias("hour"), "pending")
        .select("topic", _date("hour"), "hour", "pending")
    )


DUE_COUNTS: Final = "topic string, hour_us long, pending long"


def by_partition(table: str, rows: DataFrame) -> Iterable[tuple[Partition, pa.Table]]:
    """Collect an aggregate, and divide it into the contents of its files."""
    names = [column.name for column in AGGREGATES[table]]
    found = rows.select("topic", F.date_format("date", "yyyy-MM-dd").alias("date"), *names)
    collected = found.toArrow().sort_by([(name, "ascending") for name in ("topic", "date", "hour")])
    topics, dates = (collected[name].to_pylist() for name in ("topic", "date"))
    start = 0
    for at in range(1, len(topics) + 1):
        if at == len(topics) or (topics[at], dates[at]) != (topics[start], dates[start]):
            yield (topics[start], dates[start]), collected.select(names).slice(start, at - start)
            start = at
