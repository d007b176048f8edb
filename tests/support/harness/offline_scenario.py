"""Data directories as a broker leaves them, for the offline tools.

The broker runs on the simulated disk and a virtual clock with fixed random numbers, so a scenario
is reproducible byte for byte; `export` writes it to the real disk.
"""

import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from appliance.offline.check import Check, CheckReport
from appliance.offline.data_dir import DataDir
from appliance.offline.findings import Fault, Findings, Note
from appliance.offline.log_walk import SLICE_BYTES
from appliance.store.state.group_frames import OFFSET_COMMITTED, OffsetEntry
from appliance.system.files import FileSystem
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import DATA_DIR
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Producer, Record, cancel, delay

LOG: Final = DATA_DIR / "commitlog"
SEGMENT_SIZE: Final = 64 * 1024
EPOCH: Final = 189_388_800
"""Seconds since 2020 of the virtual clock."""
LOG_END: Final = 160_488
LAST_FRAME_POS: Final = 153_256
PENDING_POS: Final = 2384
"""Position of the accept frame of the one timer that is pending at the end."""
DELIVER_POS: Final = 3056
DELIVER_SIZE: Final = 360
"""Position of the frame that delivers to the second partition of orders."""
QUEUE_BYTES: Final = 145_240
"""Positions of all frames of the first partition of orders."""
FIRST_RECORDS_POS: Final = 1064
"""Position of the first accept frame, which has no timers."""
FIRST_TIMERS_POS: Final = 1312
FIRST_TIMERS_SIZE: Final = 648
FIRST_TIMERS_RANGE: Final = f"{FIRST_TIMERS_POS}, {FIRST_TIMERS_SIZE} bytes"
"""The accept frame after it, which holds two records."""
PAGE: Final = 4096


def same_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ids of topics and clusters the same in each run."""
    rng = random.Random(6)
    monkeypatch.setattr(secrets, "token_bytes", lambda size=32: rng.randbytes(size))


def play(disk: SimFileSystem | None = None) -> BrokerHarness:
    """A running broker that has done a bit of everything, in three segments."""
    harness = BrokerHarness(disk)
    harness.create_topic("orders", 2, {"message.timestamp.type": "CreateTime"})
    harness.create_topic("gone")
    producer = Producer(harness.broker.allocate_producer_id(), 0, 0)
    harness.produce("orders", 0, [Record(b"first", key=b"k1"), Record(b"second")], producer)
    harness.produce(
        "orders",
        1,
        [
            Record(b"\x1b[31mred\x07", key=b"\xff\x00", headers=(("trace", b'a "b"\n'),)),
            Record(b"in a minute", headers=delay(60_000, b"reminder-1")),
            Record(b"in an hour", key=b"k2", headers=delay(3_600_000, b"reminder-2")),
        ],
    )
    harness.produce("gone", 0, [Record(b"x"), Record(b"never", headers=delay(10_000))])
    harness.produce("orders", 0, [Record(b"in two", headers=delay(7_200_000))])
    harness.tick(60_000)
    harness.cancel_timer("orders", b"reminder-2")
    harness.produce("orders", 1, [Record(b"late", headers=delay(900_000, b"reminder-3"))])
    harness.produce("orders", 1, [Record(b"", headers=cancel(b"reminder-3"))])
    topic = harness.topic("orders")
    harness.broker.groups.commit_offsets(
        [
            OffsetEntry(
                op=OFFSET_COMMITTED,
                group="billing",
                topic_id=topic.topic_id,
                partition=1,
                offset=1,
                metadata="at one",
                commit_ms=harness.clock.wall_ms(),
            )
        ]
    )
    harness.delete_topic("gone")
    for _ in range(20):
        harness.produce("orders", 0, [Record(b"v" * 7000)])
    harness.flush()
    return harness


def stopped() -> SimFileSystem:
    """The disk of `play` after a clean stop, with all queue units in their files."""
    harness = play()
    harness.broker.close()
    return harness.disk


def killed() -> SimFileSystem:
    """The disk of `play` after a kill -9."""
    return play().disk.crashed("kept", random.Random(0))


def export(disk: SimFileSystem, root: Path) -> Path:
    """Write the disk to a real directory; pages of zeros become holes."""
    for path, content in disk.files().items():
        target = root / path.relative_to(DATA_DIR)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            file.truncate(len(content))
            for at in range(0, len(content), PAGE):
                page = content[at : at + PAGE]
                if any(page):
                    file.seek(at)
                    file.write(page)
    return root


@dataclass
class Checked:
    """The findings of a check."""

    faults: list[Fault]
    notes: list[Note]
    report: CheckReport

    @property
    def fault_rows(self) -> list[tuple[str, int, str, str]]:
        """Name of the file, offset, expected and found of each fault."""
        return [(each.path.name, each.offset, each.expected, each.found) for each in self.faults]


def check(
    fs: FileSystem,
    root: Path = DATA_DIR,
    *,
    may_be_live: bool = False,
    slice_bytes: int = SLICE_BYTES,
) -> Checked:
    """Check a directory."""
    found: list[Fault | Note] = []
    findings = Findings(found.append)
    data = DataDir(fs, root, findings)
    try:
        data.open(may_be_live=may_be_live)
        run = Check(data, findings, slice_bytes=slice_bytes)
        for _ in run.run():
            pass
    finally:
        data.close()
    return Checked(
        [each for each in found if isinstance(each, Fault)],
        [each for each in found if isinstance(each, Note)],
        run.report,
    )


def segments(disk: SimFileSystem) -> list[Path]:
    """The files of the log, in order."""
    return sorted(path for path in disk.files() if path.parent == LOG)


def find_frame(disk: SimFileSystem, wanted: Callable[[int, bytes], bool]) -> tuple[int, bytes]:
    """The first frame for which `wanted` holds, given its position and the segment from it on."""
    for path in segments(disk):
        content = disk.files()[path]
        at = 0
        while content[at : at + 2] == b"LM":
            size = int.from_bytes(content[at + 4 : at + 8], "big")
            if wanted(int(path.name) + at, content[at : at + size]):
                return int(path.name) + at, content[at : at + size]
            at += size
    raise AssertionError("there is no such frame")
