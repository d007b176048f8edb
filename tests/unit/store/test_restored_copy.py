"""Copies of a data directory: two starts of them never share an epoch, so consumers notice."""

import random
from typing import Final

import pytest

from appliance.errors import ColdFrameError
from appliance.store.checkpoint import COPY_SIZE
from appliance.store.state.epoch_starts import EPOCH_MAX, YEAR_2020_MS, next_epoch
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.checkpoints import PATHS
from tests.support.values.kafka_records import Record

SECOND_MS: Final = 1_000


def stopped() -> BrokerHarness:
    harness = with_topic()
    for number in range(10):
        harness.produce("t", 0, [Record(b"%d" % number)])
    harness.broker.close()
    return harness


def test_a_restored_copy_of_a_clean_stop_goes_on_in_an_epoch_of_its_own() -> None:
    harness = stopped()
    backup = harness.disk.crashed("kept", random.Random(0))
    harness.clock.advance_ms(SECOND_MS)
    moved_on = BrokerHarness(harness.disk, harness.clock, harness.config)
    seen_epoch = moved_on.broker.epoch
    offset = moved_on.produce("t", 0, [Record(b"seen")]).base_offset
    harness.clock.advance_ms(SECOND_MS)
    restored = BrokerHarness(backup, harness.clock, harness.config)
    assert restored.report.is_clean
    assert restored.broker.epoch > seen_epoch
    # A consumer that has read the record asks where its epoch ends: before what it has read.
    topic = restored.topic()
    assert restored.produce("t", 0, [Record(b"other")]).base_offset == offset
    try:
        found = restored.broker.search.find_end_of_epoch(topic.partitions[0], seen_epoch)
    except ColdFrameError as error:
        restored.read_cold([error.place])
        found = restored.broker.search.find_end_of_epoch(topic.partitions[0], seen_epoch)
    assert found is not None
    assert found[1] <= offset


def test_every_start_begins_an_epoch_and_it_is_durable_before_anything_is_served() -> None:
    harness = stopped()
    epochs = [harness.broker.epoch]
    for number in range(6):
        harness = BrokerHarness(harness.disk, harness.clock, harness.config)
        epochs.append(harness.broker.epoch)
        assert harness.broker.flushed_pos == harness.broker.wrote_pos
        if number % 2:
            harness.broker.close()
        else:
            harness = BrokerHarness(
                harness.disk.crashed("lost", random.Random(number)), harness.clock, harness.config
            )
            epochs.append(harness.broker.epoch)
            harness.broker.close()
    assert epochs == sorted(set(epochs))


def test_an_epoch_that_only_the_checkpoint_knows_is_not_given_again() -> None:
    harness = stopped()
    harness.clock.advance_ms(3600 * SECOND_MS)
    later = BrokerHarness(
        harness.disk.crashed("kept", random.Random(0)), harness.clock, harness.config
    )
    later.broker.close()
    disk = harness.disk
    saved = later.disk.files()[PATHS.checkpoint]
    disk.open(PATHS.checkpoint).pwritev([saved], 0)
    harness.clock.step_ms(YEAR_2020_MS - harness.clock.wall_ms())
    again = BrokerHarness(disk, harness.clock, harness.config)
    assert again.broker.epoch == later.broker.epoch + 1
    assert not again.report.is_clean  # the log ends before what the checkpoint says


@pytest.mark.parametrize("last", [-1, 0, 7, 1_000_000])
@pytest.mark.parametrize("seconds", [-5, 0, 1, 8, 2_000_000])
def test_the_next_epoch(last: int, seconds: int) -> None:
    found = next_epoch(last, YEAR_2020_MS + seconds * SECOND_MS + 999)
    assert found == max(last + 1, seconds, 0)
    assert next_epoch(last, 1 << 60) == EPOCH_MAX


def test_a_log_that_ends_after_what_the_checkpoint_says_counts_as_an_unclean_stop() -> None:
    harness = stopped()
    earlier = harness.disk.crashed("kept", random.Random(0))
    later = BrokerHarness(harness.disk, harness.clock, harness.config)
    later.produce("t", 0, [Record(b"more")])
    later.broker.close()
    data = later.disk.files()[PATHS.checkpoint]
    earlier.open(PATHS.checkpoint).pwritev([data], 0)
    again = BrokerHarness(earlier, harness.clock, harness.config)
    assert not again.report.is_clean
    assert again.report.lost_bytes > 0
    assert again.broker.epoch > later.broker.epoch
    # Reported once: the next start finds nothing missing, whichever copy it reads.
    for place in (0, 1):
        disk = again.disk.crashed("kept", random.Random(0))
        disk.flip(PATHS.checkpoint, place * COPY_SIZE + 20, 1)
        assert BrokerHarness(disk, harness.clock, harness.config).report.lost_bytes == 0
