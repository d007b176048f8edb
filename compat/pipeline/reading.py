"""Reads the tables of one commit, for those who must never see half of the next. Layer 5.

Who reads the directories themselves sees each file whole, but while a commit moves its files he may
see some of them and not others.
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DateType, StringType

from appliance.errors import ConfigError
from appliance.system.files import OsFileSystem
from compat.pipeline.layout import AGGREGATES, FACTS, aggregate_schema
from compat.pipeline.target import is_moving, read_manifest


def load(spark: SparkSession, out: str | Path, table: str) -> DataFrame:
    """Return a table of the last commit, with its columns, `topic` and `date`.

    A file that a later commit supersedes disappears: then load the table again.

    Raises:
        ConfigError: there is no such table, `out` has none, or the files of the last commit are not
            at their places yet.
    """
    if table not in FACTS and table not in AGGREGATES:
        names = ", ".join([*FACTS, *AGGREGATES])
        raise ConfigError(f"there is no table {table!r}: use one of {names}")
    root = Path(out).absolute()
    fs = OsFileSystem()
    manifest = read_manifest(fs, root)
    if is_moving(fs, root, manifest):
        raise ConfigError(
            f"a run is moving files of {root} to their places: try again; if it was killed, the "
            "next run goes on with it"
        )
    if manifest.sequence == 0:
        raise ConfigError(f"{root} is not an output directory: latermq pipeline run makes one")
    columns = FACTS[table] if table in FACTS else aggregate_schema(table)
    schema = from_arrow_schema(columns).add("topic", StringType()).add("date", DateType())
    files = manifest.files_of(table)
    if not files:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", f"file://{root}/{table}")
    return reader.parquet(*[f"file://{root}/{file.path}" for file in files])
