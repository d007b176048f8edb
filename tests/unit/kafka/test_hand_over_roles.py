"""A hand-over beside the lease of a sync pair, and beside etcd."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.config.endpoint import Endpoint
from appliance.config.setting import Address
from appliance.coordination import etcd_wire
from appliance.coordination.etcd_wire import Put
from appliance.coordination.fail_over import FailOver
from appliance.coordination.records import PairRecord, encode_pair, name_keys
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
from tests.support.oracles.etcd_model import EtcdModel
from tests.support.simulator.virtual_clock import VirtualClock
from tests.unit.store.test_follower import write_some

LIMIT_S = 30.0

ETCD = (Endpoint("127.0.0.1", 1, is_secure=False),)

CLUSTER = bytes(range(16))

KEYS = name_keys("/latermq/", CLUSTER)

YIELDED = RoleRecord(2, is_master=False, peer=Address("127.0.0.1", 1), has_yielded=True)

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


@pytest.mark.parametrize(
    ("standing", "pair"),
    [
        (Standing.LEANS, PairRecord(1, 1, in_sync=True)),
        (Standing.HOLDS, PairRecord(1, 1, in_sync=False)),
        (Standing.HOLDS, None),
    ],
)
def test_hand_over_waits_for_the_key_and_for_a_slave_that_etcd_knows_to_be_in_sync(
    standing: Standing, pair: PairRecord | None
) -> None:
    async def check(harness: BrokerHarness, role: MasterRole, _shown: list[object]) -> None:
        role._changed(acknowledged(harness, State.STREAMING))
        with pytest.raises(RoleError, match="etcd does not say"):
            await role.hand_over()
        role.act(decision(standing, pair))
        with pytest.raises(RoleError, match="etcd does not say"):
            await role.hand_over()
        until_ms = harness.clock.boottime_ns() // 1_000_000 + 100
        role.act(decision(Standing.HOLDS, PairRecord(1, 1, in_sync=True), until_ms))
        with pytest.raises(RoleError, match="not up to date"):  # the server has no slave here
            await role.hand_over()
        harness.clock.advance_ms(100)  # whatever etcd is asked meanwhile
        with pytest.raises(RoleError, match="etcd does not say"):
            await role.hand_over()
        assert not role.stops_serving.is_set()

    run_master(check, etcd=ETCD, peer=Address("127.0.0.1", 1))


def decision(standing: Standing, pair: PairRecord | None, key_until_ms: int = 0) -> Any:
    return SimpleNamespace(
        standing=standing,
        pair=pair,
        term=1,
        key_until_ms=key_until_ms,
        is_alone=lambda _now_ms: False,
    )


def test_master_that_hands_over_is_not_fenced_by_the_key_of_the_other_node() -> None:
    async def check(_harness: BrokerHarness, role: MasterRole, _shown: list[object]) -> None:
        role.act(decision(Standing.LEANS, PairRecord(1, 1, in_sync=True)))
        role.stops_serving.set()
        role.act(decision(Standing.YIELDS, PairRecord(2, 2, in_sync=False)))
        assert not role.fenced.is_set()
        role.stops_serving.clear()
        role.act(decision(Standing.YIELDS, PairRecord(2, 2, in_sync=False)))
        assert role.fenced.is_set()

    run_master(check, etcd=ETCD, peer=Address("127.0.0.1", 1))


def test_master_without_a_license_yet_is_not_fenced_by_a_promotion_that_failed() -> None:
    """Its slave took the key, ended, and follows: it would be fenced again after each start."""

    async def check(_harness: BrokerHarness, role: MasterRole, _shown: list[object]) -> None:
        role.act(decision(Standing.YIELDS, PairRecord(2, 2, in_sync=False)))
        assert not role.fenced.is_set()
        role.act(decision(Standing.LEANS, PairRecord(2, 2, in_sync=False)))
        role.act(decision(Standing.YIELDS, PairRecord(2, 2, in_sync=False)))
        assert role.fenced.is_set()

    run_master(check, etcd=ETCD, peer=Address("127.0.0.1", 1))


def test_master_that_took_the_key_from_the_other_node_is_of_the_term_of_the_key() -> None:
    async def check(harness: BrokerHarness, role: MasterRole, _shown: list[object]) -> None:
        decides = decision(Standing.HOLDS, PairRecord(1, 5, in_sync=False))
        decides.term = 5
        dropped: list[str] = []
        assert role._server is not None
        role._server.drop_slave = dropped.append  # type: ignore[method-assign]
        role.act(decides)
        assert (harness.broker.role.term, harness.broker.role.is_master) == (5, True)
        assert dropped == ["this node is of a later term"], "the slave would never hear of it"
        decides.term = 3
        role.act(decides)
        assert harness.broker.role.term == 5

    run_master(check, etcd=ETCD, peer=Address("127.0.0.1", 1))


@pytest.mark.parametrize("etcd", [(), ETCD])
def test_answers_of_a_slave_that_lacks_something_let_no_solo_master_acknowledge_with_etcd(
    etcd: tuple[Endpoint, ...],
) -> None:
    """Etcd may say that the slave is in sync, after a hand-over that etcd has not heard of."""

    async def run() -> None:
        harness = with_topic(1)
        settings: dict[str, Any] = {"etcd": etcd, "peer": Address("127.0.0.1", 1)} if etcd else {}
        harness.broker.config = replace(harness.config, replication="sync", **settings)
        pump: Any = SimpleNamespace(show=lambda _: None, fail=None)
        role = MasterRole(harness.broker, pump, ONE_MACHINE, is_solo=True)
        lacks = replace(acknowledged(harness, State.CATCH_UP), received_pos=0, durable_pos=0)
        role._changed(lacks)
        assert role.lease.is_held == (not etcd), "without etcd solo needs no lease"
        role._changed(acknowledged(harness, State.STREAMING))
        assert role.lease.is_held
        assert not role.status().solo
        await role.stop()

    asyncio.run(run())


def test_slave_that_would_begin_another_term_says_so_while_the_master_still_serves() -> None:
    slave = slave_of()

    async def run() -> None:
        role = role_of(slave)
        for term in (slave.follower.next_term - 2, slave.follower.next_term + 2):
            with pytest.raises(ReplicaError, match="would begin term"):
                role.prepare(term)
        role.ends()

    asyncio.run(run())


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
        role.prepare(slave.follower.next_term)
        role.take(slave.follower.next_term)
        async with asyncio.timeout(LIMIT_S):  # the clock of the lease stands
            assert await following is Outcome.PROMOTED
        assert role.lease_left_ms() > 0
        assert slave.broker.role.is_master
        role.ends()

    asyncio.run(run())


def test_slave_that_takes_over_asks_etcd_for_the_key_afterwards() -> None:
    slave = slave_of(ETCD)

    async def run() -> None:
        coordination = Coordination(slave.config, slave.clock)
        coordination.decides = decides = FailOver(
            KEYS, node=2, role=RoleRecord(1, is_master=False), lease_ms=2_000
        )
        role = role_of(slave, coordination)
        role.prepare(slave.follower.next_term)
        role.take(slave.follower.next_term)
        assert slave.broker.role.is_master
        assert (decides.standing, decides.term) == (Standing.STOPS, slave.follower.term)
        role.ends()

    asyncio.run(run())


def comparing(record: RoleRecord, written: list[RoleRecord]) -> ComparingRole:
    broker: Any = SimpleNamespace(
        config=small_config(), role=record, role_file=SimpleNamespace(put=written.append)
    )
    log: Any = SimpleNamespace(node=1)
    return ComparingRole(broker, log, ONE_MACHINE)


def test_node_that_compares_goes_on_with_the_key() -> None:
    written: list[RoleRecord] = []
    role = comparing(RoleRecord(1, is_master=True, peer=None), written)
    for _ in range(2):
        role.act(decision(Standing.HOLDS, PairRecord(1, 1, in_sync=False)))
    assert role._member.state is MemberState.SERVING
    assert (role._member.record.term, written) == (1, [])


def test_node_that_yielded_does_not_go_on_with_the_key() -> None:
    """The other node may have taken over, and not have come to etcd yet."""
    written: list[RoleRecord] = []
    role = comparing(YIELDED, written)
    role.act(decision(Standing.HOLDS, PairRecord(1, 1, in_sync=True)))
    assert role._member.state is MemberState.YIELDED
    assert not written


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_node_that_yielded_does_not_take_the_key_however_long_it_waits(mode: str) -> None:
    etcd = EtcdModel()
    lease, _ = etcd_wire.decode_grant(etcd.handle(etcd_wire.grant(5), 0))
    put = Put(KEYS.pair, encode_pair(PairRecord(1, 1, in_sync=True)))
    etcd.handle(etcd_wire.transact({}, [put]), 0)
    assert lease

    async def run(record: RoleRecord) -> Standing:
        clock = VirtualClock()
        config = small_config(replication=mode, etcd=ETCD, peer=Address("127.0.0.1", 1))
        coordination = Coordination(config, clock)
        coordination.begin(cluster=CLUSTER, node=1, role=record, is_continued=False)
        await coordination.stop()
        coordination.bind(comparing(record, []))
        decides = coordination.decides
        assert decides is not None
        for _ in range(200):
            clock.advance_ms(100)
            coordination._look()
            now_ms = coordination.now_ms()
            if (step := decides.next_step(now_ms)) is not None:
                decides.answered(etcd.handle(step.call, now_ms), now_ms)
        return decides.standing

    assert asyncio.run(run(YIELDED)) is Standing.COMPARES
    waits = Standing.COMPARES if mode == "sync" else Standing.HOLDS
    assert asyncio.run(run(RoleRecord(1, is_master=True))) is waits
