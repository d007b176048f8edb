"""Topics whose partitions have offsets that hold nothing: the empty batches that close them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from appliance.fs import OsFileSystem
from tests.support.broker_rig import BrokerRig
from tests.support.configs import small_config
from tests.support.kafka_records import Record

FRANZ_GO_GAPS: Final = "franz-go-gaps"
"""The topic of a client that has no program of features."""
_PARTS: Final = (((b"a", b"b"), 7), ((b"c", b"d"), 1_009))
"""Values, and where the empty batch behind them ends: tests/clients/suites/harness.py too."""


def write_topics(data_dir: Path, topics: Sequence[str]) -> None:
    """Make the data directory of a broker that has these topics, each with one partition."""
    fs: Any = OsFileSystem()
    rig = BrokerRig(fs, config=small_config(data_dir=data_dir))
    for name in topics:
        rig.create_topic(name)
        topic = rig.broker.find_topic(name)
        assert topic is not None
        for values, end in _PARTS:
            rig.produce(name, 0, [Record(value) for value in values])
            writer = rig.broker._store.writer
            assert writer.append_gap(
                topic.partitions[0], end_offset=end, store_time_ms=rig.clock.wall_ms()
            )
    rig.flush()
    rig.broker.close()
