"""What a master knows of its slave decides what it keeps for it."""

from typing import Any

from appliance.pair.link_settings import ONE_MACHINE
from appliance.pair.master_role import MasterRole
from appliance.replication.master import Replicated
from appliance.replication.states import State
from tests.support.harness.broker_harness import BrokerHarness


def test_segments_are_kept_for_a_slave_while_it_is_connected() -> None:
    broker = BrokerHarness().broker
    no_pump: Any = None
    role = MasterRole(broker, no_pump, ONE_MACHINE, is_solo=False)
    hold, cut = broker.head_freer.hold, 100
    assert not hold.is_held(cut)
    for state in (State.CATCH_UP, State.STREAMING):
        role._changed(Replicated(state, durable_pos=cut - 1))
        assert hold.is_held(cut)
        assert role.status().held_bytes >= cut
        role._changed(Replicated(state, durable_pos=cut))
        assert not hold.is_held(cut)
    for state in (State.HANDSHAKE, State.LOST):
        role._changed(Replicated(state, durable_pos=cut - 1))
        assert not hold.is_held(cut)
        assert role.status().held_bytes == 0
