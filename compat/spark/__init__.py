"""Spark reads the segments: `register(spark)`, then `spark.read.format("latermq")`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make the format `latermq` known to a session."""
    # Imported here so that naming this package does not load PySpark.
    from compat.spark.source import LatermqDataSource

    spark.dataSource.register(LatermqDataSource)
