"""What the tables of a directory say after the kills, against what the broker said to its clients.

The tables are read by the scanner that Spark's source, the pipeline and `latermq export` use.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from compat.tables.table import Query, open_plan, tasks
from tests.support.harness.appliance_process import ApplianceProcess
from tests.support.oracles.commit_history import Partition
from tests.support.oracles.history import ACCEPTED_AT, DUE_AT, ORIGIN
from tests.support.oracles.history_events import Consumed, Place
from tests.system.kill9.workload import OUTCOMES

US_PER_MS = 1000

ASKED_MAX = 100
"""Ids of each state that the broker is asked for."""

REPLY_BEGIN = b'{"outcome":'
"""A reply is a timer of the topic of the cancel, and comes in another one."""

TIMER_COLUMNS = ("topic", "partition", "key", "value", "due_at", "delay_state")


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
    timers = rows(data_dir, "timers", *TIMER_COLUMNS)
    states = Counter(row["delay_state"] for row in timers)
    delivered = Counter(
        (row["topic"], row["partition"], row["key"], row["value"] or b"", row["due_at"])
        for row in timers
        if row["delay_state"] == "delivered" and not (row["value"] or b"").startswith(REPLY_BEGIN)
    )
    came = Counter(
        (sent_to(each), each.place.partition, each.key, each.value, due[each.place])
        for each in consumed
        if each.place in due and each.place.topic != OUTCOMES
    )
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
        *differences("timers", delivered, came),
        *differences("groups", ends, {key: at for key, at in committed.items() if at[0] >= 0}),
    ]


def sent_to(reading: Consumed) -> str:
    """The topic that a record was produced to."""
    origin = dict(reading.headers).get(ORIGIN)
    return reading.place.topic if origin is None else origin.decode().partition("/")[0]


def compare_states(appliance: ApplianceProcess) -> list[str]:
    """Compare what became of timers with what a broker, which runs, says of their ids.

    An id names its last timer. The broker is idle, so that all is flushed.
    """
    last: dict[tuple[str, bytes], str] = {}
    timers = rows(appliance.data_dir, "timers", "topic", "id", "position", "index", "delay_state")
    for row in sorted(timers, key=lambda row: (row["position"], row["index"])):
        if row["id"] is not None:
            last[row["topic"], row["id"]] = row["delay_state"]
    # Of each state some, the last ones: the first ones may be forgotten.
    asked: dict[str, list[tuple[str, bytes]]] = {}
    for key, state in last.items():
        asked.setdefault(state, []).append(key)
    assert {"delivered", "cancelled"} <= asked.keys(), asked.keys()
    found, said = {}, {}
    for state, keys in asked.items():
        for topic, user_id in keys[-ASKED_MAX:]:
            _, answer = appliance.get_json(f"/api/v1/topics/{topic}/timers/{quote(user_id, '')}")
            found[topic, user_id] = state
            # A record that came at once replaced the timer, and has the id since.
            said[topic, user_id] = (
                "replaced"
                if state == "replaced" and answer["state"] == "delivered"
                else answer["state"]
            )
    return differences("timers", found, said)


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
    """Return when a record was due that waited for it; None for one that was delivered at once.

    A dead letter and a reply wait as well, if only for the moment until they are delivered.
    """
    stamps = {name: int(value) for name, value in record.headers if name in (ACCEPTED_AT, DUE_AT)}
    due_ms = stamps.get(DUE_AT)
    is_held = due_ms is not None and due_ms > stamps[ACCEPTED_AT]
    is_held |= ORIGIN in dict(record.headers) or record.place.topic == OUTCOMES
    return due_ms if is_held else None
