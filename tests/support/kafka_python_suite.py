"""Runs kafka-python's own integration tests against a broker: `kafka_python_tests` of client_setup.

They run in a pytest of their own, in the background; what came of each is read from its report.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tests.support.client_setup import find

FILES: Final = ("producer", "consumer", "admin")

LIMIT_S: Final = 240.0

_NOT_SERVED: Final = "there is one broker: nothing can be moved, and no leader elected"
_READ_ONLY: Final = "a setting that has one value here is shown as read-only"
_TRANSACTIONS: Final = "there are no transactions yet"

EXPECTED_FAILURES: Final = {
    "test_alter_partition_reassignments": _NOT_SERVED,
    "test_alter_replica_log_dirs": _NOT_SERVED,
    "test_create_describe_delete_acls": "there is no authorization yet",
    "test_create_partitions": "places the new partitions on broker 0; this one is number 1",
    "test_describe_configs_broker_resource_returns_configs": _READ_ONLY,
    "test_describe_configs_topic_resource_returns_configs": _READ_ONLY,
    "test_elect_leaders": _NOT_SERVED,
    "test_list_partition_reassignments": _NOT_SERVED,
    "test_transactional_producer_messages": _TRANSACTIONS,
    "test_transactional_producer_offsets": _TRANSACTIONS,
}
"""Test -> why it fails here. One that works belongs off this list: so a test says."""


class KafkaPythonSuite:
    """The tests, which run from the start on.

    Args:
        address: of a broker that admits session time-outs of 3 s, as these tests want.
        scratch: an empty directory.

    Raises:
        ClientMissingError: they are not installed.
    """

    def __init__(self, address: str, scratch: Path) -> None:
        self._report = scratch / "report.xml"
        self._output = scratch / "output.txt"
        # 3.9: newer ones are expected to serve what only a quorum of controllers has.
        settings = {"KAFKA_URI": f"kafka://{address}", "KAFKA_VERSION": "3.9", "KAFKA_ROOT": "/"}
        quiet = ("-q", "-p", "no:logging", "-p", "no:cacheprovider", "-W", "ignore")
        limits = ("--timeout=200", "--timeout-method=thread", f"--junit-xml={self._report}")
        files = [f"test/integration/test_{name}_integration.py" for name in FILES]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *quiet, *limits, *files],
                cwd=find("kafka_python_tests"),
                env={**os.environ, **settings},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def failures(self, name: str) -> dict[str, str]:
        """Wait for the end and return test -> what it said, for the failed ones of a file.

        Raises:
            AssertionError: the tests did not run to their end, or none of this file did.
        """
        self._process.wait(LIMIT_S)
        assert self._report.exists(), self._output.read_text()[-4_000:]
        failures: dict[str, str] = {}
        ran = 0
        for case in ElementTree.parse(self._report).iter("testcase"):
            if case.get("classname") != f"test.integration.test_{name}_integration":
                continue
            ran += case.find("skipped") is None
            for bad in (*case.findall("failure"), *case.findall("error")):
                failures[case.get("name", "")] = bad.get("message", "")
        assert ran > 0, self._output.read_text()[-4_000:]
        return failures

    def close(self) -> None:
        """Make sure that no process stays behind."""
        self._process.kill()
        self._process.wait()
