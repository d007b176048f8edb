"""Spark reads the segments: `register(spark)`, then `spark.read.format("latermq")`.

docs/SPARK.md describes it. Importing this package loads neither PySpark nor PyArrow. Layer 5.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from compat.spark import needs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


DEFAULTS: Final = {"spark.python.unix.domain.socket.enabled": "true"}
"""Settings of Spark that `session` makes: rows take a fifth less time than through TCP."""


def register(spark: "SparkSession") -> None:
    """Make the format `latermq` known to a session.

    Raises:
        ConfigError: a library is missing.
    """
    needs.check_libraries()
    from compat.spark.source import LatermqDataSource

    spark.dataSource.register(LatermqDataSource)


def session(name: str = "latermq", settings: Mapping[str, str] | None = None) -> "SparkSession":
    """Return the session of this process with the format `latermq`; start one if there is none.

    Args:
        name: of the application.
        settings: of Spark, such as `{"spark.master": "local[4]"}`.

    Raises:
        ConfigError: Java or a library is missing; the message says how to install it.
    """
    needs.check_all()
    from pyspark.sql import SparkSession

    needs.choose_python()
    needs.choose_home()
    builder = SparkSession.builder.appName(name)
    for key, value in (DEFAULTS | dict(settings or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark
