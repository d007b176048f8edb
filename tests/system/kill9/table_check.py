"""What the tables of a directory say after the kills, against what the broker said to its clients.

The tables are read by the scanner that Spark's source, the pipeline and `latermq export` use.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compat.tables.table import Query, open_plan, tasks
from tests.support.oracles.commit_history import Partition
from tests.support.oracles.history import ACCEPTED_AT, DUE_AT
from tests.support.oracles.history_events import Consumed, Place

US_PER_MS = 1000


def compare_tables(
    data_dir: Path,
    consumed: list[Consumed],
    committed: Mapping[Partition, tuple[int, str]],
) -> list[str]:
    """Compare messages, deliveries, timers and groups; return where they differ.

    Args:
        data_dir: of a broker that has stopped, without a pending timer.
        consumed: all records, as a consumer got them.
        committed: offset and metadata that the broker reports for each partition.
    """
    seen = {each.place: (each.key, each.value) for each in consumed}
    due = {each.place: at_ms for each in consumed if (at_ms := _due_ms(each)) is not None}
    messages = rows(data_dir, "messages", "topic", "partition", "offset", "key", "value")
    deliveries = rows(data_dir, "deliveries", "topic", "partition", "offset", "due_at")
    states = Counter(row["delay_state"] for row in rows(data_dir, "timers", "delay_state"))
    groups = rows(data_dir, "groups", "topic", "partition", "offset", "metadata")
    found = {place_of(row): (row["key"], row["value"] or b"") for row in messages}
    # confluent-kafka sends the zero byte as well that ends a text in C; see `read_committed`.
    ends = {
        (row["topic"], row["partition"]): (row["offset"], row["metadata"].removesuffix("\0"))
        for row in groups
    }
    return [
        *differences("messages", found, seen),
        *differences("deliveries", {place_of(row): row["due_at"] for row in deliveries}, due),
        *differences("states of timers", {"pending": states["pending"]}, {"pending": 0}),
        *differences("timers", {"delivered": states["delivered"]}, {"delivered": len(due)}),
        *differences("groups", ends, {key: at for key, at in committed.items() if at[0] >= 0}),
    ]


def rows(data_dir: Path, table: str, *columns: str) -> list[dict[str, Any]]:
    """The rows of a table, instants as epoch ms."""
    query = Query(table=table, columns=columns)
    found = []
    for task in tasks(open_plan(data_dir), query):
        for batch in task.batches():
            found += batch.to_pylist()
    for row in found:
        if row.get("due_at") is not None:
            row["due_at"] = round(row["due_at"].timestamp() * US_PER_MS)
    return found


def place_of(row: dict[str, Any]) -> Place:
    return Place(row["topic"], row["partition"], row["offset"])


def differences(what: str, found: Mapping[Any, Any], expected: Mapping[Any, Any]) -> list[str]:
    """Return a line for each key whose values differ, or which only one of them has."""
    keys = [key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)]
    return [
        f"the table of {what} has {found.get(key)} at {key}, the broker said {expected.get(key)}"
        for key in sorted(keys, key=repr)
    ]


def _due_ms(record: Consumed) -> int | None:
    """Return when a record was due that waited for it; None for one that was delivered at once."""
    stamps = {name: int(value) for name, value in record.headers if name in (ACCEPTED_AT, DUE_AT)}
    due_ms = stamps.get(DUE_AT)
    return due_ms if due_ms is not None and due_ms > stamps[ACCEPTED_AT] else None
