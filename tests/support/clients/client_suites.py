"""The clients' own test suites, all running against one broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.clients.client_setup import ClientMissingError
from tests.support.clients.franz_go_suite import FranzGoSuite
from tests.support.clients.kafka_python_suite import KafkaPythonSuite


@dataclass(slots=True)
class Suites:
    """The suites that run, and why others do not."""

    kafka_python: KafkaPythonSuite | None = None
    franz_go: FranzGoSuite | None = None
    missing: list[str] = field(default_factory=list)


@contextmanager
def running_suites(address: str, scratch: Path) -> Iterator[Suites]:
    """Start all suites that are installed, in the background.

    Args:
        address: of a broker that admits session time-outs of 3 s.
        scratch: a directory for their output.
    """
    suites = Suites()
    try:
        try:
            suites.kafka_python = KafkaPythonSuite(address, scratch)
        except ClientMissingError as missing:
            suites.missing.append(str(missing))
        try:
            suites.franz_go = FranzGoSuite(address, scratch)
        except ClientMissingError as missing:
            suites.missing.append(str(missing))
        yield suites
    finally:
        for suite in (suites.kafka_python, suites.franz_go):
            if suite is not None:
                suite.close()
