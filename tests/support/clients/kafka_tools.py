"""Runs Kafka's own command line tools: `kafka_tools` of client_setup."""

import os
import subprocess
from dataclasses import dataclass
from typing import Final

from tests.support.clients.client_runs import JAVA
from tests.support.clients.client_setup import find

CLASSES: Final = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
}
"""What the scripts of these names run."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a tool ended.

    Attributes:
        status: its exit status.
        output: what it wrote, to both outputs.
    """

    status: int
    output: str


class KafkaTools:
    """The tools, for one broker; they run one after another in one process."""

    def __init__(self, address: str) -> None:
        """Start the process.

        Raises:
            ClientMissingError: the tools are not installed.
        """
        directory = find("kafka_tools")
        self._address = address
        self._process = subprocess.Popen(
            [*JAVA, "-cp", f"{directory}/jars/*{os.pathsep}{directory}/classes", "Tools"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, tool: str, *arguments: str) -> Answer:
        """Run a tool to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        words = (CLASSES[tool], "--bootstrap-server", self._address, *arguments)
        self._process.stdin.write("\t".join(words).encode() + b"\n")
        self._process.stdin.flush()
        status, size = self._process.stdout.readline().split()
        return Answer(int(status), self._process.stdout.read(int(size)).decode())

    def ok(self, tool: str, *arguments: str) -> str:
        """Run a tool that must succeed; return its output."""
        answer = self.run(tool, *arguments)
        assert answer.status == 0, answer.output
        return answer.output

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
