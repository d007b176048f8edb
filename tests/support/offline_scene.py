"""Data directories as a broker leaves them, for the tools that look at them without one.

The broker runs on the simulated disk and a virtual clock, and draws the same random numbers each
time, so that a scene is the same byte for byte; `export` puts it on the real disk.
"""

import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from appliance.fs import FileSystem
from appliance.offline.check import Check, CheckReport
from appliance.offline.data_dir import DataDir
from appliance.offline.findings import Fault, Findings, Note
from appliance.offline.log_walk import SLICE_BYTES
from appliance.store.group_frames import OFFSET_COMMITTED, OffsetEntry
from tests.support.broker_rig import BrokerRig
from tests.support.configs import DATA_DIR
from tests.support.kafka_records import Producer, Record, cancel, delay
from tests.support.sim_fs import SimFileSystem
from tests.support.virtual_clock import VirtualClock

LOG: Final = DATA_DIR / "commitlog"
SEGMENT_SIZE: Final = 64 * 1024
EPOCH: Final = 189_388_800
"""Seconds since 2020 of the virtual clock."""
LOG_END: Final = 160_488
LAST_FRAME_POS: Final = 153_256
PENDING_POS: Final = 2384
"""Of the accept frame of the one timer that is pending in the end."""
DELIVER_POS: Final = 3056
DELIVER_SIZE: Final = 360
"""Of the frame that delivers to the second partition of orders."""
QUEUE_BYTES: Final = 145_240
"""Of all frames of its first one."""
FIRST_RECORDS_POS: Final = 1064
"""Of the first accept frame, which has no timers."""
FIRST_TIMERS_POS: Final = 1312
FIRST_TIMERS_SIZE: Final = 648
FIRST_TIMERS_TOLD: Final = f"{FIRST_TIMERS_POS}, {FIRST_TIMERS_SIZE} bytes"
"""Of the accept frame behind it, which holds two records back."""
PAGE: Final = 4096


def same_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ids of topics and clusters be the same in each run."""
    rng = random.Random(6)
    monkeypatch.setattr(secrets, "token_bytes", lambda size=32: rng.randbytes(size))


def play(disk: SimFileSystem | None = None) -> BrokerRig:
    """A broker that has done a bit of everything, in three segments; it still runs."""
    rig = BrokerRig(disk)
    rig.create_topic("orders", 2, {"message.timestamp.type": "CreateTime"})
    rig.create_topic("gone")
    producer = Producer(rig.broker.allocate_producer_id(), 0, 0)
    rig.produce("orders", 0, [Record(b"first", key=b"k1"), Record(b"second")], producer)
    rig.produce(
        "orders",
        1,
        [
            Record(b"\x1b[31mred\x07", key=b"\xff\x00", headers=(("trace", b'a "b"\n'),)),
            Record(b"in a minute", headers=delay(60_000, b"reminder-1")),
            Record(b"in an hour", key=b"k2", headers=delay(3_600_000, b"reminder-2")),
        ],
    )
    rig.produce("gone", 0, [Record(b"x"), Record(b"never", headers=delay(10_000))])
    rig.produce("orders", 0, [Record(b"in two", headers=delay(7_200_000))])
    rig.tick(60_000)
    rig.cancel_timer("orders", b"reminder-2")
    rig.produce("orders", 1, [Record(b"late", headers=delay(900_000, b"reminder-3"))])
    rig.produce("orders", 1, [Record(b"", headers=cancel(b"reminder-3"))])
    topic = rig.broker.find_topic("orders")
    assert topic is not None
    rig.broker.commit_offsets(
        [
            OffsetEntry(
                op=OFFSET_COMMITTED,
                group="billing",
                topic_id=topic.topic_id,
                partition=1,
                offset=1,
                metadata="at one",
                commit_ms=rig.clock.wall_ms(),
            )
        ]
    )
    rig.delete_topic("gone")
    for _ in range(20):
        rig.produce("orders", 0, [Record(b"v" * 7000)])
    rig.flush()
    return rig


def stopped() -> SimFileSystem:
    """The disk of `play` after a clean stop, with all queue units in their files."""
    rig = play()
    rig.broker.close()
    return rig.disk


def killed() -> SimFileSystem:
    """The disk of `play` after a kill -9."""
    return play().disk.crashed("kept", random.Random(0))


def export(disk: SimFileSystem, root: Path) -> Path:
    """Put what the broker left into a real directory; pages of zeros become holes."""
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
    """What a check found."""

    faults: list[Fault] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    report: CheckReport | None = None

    @property
    def told(self) -> list[tuple[str, int, str, str]]:
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
    checked = Checked()

    def tell(finding: Fault | Note) -> None:
        if isinstance(finding, Fault):
            checked.faults.append(finding)
        else:
            checked.notes.append(finding)

    findings = Findings(tell)
    data = DataDir(fs, root, findings)
    try:
        data.open(may_be_live=may_be_live)
        run = Check(data, findings, VirtualClock(), slice_bytes=slice_bytes)
        for _ in run.run():
            pass
        checked.report = run.report
    finally:
        data.close()
    return checked


def segments(disk: SimFileSystem) -> list[Path]:
    """The files of the log, in order."""
    return sorted(path for path in disk.files() if path.parent == LOG)


def find_frame(disk: SimFileSystem, wanted: Callable[[int, bytes], bool]) -> tuple[int, bytes]:
    """The first frame that a test wants, given its position and what follows it in its segment."""
    for path in segments(disk):
        content = disk.files()[path]
        at = 0
        while content[at : at + 2] == b"LM":
            size = int.from_bytes(content[at + 4 : at + 8], "big")
            if wanted(int(path.name) + at, content[at : at + size]):
                return int(path.name) + at, content[at : at + size]
            at += size
    raise AssertionError("there is no such frame")
