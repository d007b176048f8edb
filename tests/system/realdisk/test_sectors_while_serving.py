"""Sectors that go bad under a broker that serves: fetch, search and delivery, and what heals.

No signal ends it, the places are reported, all else is served, and a sector that can be read again
is served again.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import cast

from appliance.errors import ColdFrameError
from appliance.system.files import OsFileSystem
from appliance.units import MIB
from tests.support.disks.bad_disk import BadDisk
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import small_config
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Record, delay

COUNT = 60
BAD = 20
DUE_MS = 60_000


def value_of(number: int) -> bytes:
    return b"%d " % number + random.Random(number).randbytes(7_900)


def started(path: Path) -> BrokerHarness:
    # Of the harness only that is used which the two have in common.
    fs = cast(SimFileSystem, OsFileSystem())
    return BrokerHarness(fs, config=small_config(data_dir=path, segment_size_bytes=4 * MIB))


def numbers(harness: BrokerHarness, topic: str) -> list[int]:
    return [int((record.value or b"").split(b" ")[0]) for record in harness.fetch(topic, 0)]


def find_time(harness: BrokerHarness, timestamp_ms: int) -> tuple[int, int] | None:
    topic = harness.broker.topics.find("now")
    assert topic is not None
    while True:
        try:
            return harness.broker.search.find(topic.partitions[0], timestamp_ms)
        except ColdFrameError as error:
            harness.read_cold([error.place])


def later(harness: BrokerHarness, duration_ms: int) -> int:
    harness.clock.advance_ms(duration_ms)
    harness.broker.housekeep()
    return harness.deliver_all()


def test_sectors_that_go_bad_cost_their_frames_alone_until_they_heal(
    make_bad_disk: Callable[..., BadDisk], tmp_path: Path
) -> None:
    path = tmp_path / "data"
    disk = make_bad_disk(path / "commitlog", size_bytes=32 * MIB)
    harness = started(path)
    harness.create_topic("now")
    harness.create_topic("later")
    first_ms = harness.clock.wall_ms()
    for number in range(COUNT):
        harness.clock.advance_ms(1)
        harness.produce("now", 0, [Record(value_of(number), timestamp_ms=harness.clock.wall_ms())])
        headers = delay(DUE_MS - number)
        harness.produce("later", 0, [Record(value_of(COUNT + number), headers=headers)])
    harness.broker.close()
    segment = path / "commitlog" / ("0" * 20)
    content = segment.read_bytes()
    for number in (BAD, COUNT + BAD):
        disk.move_to_edge(segment, content.index(value_of(number)) + 3_950)
    now_ms = harness.clock.wall_ms()

    harness = started(path)
    harness.clock.advance_to_ms(now_ms)
    try:
        disk.spoil()
        rest = [number for number in range(COUNT) if number != BAD]
        # What it leads to, and what the halving of the partition meets.
        for number in (0, BAD - 1, BAD + 1, COUNT - 1):
            assert find_time(harness, first_ms + 1 + number) == (number, first_ms + 1 + number)
        assert find_time(harness, first_ms + 1 + BAD) == (BAD + 1, first_ms + 2 + BAD)
        assert numbers(harness, "now") == rest
        assert harness.tick(DUE_MS) == COUNT - 1
        assert numbers(harness, "later") == [COUNT + number for number in rest]
        assert harness.broker.gauges(0).unreadable_timers == harness.broker.pending_timers == 1
        assert {damage.path for damage in harness.broker.damage} == {segment}
        assert len(harness.broker.damage) == 2
        assert all("Input/output error" in damage.fault for damage in harness.broker.damage)

        disk.heal()
        assert later(harness, 60_000) == 1
        assert numbers(harness, "now") == list(range(COUNT))
        assert numbers(harness, "later") == [COUNT + number for number in [*rest, BAD]]
        harness.broker.housekeep()
        assert harness.broker.damage == []
    finally:
        harness.broker.abandon()
