"""How rows are handed over: in batches, whose memory is used again when nobody holds them."""

import random

import pyarrow as pa
import pytest

from appliance.store.log.reads import Unreadable
from appliance.units import KIB, MIB
from compat.tables import batches
from compat.tables.batches import ScanTask
from compat.tables.log_reader import LogReader
from compat.tables.table import Query, tasks
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import small_config
from tests.support.harness.tables import planned
from tests.support.values.kafka_records import Record

VALUE_BYTES = 6_000
FRAMES = 40
FRAME_BYTES = 200 * KIB
LIMITS = ("batch_size_max_bytes", "record_size_max_bytes", "decompressed_size_max_bytes")
BATCH_RECORDS = 16
"""Of so many, a column of values is large enough to be used again."""


@pytest.mark.parametrize("at_once", [1, 8, 15])
def test_a_batch_keeps_its_rows_while_the_memory_of_others_is_used_again(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Who writes row groups holds some batches at once."""
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
    group: list[tuple[int, pa.RecordBatch]] = []
    rows = 0
    for number, batch in enumerate(task.batches(harness.disk)):
        if number % 5 == 0:
            held.append((rows, batch))
        else:
            group.append((rows, batch))
        if len(group) == at_once:
            for first, each in group:
                assert each.column("value").to_pylist() == values[first : first + each.num_rows]
            group.clear()
        assert batch.column("due_at").null_count == batch.num_rows
        rows += batch.num_rows
    assert rows == len(values)
    assert len(held) > 3
    for first, batch in held:
        assert batch.column("value").to_pylist() == values[first : first + batch.num_rows]


def test_a_plan_reads_the_heads_of_large_frames_and_little_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = dict.fromkeys(LIMITS, 2 * FRAME_BYTES)
    harness = BrokerHarness(config=small_config(segment_size_bytes=16 * MIB, **limits))
    harness.create_topic("t")
    for _ in range(FRAMES):
        assert harness.produce("t", 0, [Record(bytes(FRAME_BYTES))]).error == 0
    harness.flush()
    harness.broker.close()
    sizes: list[int] = []
    read_into = LogReader.read_into

    def counted(self: LogReader, pos: int, memory: memoryview) -> list[Unreadable]:
        sizes.append(len(memory))
        return read_into(self, pos, memory)

    monkeypatch.setattr(LogReader, "read_into", counted)
    plan = planned(harness.disk)
    assert sum(sizes) < FRAMES * 3 * KIB * 4
    (task,) = tasks(plan, Query())
    assert isinstance(task, ScanTask)
    assert sum(batch.num_rows for batch in task.batches(harness.disk)) == FRAMES
