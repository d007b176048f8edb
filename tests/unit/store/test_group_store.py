"""Groups and committed offsets in the log: what was acknowledged is there again after a restart."""

import random
from typing import Any, get_args

import pytest

from appliance.errors import RequestError
from appliance.store.state.group_frames import (
    GROUP_DELETED,
    GROUP_SAVED,
    OFFSET_COMMITTED,
    OFFSET_DELETED,
    GroupFrame,
    OffsetEntry,
    offset_size,
)
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.simulator.sim_fs import CrashMode


def offset(group: str, topic_id: int, partition: int, value: int, **more: Any) -> OffsetEntry:
    """A committed offset."""
    return OffsetEntry(
        op=OFFSET_COMMITTED,
        group=group,
        topic_id=topic_id,
        partition=partition,
        offset=value,
        commit_ms=1,
        **more,
    )


def values(harness: BrokerHarness, group: str) -> dict[tuple[int, int], int]:
    """The committed offsets of a group."""
    return {key: entry.offset for key, entry in harness.broker.groups.offsets(group).items()}


def test_committed_offsets_and_groups_are_there_after_a_restart() -> None:
    harness = BrokerHarness()
    topic = harness.broker.topics.create("t", 2, {})
    harness.broker.groups.commit_offsets(
        [offset("g", topic.topic_id, 0, 5, metadata="m", leader_epoch=0)]
    )
    harness.broker.groups.commit_offsets(
        [offset("g", topic.topic_id, 1, 6), offset("h", topic.topic_id, 1, 7)]
    )
    harness.broker.groups.save_group(GroupFrame(op=GROUP_SAVED, group="g", generation=3))
    harness.broker.flush()
    before = harness.broker.groups.offsets("g")
    harness = harness.restart()
    assert harness.broker.groups.offsets("g") == before
    assert values(harness, "h") == {(topic.topic_id, 1): 7}
    assert harness.broker.groups.groups["g"].generation == 3
    assert harness.broker.groups.names == ["g", "h"]


def test_commits_of_a_turn_share_a_frame() -> None:
    harness = BrokerHarness()
    topic = harness.broker.topics.create("t", 1, {})
    harness.broker.flush()
    start = harness.broker.wrote_pos
    for number in range(50):
        harness.broker.groups.commit_offsets([offset("g", topic.topic_id, 0, number)])
        assert harness.broker.wrote_pos == start
        assert harness.broker.control_pos > start
    harness.broker.flush()
    assert harness.broker.control_pos <= harness.broker.flushed_pos
    size = harness.broker.wrote_pos - start
    assert size < 50 * 144
    harness = harness.restart()
    assert values(harness, "g") == {(topic.topic_id, 0): 49}


def test_offsets_of_a_deleted_topic_are_gone_also_for_a_new_one_of_its_name() -> None:
    harness = BrokerHarness()
    topic = harness.broker.topics.create("t", 1, {})
    harness.broker.groups.commit_offsets([offset("g", topic.topic_id, 0, 5)])
    harness.broker.topics.delete("t")
    harness.broker.topics.create("t", 1, {})
    harness.broker.flush()
    assert values(harness, "g") == {}
    harness = harness.restart()
    assert values(harness, "g") == {}
    assert harness.broker.groups.names == []


def test_a_deleted_topic_takes_its_offsets_and_no_others() -> None:
    """Also such as are beyond the partitions that it is known to have."""
    seed = 11
    rng = random.Random(seed)
    store = BrokerHarness().broker._store.state.groups
    for _ in range(200):
        entries = [
            OffsetEntry(
                op=rng.choice((OFFSET_COMMITTED, OFFSET_COMMITTED, OFFSET_DELETED)),
                group=rng.choice("gh"),
                topic_id=rng.randrange(3),
                partition=rng.randrange(4),
            )
            for _ in range(rng.randrange(6))
        ]
        store.apply_offsets(entries)
        if rng.random() < 0.1:
            store.apply_group(GroupFrame(op=GROUP_DELETED, group=rng.choice("gh")))
        kept = {(each.group, each.topic_id, each.partition) for each in store.walk_offsets()}
        gone = rng.randrange(3)
        store.forget_topic(gone, rng.randrange(5))
        found = {(each.group, each.topic_id, each.partition) for each in store.walk_offsets()}
        assert found == {each for each in kept if each[1] != gone}, f"seed {seed}"
        assert store.offsets_size == sum(map(offset_size, store.walk_offsets()))


def test_deleted_offsets_and_groups_stay_deleted() -> None:
    harness = BrokerHarness()
    topic = harness.broker.topics.create("t", 2, {})
    harness.broker.groups.commit_offsets(
        [offset("g", topic.topic_id, 0, 5), offset("h", topic.topic_id, 0, 5)]
    )
    harness.broker.groups.save_group(GroupFrame(op=GROUP_SAVED, group="h", generation=3))
    harness.broker.groups.commit_offsets(
        [OffsetEntry(op=OFFSET_DELETED, group="g", topic_id=topic.topic_id, partition=0)]
    )
    harness.broker.groups.save_group(GroupFrame(op=GROUP_DELETED, group="h"))
    harness.broker.flush()
    harness = harness.restart()
    assert harness.broker.groups.names == []


@pytest.mark.parametrize("mode", get_args(CrashMode))
def test_unwritten_commits_are_there_as_a_whole_turn_or_not_at_all(mode: CrashMode) -> None:
    harness = BrokerHarness()
    topic = harness.broker.topics.create("t", 2, {})
    harness.broker.groups.commit_offsets(
        [offset("g", topic.topic_id, 0, 1), offset("g", topic.topic_id, 1, 1)]
    )
    harness.broker.flush()
    harness.broker.groups.commit_offsets(
        [offset("g", topic.topic_id, 0, 2), offset("g", topic.topic_id, 1, 2)]
    )
    harness.broker.commit()
    harness = harness.crash(mode, random.Random(1))
    found = set(values(harness, "g").values())
    assert found in ({1}, {2})


def test_state_larger_than_a_frame_is_refused_and_names_the_setting() -> None:
    harness = BrokerHarness()
    topic = harness.broker.topics.create("t", 1, {})
    with pytest.raises(RequestError, match=r"store\.segment_size_bytes"):
        harness.broker.groups.commit_offsets(
            [offset("g", topic.topic_id, 0, 1, metadata="x" * 40_000)]
        )
    harness.broker.groups.commit_offsets([offset("g", topic.topic_id, 0, 1, metadata="x" * 10_000)])
    harness.broker.flush()
    assert values(harness.restart(), "g") == {(topic.topic_id, 0): 1}


def test_commits_larger_than_a_segment_roll_into_the_next_ones() -> None:
    harness = BrokerHarness()
    topic = harness.broker.topics.create("t", 1, {})
    for number in range(50):
        harness.broker.groups.commit_offsets(
            [offset("g", topic.topic_id, 0, number, metadata="x" * 4_000)]
        )
    harness.broker.flush()
    assert values(harness.restart(), "g") == {(topic.topic_id, 0): 49}
