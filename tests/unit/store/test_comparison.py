"""A pair's master writes nothing into its log before it is told to go on, also if it is stopped."""

import random

import pytest

from appliance.broker import Broker
from appliance.main import KAFKA_FACADE
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import DATA_DIR, small_config
from tests.support.simulator.sim_fs import SimFileSystem
from tests.unit.store.test_follower import write_some


def log_files(disk: SimFileSystem) -> dict[str, bytes]:
    names = disk.list_dir(DATA_DIR / "commitlog")
    return {name: disk.files()[DATA_DIR / "commitlog" / name] for name in names}


def to_comparison(harness: BrokerHarness, disk: SimFileSystem) -> Broker:
    """A broker whose start has come to the comparison."""
    broker = Broker(harness.clock, disk, harness.config, KAFKA_FACADE, compares=True)
    for _ in broker.recover():
        if broker.comparison is not None:
            return broker
    raise AssertionError("it compares nothing")


def written(*, is_clean: bool) -> tuple[BrokerHarness, SimFileSystem]:
    """What a master leaves, with a torn tail unless it stopped cleanly."""
    harness = BrokerHarness(config=small_config(replication="async"))
    write_some(harness, random.Random(1))
    if is_clean:
        harness.broker.close()
        return harness, harness.disk
    harness.create_topic("torn", 1)
    harness.broker.commit()
    return harness, harness.disk.crashed("torn", random.Random(2))


@pytest.mark.parametrize("is_clean", [True, False])
def test_log_is_unchanged_until_it_goes_on(*, is_clean: bool) -> None:
    harness, disk = written(is_clean=is_clean)
    before = log_files(disk)
    broker = to_comparison(harness, disk)
    comparison = broker.comparison
    assert comparison is not None
    assert log_files(disk) == before
    assert comparison.cluster
    assert comparison.node == 1
    assert comparison.epochs()[0] == harness.epoch_starts()[0]
    assert comparison.crc_at(comparison.epochs()[0][1]) is not None
    broker.close()
    assert log_files(disk) == before
    assert disk.exists(DATA_DIR / "abort") is not is_clean
    again = BrokerHarness(disk, harness.clock, harness.config)
    assert again.report.is_clean is is_clean
    assert again.broker.epoch > comparison.epoch


def test_start_that_goes_on_is_as_any_start() -> None:
    harness, disk = written(is_clean=True)
    broker = Broker(harness.clock, disk, harness.config, KAFKA_FACADE, compares=True)
    waited = 0
    for progress in broker.recover():
        if broker.comparison is not None and not broker.comparison.is_over:
            assert progress.phase == "comparing"
            waited += 1
            if waited == 3:
                broker.comparison.go_on()
    assert waited == 3
    assert broker.report.is_clean
    assert broker.epoch > harness.epoch_starts()[-1][0]
    broker.close()


def test_broker_that_is_alone_compares_nothing() -> None:
    harness = BrokerHarness()
    harness.broker.close()
    broker = Broker(harness.clock, harness.disk, harness.config, KAFKA_FACADE, compares=True)
    for _ in broker.recover():
        assert broker.comparison is None
    broker.close()
