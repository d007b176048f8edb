"""Facts are exported once, whatever is carried and freed and wherever the pipeline is killed.

The tasks that Spark would run on its executors run in this process.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from appliance.system.files import OsFileSystem
from appliance.units import KIB
from compat.pipeline.job import DEFAULT_LIMITS, Job
from compat.pipeline.target import read_manifest
from tests.support.harness.carried_log import lived
from tests.support.harness.offline_scenario import export
from tests.support.harness.tables import rows_of

Place = tuple[Any, ...]


class Here:
    """The part of a Spark session that runs tasks."""

    @property
    def sparkContext(self) -> "Here":  # noqa: N802 (Spark's name)
        return self

    def parallelize(self, works: Iterable[Any], _: int) -> "Here":
        self._works = list(works)
        return self

    def mapPartitions(self, run: Callable[[Iterable[Any]], Iterator[Any]]) -> "Here":  # noqa: N802
        self._run = run
        return self

    def collect(self) -> list[Any]:
        return list(self._run(self._works))


def add_facts(data_dir: Path, out: Path, slice_bytes: int, slices: int) -> bool:
    """Export up to so many slices, and end as a killed run does; return whether that was all."""
    limits = replace(DEFAULT_LIMITS, slice_bytes=slice_bytes)
    session: Any = Here()
    job = Job(
        session, OsFileSystem(), data_dir=data_dir, out=out, report=lambda _: None, limits=limits
    )
    job.plan._zone_bytes = 4096
    try:
        job.open()
        job.plan.advance()
        job._check_log()
        for _ in range(slices):
            if job.target.manifest.position < job.plan.end:
                position = job.target.manifest.position
                job._add_facts(position, job._slice_end(position))
        return job.target.manifest.position == job.plan.end
    finally:
        job.close()


def exported(out: Path, table: str, names: tuple[str, ...]) -> Counter[Place]:
    found: Counter[Place] = Counter()
    for file in read_manifest(OsFileSystem(), out).files_of(table):
        rows = pq.ParquetFile(out / file.path).read(columns=list(names)).to_pylist()
        found.update((file.partition[0], *(row[name] for name in names)) for row in rows)
    return found


def places(rows: list[dict[str, Any]], names: tuple[str, ...]) -> Counter[Place]:
    return Counter((row["topic"], *(row[name] for name in names)) for row in rows)


OFFSETS = ("partition", "offset", "value")
IDS = ("partition", "position", "index")


@pytest.mark.parametrize("seed", range(8))
def test_facts_are_exported_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    log = lived(seed)
    out = tmp_path / "out"
    if rng.random() < 0.7:
        log.carry(log.bases[2])
        log.free(log.bases[2])
    if rng.random() < 0.5:
        log.carry(log.bases[1])  # a pass that was broken off
    timers = rows_of(log.disk, "timers")
    ended = [row for row in timers if row["delay_state"] != "pending"]
    is_exported = True  # what ended
    carried_to = 0
    for count in range(7):
        data_dir = export(log.disk, tmp_path / f"data-{count}")
        is_exported |= add_facts(
            data_dir, out, rng.choice([20, 60, 400]) * KIB, rng.randrange(1, 4)
        )
        if carried_to > log.bases[0] and rng.random() < 0.6:
            log.free(carried_to)
        position = read_manifest(OsFileSystem(), out).position
        cuts = [base for base in log.bases[1:3] if base <= position]
        if cuts and is_exported:
            # What ends from here on has a copy: its segment may be freed at any time.
            carried_to = cuts[-1]
            log.carry(carried_to)
        pending = [row for row in rows_of(log.disk, "timers") if row["delay_state"] == "pending"]
        for row in rng.sample(pending, 2):
            log.deliver(row["position"], row["index"])
            ended.append(row)
        is_exported = False
    messages = rows_of(log.disk, "messages")
    assert add_facts(export(log.disk, tmp_path / "data"), out, 200 * KIB, 100)
    assert exported(out, "messages", OFFSETS) == places(messages, OFFSETS)
    assert exported(out, "accepted", IDS) == places(timers, IDS)
    assert exported(out, "completed", IDS) == places(ended, IDS)
