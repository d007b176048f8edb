"""A slave is promoted when an operator asks for it, and not before it has had the whole log."""

import asyncio
import random

import pytest

from _core.bytes.layout import RUN_TIMERS
from appliance.errors import NotReadyError, RoleError
from appliance.pair.link_settings import ONE_MACHINE
from appliance.pair.slave_role import Outcome, SlaveRole
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.live_broker import until
from tests.support.harness.slave_harness import SlaveHarness
from tests.unit.store.test_follower import write_some

LIMIT_S = 30.0

LEASE_WAIT_MS = 2_100
"""Until a lease of the default length is certainly over."""


def slave_with_a_part() -> SlaveHarness:
    master, slave = BrokerHarness(), SlaveHarness()
    write_some(master, random.Random(1))
    slave.receive(master, end=master.broker.log.pointers.committed // 2)
    slave.flush()
    return slave


def role_of(slave: SlaveHarness) -> SlaveRole:
    return SlaveRole(slave.broker, slave.follower, ONE_MACHINE, lambda: None)


async def promoted(slave: SlaveHarness, role: SlaveRole, *, is_forced: bool) -> Outcome:
    slave.clock.advance_ms(LEASE_WAIT_MS)
    following = asyncio.ensure_future(role.follow(asyncio.Event()))
    asked = asyncio.ensure_future(role.promote(is_forced=is_forced))
    async with asyncio.timeout(LIMIT_S):
        outcome = await following
        role.serves()
        await asked
    return outcome


def test_slave_that_never_caught_up_is_promoted_by_force_alone() -> None:
    slave = slave_with_a_part()

    async def run() -> None:
        role = role_of(slave)
        assert role.status().caught_up is False
        end = slave.follower.end_pos
        with pytest.raises(RoleError, match=rf"never caught up.*log to {end}.*not known.*--force"):
            await role.promote()
        assert not slave.follower.is_promoted
        assert await promoted(slave, role, is_forced=True) is Outcome.PROMOTED
        assert slave.follower.is_promoted

    asyncio.run(run())


def test_slave_that_caught_up_once_is_promoted_after_a_restart_too() -> None:
    slave = slave_with_a_part()
    slave.follower.note_caught_up()
    again = slave.crash("killed", random.Random(2))

    async def run() -> None:
        role = role_of(again)
        assert role.status().caught_up is True
        assert await promoted(again, role, is_forced=False) is Outcome.PROMOTED

    asyncio.run(run())


@pytest.mark.parametrize("is_suspended", [False, True])
def test_promotion_waits_until_a_lease_of_the_process_before_is_over(*, is_suspended: bool) -> None:
    slave = slave_with_a_part()
    slave.follower.note_caught_up()

    async def run() -> None:
        role = role_of(slave)
        slave.clock.advance_ms(LEASE_WAIT_MS - 1)
        assert role.status().promotion_wait_ms == 1
        following = asyncio.ensure_future(role.follow(asyncio.Event()))
        asked = asyncio.ensure_future(role.promote())
        done, _ = await asyncio.wait([following], timeout=0.2)
        assert not done
        assert not slave.follower.is_promoted
        (slave.clock.suspend_ms if is_suspended else slave.clock.advance_ms)(1)
        async with asyncio.timeout(LIMIT_S):
            assert await following is Outcome.PROMOTED
            role.serves()
            await asked

    asyncio.run(run())


def test_slave_merges_runs_beside_its_checkpoints() -> None:
    master, slave, rng = BrokerHarness(), SlaveHarness(), random.Random(3)
    runs = slave.follower.checkpoints._runs
    runs.at_once_rows = 0

    def count() -> int:
        return sum(entry.kind == RUN_TIMERS for entry in runs.entries)

    async def run() -> None:
        role, stop = role_of(slave), asyncio.Event()
        following = asyncio.ensure_future(role.follow(stop))
        async with asyncio.timeout(LIMIT_S):
            saved = 0
            while count() >= saved:  # until several have become one
                write_some(master, rng)
                slave.receive(master)
                slave.flush()
                slave.follower.checkpoints.ask()
                saved += 1
                await until(lambda: slave.follower.checkpoints.saved_pos == slave.follower.end_pos)
                await asyncio.sleep(0.1)
            assert saved > 2
            stop.set()
            assert await following is Outcome.STOPPED

    asyncio.run(run())
    pending = master.broker.pending_timers
    assert pending
    promoted_broker = slave.promote().broker
    assert promoted_broker.pending_timers == pending


def test_slave_that_is_stopped_while_its_promotion_waits_is_not_promoted() -> None:
    slave = slave_with_a_part()
    slave.follower.note_caught_up()

    async def run() -> None:
        role, stop = role_of(slave), asyncio.Event()
        following = asyncio.ensure_future(role.follow(stop))
        asked = asyncio.ensure_future(role.promote())
        await asyncio.sleep(0)
        stop.set()
        async with asyncio.timeout(LIMIT_S):
            assert await following is Outcome.STOPPED
            role.ends()
            with pytest.raises(NotReadyError):
                await asked
        assert not slave.follower.is_promoted

    asyncio.run(run())
