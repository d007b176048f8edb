"""Backups of brokers in process, and what is restored from them."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from appliance.offline.backup import Backup
from appliance.offline.data_dir import DataDir
from appliance.offline.findings import Fault, Findings, Note
from appliance.offline.manifest import Manifest
from appliance.offline.restore import Plan, Restore
from appliance.store.paths import DataPaths
from appliance.units import KIB
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.checkpoints import PATHS, change
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Record

SEGMENT: Final = 64 * KIB
BACKUP: Final = Path("/backups/one")
RESTORED: Final = Path("/restored")
VERSION: Final = "1.2.3"


def ignore(_: Fault | Note) -> None:
    """Ignore a finding."""


def fill(harness: BrokerHarness, count: int) -> None:
    """Change a little of everything, and send larger records; publish what is flushed."""
    for number in range(count):
        change(harness, number)
        harness.produce("t", 0, [Record(b"v" * 5_000)])
    publish(harness)


def publish(harness: BrokerHarness) -> None:
    """Flush, and let the checkpoint say so, as it does within a second."""
    harness.flush()
    mark = harness.broker.flushed_mark
    for _ in range(2):
        job = mark.step()
        if job is not None:
            job.run()
            mark.end(job)
        harness.clock.advance_ms(600)


def filled(count: int = 30) -> BrokerHarness:
    """A broker with a bit of everything; 30 fill three segments."""
    harness = BrokerHarness()
    harness.create_topic("t", 2)
    fill(harness, count)
    return harness


def back_up_live(harness: BrokerHarness, target: Path = BACKUP, **options: Any) -> Manifest:
    """Back up a running broker, as the command does."""
    harness.flush()
    snapshots = harness.broker.snapshots
    name = f"of-{target.name}"
    held = snapshots.create(snapshots.freeze(), name)
    try:
        return back_up(harness, Path(held.path), target, **options)
    finally:
        snapshots.delete(name)


def back_up(
    harness: BrokerHarness, source: Path = PATHS.root, target: Path = BACKUP, **options: Any
) -> Manifest:
    """Back up a directory on the disk of a harness, on which no broker runs."""
    backup = open_backup(harness, source, target, **options)
    return backup.made


def open_backup(
    harness: BrokerHarness, source: Path, target: Path = BACKUP, **options: Any
) -> Backup:
    """The same; returns the backup with what it has linked."""
    data = DataDir(harness.disk, source, Findings(ignore))
    try:
        data.open(may_be_live=False)
        backup = Backup(harness.disk, harness.clock, data, target, version=VERSION, **options)
        for _ in backup.run(Findings(ignore)):
            pass
    finally:
        data.close()
    return backup


def restore(
    harness: BrokerHarness, source: Path = BACKUP, target: Path = RESTORED, **options: Any
) -> Plan:
    """Restore a backup on the disk of a harness; return the plan."""
    run = Restore(harness.disk, harness.clock, source, target, **options)
    for _ in run.examine(Findings(ignore)):
        pass
    for _ in run.run():
        pass
    return run.plan


def start_on(
    harness: BrokerHarness, root: Path = RESTORED, disk: SimFileSystem | None = None
) -> BrokerHarness:
    """Start a broker on another directory, with the clock of a harness."""
    config = replace(harness.config, data_dir=root)
    return BrokerHarness(disk or harness.disk, harness.clock, config)


def bytes_under(disk: SimFileSystem, root: Path) -> dict[Path, bytes]:
    """The content of all files in a directory."""
    return {path: data for path, data in disk.files().items() if path.is_relative_to(root)}


def links_of(disk: SimFileSystem, root: Path = BACKUP) -> list[int]:
    """How many names each segment in a directory has, in the order of the log."""
    directory = DataPaths(root).commit_log
    return [
        disk.open(directory / name, writable=False).link_count()
        for name in disk.list_dir(directory)
    ]
