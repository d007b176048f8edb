"""A table of a data directory, divided into tasks. Layer 4."""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from appliance.errors import ConfigError
from appliance.system.files import FileSystem, OsFileSystem
from appliance.units import MIB
from compat.tables.batches import DataLossError, LiteralTask, ScanTask, Task
from compat.tables.plan import Plan, Zone
from compat.tables.schema import schema_of
from compat.tables.selection import ANY, NOTHING_READ, ReadBefore, Selection, Topics

SPLIT_BYTES: Final = 128 * MIB
"""Bytes of the log in one task."""
SHARED_MIN_BYTES: Final = 16 * MIB
"""A table of less is not divided any further: a task of Spark costs some milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What to read, and how.

    Attributes:
        table: name of the table.
        columns: the columns asked for, in order; None for all.
        selection: the rows asked for.
        split_bytes: bytes of the log in one task, at least.
        processors: how many tasks run at once. If it is more than one, the tasks are about equal,
            and as many as keep all processors at work until the end.
        verifies: check the CRCs of batches.
        fails_on_loss: raise an error where the log cannot be read; otherwise pass over it.
        with_deleted: topics that were deleted have rows as well.
        with_expired: records before the start offset of their partition have rows as well, as far
            as the log still has them.
    """

    table: str = "messages"
    columns: tuple[str, ...] | None = None
    selection: Selection = field(default_factory=Selection)
    split_bytes: int = SPLIT_BYTES
    processors: int = 1
    verifies: bool = True
    fails_on_loss: bool = True
    with_deleted: bool = False
    with_expired: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The schema of the result.

        Raises:
            ConfigError: there is no such table or column.
        """
        return schema_of(self.table, self.columns)


def tasks(
    plan: Plan,
    query: Query,
    *,
    start: int = 0,
    end: int | None = None,
    read: ReadBefore = NOTHING_READ,
    copies: Plan | None = None,
) -> list[Task]:
    """Divide a table into tasks.

    Args:
        plan: a snapshot of the log.
        query: what to read.
        start, end: only frames in this range of log positions, which are borders of zones or of
            frames; None for the end of the plan.
        read: what was read before.
        copies: a plan that goes to the end of its gap, if `plan` does not.

    Returns:
        The tasks, in the order of the log.

    Raises:
        ConfigError: the query asks for what the table does not have.
        DataLossError: the plan has damage in that range, and the query does not accept it.
    """
    check_query(query)
    if query.fails_on_loss:
        for begin, behind, fault in plan.damage:
            if start < behind and (end is None or begin < end):
                raise DataLossError(plan.reader.paths.root, begin, fault)
    if query.table == "groups":
        return [_groups(plan, query)]
    end = plan.end if end is None else end
    copies = plan if copies is None else copies
    return list(_scans(plan, query, start=start, end=end, read=read, copies=copies))


def check_query(query: Query) -> None:
    """Check that a table can be read as asked.

    Raises:
        ConfigError: the query asks for what the table does not have.
    """
    _ = query.schema
    selection = query.selection
    if selection.timestamps != ANY and query.table != "messages":
        raise ConfigError(f"table {query.table} is not selected by timestamps of records")
    if selection.due != ANY and query.table not in ("timers", "deliveries"):
        raise ConfigError(
            f"table {query.table} is not selected by due times: use timers or deliveries"
        )


def _scans(
    plan: Plan, query: Query, *, start: int, end: int, read: ReadBefore, copies: Plan
) -> Iterator[Task]:
    topics = _topics(plan, query)
    found = [
        zone
        for zone in plan.zones_of(query.table, query.selection, topics)
        if zone.end > start and zone.start < end
    ]
    superseded = plan.superseded() if query.table == "queues" else []
    for zones in divided(found, query.split_bytes, query.processors):
        task = _scan(plan, query, zones, start, end)
        low, high = task.ranges[0][0], task.ranges[-1][1]
        if query.table == "messages":
            task = replace(task, left_out=copies.left_out(low, high, read))
        elif query.table == "queues":
            passed = superseded[bisect_left(superseded, low) : bisect_left(superseded, high)]
            task = replace(task, left_out=array("q", passed).tobytes())
        elif query.table == "timers":
            task = replace(task, outcomes=tuple(plan.outcomes(*each, read) for each in task.ranges))
        yield task


def divided(zones: list[Zone], split_bytes: int, processors: int) -> Iterator[list[Zone]]:
    """Divide zones among tasks; see `Query`."""
    total = sum(zone.end - zone.start for zone in zones)
    is_shared = processors > 1 and total > SHARED_MIN_BYTES
    if is_shared:
        rounds = -(-total // (split_bytes * processors))
        split_bytes = -(-total // (rounds * processors))
    taken: list[Zone] = []
    size = 0
    for zone in zones:
        taken.append(zone)
        size += zone.end - zone.start
        if size >= split_bytes:
            yield taken
            # What a task has beyond its share, the next one has less, so that all stay equal.
            taken, size = [], size - split_bytes if is_shared else 0
    if taken:
        yield taken


def _scan(plan: Plan, query: Query, zones: list[Zone], start: int, end: int) -> ScanTask:
    ranges = merged([(max(zone.start, start), min(zone.end, end)) for zone in zones], plan)
    used = frozenset().union(*(zone.topics for zone in zones))
    topics = {key: value for key, value in _topics(plan, query).items() if key in used}
    low, high = ranges[0][0], ranges[-1][1]
    segments = tuple(each for each in plan.reader.segments if each[0] < high and low < sum(each))
    return ScanTask(
        root=plan.reader.paths.root,
        table=query.table,
        columns=query.columns or tuple(query.schema.names),
        segments=segments,
        ranges=ranges,
        topics=topics,
        selection=query.selection,
        salt=plan.salt,
        verifies=query.verifies,
        fails_on_loss=query.fails_on_loss,
    )


def _topics(plan: Plan, query: Query) -> Topics:
    return plan.topics(
        query.selection, with_deleted=query.with_deleted, with_expired=query.with_expired
    )


def merged(ranges: list[tuple[int, int]], plan: Plan) -> tuple[tuple[int, int], ...]:
    """Join ranges that touch, unless a segment begins between them."""
    bases = {base for base, _ in plan.reader.segments}
    joined: list[tuple[int, int]] = []
    for begin, behind in ranges:
        if joined and joined[-1][1] == begin and begin not in bases:
            joined[-1] = joined[-1][0], behind
        else:
            joined.append((begin, behind))
    return tuple(joined)


def _groups(plan: Plan, query: Query) -> LiteralTask:
    schema, selection = query.schema, query.selection
    rows = [
        row
        for row in _group_rows(plan)
        if (selection.topics is None or row["topic"] in selection.topics)
        and selection.partition in (None, row["partition"])
    ]
    names = schema.names
    batch = pa.RecordBatch.from_pylist(
        [{name: row[name] for name in names} for row in rows], schema=schema
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    return LiteralTask(sink.getvalue().to_pybytes())


def _group_rows(plan: Plan) -> Iterator[dict[str, Any]]:
    state = plan.state
    for name in state.groups.names:
        for (topic_id, partition), entry in sorted(state.groups.offsets(name).items()):
            topic = state.projections.topics_by_id.get(topic_id)
            if topic is None or partition >= len(topic.partitions):
                continue
            place = topic.partitions[partition]
            yield {
                "group": name,
                "topic": topic.name,
                "partition": partition,
                "offset": entry.offset,
                "end_offset": place.next_offset,
                "lag": max(place.next_offset - max(entry.offset, place.start_offset), 0),
                "metadata": entry.metadata,
                "committed_at": entry.commit_ms * 1000,
            }


def open_plan(root: str | Path, fs: FileSystem | None = None) -> Plan:
    """Plan a data directory up to its flushed position.

    Raises:
        LatermqError: it cannot be read; see `Plan.advance`.
    """
    plan = Plan(fs or OsFileSystem(), Path(root))
    plan.advance()
    return plan
