"""Committed offsets in memory and in the log: those of deleted topics, and their size."""

import random

import pytest

from _core.bytes.layout import KIND_GROUP, KIND_OFFSET
from appliance.errors import RequestError
from appliance.store.state.group_frames import (
    GROUP_DELETED,
    GROUP_SAVED,
    OFFSET_COMMITTED,
    OFFSET_DELETED,
    GroupFrame,
    OffsetEntry,
    decode_offsets,
    offset_size,
)
from appliance.store.state.group_store import GATHERED_MAX_BYTES, GroupStore
from appliance.store.state.log_calls import LogCalls
from appliance.units import KIB
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.configs import small_config


def test_a_deleted_topic_or_group_takes_its_offsets_and_no_others() -> None:
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
            deleted = rng.choice("gh")
            store.apply_group(GroupFrame(op=GROUP_DELETED, group=deleted))
            assert not store.offsets(deleted), f"seed {seed}"
        kept = {(each.group, each.topic_id, each.partition) for each in store.walk_offsets()}
        gone = rng.randrange(3)
        store.forget_topic(gone, rng.randrange(5))
        found = {(each.group, each.topic_id, each.partition) for each in store.walk_offsets()}
        assert found == {each for each in kept if each[1] != gone}, f"seed {seed}"
        assert store.offsets_size == sum(map(offset_size, store.walk_offsets()))


def test_state_larger_than_a_frame_is_refused_and_names_the_setting() -> None:
    harness = with_topic()
    topic_id = harness.topic().topic_id
    small, large = (
        OffsetEntry(
            op=OFFSET_COMMITTED,
            group="g",
            topic_id=topic_id,
            partition=0,
            metadata="x" * size,
            commit_pos=harness.broker.wrote_pos,
        )
        for size in (10_000, 40_000)
    )
    with pytest.raises(RequestError, match=r"store\.segment_size_bytes"):
        harness.broker.groups.commit_offsets([large])
    harness.broker.groups.commit_offsets([small])
    harness.broker.flush()
    assert harness.restart().broker.groups.offsets("g") == {(topic_id, 0): small}


def test_commits_are_appended_in_as_few_frames_as_they_fit_in_and_before_a_group() -> None:
    frames: list[tuple[int, int]] = []  # kind, and entries of an offset frame
    log = LogCalls(
        append=lambda kind, payload: frames.append(
            (kind, len(decode_offsets(payload)) if kind == KIND_OFFSET else 0)
        ),
        append_topic=lambda _payload, _topic_id: 0,
        end_pos=lambda: 0,
        flushed_pos=lambda: 0,
        check_room=lambda _size, _room: None,
        begin=lambda: None,
        end=lambda: None,
    )
    store = GroupStore(
        log, payload_size_max=1 << 20, reserve_bytes=1 << 20, offsets_size_max=1 << 20
    )

    def commit(count: int, metadata_size: int) -> list[tuple[int, int]]:
        """The frames that this many entries of one commit take."""
        frames.clear()
        store.commit_offsets(
            [
                OffsetEntry(
                    op=OFFSET_COMMITTED,
                    group="g",
                    topic_id=1,
                    partition=index,
                    metadata="x" * metadata_size,
                )
                for index in range(count)
            ]
        )
        return list(frames)

    part = GATHERED_MAX_BYTES * 3 // 10
    assert commit(1, part) == []
    # The first is appended before, so that these three share a frame.
    assert commit(3, part) == [(KIND_OFFSET, 1)]
    assert commit(7, part) == [(KIND_OFFSET, 3), (KIND_OFFSET, 3), (KIND_OFFSET, 3)]
    assert commit(1, GATHERED_MAX_BYTES) == [(KIND_OFFSET, 1), (KIND_OFFSET, 1)]
    assert commit(1, 1) == []
    store.save_group(GroupFrame(op=GROUP_SAVED, group="g", generation=1))
    assert frames == [(KIND_OFFSET, 1), (KIND_GROUP, 0)]


def test_the_groups_of_one_address_take_half_of_what_others_leave_for_offsets() -> None:
    harness = with_topic(config=small_config(offset_total_size_max_bytes=8 * KIB))
    store, coordinator = harness.broker._store.state.groups, harness.groups
    topic_id = harness.topic().topic_id

    def commit(group: str, address: str, size: int = 100, *, partition: int = 0) -> None:
        coordinator.check_commit(group, "", None, -1, harness.now_ms(), address=address)
        entry = OffsetEntry(
            op=OFFSET_COMMITTED,
            group=group,
            topic_id=topic_id,
            partition=partition,
            metadata="x" * size,
        )
        store.commit_offsets([entry])

    number = 0
    while store.offsets_size <= 4 * KIB - 200:
        commit(f"a{number}", "::1")
        number += 1
    with pytest.raises(RequestError, match="of one address take"):
        commit("too many", "::1", 200)
    commit("a0", "::1")
    with pytest.raises(RequestError, match="of one address take"):
        commit("a0", "::2", 200, partition=1)  # its creator counts
    commit("b", "::2")
    # What is deleted can be used again.
    assert coordinator.delete("a0") == ErrorCode.none
    commit("c", "::1")
    # What others have leaves less.
    commit("b", "::2", 2_000)
    with pytest.raises(RequestError, match="of one address take"):
        commit("d", "::1")
    commit("c", "::1")  # it does not grow
    harness.delete_topic("t")
    assert store.offsets_size == 0
    assert store._sizes == {}


def test_offsets_that_a_start_finds_count_for_the_address_that_uses_their_group() -> None:
    harness = with_topic(config=small_config(offset_total_size_max_bytes=8 * KIB))
    topic_id = harness.topic().topic_id
    entries = [
        OffsetEntry(op=OFFSET_COMMITTED, group=group, topic_id=topic_id, partition=0, metadata="x")
        for group in ("a", "b")
    ]
    for entry in entries:
        harness.groups.check_commit(entry.group, "", None, -1, harness.now_ms(), address="::1")
        harness.broker._store.state.groups.commit_offsets([entry])
    again = harness.restart()
    store = again.broker._store.state.groups
    assert store._sizes == {}
    again.groups.check_commit("a", "", None, -1, again.now_ms(), address="::2")
    assert store._sizes == {"::2": store.offsets_size // 2}
    assert again.groups.delete("a") == ErrorCode.none
    assert store._sizes == {}
