"""A table as a stream, in micro-batches. Layer 5.

An offset of a stream is `{"cluster": ID, "position": N}`: the log of a cluster up to a border of
its frames. A micro-batch is planned with the log as it was at its end, so that it has the same rows
whenever it is repeated. A stream that began when the first segments were freed already has `begin`
and `gap_end` in its offsets as well, so that what was carried out of them comes once: see
`ReadBefore`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from appliance.errors import ConfigError
from appliance.store.paths import segment_name
from appliance.system.files import OsFileSystem
from compat.spark.rows import TaskPartition, rows_of
from compat.tables.log_reader import SegmentGoneError
from compat.tables.pin import LogChangedError, check_cluster, take_pin
from compat.tables.plan import Plan
from compat.tables.selection import ReadBefore
from compat.tables.table import Query, tasks

STREAMS: Final = ("messages", "deliveries", "frames")
"""Tables whose rows never change."""

Offset = dict[str, Any]


class LatermqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is added to a table."""

    def __init__(
        self, root: Path, query: Query, schema: pa.Schema, trigger_bytes: int | None
    ) -> None:
        """Read nothing yet.

        Args:
            root: the data directory.
            query: what to read.
            schema: of the rows, as Spark expects it.
            trigger_bytes: bytes of the log in one micro-batch, None for no limit.

        Raises:
            ConfigError: the rows of the table change.
        """
        if query.table not in STREAMS:
            raise ConfigError(
                f"rows of table {query.table} change, so it is no stream: use spark.read, or "
                f"stream one of {', '.join(STREAMS)}"
            )
        self._root = root
        self._query = query
        self._schema = schema
        self._trigger_bytes = trigger_bytes
        self._last: int | None = None
        self._plan: Plan | None = None  # Spark pickles readers before their first call
        self._copies: Plan | None = None

    # What Spark asks for each micro-batch, in its driver

    def initialOffset(self) -> Offset:  # noqa: N802 (Spark's name, as all of these)
        """Return the beginning of the log."""
        start = take_pin(self._root).start
        plan = self._new_plan()
        plan.advance(stop=start + 1)
        if start:
            plan.advance()  # all that was carried out of freed segments is there
            start = plan.reader.segments[0][0] if plan.reader.segments else start
        offset = {"cluster": plan.cluster or "", "position": start}
        gap_end = plan.end_of_gap(start)
        return offset | {"begin": start, "gap_end": gap_end} if gap_end else offset

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of the option maxBytesPerTrigger."""
        size = self._trigger_bytes
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End at what is flushed now."""
        self._last = take_pin(self._root).end

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the end of the next micro-batch: the last frame may exceed the limit.

        Raises:
            LogChangedError: the directory holds another log, or less of it.
        """
        plan = self._reach(start)
        stops = [] if self._last is None else [self._last]
        if isinstance(limit, ReadMaxBytes):
            stops.append(start["position"] + limit.max_bytes)
        plan.advance(stop=min(stops, default=None))
        return self._offset(plan, start)

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Return how far the log goes, for the progress of the query."""
        pin = take_pin(self._root)
        return {"cluster": pin.cluster, "position": pin.end}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Divide a micro-batch into tasks.

        Raises:
            LogChangedError: the directory holds another log, or less of it.
            LatermqError: the log cannot be read; see `tasks`.
        """
        begin, behind = start["position"], end["position"]
        if begin == behind:
            return []
        plan = self._plan
        if plan is None or plan.end != behind:
            self._reach(start)
            plan = self._reach(end)
        read = ReadBefore(
            position=begin, gap=(0, start.get("begin", 0)), gap_end=start.get("gap_end", 0)
        )
        copies = self._plan_to(read.gap_end) if read.gap_end > behind else None
        found = tasks(plan, self._query, start=begin, end=behind, read=read, copies=copies)
        plan.reader.close()
        return [TaskPartition(task) for task in found]

    def commit(self, end: Offset) -> None:
        """Forget what no micro-batch needs any more."""
        if self._plan is not None:
            self._plan.forget(end["position"])

    def stop(self) -> None:
        """Close the files."""
        if self._plan is not None:
            self._plan.reader.close()

    # What Spark asks for each task, in its executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task.

        Raises:
            LatermqError: the log cannot be read; see `Task.batches`.
        """
        return rows_of(partition, self._schema)

    def _new_plan(self) -> Plan:
        self.stop()
        self._plan = Plan(OsFileSystem(), self._root)
        return self._plan

    def _plan_to(self, end: int) -> Plan:
        """Plan the log up to the end of the gap, beside the plan of the micro-batch."""
        if self._copies is None:
            self._copies = Plan(OsFileSystem(), self._root)
            self._copies.advance(stop=end)
            self._copies.reader.close()
        return self._copies

    def _reach(self, offset: Offset) -> Plan:
        """Plan the log up to an offset, and not further.

        Raises:
            LogChangedError: that is impossible.
        """
        position = offset["position"]
        plan = self._plan
        if plan is None or plan.end > position:
            plan = self._new_plan()
        if plan.end < position:
            plan.advance(stop=position)
        check_cluster(plan, offset["cluster"])
        if plan.end < position:
            fact = f"it ends at log position {plan.end}, and was read up to {position}"
            raise LogChangedError(self._root, fact)
        if plan.end > position:
            self._check_head(plan, position)
        return plan

    def _check_head(self, plan: Plan, position: int) -> None:
        """Refuse an offset before the beginning of the log, unless that is accepted."""
        segments = plan.reader.segments
        if not segments or segments[0][0] <= position:
            raise LogChangedError(self._root, f"no frame begins at log position {position}")
        if self._query.fails_on_loss:
            raise SegmentGoneError(plan.reader.paths.commit_log / segment_name(position))

    @staticmethod
    def _offset(plan: Plan, start: Offset) -> Offset:
        position = max(plan.end, start["position"])
        return start | {"cluster": plan.cluster or start["cluster"], "position": position}
