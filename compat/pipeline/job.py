"""The pipeline: one run brings all tables up to the flushed position of the log. Layer 5.

A run reads what the log has gained, slice by slice, and commits each slice: its facts, and which
partitions of the aggregates they change. Then it computes those partitions again and commits them,
merges small files, and ends. A run that is killed loses what it has not committed; the next one
goes on from the last commit.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import SparkSession

from appliance.errors import ConfigError, LatermqError
from appliance.system.files import FileSystem
from appliance.units import GIB, MIB, counted
from compat.pipeline.aggregates import DUE_COUNTS, Facts, by_partition, due
from compat.pipeline.facts import DueTask, FactTask, Failed, MergeTask, Staged, Work, run_all
from compat.pipeline.layout import CORRECTED, FACTS, PART, Partition, aggregate_schema
from compat.pipeline.manifest import DataFile, Manifest
from compat.pipeline.target import Target, write_parquet
from compat.pipeline.timer_changes import (
    Known,
    decode_known,
    encode_known,
    find_changes,
    pending_tasks,
    timer_query,
)
from compat.tables.batches import Task
from compat.tables.plan import Plan
from compat.tables.table import Query, tasks

SLICE_BYTES: Final = GIB
"""Bytes of the log in one commit."""
PARTITIONS_AT_ONCE: Final = 2048
"""Partitions of each aggregate in one commit: their rows are held in memory."""
SMALL_FILES_MAX: Final = 8
"""Files of about one size in a partition; so many are merged."""
MERGED_BYTES: Final = 128 * MIB
"""Files of this size are not merged again."""

_TIER_BITS: Final = 3
"""Files of one tier differ by a factor of 8 at most: so a row is rewritten once in each tier."""


class PipelineError(LatermqError):
    """A run cannot go on; what it committed stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a run does at once; see the constants above."""

    slice_bytes: int = SLICE_BYTES
    partitions: int = PARTITIONS_AT_ONCE
    small_files: int = SMALL_FILES_MAX
    merged_bytes: int = MERGED_BYTES


DEFAULT_LIMITS: Final = Limits()


class Job:
    """Keeps one output directory up to date with one data directory.

    Attributes:
        target: the output directory.
        plan: the log, as of the last run.
    """

    def __init__(
        self,
        spark: SparkSession,
        fs: FileSystem,
        *,
        data_dir: Path,
        out: Path,
        report: Callable[[str], None],
        accepts_loss: bool = False,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        """Touch nothing yet.

        Args:
            spark: the session; its executors have both directories under the same paths.
            fs: the files, also of the tasks.
            data_dir: the data directory, which is only read.
            out: the output directory.
            report: receives a line of progress.
            accepts_loss: go on without damaged parts of the log.
            limits: how much is done at once.
        """
        self.target = Target(fs, out.absolute())
        self.plan = Plan(fs, data_dir.absolute())
        self._spark = spark
        self._fs = fs
        self._report = report
        self._accepts_loss = accepts_loss
        self._limits = limits

    def open(self) -> None:
        """Take the output directory, and finish what a killed run began.

        Raises:
            LatermqError: see `Target.open`.
        """
        self.target.open()

    def close(self) -> None:
        """Release the output directory; may be called twice."""
        self.target.close()

    def run(self) -> Manifest:
        """Bring all tables up to the flushed position.

        Returns:
            The last commit.

        Raises:
            ConfigError: the tables are not of this log.
            PipelineError: part of the log cannot be read, or a task failed.
        """
        self.plan.advance()
        self._check_log()
        plan = self.plan
        self._check_damage()
        while (position := self.target.manifest.position) < plan.end:
            self._add_facts(position, self._slice_end(position))
        while any(self.target.manifest.dirty.values()):
            self._correct()
        if self.target.manifest.due_position != plan.end:
            self._replace_due()
        self._merge()
        manifest = self.target.manifest
        self._report(
            f"up to date: log position {manifest.position}, "
            f"{counted(sum(each.rows for each in manifest.files_of('messages')), 'message')}, "
            f"{counted(sum(len(manifest.files_of(table)) for table in manifest.files), 'file')}"
        )
        return manifest

    def _check_log(self) -> None:
        manifest, plan = self.target.manifest, self.plan
        if manifest.cluster is None:
            return
        root, out = plan.reader.paths.root, self.target.root
        if plan.cluster is not None and plan.cluster != manifest.cluster:
            raise ConfigError(
                f"{out} has the tables of cluster {manifest.cluster}, but {root} is of cluster "
                f"{plan.cluster}: give another --out"
            )
        epochs = [each for each in plan.state.epochs.all() if each[1] < manifest.position]
        if plan.end < manifest.position or tuple(epochs) != manifest.epochs:
            raise ConfigError(
                f"{out} has tables up to log position {manifest.position}, but the log of {root} "
                f"is another one or ends at {plan.end}: it may be an older copy. Give another --out"
            )

    def _check_damage(self) -> None:
        """Look at the damage in what is to be added; what was there before is in the tables."""
        position, root = self.target.manifest.position, self.plan.reader.paths.root
        damage = [each for each in self.plan.damage if each[1] > position]
        if damage and not self._accepts_loss:
            begin, _, fault = damage[0]
            raise PipelineError(
                f"{root} is damaged at log position {begin}: {fault}. latermq check shows what is "
                "damaged; --accept-data-loss goes on without it"
            )
        if damage:
            self._report(f"{counted(len(damage), 'damaged part')} of the log left out")

    def _slice_end(self, position: int) -> int:
        for zone in self.plan.zones:
            if zone.end - position >= self._limits.slice_bytes:
                return zone.end
        return self.plan.end

    # Facts

    def _add_facts(self, position: int, end: int) -> None:
        manifest, plan = self._with_gap(self.target.manifest), self.plan
        known: Known = {}
        if manifest.known is not None:
            known = decode_known(self.target.read_state(manifest.known))
        timers = timer_query(fails_on_loss=not self._accepts_loss)
        messages = Query(table="messages", fails_on_loss=not self._accepts_loss)
        sources = [
            *(
                (table, each)
                for table, query in (("messages", messages), ("accepted", timers))
                for each in tasks(plan, query, start=position, end=end, read=manifest.read)
            ),
        ]
        changes = find_changes(plan, timers, known, position=position, end=end)
        sources += (("completed", each) for each in changes.tasks)
        stage = self.target.begin_stage()
        staged = self._stage_facts(stage, sources)
        self.target.commit(
            replace(
                manifest,
                cluster=plan.cluster,
                epochs=tuple(each for each in plan.state.epochs.all() if each[1] < end),
                position=end,
                dirty=_dirty_after(manifest, staged),
            ),
            stage,
            added=[(each.name, each.file) for each in staged],
            removed=[],
            known=encode_known(changes.known),
        )
        rows = sum(each.file.rows for each in staged)
        self._report(
            f"facts: {end // MIB} of {plan.end // MIB} MiB of the log, "
            f"{counted(rows, 'row')} in {counted(len(staged), 'new file')}"
        )

    def _with_gap(self, manifest: Manifest) -> Manifest:
        """Note which part of the log was freed before it could be exported, if any was."""
        segments = self.plan.reader.segments
        start = segments[0][0] if segments else 0
        if start <= manifest.position:
            return manifest
        gap = manifest.position, start
        return replace(manifest, gap=gap, gap_end=self.plan.end_of_gap(start))

    def _stage_facts(self, stage: Path, sources: Sequence[tuple[str, Task]]) -> list[Staged]:
        run = uuid4().hex[:8]
        works = [
            FactTask(
                table=table, source=source, fs=self._fs, stage=stage, name=f"{run}-{number:05d}"
            )
            for number, (table, source) in enumerate(sources)
        ]
        return self._on_spark(works)

    def _on_spark(self, works: Sequence[Work]) -> list[Any]:
        if not works:
            return []
        context = self._spark.sparkContext
        found = context.parallelize(works, len(works)).mapPartitions(run_all).collect()
        for each in found:
            if isinstance(each, Failed):
                raise PipelineError(each.message)
        return list(found)

    # Aggregates

    def _correct(self) -> None:
        manifest = self.target.manifest
        at_once = {
            table: frozenset(sorted(manifest.dirty.get(table, ()))[: self._limits.partitions])
            for table in CORRECTED
        }
        facts = Facts(self._spark, self.target.root, manifest)
        stage = self.target.begin_stage()
        added: list[tuple[str, DataFile]] = []
        removed: list[DataFile] = []
        for table, compute in (
            ("hourly", facts.hourly),
            ("lateness", facts.lateness),
            ("outcomes", facts.outcomes),
        ):
            wanted = at_once[table]
            if wanted:
                rows = by_partition(table, compute(wanted))
                added += self._stage_aggregate(stage, table, rows)
                made = {file.partition for _, file in added if file.table == table}
                removed += manifest.files_of(table, wanted - made)
        dirty = {
            table: manifest.dirty.get(table, frozenset()) - at_once[table] for table in CORRECTED
        }
        self.target.commit(replace(manifest, dirty=dirty), stage, added=added, removed=removed)
        counts = ", ".join(f"{len(at_once[table])} of {table}" for table in CORRECTED)
        self._report(f"aggregates: partitions {counts}; {sum(map(len, dirty.values()))} left")

    def _replace_due(self) -> None:
        manifest, plan = self.target.manifest, self.plan
        query = timer_query(fails_on_loss=not self._accepts_loss)
        works = [DueTask(source) for source in pending_tasks(plan, query)]
        stage = self.target.begin_stage()
        added: list[tuple[str, DataFile]] = []
        # Already counted by topic and hour within each part of the log: few rows are left.
        counts = self._on_spark(works)
        if counts:
            rows = due(self._spark.createDataFrame(counts, DUE_COUNTS))
            added = self._stage_aggregate(stage, "due", by_partition("due", rows))
        self.target.commit(
            replace(manifest, due_position=plan.end),
            stage,
            added=added,
            removed=manifest.files_of("due"),
        )
        self._report(f"due: {counted(len(added), 'partition')}")

    def _stage_aggregate(
        self, stage: Path, table: str, rows: Iterable[tuple[Partition, pa.Table]]
    ) -> list[tuple[str, DataFile]]:
        schema = aggregate_schema(table)
        added = []
        for number, (partition, part) in enumerate(rows):
            name = f"{table}-{number:06d}.parquet"
            size = write_parquet(self._fs, stage / name, schema, [part.cast(schema)])
            file = DataFile(
                table=table, partition=partition, name=PART, rows=part.num_rows, size=size
            )
            added.append((name, file))
        return added

    # Compaction

    def _merge(self) -> None:
        while groups := _mergeable(self.target.manifest, self._limits):
            stage = self.target.begin_stage()
            run = uuid4().hex[:8]
            works = [
                MergeTask(
                    root=self.target.root,
                    files=group,
                    fs=self._fs,
                    stage=stage,
                    name=f"{run}-{number:05d}",
                )
                for number, group in enumerate(groups)
            ]
            staged: list[Staged] = self._on_spark(works)
            removed = [file for group in groups for file in group]
            self.target.commit(
                self.target.manifest,
                stage,
                added=[(each.name, each.file) for each in staged],
                removed=removed,
            )
            self._report(f"compaction: {counted(len(removed), 'file')} became {len(staged)}")


def _dirty_after(manifest: Manifest, staged: Sequence[Staged]) -> dict[str, frozenset[Partition]]:
    """Return the partitions of aggregates that new facts change, and those dirty before."""
    dirty = {table: set(manifest.dirty.get(table, ())) for table in CORRECTED}
    first: dict[str, str] = {}
    for each in staged:
        topic, date = each.file.partition
        dirty["hourly"].add((topic, date))
        if each.file.table == "accepted":
            dirty["outcomes"].add((topic, date))
        if each.file.table != "messages":
            first[topic] = min(first.get(topic, date), date)
        dirty["outcomes"].update((topic, other) for other in each.accept_dates)
        dirty["lateness"].update((topic, other) for other in each.due_dates)
    # The backlog of each later date begins with another number.
    for topic, date in first.items():
        later = (other for other in manifest.dates_of("hourly", topic) if other > date)
        dirty["hourly"].update((topic, other) for other in later)
    return {table: frozenset(each) for table, each in dirty.items()}


def _mergeable(manifest: Manifest, limits: Limits) -> list[tuple[DataFile, ...]]:
    """Return groups of files, each of one partition and of about one size."""
    groups: list[tuple[DataFile, ...]] = []
    for table in FACTS:
        for files in manifest.files.get(table, {}).values():
            tiers: dict[int, list[DataFile]] = {}
            for file in files:
                if file.size < limits.merged_bytes:
                    tiers.setdefault(file.size.bit_length() // _TIER_BITS, []).append(file)
            for tier in tiers.values():
                if len(tier) >= limits.small_files:
                    groups += _packed(tier, limits.merged_bytes)
    return groups


def _packed(files: list[DataFile], size_max: int) -> Iterator[tuple[DataFile, ...]]:
    """Divide files into groups of about a size, of two files at least."""
    group: list[DataFile] = []
    size = 0
    for file in files:
        group.append(file)
        size += file.size
        if size >= size_max and len(group) > 1:
            yield tuple(group)
            group, size = [], 0
    if len(group) > 1:
        yield tuple(group)
