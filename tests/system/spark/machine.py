"""A Java machine for Spark that outlives the processes that drive it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compat.spark import needs
from tests.support.clients.client_setup import ClientMissingError, find
from tests.support.docs.source_files import ROOT

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK_JAVA = {"SPARK_LAUNCHER_OPTS": QUICK, "SPARK_SUBMIT_OPTS": QUICK}
"""The environment of programs that start a Java machine of their own."""

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # The tables are tiny: nothing that Java or Spark compiles would be used often.
    "spark.driver.extraJavaOptions": QUICK,
    "spark.driver.memory": "700m",
    "spark.python.daemon.module": "tests.system.spark.warm_daemon",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
    # The default one starts a program for each file, to ask whether it is a link.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def connector_jars() -> list[str]:
    """Spark's Kafka connector, nothing if it is not installed."""
    try:
        return sorted(map(str, (find("spark_connector") / "jars").iterdir()))
    except ClientMissingError:
        return []


def take_session(master: str) -> None:
    """Take over the session of the machine that the environment names, or start one there.

    Sessions of this process are that one from now on.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    gateway: Any = launch_gateway()
    SparkContext._ensure_initialized(gateway=gateway)
    wanted = SparkConf().setMaster(master).setAppName("latermq tests")
    running = gateway.jvm.org.apache.spark.SparkContext.getOrCreate(wanted._jconf)
    java = gateway.jvm.JavaSparkContext(running)
    SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jconf=java.getConf()))


class Machine:
    """One for all tests: what Java loads for the first job takes longer than most tests."""

    def __init__(self, home: Path) -> None:
        """Start Java.

        Args:
            home: an empty directory, to be Spark's, without its archive of PySpark: see
                `needs.choose_home`.
        """
        from pyspark.java_gateway import launch_gateway

        needs.link_home(home)
        options = [f'--conf "{name}={value}"' for name, value in SETTINGS.items()]
        if jars := connector_jars():
            options.append(f'--driver-class-path "{":".join(jars)}"')
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SPARK_HOME", str(home))
            # Else each load looks for sources with the python3 of the path, which may lack Spark.
            patch.setenv("PYSPARK_PYTHON", sys.executable)
            patch.setenv("SPARK_LAUNCHER_OPTS", QUICK)
            patch.setenv("PYSPARK_SUBMIT_ARGS", " ".join([*options, "pyspark-shell"]))
            self.gateway: Any = launch_gateway()
        parameters = self.gateway.gateway_parameters
        self.address = {
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
        }

    def cancel(self) -> None:
        """End the tasks of a process that was killed. The next one takes over its session."""
        context = self.gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
        context.cancelAllJobs()
        status = context.statusTracker()
        while any(each.numRunningTasks() for each in status.getExecutorInfos()):
            pass

    def stop_spark(self) -> None:
        """End the session that killed processes left."""
        self.gateway.jvm.org.apache.spark.SparkContext.getOrCreate().stop()

    def run(self, command: list[str], **settings: Any) -> subprocess.CompletedProcess[str]:
        """Run a program that uses Spark."""
        environment = os.environ | self.address | settings.pop("env", {})
        settings = {"cwd": ROOT, "timeout": 120} | settings
        return subprocess.run(command, env=environment, capture_output=True, text=True, **settings)

    def close(self) -> None:
        self.gateway.shutdown()
        self.gateway.proc.stdin.close()
        self.gateway.proc.wait()
