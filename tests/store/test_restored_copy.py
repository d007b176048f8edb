"""Copies of a data directory: two starts of them never share an epoch, so consumers notice."""

import random
from typing import Final

import pytest

from appliance.errors import ColdFrameError
from appliance.store.checkpoint import COPY_SIZE
from appliance.store.epoch_starts import EPOCH_MAX, YEAR_2020_MS, next_epoch
from tests.support.broker_rig import BrokerRig
from tests.support.checkpoints import DERIVED, PATHS
from tests.support.kafka_records import Record

SECOND_MS: Final = 1_000


def stopped() -> BrokerRig:
    rig = BrokerRig()
    rig.create_topic("t")
    for number in range(10):
        rig.produce("t", 0, [Record(b"%d" % number)])
    rig.broker.close()
    return rig


def test_a_restored_copy_of_a_clean_stop_goes_on_in_an_epoch_of_its_own() -> None:
    rig = stopped()
    backup = rig.disk.crashed("kept", random.Random(0))
    rig.clock.advance_ms(SECOND_MS)
    moved_on = BrokerRig(rig.disk, rig.clock, rig.config)
    seen_epoch = moved_on.broker.epoch
    offset = moved_on.produce("t", 0, [Record(b"seen")]).base_offset
    rig.clock.advance_ms(SECOND_MS)
    restored = BrokerRig(backup, rig.clock, rig.config)
    assert restored.report.is_clean
    assert restored.broker.epoch > seen_epoch
    # A consumer that has read the record asks where its epoch ends: before what it has read.
    topic = restored.broker.find_topic("t")
    assert topic is not None
    assert restored.produce("t", 0, [Record(b"other")]).base_offset == offset
    try:
        found = restored.broker.end_of_epoch(topic, 0, seen_epoch)
    except ColdFrameError as error:
        restored.read_cold([error.place])
        found = restored.broker.end_of_epoch(topic, 0, seen_epoch)
    assert found is not None
    assert found[1] <= offset


def test_every_start_begins_an_epoch_and_it_is_durable_before_anything_is_served() -> None:
    rig = stopped()
    epochs = [rig.broker.epoch]
    for number in range(6):
        rig = BrokerRig(rig.disk, rig.clock, rig.config)
        epochs.append(rig.broker.epoch)
        assert rig.broker.flushed_pos == rig.broker.wrote_pos
        if number % 2:
            rig.broker.close()
        else:
            rig = BrokerRig(rig.disk.crashed("lost", random.Random(number)), rig.clock, rig.config)
            epochs.append(rig.broker.epoch)
            rig.broker.close()
    assert epochs == sorted(set(epochs))


def test_an_epoch_that_only_the_checkpoint_knows_is_not_given_again() -> None:
    rig = stopped()
    rig.clock.advance_ms(3600 * SECOND_MS)
    later = BrokerRig(rig.disk.crashed("kept", random.Random(0)), rig.clock, rig.config)
    later.broker.close()
    disk = rig.disk
    told = later.disk.files()[PATHS.checkpoint]
    disk.open(PATHS.checkpoint).pwritev([told], 0)
    rig.clock.step_ms(YEAR_2020_MS - rig.clock.wall_ms())
    again = BrokerRig(disk, rig.clock, rig.config)
    assert again.broker.epoch == later.broker.epoch + 1
    assert not again.report.is_clean  # the log ends before what the checkpoint says


@pytest.mark.parametrize("last", [-1, 0, 7, 1_000_000])
@pytest.mark.parametrize("seconds", [-5, 0, 1, 8, 2_000_000])
def test_the_next_epoch(last: int, seconds: int) -> None:
    found = next_epoch(last, YEAR_2020_MS + seconds * SECOND_MS + 999)
    assert found == max(last + 1, seconds, 0)
    assert next_epoch(last, 1 << 60) == EPOCH_MAX


def test_segments_without_a_checkpoint_count_as_an_unclean_stop() -> None:
    rig = stopped()
    for path in DERIVED:
        rig.disk.remove_tree(path)
    rig.disk.unlink(PATHS.checkpoint)
    again = BrokerRig(rig.disk, rig.clock, rig.config)
    assert not again.report.is_clean
    assert len(again.fetch("t", 0)) == 10


def test_a_log_that_ends_behind_what_the_checkpoint_says_counts_as_an_unclean_stop() -> None:
    rig = stopped()
    earlier = rig.disk.crashed("kept", random.Random(0))
    later = BrokerRig(rig.disk, rig.clock, rig.config)
    later.produce("t", 0, [Record(b"more")])
    later.broker.close()
    data = later.disk.files()[PATHS.checkpoint]
    earlier.open(PATHS.checkpoint).pwritev([data], 0)
    again = BrokerRig(earlier, rig.clock, rig.config)
    assert not again.report.is_clean
    assert again.report.lost_bytes > 0
    assert again.broker.epoch > later.broker.epoch
    # Told once: the next start finds nothing missing, whichever copy it reads.
    for place in (0, 1):
        disk = again.disk.crashed("kept", random.Random(0))
        disk.flip(PATHS.checkpoint, place * COPY_SIZE + 20, 1)
        assert BrokerRig(disk, rig.clock, rig.config).report.lost_bytes == 0
