"""The data source `latermq` of Spark, in the Python Data Source API. Layer 5.

Spark makes one `LatermqDataSource` for each `load()`, and pickles it. It notes how far the log goes
at that time, so that all actions of one DataFrame see the same rows. A reader is made for each
action: it plans the log, and its tasks travel to the executors.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from appliance.errors import ConfigError
from appliance.store.paths import DataPaths
from appliance.system.files import OsFileSystem
from compat.spark.filters import selection_of
from compat.spark.options import Options
from compat.spark.rows import TaskPartition, rows_of
from compat.spark.schemas import arrow_schema, spark_schema
from compat.spark.stream import LatermqStreamReader
from compat.tables.pin import Pin, take_pin
from compat.tables.table import Query, tasks

_READ_PLANNER: Final = "plan_data_source_read"


class LatermqDataSource(DataSource):
    """A table of a data directory."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Note what is asked for, and how far the log goes.

        Raises:
            ConfigError: an option is wrong, or it is not a data directory.
            StorageError: the directory cannot be read.
        """
        super().__init__(options)
        self._asked = Options.parse(options)
        if self._asked.needs_snapshot:
            check_snapshot(self._asked.root)
        self._pin = take_pin(self._asked.root)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "latermq"

    def schema(self) -> StructType:
        """Return the columns asked for."""
        return spark_schema(self._asked.query)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the table as it was when this source was made.

        A reader takes filters only on request. Spark keeps the plan of the last filters for all
        uses of a DataFrame, also for those without filters, so that a DataFrame that is used twice
        would lack rows (seen with Spark 4.2.0 and 4.3.0).

        Spark also refuses a reader that takes filters when its setting for that is off. Then it
        asks for a reader only where it plans without filters.
        """
        query = replace(self._asked.query, columns=tuple(schema.fieldNames()))
        takes = self._asked.takes_filters and not _plans_without_filters()
        kind = FilteringReader if takes else LatermqReader
        return kind(self._pin, query, arrow_schema(query.table, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's)
        """Return a reader of a stream.

        Raises:
            ConfigError: the table cannot be a stream.
        """
        query = replace(self._asked.query, columns=tuple(schema.fieldNames()))
        return LatermqStreamReader(
            self._asked.root, query, arrow_schema(query.table, schema), self._asked.trigger_bytes
        )


def check_snapshot(root: Path) -> None:
    """Check that a directory is a snapshot, which no broker changes.

    Raises:
        ConfigError: it is not.
    """
    if not OsFileSystem().exists(DataPaths(root).snapshot_mark):
        raise ConfigError(
            f"{root} is not a snapshot: `latermq snapshot list` shows those of a broker, `latermq "
            "snapshot create NAME` makes one"
        )


def _plans_without_filters() -> bool:
    """Return whether the caller of the caller is Spark's planner of scans without filters."""
    # Not by its name: it is run as a program as well.
    return Path(sys._getframe(2).f_code.co_filename).stem == _READ_PLANNER


class LatermqReader(DataSourceReader):
    """Reads a table once, without filters."""

    def __init__(self, pin: Pin, query: Query, schema: pa.Schema) -> None:
        self._pin = pin
        self._query = query
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Divide the table into tasks.

        Raises:
            LatermqError: the log cannot be read as it was; see `Pin.plan` and `tasks`.
        """
        plan = self._pin.plan(fails_on_loss=self._query.fails_on_loss)
        try:
            found = tasks(plan, self._query, end=self._pin.end)
            return [TaskPartition(task) for task in found]
        finally:
            plan.reader.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task.

        Raises:
            LatermqError: the log cannot be read; see `Task.batches`.
        """
        return rows_of(partition, self._schema)


class FilteringReader(LatermqReader):
    """Reads a table once, and leaves out what filters exclude."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 (Spark's name)
        """Leave out parts of the log that filters exclude.

        Returns:
            All filters: Spark applies them to the rows.
        """
        selection = self._query.selection.narrowed(selection_of(self._query.table, filters))
        self._query = replace(self._query, selection=selection)
        return filters
