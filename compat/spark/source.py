"""The data source `latermq` of Spark, in the Python Data Source API. Layer 5.

One `LatermqDataSource` is made for each `load()`. It plans the log once, so that all actions of one
DataFrame see the same snapshot. Spark pickles it; the plan stays behind, its tasks travel.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from compat.spark.options import Options
from compat.tables.batches import Task
from compat.tables.table import open_plan, tasks


class TaskPartition(InputPartition):
    """One task of a table."""

    def __init__(self, task: Task) -> None:
        super().__init__(None)
        self.task = task


class LatermqDataSource(DataSource):
    """Tables of a data directory."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._parsed = Options.parse(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "latermq"

    def schema(self) -> StructType:
        """Return the columns asked for."""
        return from_arrow_schema(self._parsed.query.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the table as it is now."""
        return LatermqReader(self._parsed)


class LatermqReader(DataSourceReader):
    """Reads a table once."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Divide the table into tasks."""
        plan = open_plan(self._options.root)
        return [TaskPartition(task) for task in tasks(plan, self._options.query)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        # Spark makes one partition out of none.
        if isinstance(partition, TaskPartition):
            yield from partition.task.batches()

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options}
