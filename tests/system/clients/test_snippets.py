"""Every program of docs/CLIENTS.md runs as it stands there, and prints what it says."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.support.clients.client_page import Snippet, programs
from tests.support.clients.client_runs import JAVA
from tests.support.clients.client_setup import ClientMissingError, find
from tests.support.harness.appliance_process import ApplianceProcess

LIMIT_S: Final = 60.0

EXPECTED: Final = {
    "Python: confluent-kafka": r"close order 17 at \d{13}\n",
    "Python: aiokafka": r"close order 17 at \d{13}\n",
    "Python: kafka-python": r"close order 17 at \d{13}\n",
    "Command line: kcat": r"close order 17 x-accepted-at=\d{13},x-due-at=\d{13}\n",
    "JavaScript: KafkaJS": r"close order 17 at \d{13}\n",
    "Java": r"close order 17 at \d{13}\n",
    "Cancel and replace": r"pay order 18 now\n",
    "Recurring": r"tick at \d{9}[02468]000\ntick at \d{9}[02468]000\n",
    "Broadcasting": r"first: \[0, 1, 2, 3, 4, 5\]\nsecond: \[0, 1, 2, 3, 4, 5\]\n",
    "Ordered messages": r"created, changed, remind, close, and archive\n",
}
"""Heading -> what its program prints."""


def command(language: str, path: Path) -> tuple[list[str], dict[str, str]]:
    """Return how a program is run, and what it needs in its environment.

    Raises:
        ClientMissingError: something is not installed.
    """
    if language == "python":
        return [sys.executable, str(path)], {}
    if language == "sh":
        if shutil.which("kcat") is None:
            raise ClientMissingError("kcat is not installed: apt-get install kcat")
        return ["sh", str(path)], {}
    if language == "js":
        return ["node", str(path)], {"NODE_PATH": str(find("kafkajs") / "node_modules")}
    return [*JAVA, "-cp", f"{find('java_4')}/jars/*", str(path)], {}


@pytest.fixture(scope="module")
def runs(
    broker: ApplianceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[str]]]:
    """All programs at the same time: they do little but wait for what is due."""
    root = tmp_path_factory.mktemp("snippets")

    def run(heading: str, program: Snippet) -> str:
        name = heading.replace(" ", "-").replace(":", "")
        path = root / f"{name}.{program.language}"
        path.write_text(program.text.replace("127.0.0.1:9092", broker.kafka))
        arguments, environment = command(program.language, path)
        done = subprocess.run(
            arguments,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    with ThreadPoolExecutor(len(EXPECTED)) as pool:
        yield {
            heading: pool.submit(run, heading, program) for heading, program in programs().items()
        }


def test_every_program_is_expected_to_print_something() -> None:
    assert set(programs()) == set(EXPECTED)


@pytest.mark.parametrize("heading", EXPECTED)
def test_program_prints_what_its_section_says(runs: dict[str, Future[str]], heading: str) -> None:
    try:
        printed = runs[heading].result(LIMIT_S)
    except ClientMissingError as missing:
        pytest.skip(str(missing))
    lines = [line for line in printed.splitlines(keepends=True) if '"level"' not in line]
    assert re.fullmatch(EXPECTED[heading], "".join(lines)), printed
