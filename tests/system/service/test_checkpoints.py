"""The pump takes checkpoints on a real disk while it serves."""

import asyncio
import shutil
from pathlib import Path

import pytest

from appliance.broker import Broker
from appliance.kafka_facade import KAFKA_FACADE
from appliance.store.checkpoint import Checkpoint, decode
from appliance.store.recovery.report import RecoveryReport
from appliance.system.clock import SystemClock
from appliance.system.files import OsFileSystem
from appliance.units import KIB
from tests.support.harness.configs import small_config
from tests.support.harness.live_broker import LIMIT_S, LiveBroker, until
from tests.support.values.kafka_records import Record, delay


def newest_in(directory: Path) -> Checkpoint:
    """The newest whole copy of the checkpoint of a broker that may be running."""
    data = (directory / "checkpoint").read_bytes()
    copies = [copy for at in (0, 4096) if (copy := decode(data[at : at + 4096])) is not None]
    return max(copies, key=lambda copy: copy.sequence)


def report_of(directory: Path) -> RecoveryReport:
    """What a start on a directory finds."""
    broker = Broker(SystemClock(), OsFileSystem(), small_config(data_dir=directory), KAFKA_FACADE)
    for _ in broker.recover():
        pass
    broker.abandon()
    return broker.report


@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_a_start_after_a_kill_replays_little(tmp_path: Path, flush: str) -> None:
    async with LiveBroker(tmp_path, 2, flush=flush, checkpoint_interval_bytes=64 * KIB) as live:
        directory = live.broker.config.data_dir
        client = await live.connect()
        count = 0
        while len(newest_in(directory).states) < 2:
            record = Record(b"x" * 4_000, headers=delay(60_000, b"%d" % count))
            await client.produce("t", count % 2, [Record(b"y" * 3_000), record])
            count += 1
        end = live.broker.wrote_pos
        await until(lambda: newest_in(directory).flushed == end)
        copy = tmp_path / "copy"
        shutil.copytree(directory, copy)
    newest = newest_in(copy).states[0]
    assert end - newest.applied < 128 * KIB
    report = report_of(copy)
    assert not report.is_clean
    assert report.checkpoint == newest.number
    assert report.replayed_bytes == end - newest.applied


async def test_the_flushed_position_is_published_while_a_producer_never_pauses(
    tmp_path: Path,
) -> None:
    async with LiveBroker(tmp_path) as live:
        directory = live.broker.config.data_dir
        client = await live.connect()
        for _ in range(3):
            before = live.broker.flushed_pos
            async with asyncio.timeout(LIMIT_S):
                while newest_in(directory).flushed <= before:
                    await client.produce("t", 0, [Record(b"x")])


async def test_a_stop_saves_a_state_of_the_end_of_the_log(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path) as live:
        directory = live.broker.config.data_dir
        client = await live.connect()
        await client.produce("t", 0, [Record(b"a")])
        await live.server.stop()
        live.broker.close()
        report = report_of(directory)
        assert report.is_clean
        assert report.checkpoint > 0
        assert report.frames == 0
