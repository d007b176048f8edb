"""Records of a client that look like frames of the log: nobody takes them for some."""

import random
from typing import Final

import pytest

from _core.log.frames import check, read_header
from appliance.units import KIB
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.checkpoints import PATHS
from tests.support.oracles import frames_model as model
from tests.support.values.kafka_records import Record

BEHIND: Final = 2 * KIB
"""How far after the header of its frame a crafted one begins."""


def crafted(harness: BrokerHarness, pos: int, salt: int) -> bytes:
    """A value which, wherever it begins, has a whole frame of topic `t` at log position `pos`."""
    topic = harness.topic()
    batch = model.Batch(
        records=(model.Record(timestamp=1, key=None, value=b"forged"),),
        base_offset=1_000,
        leader_epoch=harness.broker.epoch,
    )
    frame = model.Frame(
        kind=model.ACCEPT,
        position=pos,
        epoch=harness.broker.epoch,
        salt=salt,
        topic_id=topic.topic_id,
        flushed=pos,
        store_time=harness.clock.wall_ms(),
        base_offset=1_000,
        partition=0,
        record_count=1,
        min_timestamp=1,
        max_timestamp=1,
        running_max=1,
        visible=batch.encode(),
    )
    return frame.encode()


def produce_crafted(harness: BrokerHarness, *, knows_salt: bool) -> tuple[int, int]:
    """Send a record that holds such a frame; where its own frame and the crafted one begin."""
    start = harness.broker.wrote_pos
    path = PATHS.commit_log / f"{0:020d}"
    salt = read_header(harness.disk.files()[path])["salt"] if knows_salt else 0
    # Where the value of a record begins in the log is found out as an attacker would: by trying.
    copy = harness.crash("kept", random.Random(0))
    copy.produce("t", 0, [Record(b"the topic is declared again")])
    begun = copy.broker.wrote_pos
    copy.produce("t", 0, [Record(b"?" * 4 * KIB)])
    value_at = copy.disk.files()[path].index(b"????", begun) - begun
    pos = start + BEHIND
    value = bytearray(4 * KIB)
    frame = crafted(harness, pos, salt)
    at = pos - (start + value_at)
    value[at : at + len(frame)] = frame
    harness.produce("t", 0, [Record(bytes(value))])
    data = harness.disk.files()[path][pos : pos + len(frame)]
    assert check(data, pos) == "whole"
    return start, pos


@pytest.mark.parametrize("knows_salt", [False, True], ids=["a client", "who knows the salt"])
def test_a_frame_in_a_record_after_a_rotten_header(*, knows_salt: bool) -> None:
    harness = with_topic()
    harness.produce("t", 0, [Record(b"first")])
    start, _ = produce_crafted(harness, knows_salt=knows_salt)
    harness.produce("t", 0, [Record(b"last")])
    harness.produce("t", 0, [Record(b"mark")])
    disk = harness.disk.crashed("kept", random.Random(0))
    disk.flip(PATHS.commit_log / f"{0:020d}", start + 20, 1)
    found = BrokerHarness(disk, harness.clock, harness.config)
    values = found.values()
    # It shows that nothing but the salt keeps such a record out.
    assert (b"forged" in values) == knows_salt
    if not knows_salt:
        assert values == [b"first", b"last", b"mark"]


def test_the_salt_differs_from_log_to_log() -> None:
    path = PATHS.commit_log / f"{0:020d}"
    salts = {read_header(BrokerHarness().disk.files()[path])["salt"] for _ in range(4)}
    assert len(salts) == 4
    assert 0 not in salts


def test_a_log_whose_only_head_rotted_is_read_without_its_checkpoint() -> None:
    harness = with_topic()
    harness.produce("t", 0, [Record(b"kept")])
    harness.produce("t", 0, [Record(b"mark")])
    disk = harness.disk.crashed("kept", random.Random(0))
    disk.flip(PATHS.commit_log / f"{0:020d}", 20, 1)
    disk.unlink(PATHS.checkpoint)
    found = BrokerHarness(disk, harness.clock, harness.config)
    assert found.values() == [b"kept", b"mark"]
    assert found.broker.cluster_id == harness.broker.cluster_id
    assert found.restart().values() == [b"kept", b"mark"]
