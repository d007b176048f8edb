"""Runs franz-go's own tests of producers, consumers and groups: `franz_go` of client_setup.

The installation compiles them into one program. It runs in the background; the result of each test
is read from its output. The most thorough one, TestGroupETL, moves records from topic to topic by
groups whose members come and go, with each assignment strategy.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Final

from tests.support.clients.client_setup import find

LIMIT_S: Final = 240.0

TESTS: Final = (
    "TestAddRemovePartitions",
    "TestClient_",
    "TestConsumeRegex$",
    "TestConsumeTopicRetrieval",
    "TestDirectPartitionPurge",
    "TestGroupETL",
    "TestGroupSimple",
    "TestIssue(325|337|434|648|769|810|831|865|1034|FetchLargerThanBrokerMaxReadBytes)$",
    "TestLookbackMilli",
    "TestPause",
    "TestPing",
    "TestPooling",
    "TestUnknownGroupOffsetFetchPinned",
)
"""What needs a broker. Not among them: transactions, SCRAM, share groups and KIP-848; and
TestIssue523, which waits for 20 s."""

EXPECTED_FAILURES: Final[dict[str, str]] = {}
"""Test -> why it fails here. A test checks that none of these works."""


class FranzGoSuite:
    """The tests; the constructor starts them.

    Args:
        address: of a broker.
        scratch: a directory for their output.

    Raises:
        ClientMissingError: they are not installed.
    """

    def __init__(self, address: str, scratch: Path) -> None:
        self._output = scratch / "franz_go.txt"
        settings = {"KGO_SEEDS": address, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": "500"}
        chosen, limit = f"-test.run=^({'|'.join(TESTS)})", f"-test.timeout={LIMIT_S:.0f}s"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                # Side by side: they wait most of the time.
                [find("franz_go") / "kgo.test", "-test.v", "-test.parallel=16", chosen, limit],
                cwd=scratch,
                env={**os.environ, **settings},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def failures(self) -> set[str]:
        """Wait for the end and return the names of the tests that failed, without subtests.

        Raises:
            AssertionError: they did not run to their end, or a wanted test did not run.
        """
        self._process.wait(LIMIT_S)
        said = self._output.read_text(errors="replace")
        assert re.search(r"^(PASS|FAIL)$", said, re.M), said[-4_000:]
        found = re.findall(r"^--- (PASS|FAIL): (\w+)", said, re.M)
        for pattern in TESTS:
            assert any(re.match(pattern, name) for _, name in found), f"nothing ran of {pattern}"
        return {name for outcome, name in found if outcome == "FAIL"}

    def said(self, name: str) -> str:
        """Return the output lines of a test, for people."""
        lines = self._output.read_text(errors="replace").splitlines()
        begins = [index for index, line in enumerate(lines) if line.startswith(f"--- FAIL: {name}")]
        return "\n".join("\n".join(lines[begin : begin + 20]) for begin in begins)

    def close(self) -> None:
        """Make sure that no process is left."""
        self._process.kill()
        self._process.wait()
