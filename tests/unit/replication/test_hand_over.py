"""A hand-over that is given up before the master stopped serving changes nothing."""

import asyncio

import pytest

from appliance.config.setting import Address
from appliance.errors import RoleError
from appliance.pair.hand_over import HandOver
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import small_config
from tests.support.harness.replica_logs import MemoryLog
from tests.support.harness.replica_pair import running, until
from tests.unit.replication.test_sessions import filled


def test_slave_that_is_never_ready_streams_again_after_it_is_given_up() -> None:
    """It takes no checkpoint while it waits, so it must hear that nothing follows."""
    peer = Address("127.0.0.1", 1)
    broker = BrokerHarness(config=small_config(replication="async", peer=peer)).broker

    async def play() -> None:
        async with running(filled(1, 11), MemoryLog(2)) as pair:
            pair.follow()
            await until(pair.is_streaming)
            stops = asyncio.Event()
            hand_over = HandOver(broker, pair.server, 1, stops)
            asked = asyncio.ensure_future(hand_over.begin())
            await until(lambda: hand_over.is_going_on)
            with pytest.raises(RoleError, match="goes on already"):
                await hand_over.begin()
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            assert not stops.is_set()
            assert not hand_over.is_going_on
            assert not pair.is_streaming()
            await until(pair.is_streaming)
            assert broker.role.is_master

    asyncio.run(play())
