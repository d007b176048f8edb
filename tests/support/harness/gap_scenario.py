"""Topics whose partitions have offsets that hold nothing: the empty batches that close them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from appliance.system.files import OsFileSystem
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import small_config
from tests.support.values.kafka_records import Record

FRANZ_GO_GAPS: Final = "franz-go-gaps"
"""The topic of a client without a program of features."""
_PARTS: Final = (((b"a", b"b"), 7), ((b"c", b"d"), 1_009))
"""Values, and where the empty batch after them ends: also in clients/suites/features.py."""


def write_topics(data_dir: Path, topics: Sequence[str]) -> None:
    """Create a data directory with these topics, each with one partition."""
    fs: Any = OsFileSystem()
    harness = BrokerHarness(fs, config=small_config(data_dir=data_dir))
    for name in topics:
        harness.create_topic(name)
        topic = harness.topic(name)
        for values, end in _PARTS:
            harness.produce(name, 0, [Record(value) for value in values])
            writer = harness.broker._store.writer
            assert writer.append_gap(
                topic.partitions[0], end_offset=end, store_time_ms=harness.clock.wall_ms()
            )
    harness.flush()
    harness.broker.close()
