"""One session of Spark for all tests of this directory."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compat.spark import needs, session
from tests.support.clients.client_setup import ClientMissingError, find
from tests.support.harness import offline_scenario

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Py4J and PySpark leave sockets and processes to the garbage collector.
QUIET = (
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore:distutils Version classes:DeprecationWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            for warning in QUIET:
                item.add_marker(pytest.mark.filterwarnings(warning))
    # The pipeline stops the session of its process, which the others share.
    items.sort(key=lambda item: item.path == here / "test_pipeline.py")


def connector_jars() -> list[Path]:
    """Spark's Kafka connector, nothing if it is not installed."""
    try:
        return sorted((find("spark_connector") / "jars").iterdir())
    except ClientMissingError:
        return []


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """The session; tests are skipped where it cannot be started."""
    if (missing := needs.find_missing()) is not None:
        pytest.skip(missing)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    scratch = tmp_path_factory.mktemp("spark")
    # A short life is faster without the second compiler of Java and without generated code.
    started = session(
        "latermq tests",
        {
            "spark.master": "local[2]",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.driver.memory": "700m",
            "spark.jars": ",".join(map(str, connector_jars())),
            "spark.local.dir": str(scratch / "local"),
            "spark.log.level": "OFF",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.metricsEnabled": "false",
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        },
    )
    yield started
    started.stop()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that a broker left after it did a bit of everything."""
    return offline_scenario.export(offline_scenario.stopped(), tmp_path_factory.mktemp("store"))
