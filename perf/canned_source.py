"""A Python data source of Spark that reads nothing: each task yields one batch over and over.

No Python data source can be faster with rows of that shape, so it says what a scanner can gain.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from compat.spark.schemas import arrow_schema, spark_schema
from compat.tables.table import Query


class CannedSource(DataSource):
    """The table `messages`, as often as `batches` of the rows in the file `path`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "canned"

    def schema(self) -> StructType:
        """Return all columns of messages."""
        return spark_schema(Query())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        return CannedReader(
            self.options["path"],
            int(self.options["batches"]),
            int(self.options["tasks"]),
            arrow_schema("messages", schema),
        )


class CannedReader(DataSourceReader):
    """Yields one batch again and again."""

    def __init__(self, path: str, batches: int, tasks: int, schema: pa.Schema) -> None:
        self._path = path
        self._batches = batches
        self._tasks = tasks
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Divide the batches among the tasks."""
        begins = [number * self._batches // self._tasks for number in range(self._tasks + 1)]
        return [InputPartition(behind - begin) for begin, behind in pairwise(begins)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batch."""
        with pa.ipc.open_file(self._path) as file:
            batch = file.get_batch(0).cast(self._schema)
        for _ in range(partition.value):
            yield batch
