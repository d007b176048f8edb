"""Runs the pipeline in a Spark session, once or again and again. Layer 5."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Final

from appliance.errors import ConfigError
from appliance.system.files import FileSystem, OsFileSystem
from appliance.units import MS_PER_SECOND, parse_duration_ms
from compat.spark.needs import JAVA_PACKAGE, check_all, choose_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL: Final = "local[*]"
"""The master if neither the command nor spark-submit names one: this machine."""

_ANY_PYTHON: Final = "python3"
"""What PySpark runs on executors unless PYSPARK_PYTHON says otherwise."""

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    # What is left of a run after its first aggregation is small.
    "spark.sql.shuffle.partitions": "8",
}

_JAVA_SETTINGS: Final = {
    # Spark logs warnings, and how to turn them off, before `setLogLevel` can take effect.
    "spark.driver.defaultJavaOptions": "-Dlog4j2.configurationFile="
    + Path(__file__).with_name("log4j2.properties").absolute().as_uri(),
}
"""Settings of the Java that this process starts; one that runs already is as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a run was asked to do.

    Attributes:
        data_dir, out: the directories.
        every_ms: how long to wait between runs; None for one run.
        accepts_loss: go on without damaged parts of the log.
        master: of Spark; None as spark-submit says, or this machine.
    """

    data_dir: Path
    out: Path
    every_ms: int | None = None
    accepts_loss: bool = False
    master: str | None = None


def parse_every(text: str | None) -> int | None:
    """Read the value of `--every`.

    Raises:
        ConfigError: it is no duration of a second or more.
    """
    if text is None:
        return None
    try:
        every_ms = parse_duration_ms(text)
    except ValueError as error:
        raise ConfigError(f"--every: {error}") from None
    if every_ms < MS_PER_SECOND:
        raise ConfigError(f"--every {text} is out of range: use 1s or more")
    return every_ms


@contextmanager
def spark_session(master: str | None) -> "Iterator[SparkSession]":
    """Start Spark, and stop it when the block ends.

    Raises:
        ConfigError: PySpark, PyArrow or Java is missing, or Java is too old.
    """
    check_all()
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    if master is None or master.startswith("local"):
        choose_home()
    try:
        # Only Java knows what spark-submit and spark-defaults.conf set, which comes first.
        SparkContext._ensure_initialized(conf=SparkConf().setAll(list(_JAVA_SETTINGS.items())))
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise ConfigError(
            "Java could not start Spark; what it wrote above says why. Spark needs Java 17 or "
            f"newer: apt-get install {JAVA_PACKAGE}"
        ) from None
    conf = SparkConf()
    conf.setIfMissing("spark.app.name", "latermq pipeline")
    for name, value in _SETTINGS.items():
        conf.setIfMissing(name, value)
    if master is not None:
        conf.setMaster(master)
    conf.setIfMissing("spark.master", LOCAL)
    # Spark's bar would overwrite the lines of progress; a session in Python has it on.
    conf.set("spark.ui.showConsoleProgress", "false")
    session = SparkSession.builder.config(conf=conf).getOrCreate()
    context = session.sparkContext
    context.setLogLevel("ERROR")
    if context.master.startswith("local[") and context.pythonExec == _ANY_PYTHON:
        # On this machine the tasks run in the same environment.
        context.pythonExec = sys.executable
    try:
        yield session
    finally:
        session.stop()


def run_pipeline(
    request: Request, report: Callable[[str], None], fs: FileSystem | None = None
) -> None:
    """Bring the tables up to date, and again after each interval if one was asked for.

    Args:
        request: what to do.
        report: receives a line of progress.
        fs: the files, those of Linux if left.

    Raises:
        LatermqError: a run failed; see `Job.run`.
    """
    with spark_session(request.master) as spark:
        # Imported here because it needs PySpark, of which `spark_session` knows that it is there.
        from compat.pipeline.job import Job

        job = Job(
            spark,
            fs or OsFileSystem(),
            data_dir=request.data_dir,
            out=request.out,
            report=report,
            accepts_loss=request.accepts_loss,
        )
        try:
            job.open()
            job.run()
            while request.every_ms is not None:
                Event().wait(request.every_ms / MS_PER_SECOND)
                job.run()
        finally:
            job.close()
