"""The lanes of `make check` and `make test` name what exists, and leave out what they say."""

import subprocess
import sys
from typing import Final

import pytest

from tests.support.docs.source_files import ROOT
from tests.support.harness import lanes

TESTS: Final = ROOT / "tests"


@pytest.mark.parametrize("entry", [*lanes.SECONDS, *lanes.GROUPS, *lanes.CHECKED])
def test_every_entry_is_a_test_that_exists(entry: str) -> None:
    if entry in lanes.GROUPS.values():
        return
    path, _, function = entry.partition("::")
    assert (TESTS / path).exists()
    text = (TESTS / path).read_text() if function else ""
    # `Name.TestCase` is what hypothesis makes of a state machine.
    assert not function or f"def {function}(" in text or f"{function} = " in text


def test_a_file_whose_fixtures_are_shared_is_not_divided() -> None:
    assert set(lanes.SPLIT) <= set(lanes.SECONDS)
    assert set(lanes.GROUPS.values()) <= set(lanes.SECONDS)


@pytest.mark.parametrize(
    ("path", "case", "is_slow"),
    [
        ("system/service/test_pump.py", "test_x", True),
        ("unit/store/test_crash_states.py", "test_x[1]", True),
        ("unit/store/test_crash_mutants.py", "test_x", True),
        ("unit/store/test_topic_store.py", "test_x", False),
        ("test_source.py", "test_types_hold", False),
    ],
)
def test_a_test_is_slow_by_its_directory_or_its_seconds(
    path: str, case: str, is_slow: bool
) -> None:
    assert lanes.is_slow(path, case) == is_slow


def test_a_group_is_a_file_a_function_a_case_or_what_the_table_joins() -> None:
    assert lanes.group_of("unit/a.py", "test_x[1]") == "unit/a.py"
    assert lanes.group_of("system/realdisk/a.py", "test_x") == "disks"
    for entry in lanes.SECONDS:
        path, _, function = entry.partition("::")
        if function:
            is_split = entry in lanes.SPLIT
            case = f"{function}[1]"
            assert lanes.group_of(path, case) == (f"{path}::{case}" if is_split else entry)
            assert lanes.seconds_of(path, case) == lanes.SECONDS[entry]


@pytest.mark.parametrize(
    ("options", "is_found"), [(["-m", "slow"], False), (["-m", "not slow"], True), ([], True)]
)
def test_slow_is_a_mark_that_pytest_selects_by(options: list[str], is_found: bool) -> None:
    """The mark is there before `-m` looks, in one process and beside other workers."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", *options]
    command.append("tests/test_layers.py")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ("::test_" in done.stdout) == is_found, done.stdout


def test_every_command_of_the_makefile_is_whole() -> None:
    """A line that is not continued would be a command of its own."""
    shown = subprocess.run(
        ["make", "--dry-run", "soak"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    commands = shown.stdout.replace("\\\n", " ").splitlines()
    (command,) = [each for each in commands if "tests/" in each]
    places = [word for word in command.split() if word.startswith("tests/")]
    assert len(places) > 5
    for place in places:
        assert (ROOT / place).exists(), place
    assert "--power-cuts" in command
