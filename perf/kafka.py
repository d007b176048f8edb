"""Apache Kafka on one node, from its Maven artifacts (kafka_pom.xml): KRaft, no ZooKeeper.

One process serves a whole benchmark, because the JVM needs some rounds until it is fast.
"""

import base64
import os
import socket
import subprocess
import time
import uuid
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from perf.machine import BUILD_DIR, REPOSITORY, BenchError
from perf.maven import copy_jars

VERSION: Final = "4.2.0"
_POM: Final = REPOSITORY / "perf" / "kafka_pom.xml"
_JARS: Final = BUILD_DIR / "kafka"
_CLASSPATH: Final = f"{_JARS}/*"
# The options and the default heap of Kafka's own start script.
_HEAP: Final = ("-Xmx1G", "-Xms1G", "-XX:+UseG1GC")

_START_LIMIT_S: Final = 90.0

# Kafka's defaults, except for what one node needs, and that a deleted topic's files go at once.
_PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={directory}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.segment.delete.delay.ms=0
"""


def fetch_kafka() -> None:
    """Have Maven copy Kafka's jars to build/perf/kafka, unless they are there.

    Raises:
        MissingToolError: no Java, no Maven, or Maven cannot get them.
    """
    copy_jars(_POM, _JARS, f"kafka_2.13-{VERSION}.jar")


class Kafka:
    """A running broker; call `stop` at the end."""

    def __init__(self, directory: Path) -> None:
        """Format a new data directory below `directory`, start, and wait until it answers.

        Raises:
            BenchError: it did not start; the message holds its output.
        """
        ports = _free_ports(2)
        self.address = f"127.0.0.1:{ports[0]}"
        properties = directory / "server.properties"
        properties.write_text(
            _PROPERTIES.format(port=ports[0], controller_port=ports[1], directory=directory)
        )
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        storage_tool = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c"]
        java = ["java", *_HEAP, "-cp", _CLASSPATH]
        environment = {**os.environ, "LOG_DIR": str(directory)}
        self._log = (directory / "log").open("w+")
        done = subprocess.run(
            [*java, *storage_tool, str(properties)],
            stdout=self._log,
            stderr=self._log,
            check=False,
            env=environment,
        )
        if done.returncode != 0:
            raise BenchError(f"Kafka's storage tool failed:\n{self._said()}")
        self._process = subprocess.Popen(
            [*java, "kafka.Kafka", str(properties)],
            stdout=self._log,
            stderr=self._log,
            env=environment,
        )
        self.pid = self._process.pid
        self._await_answer()

    def _await_answer(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        deadline_s = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            try:
                if admin.list_topics(timeout=1).brokers:
                    return
            except KafkaException:
                time.sleep(0.1)
        self.stop()
        raise BenchError(f"Kafka did not start:\n{self._said()}")

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read()[-2000:]

    def stop(self) -> None:
        """Stop it; the caller deletes its data."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
