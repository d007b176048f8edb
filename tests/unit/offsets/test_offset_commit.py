"""OffsetCommit and OffsetFetch: what a group commits is what it reads again, in every version."""

from dataclasses import replace

import pytest

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.offsets_client import (
    NOTHING,
    Commit,
    Committed,
    OffsetsClient,
    commit_request,
    fetch_request,
)
from tests.support.oracles.kafka_oracle import OffsetCommitResponse, OffsetFetchResponse

COMMIT_VERSIONS = range(2, 10)
FETCH_VERSIONS = range(1, 10)
FIRST_COMMIT_WITH_EPOCH = 6
FIRST_FETCH_WITH_EPOCH = 5
FIRST_FETCH_OF_ALL = 2

DAY_MS = 86_400_000


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
def test_what_is_committed_is_read_again(offsets: OffsetsClient, version: int) -> None:
    commits = {
        ("t", 2): Commit(7, "a note, nötig", leader_epoch=3),
        ("t", 0): Commit(0, ""),
        ("u", 0): Commit(2**62, "u", leader_epoch=0),
    }
    assert offsets.commit("g", commits, version=version) == dict.fromkeys(commits, 0)
    has_epoch = version >= FIRST_COMMIT_WITH_EPOCH
    assert offsets.fetch("g", commits) == {
        place: Committed(one.offset, one.metadata, one.leader_epoch if has_epoch else -1)
        for place, one in commits.items()
    }


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_every_version_reads_what_is_there_and_what_is_not(
    offsets: OffsetsClient, version: int
) -> None:
    """A partition without a commit, one that does not exist and an unknown topic are no errors."""
    offsets.commit("g", {("t", 1): Commit(5, "note", leader_epoch=4)})
    asked = [("t", 1), ("t", 0), ("t", 99), ("t", -1), ("missing", 0)]
    epoch = 4 if version >= FIRST_FETCH_WITH_EPOCH else -1
    assert offsets.fetch("g", asked, version=version) == {
        **dict.fromkeys(asked, NOTHING),
        ("t", 1): Committed(5, "note", epoch),
    }
    assert offsets.fetch("unknown", asked, version=version) == dict.fromkeys(asked, NOTHING)
    assert offsets.fetch("g", [], version=version) == {}


@pytest.mark.parametrize("version", FETCH_VERSIONS[FIRST_FETCH_OF_ALL - 1 :])
def test_without_a_list_of_topics_everything_is_read(offsets: OffsetsClient, version: int) -> None:
    offsets.commit("g", {("u", 0): Commit(1), ("t", 2): Commit(2), ("t", 0): Commit(3)})
    offsets.commit("other", {("t", 1): Commit(9)})
    assert offsets.fetch("g", version=version) == {
        ("t", 0): Committed(3),
        ("t", 2): Committed(2),
        ("u", 0): Committed(1),
    }
    assert offsets.fetch("unknown", version=version) == {}


@pytest.mark.parametrize("version", [8, 9])
def test_many_groups_are_read_at_once(offsets: OffsetsClient, version: int) -> None:
    offsets.commit("g", {("t", 0): Commit(1), ("t", 1): Commit(2)})
    offsets.commit("h", {("u", 0): Commit(3, "h's")})
    found = offsets.fetch_many({"h": None, "nobody": [("t", 0)], "g": [("t", 1)]}, version=version)
    assert list(found) == ["h", "nobody", "g"]
    assert found == {
        "h": {("u", 0): Committed(3, "h's")},
        "nobody": {("t", 0): NOTHING},
        "g": {("t", 1): Committed(2)},
    }


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
def test_each_partition_is_answered_by_itself(offsets: OffsetsClient, version: int) -> None:
    largest = offsets.harness.config.offset_metadata_size_max_bytes
    commits = {
        ("t", 0): Commit(1),
        ("t", 3): Commit(1),
        ("t", -1): Commit(1),
        ("t", 1): Commit(1, "x" * (largest + 1)),
        ("t", 2): Commit(1, "x" * largest),
        ("missing", 0): Commit(1),
        ("u", 0): Commit(1),
    }
    assert offsets.commit("g", commits, version=version) == {
        ("t", 0): 0,
        ("t", 3): ErrorCode.unknown_topic_or_partition,
        ("t", -1): ErrorCode.unknown_topic_or_partition,
        ("t", 1): ErrorCode.offset_metadata_too_large,
        ("t", 2): 0,
        ("missing", 0): ErrorCode.unknown_topic_or_partition,
        ("u", 0): 0,
    }
    assert sorted(offsets.fetch("g")) == [("t", 0), ("t", 2), ("u", 0)]
    assert offsets.harness.broker.topics.find("missing") is None


def test_the_size_of_metadata_counts_in_bytes(offsets: OffsetsClient) -> None:
    largest = offsets.harness.config.offset_metadata_size_max_bytes
    commits = {("t", 0): Commit(1, "ö" * (largest // 2)), ("t", 1): Commit(1, "ö" * largest)}
    errors = offsets.commit("g", commits)
    assert errors == {("t", 0): 0, ("t", 1): ErrorCode.offset_metadata_too_large}


def test_nothing_to_commit_is_no_error(offsets: OffsetsClient) -> None:
    assert offsets.commit("g", {}) == {}
    assert offsets.fetch("g") == {}


def test_a_group_may_have_any_name_also_none(offsets: OffsetsClient) -> None:
    """Kafka takes commits of the empty group from consumers that assign their partitions."""
    for group in ("", "ü" * 500, "a b/c", "g" * 30_000):
        offsets.commit(group, {("t", 0): Commit(len(group))})
        assert offsets.fetch(group, version=8) == {("t", 0): Committed(len(group))}


def test_offsets_of_a_topic_that_damage_took_are_not_reported(offsets: OffsetsClient) -> None:
    """Its frames may be lost while the offsets are still there."""
    offsets.commit("g", {("t", 0): Commit(5)})
    entry = next(iter(offsets.harness.broker.groups.offsets("g").values()))
    offsets.harness.broker.groups.commit_offsets([replace(entry, topic_id=99)])
    assert offsets.fetch("g") == {("t", 0): Committed(5)}


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
def test_who_claims_to_be_a_member_must_be_one(offsets: OffsetsClient, version: int) -> None:
    """A member of a group that is not there has missed something; nothing is stored."""
    commits = {("t", 0): Commit(1), ("missing", 0): Commit(1)}
    errors = offsets.commit("g", commits, version=version, member_id="m", generation=4)
    assert errors == {
        ("t", 0): ErrorCode.illegal_generation,
        ("missing", 0): ErrorCode.unknown_topic_or_partition,
    }
    assert offsets.fetch("g") == {}


@pytest.mark.parametrize("version", [7, 9])
def test_what_is_asked_for_twice_is_answered_once(offsets: OffsetsClient, version: int) -> None:
    """Else a small request could ask for an answer of any size."""
    offsets.commit("g", {("t", 0): Commit(1), ("t", 1): Commit(2)})
    request = fetch_request(version, {"g": [("t", 0), ("t", 1), ("t", 0)]})
    if version == 9:
        request.groups[0].topics *= 3
        request.groups *= 3
    else:
        request.topics *= 3
    answer = offsets.client.ask(request, version, OffsetFetchResponse)
    (topics,) = [group.topics for group in answer.groups] if version == 9 else [answer.topics]
    assert [topic.name for topic in topics] == ["t"]
    assert [partition.partition_index for partition in topics[0].partitions] == [0, 1]


def test_a_commit_that_names_a_partition_twice_leaves_the_later_offset(
    offsets: OffsetsClient,
) -> None:
    request = commit_request("g", {("t", 0): Commit(1)})
    request.topics += commit_request("g", {("t", 0): Commit(2)}).topics
    answer = offsets.client.ask(request, 7, OffsetCommitResponse)
    (topic,) = answer.topics
    assert [part.error_code for part in topic.partitions] == [0]
    assert offsets.fetch("g") == {("t", 0): Committed(2)}


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_commit_may_bring_its_own_retention(offsets: OffsetsClient, version: int) -> None:
    harness = offsets.harness
    now_ms = harness.clock.wall_ms()
    topic = harness.topic()
    expected = {
        -1: -1,
        0: 0,
        DAY_MS: DAY_MS,
        2**63 - 1: 2**63 - 1,
        -(2**63): 0,
        -2: 0,
    }
    for retention_ms, kept_ms in expected.items():
        offsets.commit("g", {("t", 0): Commit(1)}, version=version, retention_ms=retention_ms)
        entry = harness.broker.groups.offsets("g")[topic.topic_id, 0]
        assert (entry.retention_ms, entry.commit_ms) == (kept_ms, now_ms)
