"""How rows are handed over: in batches, whose memory is used again when nobody holds them."""

import random

import pyarrow as pa
import pytest

from compat.tables import batches
from compat.tables.batches import ScanTask
from compat.tables.table import Query, tasks
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.tables import planned
from tests.support.values.kafka_records import Record

VALUE_BYTES = 6_000
BATCH_RECORDS = 16
"""Of so many, a column of values is large enough to be used again."""


def test_a_batch_keeps_its_rows_while_the_memory_of_others_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", BATCH_RECORDS * VALUE_BYTES)
    rng = random.Random(1)
    values = [rng.randbytes(VALUE_BYTES) for _ in range(20 * BATCH_RECORDS)]
    harness = BrokerHarness()
    harness.create_topic("t")
    for value in values:
        assert harness.produce("t", 0, [Record(value)]).error == 0
    harness.flush()
    harness.broker.close()
    query = Query(columns=("value", "due_at"), split_bytes=1 << 30)
    (task,) = tasks(planned(harness.disk), query)
    assert isinstance(task, ScanTask)
    held: list[tuple[int, pa.RecordBatch]] = []
    rows = 0
    for number, batch in enumerate(task.batches(harness.disk)):
        if number % 5 == 0:
            held.append((rows, batch))
        else:
            assert batch.column("value").to_pylist() == values[rows : rows + batch.num_rows]
        assert batch.column("due_at").null_count == batch.num_rows
        rows += batch.num_rows
    assert rows == len(values)
    assert len(held) > 3
    for first, batch in held:
        assert batch.column("value").to_pylist() == values[first : first + batch.num_rows]
