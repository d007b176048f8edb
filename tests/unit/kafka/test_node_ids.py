"""The id of a broker for clients is its number in the pair, whatever its role."""

from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import small_config
from tests.support.harness.slave_harness import SlaveHarness
from tests.support.oracles.kafka_oracle import MetadataRequest, MetadataResponse

VERSION = 5


def ids(harness: BrokerHarness) -> tuple[list[int], int]:
    """The ids of the brokers, and of the controller, in Metadata."""
    number = harness.send(MetadataRequest(topics=None), VERSION, MetadataResponse)
    answer = harness.answers()[number]
    return [each.node_id for each in answer.brokers], answer.controller_id


def test_broker_without_a_pair_is_one() -> None:
    assert ids(BrokerHarness()) == ([1], 1)


def test_promoted_slave_is_two_and_stays_so_after_a_restart() -> None:
    master, slave = BrokerHarness(config=small_config(replication="async")), SlaveHarness()
    assert ids(master) == ([1], 1)
    master.create_topic("t", 1)
    slave.receive(master)
    slave.flush()
    promoted = slave.promote()
    assert ids(promoted) == ([2], 2)
    assert ids(promoted.restart()) == ([2], 2)


def test_number_of_the_configuration_counts() -> None:
    assert ids(BrokerHarness(config=small_config(replication="async", node=2))) == ([2], 2)
