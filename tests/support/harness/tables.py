"""Reads the tables of a simulated disk into plain Python rows."""

from typing import Any

import pyarrow as pa

from appliance.system.files import FileSystem
from compat.tables.batches import ScanTask
from compat.tables.plan import Plan
from compat.tables.table import Query, tasks
from tests.support.harness.configs import DATA_DIR

Row = dict[str, Any]


def planned(disk: FileSystem, zone_bytes: int = 4096, stop: int | None = None) -> Plan:
    """A plan of all that is flushed, or up to a log position."""
    plan = Plan(disk, DATA_DIR, zone_bytes=zone_bytes)
    plan.advance(stop=stop)
    return plan


def table_of(disk: FileSystem, query: Query, plan: Plan | None = None, **span: Any) -> pa.Table:
    """The table that a query reads."""
    batches = []
    for task in tasks(plan or planned(disk), query, **span):
        batches += list(task.batches(disk) if isinstance(task, ScanTask) else task.batches())
    table = pa.Table.from_batches(batches, query.schema)
    table.validate(full=True)
    return table


def rows_of(disk: FileSystem, table: str, plan: Plan | None = None, **options: Any) -> list[Row]:
    """The rows of a table, with instants as epoch ms."""
    found = table_of(disk, Query(table=table, **options), plan)
    # Not as Python's instants: they end in the year 9999.
    numbers = pa.schema(
        [
            pa.field(each.name, pa.int64()) if pa.types.is_timestamp(each.type) else each
            for each in found.schema
        ]
    )
    instants = {each.name for each in found.schema if pa.types.is_timestamp(each.type)}
    return [
        {
            name: value // 1000 if name in instants and value is not None else value
            for name, value in row.items()
        }
        for row in found.cast(numbers).to_pylist()
    ]
