"""Rows of a task in the schema that Spark expects, in an executor. Layer 5."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from compat.tables.batches import Task


class TaskPartition(InputPartition):
    """One task of a table."""

    def __init__(self, task: Task) -> None:
        super().__init__(None)
        self.task = task


def rows_of(partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task.

    Args:
        partition: a `TaskPartition`; any other one has no rows, since Spark makes one partition
            out of none.
        schema: like that of the task, but for what may be null.

    Raises:
        SegmentGoneError: a segment is not there any more, and losses are not accepted.
    """
    if not isinstance(partition, TaskPartition):
        return
    for batch in partition.task.batches():
        yield batch if batch.schema.equals(schema) else batch.cast(schema)
