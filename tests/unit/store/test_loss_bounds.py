"""However much is lost: the numbers that a start goes on with have room in the frames."""

import random
from typing import Final

import pytest

from appliance.errors import LogRefusedError
from appliance.store.checkpoint import CheckpointFile
from appliance.store.state.group_frames import GROUP_SAVED, GroupFrame
from appliance.units import GIB
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.checkpoints import PATHS
from tests.support.harness.configs import DATA_DIR
from tests.support.values.kafka_records import Record

INT32_MAX: Final = (1 << 31) - 1


def claim_durable(harness: BrokerHarness, end: int) -> None:
    """Let the checkpoint say that the log went on to there."""
    checkpoint = CheckpointFile(harness.disk, PATHS.checkpoint)
    checkpoint.open()
    for _ in range(2):
        checkpoint.write(end, end)
    checkpoint.close()


@pytest.mark.parametrize("lost_bytes", [GIB, 200 * GIB, 16_000 * GIB])
def test_a_start_goes_on_after_any_loss_that_is_accepted(lost_bytes: int) -> None:
    """There is no topic before the loss: else each goes on after a file for 2^31 offsets."""
    harness = BrokerHarness()
    harness.broker.groups.save_group(GroupFrame(op=GROUP_SAVED, group="g", generation=5))
    harness.flush()
    last_id = harness.broker.allocate_producer_id()
    for _ in range(4):
        harness.broker.close()
        claim_durable(harness, harness.broker.wrote_pos + lost_bytes)
        harness = BrokerHarness(harness.disk, harness.clock, harness.config, accepts_loss=True)
        assert harness.report.lost_bytes == lost_bytes
        producer_id = harness.broker.allocate_producer_id()
        assert producer_id > last_id
        last_id = producer_id
    harness.create_topic("t")
    harness.produce("t", 0, [Record(b"new")])
    topic_ids = [topic.topic_id for topic in harness.broker.topics.all()]
    for again in (harness.restart(), harness.crash("kept", random.Random(0))):
        assert again.fetch("t", 0)[0].value == b"new"
        assert [topic.topic_id for topic in again.broker.topics.all()] == topic_ids
        assert 5 < again.broker.groups.groups["g"].generation < INT32_MAX
        assert 0 < again.broker.groups.generation_floor < INT32_MAX


def test_more_damaged_parts_than_a_head_repeats_are_refused() -> None:
    """Every other frame of a log rots; a segment must still begin with all verdicts."""
    harness = with_topic()
    places = []
    while len(places) < 1_100:
        places.append(harness.broker.wrote_pos)
        harness.produce("t", 0, [Record(b"x")])
    disk = harness.disk.crashed("kept", random.Random(0))
    size = harness.config.segment_size_bytes
    for pos in places[::2]:
        disk.flip(DATA_DIR / "commitlog" / f"{pos - pos % size:020d}", pos % size + 30, 1)
    for accepts_loss in (False, True):
        with pytest.raises(LogRefusedError, match="damaged parts"):
            BrokerHarness(disk, harness.clock, harness.config, accepts_loss=accepts_loss)
    few = harness.disk.crashed("kept", random.Random(0))
    for pos in places[:400:2]:
        few.flip(DATA_DIR / "commitlog" / f"{pos - pos % size:020d}", pos % size + 30, 1)
    started = BrokerHarness(few, harness.clock, harness.config)
    for _ in range(40):
        started.produce("t", 0, [Record(b"y" * 3_000)])
    again = started.crash("kept", random.Random(0))
    assert len(again.report.damage) == 200
    assert again.report.lost_bytes == 0
