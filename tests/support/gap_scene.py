"""Topics whose partitions have offsets that hold nothing: the empty batches that close them.

They are written as frames into the log of a stopped broker; docs/FORMAT.md has their form.
"""

import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from appliance.broker import Broker
from appliance.clock import SystemClock
from appliance.fs import OsFileSystem
from appliance.main import KAFKA_FACADE
from appliance.store.paths import DataPaths
from tests.support.configs import small_config
from tests.support.frames_model import ACCEPT, Batch, Frame, Record, crc32c

TIME_MS: Final = 1_700_000_000_000
VALUES: Final = {0: b"a", 1: b"b", 7: b"c", 8: b"d"}
"""What is read of each topic: values by offset."""
END: Final = 1_009
"""Where each topic ends: behind an empty batch."""
FRANZ_GO_GAPS: Final = "franz-go-gaps"
"""The topic of a client that has no program of features."""
_EMPTY: Final = ((2, 7), (9, END))
"""First offset and the one behind the last, of each empty batch."""


def empty_batch(base_offset: int, end_offset: int, *, timestamp: int = -1) -> bytes:
    """A batch without records, that takes offsets."""
    rest = struct.pack(
        ">hiqqqhii", 0, end_offset - base_offset - 1, timestamp, timestamp, -1, -1, -1, 0
    )
    return struct.pack(">qiibI", base_offset, 9 + len(rest), 0, 2, crc32c(rest)) + rest


def write_topics(data_dir: Path, topics: Sequence[str], *, timestamp: int = -1) -> None:
    """Make a data directory of a broker that has these topics, each with one partition.

    Args:
        data_dir: does not exist.
        topics: their names.
        timestamp: of the empty batches.
    """
    fs = OsFileSystem()
    broker = Broker(SystemClock(), fs, small_config(data_dir=data_dir), KAFKA_FACADE)
    for _ in broker.recover():
        pass
    ids = [broker.create_topic(name, 1, {}).topic_id for name in topics]
    broker.flush()
    end, epoch = broker.wrote_pos, broker.epoch
    broker.close()
    paths = DataPaths(data_dir)
    (segment,) = paths.commit_log.glob("0*")
    with segment.open("r+b") as file:
        for topic_id in ids:
            for base_offset, visible in _batches(epoch, timestamp):
                count = int.from_bytes(visible[57:61], "big")
                frame = Frame(
                    kind=ACCEPT,
                    phys_offset=end,
                    epoch=epoch,
                    topic_id=topic_id,
                    flushed=end,
                    store_time=TIME_MS,
                    base_offset=base_offset,
                    partition=0,
                    record_count=count,
                    min_timestamp=TIME_MS if count else timestamp,
                    max_timestamp=TIME_MS if count else timestamp,
                    running_max=TIME_MS,
                    visible=visible,
                ).encode()
                file.seek(end)
                file.write(frame)
                end += len(frame)
    # They tell of the log as it was: a start reads all of it without them.
    paths.checkpoint.unlink()
    for path in (paths.consume_queue, paths.timer, paths.index, paths.control):
        shutil.rmtree(path, ignore_errors=True)


def _batches(epoch: int, timestamp: int) -> list[tuple[int, bytes]]:
    found = [(begin, empty_batch(begin, end, timestamp=timestamp)) for begin, end in _EMPTY]
    for begin in (0, 7):
        records = tuple(Record(timestamp=TIME_MS, value=VALUES[at]) for at in (begin, begin + 1))
        found.append((begin, Batch(records=records, base_offset=begin).encode()))
    return sorted(found)
