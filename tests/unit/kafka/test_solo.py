"""A master that goes on alone, and what ends that."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from appliance.pair.link_settings import ONE_MACHINE
from appliance.pair.master_role import MasterRole
from appliance.replication.master import Replicated
from appliance.replication.states import State
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.values.kafka_records import Record


def run_solo(check: Any) -> None:
    """Run a check with a sync master that is solo and has acknowledged a record alone."""

    async def run() -> None:
        harness = with_topic(1)
        harness.broker.config = replace(harness.config, replication="sync")
        pump: Any = SimpleNamespace(show=lambda _: None, fail=None)
        role = MasterRole(harness.broker, pump, ONE_MACHINE, is_solo=True)
        before = harness.broker.wrote_pos
        harness.produce("t", 0, [Record(b"alone")])
        check(harness, role, before)
        await role.stop()

    asyncio.run(run())


def following(state: State, pos: int) -> Replicated:
    """A slave that has acknowledged the log up to a position."""
    return Replicated(state, received_pos=pos, durable_pos=pos, acked_ms=1, proved_ms=1)


def test_master_is_solo_until_the_slave_has_all_that_was_acknowledged_alone() -> None:
    """A slave streams once little is on its way, and could be promoted then."""

    def check(harness: BrokerHarness, role: MasterRole, before: int) -> None:
        alone = harness.broker.wrote_pos
        role._changed(following(State.STREAMING, before))
        assert role.status().solo
        harness.send_produce("t", 0, [Record(b"waits")])
        harness.flush()
        role._changed(following(State.STREAMING, alone - 8))
        assert role.status().solo
        assert harness.broker.replicated_pos == alone, "what is new waits for the slave"
        role._changed(following(State.STREAMING, alone))
        assert not role.status().solo

    run_solo(check)


def test_master_goes_on_alone_if_the_slave_is_lost_before_it_has_that() -> None:
    def check(harness: BrokerHarness, role: MasterRole, before: int) -> None:
        role._changed(following(State.STREAMING, before))
        role._changed(following(State.LOST, before))
        assert role.status().solo
        harness.produce("t", 0, [Record(b"alone again")])
        assert harness.values() == [b"alone", b"alone again"]

    run_solo(check)
