"""Tables are read with the permission of a group alone, and reading changes nothing."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("pyarrow")

from tests.support.harness.offline_scenario import export
from tests.support.oracles.tables_model import UsedBroker

NOBODY: Final = 65_534
GROUP: Final = 54_321
"""Of the files; nobody is in it but the reader."""

PROGRAM: Final = """\
import json, os, sys
from compat.tables.schema import TABLE_NAMES
from compat.tables.table import Query, open_plan, tasks

def counts(root):
    return {
        name: sum(
            batch.num_rows
            for task in tasks(open_plan(root), Query(table=name))
            for batch in task.batches()
        )
        for name in TABLE_NAMES
    }

known = counts(sys.argv[1])  # also loads all modules, which the other user may not read
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[3]))
try:
    open(sys.argv[1] + "/checkpoint", "r+b")
except PermissionError:
    print(json.dumps([known, counts(sys.argv[1])]))
"""


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory of a broker that only its owner may write and only a group may read."""
    if os.geteuid() != 0:
        pytest.skip("only root can read as another user")
    # Others may not enter the directories of pytest.
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    used = UsedBroker(random.Random(5))
    used.use(120)
    used.commit()
    used.harness.broker.close()
    try:
        root = export(used.harness.disk, place / "data")
        for path in (root, *root.rglob("*")):
            os.chown(path, 0, GROUP)
            path.chmod(0o550 if path.is_dir() else 0o440)
        yield root
    finally:
        shutil.rmtree(place)


def facts(root: Path) -> dict[str, tuple[int, ...]]:
    """Of each file what a reader could change; the time of the last access is not among it."""
    found = {}
    for path in (root, *root.rglob("*")):
        info = path.stat()
        found[str(path)] = (
            *(info.st_ino, info.st_size, info.st_mode, info.st_uid, info.st_gid),
            *(info.st_mtime_ns, info.st_ctime_ns),
        )
    return found


def test_a_member_of_the_group_reads_every_table_and_changes_nothing(root: Path) -> None:
    before = facts(root)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root), str(GROUP), str(NOBODY)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    known, found = json.loads(done.stdout)
    assert found == known
    assert all(known.values())
    assert facts(root) == before
