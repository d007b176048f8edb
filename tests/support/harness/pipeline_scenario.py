"""A broker's life over three days in three parts, and what the pipeline's tables must say of it.

The expected tables are computed in plain Python from the rows of the log, without Spark.
"""

import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from appliance.system.files import OsFileSystem
from appliance.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE
from compat.pipeline.layout import AGGREGATES, FACTS
from compat.pipeline.target import read_manifest
from compat.tables.table import Query, open_plan, tasks
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.offline_scenario import export
from tests.support.values.kafka_records import Record, cancel, delay

TOPICS: Final = ("orders", "2026-01-01", "a.b-c_1")
"""One of them looks like a date, so that nothing may guess its type."""

Rows = list[tuple[Any, ...]]
Tables = dict[str, Rows]


def begin() -> BrokerHarness:
    """A broker with the topics."""
    harness = BrokerHarness()
    for topic in TOPICS:
        harness.create_topic(topic, 2)
    return harness


def live_a_day(harness: BrokerHarness, rng: random.Random) -> BrokerHarness:
    """Produce, delay, cancel, replace and deliver, some of it late; then restart.

    Only a stop publishes all that is flushed.
    """
    for _ in range(8):
        for _ in range(4):
            topic, partition = rng.choice(TOPICS), rng.randrange(2)
            records = [_record(rng) for _ in range(rng.randrange(1, 4))]
            harness.produce(topic, partition, records)
        if rng.random() < 0.3:
            # The broker was busy: what was due meanwhile is late.
            harness.clock.advance_ms(rng.randrange(5 * MS_PER_HOUR))
        harness.tick(rng.randrange(3 * MS_PER_HOUR))
    # What is due now is delivered on the next day.
    harness.clock.advance_ms(3 * MS_PER_HOUR)
    harness.produce(TOPICS[0], 0, [Record(b"last of the day")])
    return harness.restart()


def _record(rng: random.Random) -> Record:
    user_id = b"id-%d" % rng.randrange(30)
    kind = rng.random()
    if kind < 0.2:
        return Record(b"", headers=cancel(user_id))
    value = rng.randbytes(rng.randrange(400))
    if kind < 0.5:
        return Record(value, key=rng.choice([None, b"key"]))
    delay_ms = rng.choice([MS_PER_MINUTE, MS_PER_HOUR, MS_PER_DAY, 5 * MS_PER_DAY])
    named = user_id if kind < 0.8 else None
    return Record(value, headers=delay(rng.randrange(1, delay_ms), named))


def days(root: Path, count: int, seed: int = 1) -> list[Path]:
    """Data directories as they are after each of some days of one broker."""
    rng = random.Random(seed)
    harness = begin()
    found = []
    for day in range(count):
        harness = live_a_day(harness, rng)
        found.append(export(harness.disk, root / f"day-{day}"))
    harness.broker.close()
    return found


# What the tables must say


def expected(data_dir: Path) -> Tables:
    """The tables of a data directory, as sorted rows of topic, date and columns."""
    messages = list(_log_rows(data_dir, "messages"))
    timers = list(_log_rows(data_dir, "timers"))
    completed = [timer for timer in timers if timer["completed_at"] is not None]
    for timer in timers:
        timer["lateness_ms"] = None
        if timer["delay_state"] == "delivered":
            late = timer["completed_at"] - timer["due_at"]
            timer["lateness_ms"] = late // timedelta(milliseconds=1)
    for message in messages:
        message["size"] = len(message["key"] or b"") + len(message["value"] or b"")
    tables = {
        "messages": _facts("messages", messages, "store_timestamp"),
        "accepted": _facts("accepted", timers, "accepted_at"),
        "completed": _facts("completed", completed, "completed_at"),
        "hourly": _hourly(messages, timers, completed),
        "lateness": _lateness(completed),
        "outcomes": _outcomes(timers),
        "due": [
            (*place, len(group))
            for place, group in _by_hour(
                (each for each in timers if each["delay_state"] == "pending"), "due_at"
            ).items()
        ],
    }
    return {table: sorted(rows, key=repr) for table, rows in tables.items()}


def _log_rows(data_dir: Path, table: str) -> Iterator[dict[str, Any]]:
    for task in tasks(open_plan(data_dir), Query(table=table)):
        for batch in task.batches():
            yield from batch.to_pylist()


def _facts(table: str, rows: list[dict[str, Any]], dated_by: str) -> Rows:
    return [
        (row["topic"], _date(row[dated_by]), *(_plain(row[name]) for name in FACTS[table].names))
        for row in rows
    ]


def _plain(value: Any) -> Any:
    return repr(value) if isinstance(value, list) else value


def _date(instant: datetime) -> str:
    return instant.astimezone(UTC).date().isoformat()


def _by_hour(rows: Any, instant: str) -> dict[tuple[str, str, datetime], list[Any]]:
    groups: dict[tuple[str, str, datetime], list[Any]] = {}
    for row in rows:
        hour = row[instant].astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        groups.setdefault((row["topic"], _date(hour), hour), []).append(row)
    return groups


def _states(rows: list[Any]) -> list[int]:
    return [
        sum(row["delay_state"] == state for row in rows)
        for state in ("delivered", "cancelled", "replaced", "deleted")
    ]


def _hourly(messages: list[Any], timers: list[Any], completed: list[Any]) -> Rows:
    stored = _by_hour(messages, "store_timestamp")
    accepted = _by_hour(timers, "accepted_at")
    ended = _by_hour(completed, "completed_at")
    backlog: dict[str, int] = {}
    found = []
    for place in sorted({*stored, *accepted, *ended}):
        topic = place[0]
        states = _states(ended.get(place, []))
        new = len(accepted.get(place, []))
        backlog[topic] = backlog.get(topic, 0) + new - sum(states)
        group = stored.get(place, [])
        size = sum(row["size"] for row in group)
        found.append((*place, len(group), size, new, *states, backlog[topic]))
    return found


def _lateness(completed: list[Any]) -> Rows:
    delivered = (row for row in completed if row["delay_state"] == "delivered")
    found = []
    for place, group in _by_hour(delivered, "due_at").items():
        late = sorted(row["lateness_ms"] for row in group)
        shares = [late[math.ceil(share * len(late)) - 1] for share in (0.5, 0.9, 0.99)]
        found.append((*place, len(late), *shares, late[-1]))
    return found


def _outcomes(timers: list[Any]) -> Rows:
    return [
        (*place, len(group), *_states(group), len(group) - sum(_states(group)))
        for place, group in _by_hour(timers, "accepted_at").items()
    ]


# What they say


def written(out: Path) -> Tables:
    """The tables of an output directory in the same form, by its manifest.

    There is no other file that a reader of Parquet could find.
    """
    manifest = read_manifest(OsFileSystem(), out)
    found: Tables = {table: [] for table in (*FACTS, *AGGREGATES)}
    for table, rows in found.items():
        for file in manifest.files_of(table):
            names = FACTS[table].names if table in FACTS else _names(table)
            content = pq.ParquetFile(out / file.path).read()
            assert content.column_names == list(names)
            assert content.num_rows == file.rows
            rows += [
                (*file.partition, *(_plain(value) for value in row.values()))
                for row in content.to_pylist()
            ]
        rows.sort(key=repr)
    listed = {file.path for table in manifest.files for file in manifest.files_of(table)}
    assert listed == set(visible_files(out))
    return found


def _names(table: str) -> list[str]:
    return [column.name for column in AGGREGATES[table]]


def visible_files(out: Path) -> list[str]:
    """Paths of the files that a reader of the directories finds."""
    paths = (path.relative_to(out) for path in out.rglob("*") if path.is_file())
    return [str(path) for path in paths if not path.parts[0].startswith("_")]


def assert_tables(out: Path, tables: Tables) -> None:
    """Fail unless an output directory has exactly some tables."""
    found = written(out)
    for table, rows in tables.items():
        assert found[table] == rows, table
