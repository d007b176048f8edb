"""A commit of the pipeline is whole or absent, wherever the machine stops."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Final, get_args

import pytest

from appliance.errors import ConfigError
from compat.pipeline.layout import STATE_DIR
from compat.pipeline.manifest import DataFile, Manifest
from compat.pipeline.target import MANIFEST, Target, write_file
from tests.support.simulator.sim_fs import CrashMode, SimCrash, SimFileSystem

ROOT: Final = Path("/out")
MODES: Final[tuple[CrashMode, ...]] = get_args(CrashMode)
DATE: Final = "2026-01-01"
COMMITS: Final = 3


def commit(fs: SimFileSystem, target: Target) -> None:
    """Add a file of facts, merge those of two commits, and replace an aggregate.

    The content of each file is the number of the commit that wrote it.
    """
    number = target.manifest.sequence + 1
    added = [
        ("new", data_file("messages", "t", f"{number}.parquet")),
        ("hour", data_file("hourly", "t", "part.parquet")),
        ("other", data_file("hourly", f"t{number}", "part.parquet")),
    ]
    removed = []
    if number % 2 == 0:
        removed = target.manifest.files_of("messages")
        removed += target.manifest.files_of("hourly", [(f"t{number - 1}", DATE)])
    stage = target.begin_stage()
    for name, _ in added:
        write_file(fs, stage / name, b"%d" % number)
    changed = replace(target.manifest, position=number)
    target.commit(changed, stage, added=added, removed=removed, known=b"%d" % number)


def data_file(table: str, topic: str, name: str) -> DataFile:
    return DataFile(table=table, partition=(topic, DATE), name=name, rows=1, size=1)


def run(fs: SimFileSystem, sequence: int) -> Target:
    """Open the directory, as a run does, and commit up to a number."""
    target = Target(fs, ROOT)
    target.open()
    while target.manifest.sequence < sequence:
        commit(fs, target)
    target.close()
    return target


def visible(fs: SimFileSystem) -> dict[str, bytes]:
    """What a reader of the directories finds."""
    paths = {path.relative_to(ROOT): content for path, content in fs.files().items()}
    return {str(path): data for path, data in paths.items() if path.parts[0] != STATE_DIR}


def reference() -> list[dict[str, bytes]]:
    """What the directory has after each commit."""
    fs, found = SimFileSystem(), [{}]
    for sequence in range(1, COMMITS + 1):
        manifest = run(fs, sequence).manifest
        found.append(visible(fs))
        assert set(found[-1]) == {
            file.path for table in manifest.files for file in manifest.files_of(table)
        }
    return found


def calls_of_all_commits() -> int:
    fs = SimFileSystem()
    for number in range(1, 10_000):
        fs = SimFileSystem()
        fs.fail_at(number, SimCrash())
        try:
            run(fs, COMMITS)
        except SimCrash:
            continue
        return number
    raise AssertionError("there is no end")


@pytest.mark.parametrize("mode", MODES)
def test_a_run_after_a_crash_finds_a_whole_commit_and_goes_on(mode: CrashMode) -> None:
    commits = reference()
    rng = random.Random(7)
    seen = set()
    for number in range(1, calls_of_all_commits()):
        fs = SimFileSystem()
        fs.fail_at(number, SimCrash())
        with pytest.raises(SimCrash):
            run(fs, COMMITS)
        for _ in range(2):
            found = fs.crashed(mode, rng)
            target = run(found, 0)
            sequence = target.manifest.sequence
            seen.add(sequence)
            assert visible(found) == commits[sequence], f"call {number}: {fs.trace()}"
            assert target.manifest.position == sequence
            if sequence:
                assert target.manifest.known is not None
                assert target.read_state(target.manifest.known) == b"%d" % sequence
            run(found, COMMITS)
            assert visible(found) == commits[COMMITS]
    assert seen == set(range(COMMITS + 1))


def test_a_second_crash_while_a_commit_is_finished_changes_nothing() -> None:
    commits = reference()
    rng = random.Random(8)
    for number in range(1, calls_of_all_commits(), 3):
        fs = SimFileSystem()
        fs.fail_at(number, SimCrash())
        with pytest.raises(SimCrash):
            run(fs, COMMITS)
        for again in range(1, 12):
            found = fs.crashed("kept", rng)
            found.fail_at(again, SimCrash())
            try:
                run(found, COMMITS)
            except SimCrash:
                found = found.crashed("torn", rng)
            else:
                found.heal()
            run(found, COMMITS)
            assert visible(found) == commits[COMMITS], (number, again)


def test_files_of_tasks_that_outlive_their_run_are_not_seen() -> None:
    fs = SimFileSystem()
    target = Target(fs, ROOT)
    target.open()
    stage = target.begin_stage()
    write_file(fs, stage / "new", b"old")
    target.close()
    target = Target(fs, ROOT)
    target.open()
    assert not fs.exists(stage)
    assert target.begin_stage() != stage


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "cannot be read"),
        (b"{}", "cannot be read"),
        (b"[]", "cannot be read"),
        (Manifest().encode().replace(b'"version":1', b'"version":2'), "version 2 is not 1"),
        (
            Manifest().with_files([data_file("nothing", "t", "f")], []).encode(),
            "there is no table 'nothing'",
        ),
    ],
)
def test_a_manifest_that_cannot_be_understood_is_refused(content: bytes, problem: str) -> None:
    fs = SimFileSystem()
    run(fs, 0)
    write_file(fs, ROOT / STATE_DIR / MANIFEST, content)
    with pytest.raises(ConfigError, match=problem):
        run(fs, 0)
