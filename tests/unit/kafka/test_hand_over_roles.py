"""A hand-over beside the lease of a sync pair, and beside etcd, whose key it does not pass on."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.config.endpoint import Endpoint
from appliance.config.setting import Address
from appliance.coordination.standing import Standing
from appliance.errors import ReplicaError, RoleError
from appliance.pair.comparing_role import ComparingRole
from appliance.pair.coordination import Coordination
from appliance.pair.lease_watch import LeaseWatch
from appliance.pair.link_settings import ONE_MACHINE
from appliance.pair.master_role import MasterRole
from appliance.pair.slave_role import Outcome, SlaveRole
from appliance.replication.lease import Lease
from appliance.replication.master import Replicated
from appliance.replication.member import MemberState
from appliance.replication.states import State
from appliance.store.role_file import RoleRecord
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.configs import small_config
from tests.support.harness.slave_harness import SlaveHarness
from tests.support.simulator.virtual_clock import VirtualClock
from tests.unit.store.test_follower import write_some

LIMIT_S = 30.0

ETCD = (Endpoint("127.0.0.1", 1, is_secure=False),)

Check = Callable[[BrokerHarness, MasterRole, list[object]], Coroutine[Any, Any, None]]


def run_master(check: Check, **settings: Any) -> None:
    """Run a check with a sync master, and with what it lets its pump show."""

    async def run() -> None:
        harness = with_topic(1)
        harness.broker.config = replace(harness.config, replication="sync", **settings)
        shown: list[object] = []
        pump: Any = SimpleNamespace(show=shown.append, fail=None)
        role = MasterRole(harness.broker, pump, ONE_MACHINE, is_solo=False)
        await check(harness, role, shown)
        await role.stop()

    asyncio.run(run())


def acknowledged(harness: BrokerHarness, state: State) -> Replicated:
    """A slave that has all, and answered just now."""
    pos, now_ms = harness.broker.wrote_pos, harness.clock.boottime_ns() // 1_000_000
    return Replicated(state, received_pos=pos, durable_pos=pos, acked_ms=now_ms, proved_ms=now_ms)


@pytest.mark.parametrize("state", [State.HANDING_OVER, State.YIELDED])
def test_master_that_yields_has_no_lease_whatever_its_slave_answers(state: State) -> None:
    async def check(harness: BrokerHarness, role: MasterRole, shown: list[object]) -> None:
        role._changed(acknowledged(harness, State.STREAMING))
        assert role.lease.is_held
        role._changed(acknowledged(harness, State.HANDING_OVER))
        assert role.lease.is_held, "it serves until it stops"

        async def finish() -> bool:
            assert not role.lease.is_held
            shown.clear()
            role._changed(acknowledged(harness, state))
            assert not role.lease.is_held
            assert not harness.broker.check_lease()
            assert shown == []
            return False

        role._hand_over = SimpleNamespace(  # type: ignore[assignment]
            finish=finish, note_change=lambda: None, end=lambda: None, is_going_on=True
        )
        assert not await role.yield_mastery()

    run_master(check)


def test_lease_that_is_ended_stays_so_also_if_it_is_not_required() -> None:
    clock = VirtualClock()
    lease = Lease(clock, 2_000)
    found = []
    lease.is_required = False
    found.append(lease.is_held)
    lease.end()
    found.append(lease.is_held)
    lease.is_required = True
    lease.key_until_ms = clock.boottime_ns() // 1_000_000 + 9_000
    assert [*found, lease.is_held] == [True, False, False]
    assert lease.left_ms() == 0


def test_watch_of_a_lease_says_nothing_after_it_was_stopped() -> None:
    async def run() -> None:
        clock, calls = VirtualClock(), []
        lease = Lease(clock, 2_000)
        watch = LeaseWatch(lease, lambda: calls.append(1))
        lease.renew(clock.boottime_ns() // 1_000_000)
        watch.look()
        assert calls == [1]
        watch.stop()
        lease.end()
        watch.look()
        assert calls == [1]
        assert watch._timer is None

    asyncio.run(run())


def test_master_does_not_go_solo_while_it_hands_over() -> None:
    async def check(_harness: BrokerHarness, role: MasterRole, _shown: list[object]) -> None:
        role.stops_serving.set()
        with pytest.raises(RoleError, match="hands over"):
            role.go_solo(is_slave_off=True)
        assert not role.status().solo

    run_master(check)


def test_hand_over_is_refused_while_etcd_decides() -> None:
    async def check(harness: BrokerHarness, role: MasterRole, _shown: list[object]) -> None:
        role._changed(acknowledged(harness, State.STREAMING))
        with pytest.raises(RoleError, match=r"key in etcd.*replication\.etcd is set"):
            await role.hand_over()
        assert not role.stops_serving.is_set()

    run_master(check, etcd=ETCD, peer=Address("127.0.0.1", 1))


def slave_of(etcd: tuple[Endpoint, ...] = ()) -> SlaveHarness:
    master, slave = BrokerHarness(), SlaveHarness(replication="sync", etcd=etcd)
    write_some(master, random.Random(1))
    slave.receive(master)
    slave.flush()
    slave.follower.note_caught_up()
    return slave


def role_of(slave: SlaveHarness, coordination: Coordination | None = None) -> SlaveRole:
    return SlaveRole(
        slave.broker, slave.follower, ONE_MACHINE, lambda: None, coordination=coordination
    )


def test_slave_that_takes_over_waits_for_no_lease() -> None:
    slave = slave_of()

    async def run() -> None:
        role = role_of(slave)
        assert role.lease_left_ms() > 0
        following = asyncio.ensure_future(role.follow(asyncio.Event()))
        await asyncio.sleep(0)
        role.prepare()
        role.take(slave.follower.next_term)
        async with asyncio.timeout(LIMIT_S):  # the clock of the lease stands
            assert await following is Outcome.PROMOTED
        assert role.lease_left_ms() > 0
        assert slave.broker.role.is_master
        role.ends()

    asyncio.run(run())


def test_slave_that_etcd_promotes_is_not_prepared_for_a_hand_over() -> None:
    """Its master may have been started without `replication.etcd`."""
    slave = slave_of(ETCD)

    async def run() -> None:
        role = role_of(slave, Coordination(slave.config, slave.clock))
        with pytest.raises(ReplicaError, match=r"replication\.etcd is set here"):
            role.prepare()
        with pytest.raises(ReplicaError, match=r"replication\.etcd is set here"):
            role.take(slave.follower.next_term)
        assert not slave.follower.is_promoted

    asyncio.run(run())


@pytest.mark.parametrize(
    ("record", "begins"),
    [
        (RoleRecord(1, is_master=True, peer=None), 1),
        (RoleRecord(2, is_master=False, peer=Address("127.0.0.1", 1), has_yielded=True), 3),
    ],
    ids=["compares", "yielded"],
)
def test_node_that_compares_or_yielded_goes_on_with_the_key(
    record: RoleRecord, begins: int
) -> None:
    written: list[RoleRecord] = []
    broker: Any = SimpleNamespace(
        config=small_config(), role=record, role_file=SimpleNamespace(put=written.append)
    )
    role = ComparingRole(broker, SimpleNamespace(node=1), ONE_MACHINE)  # type: ignore[arg-type]
    decides: Any = SimpleNamespace(standing=Standing.HOLDS, term=begins)
    role.act(decides)
    role.act(decides)
    assert role._member.state is MemberState.SERVING
    assert (role._member.record.term, role._member.record.is_master) == (begins, True)
    assert written == ([] if record.is_master else [role._member.record])
