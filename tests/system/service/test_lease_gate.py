"""A live broker whose lease ends: nothing is acknowledged or delivered until it comes back."""

import asyncio
from pathlib import Path

import pytest

from _core.log.pointers import Pointers
from appliance.errors import NotReadyError
from appliance.replication.lease import Lease
from appliance.units import NS_PER_MS
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.broker_harness import Produced
from tests.support.harness.live_broker import LIMIT_S, LiveBroker, until
from tests.support.simulator.virtual_clock import VirtualClock
from tests.support.values.kafka_records import Record, delay

LEASE_MS = 2_000

AFTER_APPEND = int(ErrorCode.not_enough_replicas_after_append)
REFUSED = int(ErrorCode.not_enough_replicas)


def renew(live: LiveBroker) -> None:
    """The slave answers a BEAT that leaves now."""
    assert live.broker.lease is not None
    live.broker.lease.renew(live.broker.clock.boottime_ns() // NS_PER_MS)
    live.server.pump.show([])


def begin_lease(live: LiveBroker) -> Pointers:
    """Make it the master of a sync pair; return the pointers of its log."""
    live.broker.lease = Lease(live.broker.clock, LEASE_MS)
    live.broker.need_replica(None)
    renew(live)
    return live.broker.log.pointers


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("is_suspended", [False, True])
async def test_answer_that_the_disk_was_late_for_does_not_leave_after_the_lease(
    tmp_path: Path, acks: int, *, is_suspended: bool
) -> None:
    clock = VirtualClock()
    async with LiveBroker(tmp_path, clock=clock) as live:
        pointers = begin_lease(live)
        client = await live.connect()
        live.disk.hold()
        before_pos = pointers.wrote
        client.send_produce("t", 0, [Record(b"a")], acks=acks)
        await until(lambda: pointers.wrote > before_pos)
        live.server.pump.show(live.broker.replicated(pointers.wrote))
        (clock.suspend_ms if is_suspended else clock.advance_ms)(LEASE_MS)
        live.disk.let_go()  # now it would leave
        assert (await client.read_produced()).error == AFTER_APPEND
        client.send_produce("t", 0, [Record(b"b")], acks=acks)
        assert (await client.read_produced()).error == REFUSED
        renew(live)
        client.send_produce("t", 0, [Record(b"c")], acks=1)
        assert await client.read_produced() == Produced(0, 1, None)


async def test_nothing_is_delivered_without_a_lease_and_at_once_with_it(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with LiveBroker(tmp_path, clock=clock) as live:
        pointers = begin_lease(live)
        client = await live.connect()
        client.send_produce("t", 0, [Record(b"due", headers=delay(LEASE_MS))], acks=1)
        assert (await client.read_produced()).error == 0
        clock.advance_ms(LEASE_MS)
        wrote_pos = pointers.wrote
        live.server.pump._on_timer()
        # Several turns of the housekeeping, which would deliver as well.
        await asyncio.sleep(0.3)
        assert live.broker.pending_timers == 1
        assert pointers.wrote == wrote_pos
        renew(live)
        await until(lambda: live.broker.pending_timers == 0)
        await until(lambda: pointers.flushed == pointers.wrote)
        assert await client.fetch("t", 0, 0) == [], "the slave does not have it"
        live.server.pump.show(live.broker.replicated(pointers.wrote))
        assert [each.value for each in await client.fetch("t", 0, 0)] == [b"due"]


async def test_who_waits_for_the_log_hears_that_the_lease_is_over(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with LiveBroker(tmp_path, clock=clock) as live:
        begin_lease(live)
        pump = live.server.pump
        live.broker.topics.create("new", 1, {})
        waiting = asyncio.ensure_future(pump.durable(live.broker.wrote_pos))
        await until(lambda: pump.release.waiting_count == 1)
        clock.advance_ms(LEASE_MS)
        with pytest.raises(NotReadyError, match="lease_ms"):
            await asyncio.wait_for(waiting, LIMIT_S)  # the housekeeping looks
        with pytest.raises(NotReadyError, match="lease_ms"):
            pump.release.check()
