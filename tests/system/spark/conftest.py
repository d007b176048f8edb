"""One session of Spark for all tests of this directory."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compat.spark import needs, session
from tests.support.harness import offline_scenario
from tests.system.spark.machine import Machine

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
    # A Java machine has one session at a time: of processes first, then that of the other tests.
    ours = [number for number, item in enumerate(items) if here in item.path.parents]
    ordered = sorted((items[number] for number in ours), key=shares_session)
    for number, item in zip(ours, ordered, strict=True):
        items[number] = item


def shares_session(item: pytest.Item) -> bool:
    return "machine" not in getattr(item, "fixturenames", ()) or "spark" in item.fixturenames


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """The Java machine, for tests of which processes have sessions of their own."""
    if (missing := needs.find_missing()) is not None:
        pytest.skip(missing)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    made = Machine(tmp_path_factory.mktemp("home"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def spark(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """The session that most tests share; tests are skipped where it cannot be started."""
    from pyspark import SparkContext

    scratch = tmp_path_factory.mktemp("spark")
    SparkContext._ensure_initialized(gateway=machine.gateway)
    started = session(
        "latermq tests",
        {
            "spark.master": "local[2]",
            "spark.local.dir": str(scratch / "local"),
            "spark.log.level": "OFF",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.streaming.metricsEnabled": "false",
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        },
    )
    yield started
    started.stop()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that a broker left after it did a bit of everything."""
    return offline_scenario.export(offline_scenario.stopped(), tmp_path_factory.mktemp("store"))
