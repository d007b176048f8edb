"""Sectors that go bad under a broker that serves: fetch, search and delivery, and what heals.

No signal ends it, the places are told, all else is served, and a sector that can be read again is
served again.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import cast

from appliance.errors import ColdFrameError
from appliance.fs import OsFileSystem
from appliance.units import MIB
from tests.support.bad_disk import BadDisk
from tests.support.broker_rig import BrokerRig
from tests.support.configs import small_config
from tests.support.kafka_records import Record, delay
from tests.support.sim_fs import SimFileSystem

COUNT = 60
BAD = 20
DUE_MS = 60_000


def value_of(number: int) -> bytes:
    return b"%d " % number + random.Random(number).randbytes(7_900)


def started(path: Path) -> BrokerRig:
    # Of the rig only that is used which the two have in common.
    fs = cast(SimFileSystem, OsFileSystem())
    return BrokerRig(fs, config=small_config(data_dir=path, segment_size_bytes=4 * MIB))


def numbers(rig: BrokerRig, topic: str) -> list[int]:
    return [int((record.value or b"").split(b" ")[0]) for record in rig.fetch(topic, 0)]


def find_time(rig: BrokerRig, timestamp_ms: int) -> tuple[int, int] | None:
    topic = rig.broker.find_topic("now")
    assert topic is not None
    while True:
        try:
            return rig.broker.offset_for_time(topic, 0, timestamp_ms)
        except ColdFrameError as error:
            rig.read_cold([error.place])


def later(rig: BrokerRig, duration_ms: int) -> int:
    rig.clock.advance_ms(duration_ms)
    rig.broker.housekeep()
    return rig.deliver_all()


def test_sectors_that_go_bad_cost_their_frames_alone_until_they_heal(
    make_bad_disk: Callable[..., BadDisk], tmp_path: Path
) -> None:
    path = tmp_path / "data"
    disk = make_bad_disk(path / "commitlog", size_bytes=32 * MIB)
    rig = started(path)
    rig.create_topic("now")
    rig.create_topic("later")
    first_ms = rig.clock.wall_ms()
    for number in range(COUNT):
        rig.clock.advance_ms(1)
        rig.produce("now", 0, [Record(value_of(number), timestamp_ms=rig.clock.wall_ms())])
        headers = delay(DUE_MS - number)
        rig.produce("later", 0, [Record(value_of(COUNT + number), headers=headers)])
    rig.broker.close()
    segment = path / "commitlog" / ("0" * 20)
    content = segment.read_bytes()
    for number in (BAD, COUNT + BAD):
        disk.move_to_edge(segment, content.index(value_of(number)) + 3_950)
    now_ms = rig.clock.wall_ms()

    rig = started(path)
    rig.clock.advance_to_ms(now_ms)
    try:
        disk.spoil()
        rest = [number for number in range(COUNT) if number != BAD]
        # What it leads to, and what the halving of the partition meets.
        for number in (0, BAD - 1, BAD + 1, COUNT - 1):
            assert find_time(rig, first_ms + 1 + number) == (number, first_ms + 1 + number)
        assert find_time(rig, first_ms + 1 + BAD) == (BAD + 1, first_ms + 2 + BAD)
        assert numbers(rig, "now") == rest
        assert rig.tick(DUE_MS) == COUNT - 1
        assert numbers(rig, "later") == [COUNT + number for number in rest]
        assert rig.broker.gauges(0).unreadable_timers == rig.broker.pending_timers == 1
        assert {damage.path for damage in rig.broker.damage} == {segment}
        assert len(rig.broker.damage) == 2
        assert all("Input/output error" in damage.fault for damage in rig.broker.damage)

        disk.heal()
        assert later(rig, 60_000) == 1
        assert numbers(rig, "now") == list(range(COUNT))
        assert numbers(rig, "later") == [COUNT + number for number in [*rest, BAD]]
        rig.broker.housekeep()
        assert rig.broker.damage == []
    finally:
        rig.broker.abandon()
