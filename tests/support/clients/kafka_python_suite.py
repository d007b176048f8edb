"""Runs kafka-python's own integration tests against a broker: `kafka_python_tests` of client_setup.

They run in their own pytest process, in the background; the results are read from its report.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tests.support.clients.client_setup import find

FILES: Final = ("producer", "consumer", "admin")

LIMIT_S: Final = 240.0

_NOT_SERVED: Final = "there is one broker: nothing can be moved, and no leader elected"
_READ_ONLY: Final = "a setting that has one value here is shown as read-only"
_TRANSACTIONS: Final = "there are no transactions yet"

EXPECTED_FAILURES: Final = {
    "test_alter_partition_reassignments": _NOT_SERVED,
    "test_create_describe_delete_acls": "there is no authorization yet",
    "test_create_partitions": "places the new partitions on broker 0; this one is number 1",
    "test_describe_configs_broker_resource_returns_configs": _READ_ONLY,
    "test_transactional_producer_messages": _TRANSACTIONS,
    "test_transactional_producer_offsets": _TRANSACTIONS,
}
"""Test -> why it fails here. A test checks that none of these works."""


class KafkaPythonSuite:
    """The tests; the constructor starts them.

    Args:
        address: of a broker that admits session time-outs of 3 s, as these tests want.
        scratch: an empty directory.

    Raises:
        ClientMissingError: they are not installed.
    """

    def __init__(self, address: str, scratch: Path) -> None:
        self._report = scratch / "report.xml"
        self._output = scratch / "output.txt"
        self._address = address
        self._process = self._start([_path(name) for name in FILES], self._report)

    def failures(self, name: str) -> dict[str, str]:
        """Wait for the end and return test -> output, for the failed tests of a file.

        An unexpected failure counts if the test fails again when it runs alone: some of these
        tests give a broker two seconds, which a busy machine may not have.

        Raises:
            AssertionError: the tests did not run to their end, or none of this file did.
        """
        self._process.wait(LIMIT_S)
        failures = self._read(self._report, name)
        again = self._report.with_name("again.xml")
        for test in failures.keys() - EXPECTED_FAILURES.keys():
            again.unlink(missing_ok=True)
            self._process = self._start([f"{_path(name)}::{test}"], again)
            self._process.wait(LIMIT_S)
            if not self._read(again, name):
                del failures[test]
        return failures

    def _start(self, tests: list[str], report: Path) -> subprocess.Popen[bytes]:
        # 3.9: the suite expects newer brokers to serve what only a controller quorum has.
        settings = {
            "KAFKA_URI": f"kafka://{self._address}",
            "KAFKA_VERSION": "3.9",
            "KAFKA_ROOT": "/",
        }
        quiet = ("-q", "-p", "no:logging", "-p", "no:cacheprovider", "-W", "ignore")
        limits = ("--timeout=200", "--timeout-method=thread", f"--junit-xml={report}")
        with self._output.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "pytest", *quiet, *limits, *tests],
                cwd=find("kafka_python_tests"),
                env={**os.environ, **settings},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _read(self, report: Path, name: str) -> dict[str, str]:
        assert report.exists(), self._output.read_text()[-4_000:]
        failures: dict[str, str] = {}
        ran = 0
        for case in ElementTree.parse(report).iter("testcase"):
            if case.get("classname") != f"test.integration.test_{name}_integration":
                continue
            ran += case.find("skipped") is None
            for bad in (*case.findall("failure"), *case.findall("error")):
                failures[case.get("name", "")] = bad.get("message", "")
        assert ran > 0, self._output.read_text()[-4_000:]
        return failures

    def close(self) -> None:
        """Make sure that no process is left."""
        self._process.kill()
        self._process.wait()


def _path(name: str) -> str:
    return f"test/integration/test_{name}_integration.py"
