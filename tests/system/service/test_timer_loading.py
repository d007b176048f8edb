"""A broker that serves while it loads its timers, on the real loop, disk and clock."""

import logging
from pathlib import Path
from typing import Final

import pytest

from _core.bytes.layout import RUN_DUE
from tests.support.harness.live_broker import LiveBroker, until
from tests.support.harness.loading import in_pieces
from tests.support.values.kafka_records import Record, delay

SOON: Final = 20
LATER: Final = 200
HOUR_MS: Final = 3_600_000


async def save(live: LiveBroker) -> None:
    """Save the state: a start replays nothing."""
    checkpoints = live.broker.checkpoints
    checkpoints.ask()
    await until(lambda: checkpoints.saved_pos == live.broker.committed_pos)


async def schedule(directory: Path) -> None:
    """Save a broker with records that are due in a second, and in an hour."""
    async with LiveBroker(directory) as live:
        client = await live.connect()
        for delay_ms, count in ((HOUR_MS, LATER), (1_000, SOON)):
            for number in range(count):
                record = Record(b"%d" % number, headers=delay(delay_ms + number))
                assert (await client.produce("t", 0, [record])).error == 0
        await save(live)


async def test_what_is_due_soon_is_delivered_and_the_rest_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await schedule(tmp_path)
    with in_pieces():
        async with LiveBroker(tmp_path) as live:
            assert live.broker.gauges(0).unloaded_timers == SOON + LATER
            client = await live.connect()
            await until(lambda: live.broker.pending_timers == LATER)
            await until(lambda: live.broker.flushed_pos == live.broker.wrote_pos)
            assert [each.value for each in await client.fetch("t", 0, 0)] == [
                b"%d" % number for number in range(SOON)
            ]
            await until(lambda: live.broker.gauges(0).unloaded_timers == 0)
            record = Record(b"now", headers=delay(10))
            assert (await client.produce("t", 0, [record])).error == 0
            await until(lambda: live.broker.pending_timers == LATER)
    assert f"loaded {SOON + LATER} timers in " in caplog.text


async def test_a_broker_stops_amid_a_load(tmp_path: Path) -> None:
    await schedule(tmp_path)
    with in_pieces(rows=1):
        for _ in range(3):
            async with LiveBroker(tmp_path) as live:
                assert live.broker.pending_timers >= LATER
            assert live.broker.gauges(0).unloaded_timers > 0
    async with LiveBroker(tmp_path) as live:
        await until(lambda: live.broker.pending_timers == LATER)


async def test_a_damaged_timer_log_is_reported_and_costs_no_timer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await schedule(tmp_path)
    async with LiveBroker(tmp_path) as live:
        await until(lambda: live.broker.pending_timers == LATER)
        await save(live)
        runs = live.broker.checkpoints._runs.entries
        log = next(entry for entry in runs if entry.kind == RUN_DUE)
        data_dir = live.broker.config.data_dir
    path = data_dir / "timerlog" / f"{log.number:020}"
    damaged = bytearray(path.read_bytes())
    damaged[100] ^= 1
    path.write_bytes(damaged)
    with in_pieces():
        async with LiveBroker(tmp_path) as live:
            await until(lambda: live.broker.pending_timers == LATER)
            await until(lambda: live.broker.gauges(0).unloaded_timers == 0)
    assert f"the TimerLog is damaged: {path} " in caplog.text
