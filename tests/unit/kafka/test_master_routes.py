"""What a master tells clients of its slave: while it is connected, and for a while after."""

import asyncio
from typing import Any

import pytest

from appliance.model import Endpoint
from appliance.pair import master_role
from appliance.pair.link_settings import ONE_MACHINE
from appliance.pair.master_role import MasterRole
from appliance.replication.facts import Facts, Role
from appliance.replication.master import Replicated
from appliance.replication.states import State
from appliance.routes import Member, Routes
from appliance.units import NS_PER_MS
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.configs import small_config
from tests.unit.kafka.test_read_replica import fetch

MASTER = Endpoint("10.0.0.1", 9092, "a")
SLAVE = Endpoint("10.0.0.2", 9092, "b")
LIMIT_S = 30.0


def make_role(harness: BrokerHarness) -> tuple[MasterRole, Routes]:
    """A master without a server for slaves, and what its clients hear."""
    routes = Routes(Member(1, MASTER))
    no_pump: Any = None
    return MasterRole(harness.broker, no_pump, ONE_MACHINE, is_solo=False, routes=routes), routes


def seen(state: State, endpoint: Endpoint | None = SLAVE) -> Replicated:
    """What is known of a slave in a state."""
    return Replicated(state, node=2, facts=Facts(1, Role.SLAVE, endpoint))


def sent_to(harness: BrokerHarness, rack: str) -> int:
    """Which node a consumer of a rack is to read from; -1: this one."""
    (part,) = fetch(WireClient(harness), 0, rack=rack)
    node_id: int = part.preferred_read_replica
    return node_id


def test_slave_is_listed_when_it_connects_and_read_from_when_it_has_caught_up() -> None:
    harness = with_topic()
    role, routes = make_role(harness)
    assert [each.node_id for each in routes.members] == [1]
    role._changed(seen(State.CATCH_UP))
    assert routes.members == (Member(1, MASTER), Member(2, SLAVE))
    assert routes.in_sync_ids == (1,)
    assert sent_to(harness, "b") == -1
    role._changed(seen(State.STREAMING))
    assert routes.in_sync_ids == (1, 2)
    assert (sent_to(harness, "b"), sent_to(harness, "a")) == (2, -1)


@pytest.mark.parametrize(
    "endpoint", [Endpoint(MASTER.host, MASTER.port, "b"), Endpoint("10.0.0.2", 9092, "a"), None]
)
def test_nobody_is_sent_to_a_slave_of_the_same_address_or_rack_or_of_none(
    endpoint: Endpoint | None,
) -> None:
    harness = with_topic()
    role, _ = make_role(harness)
    role._changed(seen(State.STREAMING, endpoint))
    assert (sent_to(harness, "a"), sent_to(harness, "b")) == (-1, -1)


def test_slave_that_is_lost_stays_listed_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = with_topic()

    async def run() -> None:
        role, routes = make_role(harness)
        role._changed(seen(State.STREAMING))
        role._changed(seen(State.LOST))
        assert routes.peer == Member(2, SLAVE)
        assert routes.in_sync_ids == (1,)
        assert sent_to(harness, "b") == -1
        role._changed(seen(State.STREAMING))
        assert routes.in_sync_ids == (1, 2)
        monkeypatch.setattr(master_role, "LISTED_S", 0.0)
        role._changed(seen(State.LOST))
        async with asyncio.timeout(LIMIT_S):
            while routes.peer is not None:  # noqa: ASYNC110 (a timer does it)
                await asyncio.sleep(0)

    asyncio.run(run())


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_master_leads_while_it_has_the_lease_that_it_needs(mode: str) -> None:
    harness = BrokerHarness(config=small_config(replication=mode))
    harness.create_topic("t")

    async def run() -> None:
        role, routes = make_role(harness)
        me = Member(1, MASTER)
        assert routes.leader == (None if mode == "sync" else me)
        role.lease.renew(harness.clock.boottime_ns() // NS_PER_MS)
        assert routes.leader == me
        harness.clock.advance_ms(role.lease.duration_ms)
        assert routes.leader == (None if mode == "sync" else me)
        role.lease.renew(harness.clock.boottime_ns() // NS_PER_MS)
        assert routes.leader == me
        role.lease.end()  # it hands over
        assert routes.leader is None

    asyncio.run(run())


@pytest.mark.parametrize(
    ("mode", "is_solo", "rate"), [("async", False, 7), ("sync", True, 7), ("sync", False, 0)]
)
def test_a_slave_that_clients_wait_for_is_not_slowed_down(
    mode: str, is_solo: bool, rate: int
) -> None:
    config = small_config(replication=mode, catch_up_max_bytes_per_s=7)
    harness = BrokerHarness(config=config)
    harness.create_topic("t")

    async def run() -> None:
        no_pump: Any = None
        role = MasterRole(harness.broker, no_pump, ONE_MACHINE, is_solo=is_solo)
        assert role._catch_up_rate() == rate

    asyncio.run(run())
