"""What the tests of Spark share: tables as plain rows, and the same facts from `latermq dump`."""

import base64
import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.harness.appliance_process import latermq_command

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]


def load(spark: "SparkSession", root: Path, table: str = "messages", **options: str) -> "DataFrame":
    """A table of a data directory."""
    reader = spark.read.format("latermq").option("table", table)
    return reader.options(**options).load(str(root))


def rows(df: "DataFrame") -> list[Row]:
    """The rows of a DataFrame in their order, instants as epoch ms."""
    return [_plain(row.asDict(recursive=True)) for row in df.collect()]


def in_order(found: list[Row]) -> list[Row]:
    """Rows in an order that depends on their content alone."""
    return sorted(found, key=repr)


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case datetime():
            # PySpark gives naive instants in the zone of the process.
            return round(value.astimezone(UTC).timestamp() * 1000)
        case bytearray():
            return bytes(value)
        case _:
            return value


def dump(root: Path, what: str = "frames", *options: str) -> list[Row]:
    """What `latermq dump --json` shows of a directory."""
    command = [latermq_command(), "dump", str(root), what, "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines()]


def octets(shown: Any) -> bytes | None:
    """The bytes that a dump shows as a text or in base64."""
    if isinstance(shown, dict):
        return base64.b64decode(shown["base64"])
    return None if shown is None else str(shown).encode()


def error_of(df_or_reader: Any) -> str:
    """The message of the error that reading ends with."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException  # not at the top: it may not be installed

    try:
        df_or_reader()
    except (PySparkException, Py4JError) as error:
        return str(error)
    raise AssertionError("there is no error")
