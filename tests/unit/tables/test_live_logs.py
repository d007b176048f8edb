"""A directory that a broker is using is read up to what is flushed, and never changed."""

import itertools
import random

import pytest

from appliance.errors import ConfigError
from compat.tables.schema import TABLE_NAMES
from compat.tables.selection import Selection
from compat.tables.table import Query
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import DATA_DIR
from tests.support.harness.tables import planned, rows_of, table_of
from tests.support.oracles.tables_model import UsedBroker
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Record


def test_an_empty_store_has_empty_tables() -> None:
    harness = BrokerHarness()
    harness.broker.close()
    for table in TABLE_NAMES:
        rows = rows_of(harness.disk, table)
        assert bool(rows) == (table == "frames")


def test_a_directory_without_a_log_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not a latermq data directory"):
        planned(SimFileSystem())


def test_nothing_is_read_after_the_flushed_position() -> None:
    used = UsedBroker(random.Random(5))
    used.use(100)
    harness = used.stop("clean") or used.harness
    before = rows_of(harness.disk, "messages")
    harness.produce("orders", 0, [Record(b"durable, but not published yet")])
    flushed = planned(harness.disk).reader.flushed
    assert planned(harness.disk).end == flushed < harness.durable_pos
    assert rows_of(harness.disk, "messages") == before


def test_without_a_checkpoint_the_log_ends_at_its_torn_tail() -> None:
    used = UsedBroker(random.Random(5))
    used.use(100)
    durable_pos = used.harness.durable_pos
    used.harness.send_produce("orders", 0, [Record(b"x" * 3000)])
    disk = used.harness.disk.crashed("torn", random.Random(2))
    disk.unlink(DATA_DIR / "checkpoint")
    plan = planned(disk)
    assert plan.end >= durable_pos
    assert plan.damage == []


def test_a_plan_goes_on_with_a_log_that_grows() -> None:
    """It plans only what is new, and knows the same as a plan of the whole."""
    used = UsedBroker(random.Random(8))
    used.stop("clean")
    plan = planned(used.harness.disk)
    for _ in range(4):
        used.use(60)
        used.stop("clean")
        begin = plan.end
        known = list(plan.zones)
        plan.advance()
        assert plan.zones[: len(known)] == known
        fresh = planned(used.harness.disk)
        assert plan.end == fresh.end > begin
        for table in TABLE_NAMES:
            assert rows_of(used.harness.disk, table, plan) == rows_of(
                used.harness.disk, table, fresh
            )


def test_parts_of_the_log_join_to_the_whole() -> None:
    """As micro-batches of a stream do."""
    used = UsedBroker(random.Random(9))
    used.use(200)
    used.harness.broker.close()
    disk = used.harness.disk
    plan = planned(disk)
    borders = sorted(
        random.Random(1).sample([row["position"] for row in rows_of(disk, "frames")], 7)
    )
    borders = [0, *borders, plan.end]
    for table in ("messages", "timers", "deliveries", "frames"):
        query = Query(table=table)
        parts = [
            table_of(disk, query, plan, start=begin, end=end).to_pylist()
            for begin, end in itertools.pairwise(borders)
        ]
        joined = list(itertools.chain.from_iterable(parts))
        assert joined == table_of(disk, query, plan).to_pylist()


def test_reading_changes_nothing_and_takes_no_lock() -> None:
    used = UsedBroker(random.Random(4))
    used.use(40)
    used.stop("clean")
    disk = used.harness.disk
    before = disk.files()
    for table in TABLE_NAMES:
        rows_of(disk, table)
    assert disk.files() == before
    used.use(20)  # the broker still has its lock and goes on


def test_deleted_topics_and_records_have_no_rows() -> None:
    used = UsedBroker(random.Random(6))
    used.use(120)
    used.harness.delete_topic("mails")
    topic = used.harness.topic("orders")
    used.harness.broker.topics.delete_records(topic, {0: 5})
    used.harness.flush()
    used.harness.broker.close()
    for table in ("messages", "timers", "deliveries", "queues", "groups"):
        assert {row["topic"] for row in rows_of(used.harness.disk, table)} == {"orders"}
    for table in ("messages", "queues"):
        offsets = [
            row["offset"] for row in rows_of(used.harness.disk, table) if row["partition"] == 0
        ]
        assert offsets[0] == 5


def test_columns_come_in_the_order_asked_for() -> None:
    used = UsedBroker(random.Random(2))
    used.use(80)
    used.harness.broker.close()
    for table in TABLE_NAMES:
        whole = table_of(used.harness.disk, Query(table=table))
        names = whole.schema.names
        for columns in (names[::-1], names[:1], names[2:4]):
            found = table_of(used.harness.disk, Query(table=table, columns=tuple(columns)))
            assert found == whole.select(columns)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (Query(table="queue"), "no table 'queue': use one of messages, timers"),
        (Query(columns=("body",)), "table messages has no column 'body': its columns are key"),
        (Query(columns=()), "no column an empty list"),
        (Query(columns=("key", "key")), "a column is named twice: key, key"),
        (
            Query(table="timers", selection=Selection(timestamps=(1, None))),
            "table timers is not selected by timestamps",
        ),
        (Query(selection=Selection(due=(1, 2))), "use timers or deliveries"),
    ],
)
def test_what_a_table_does_not_have_is_an_error(query: Query, message: str) -> None:
    harness = BrokerHarness()
    harness.broker.close()
    with pytest.raises(ConfigError, match=message):
        table_of(harness.disk, query)


def test_a_plan_goes_on_in_the_copy_of_a_segment() -> None:
    """A start that ends the log before the end of a snapshot continues in a copy."""
    harness = BrokerHarness()
    harness.create_topic("t", 1)
    harness.produce("t", 0, [Record(b"first")])
    harness = harness.restart()
    plan = planned(harness.disk)
    path = DATA_DIR / "commitlog" / f"{0:020d}"
    new = DATA_DIR / "commitlog" / "spare"
    harness.broker.close()
    if harness.disk.exists(new):
        harness.disk.unlink(new)
    copy = harness.disk.open(new, create=True)
    copy.pwritev([harness.disk.files()[path]], 0)
    copy.fdatasync()
    harness.disk.rename(new, path)
    harness = BrokerHarness(harness.disk, harness.clock, harness.config)
    harness.produce("t", 0, [Record(b"second")])
    harness.broker.close()
    plan.advance()
    assert plan.damage == []
    values = [row["value"] for row in rows_of(harness.disk, "messages", plan)]
    assert values == [b"first", b"second"]
