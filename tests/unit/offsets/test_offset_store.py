"""Committed offsets in the log: whole requests, bounded frames and memory, a full disk."""

import random
from pathlib import Path
from typing import Any

import pytest

from _core.bytes.layout import FRAME_HEADER_SIZE, KIND_OFFSET
from _core.log.frames import read_header
from appliance.config.config import Config
from appliance.store.state.group_frames import offset_size
from appliance.units import KIB
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.offsets_client import (
    Commit,
    Committed,
    OffsetsClient,
    commit_errors,
    commit_request,
)
from tests.support.clients.wire_client import WireClient, framed, split_answers
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import small_config
from tests.support.oracles.kafka_oracle import OffsetCommitResponse
from tests.support.values.kafka_records import Record, build_batch
from tests.support.values.record_requests import produce_request
from tests.unit.offsets.members import join

WIDE = 1000


def client_of(config: Config | None = None, **topics: int) -> OffsetsClient:
    """A client of a new broker with these topics, partition counts by name."""
    harness = BrokerHarness(config=config)
    for name, count in topics.items():
        harness.create_topic(name, count)
    return OffsetsClient(WireClient(harness))


def wide_client(**settings: Any) -> OffsetsClient:
    """A client of a broker with topic `wide` of a thousand partitions, and small segments."""
    settings = {"partition_count_max_per_topic": WIDE, "segment_size_bytes": 128 * KIB} | settings
    return client_of(small_config(**settings), wide=WIDE)


def wide_commits(offset: int, metadata: str = "") -> dict[tuple[str, int], Commit]:
    return {("wide", index): Commit(offset, metadata) for index in range(WIDE)}


def committed(commits: dict[tuple[str, int], Commit]) -> dict[tuple[str, int], Committed]:
    return {place: Committed(one.offset, one.metadata) for place, one in commits.items()}


def frame_headers(harness: BrokerHarness) -> list[dict[str, int]]:
    """The headers of all frames in the log."""
    files = {
        int(path.name): data for path, data in harness.disk.files().items() if is_segment(path)
    }
    headers, pos = [], 0
    while pos < harness.broker.committed_pos:
        base = max(base for base in files if base <= pos)
        headers.append(read_header(files[base][pos - base : pos - base + FRAME_HEADER_SIZE]))
        pos += headers[-1]["size"]
    return headers


def is_segment(path: Path) -> bool:
    return path.parent.name == "commitlog"


def offset_frame_count(harness: BrokerHarness) -> int:
    return sum(header["kind"] == KIND_OFFSET for header in frame_headers(harness))


@pytest.mark.parametrize("metadata", ["", "m" * 100])
def test_a_thousand_partitions_are_committed_at_once(metadata: str) -> None:
    offsets = wide_client()
    for offset in range(3):
        commits = wide_commits(offset, metadata)
        assert set(offsets.commit("g", commits).values()) == {0}
        assert offsets.fetch("g") == committed(commits)
    assert offsets.reborn("crash").fetch("g") == committed(commits)


def test_every_frame_leaves_room_for_a_blank_one_at_the_end_of_its_segment() -> None:
    """Whatever the sizes, the log goes from segment to segment and can be read again."""
    seed = 5
    rng = random.Random(seed)
    offsets = client_of(t=64)
    harness = offsets.harness
    expected: dict[str, dict[tuple[str, int], Committed]] = {}
    segment_size = harness.config.segment_size_bytes
    for _ in range(120):
        places = [("t", index) for index in rng.sample(range(64), rng.randrange(1, 30))]
        sizes = rng.choice(([0], [0, 10], [100, 1000], [4096]))
        commits = {place: Commit(rng.randrange(99), "x" * rng.choice(sizes)) for place in places}
        group = rng.choice("gh")
        assert set(offsets.commit(group, commits).values()) == {0}, f"seed {seed}"
        expected[group] = expected.get(group, {}) | committed(commits)
    assert harness.broker.wrote_pos > 8 * segment_size
    again = offsets.reborn("crash")
    assert {group: again.fetch(group) for group in "gh"} == expected
    ends = {header["position"] + header["size"] for header in frame_headers(harness)}
    for end in ends:
        assert end % segment_size == 0 or segment_size - end % segment_size >= FRAME_HEADER_SIZE


def test_the_commits_of_one_read_share_a_frame() -> None:
    """A consumer that sends one offset after another, or many consumers at once, cost one."""
    offsets = client_of(t=3)
    client = offsets.client
    before = offset_frame_count(offsets.harness)
    requests = [commit_request(f"g{n}", {("t", n % 3): Commit(n)}) for n in range(25)]
    client.send_bytes(b"".join(framed(request, 7, n) for n, request in enumerate(requests)))
    offsets.harness.flush()
    answers = [OffsetCommitResponse.decode(p, version=7, header=True) for p in take(client)]
    assert [commit_errors(answer) for answer in answers] == [{("t", n % 3): 0} for n in range(25)]
    assert offset_frame_count(offsets.harness) == before + 1


def take(client: WireClient) -> list[bytes]:
    return list(split_answers(client.take()))


def test_nothing_is_answered_before_it_is_on_the_disk() -> None:
    """Neither a commit nor a fetch that shows it, large or small."""
    offsets = client_of(t=64)
    client, harness = offsets.client, offsets.harness
    for metadata in ("", "x" * 4000):
        commits = {("t", index): Commit(1, metadata) for index in range(3)}
        client.send(commit_request("g", commits), 7)
        client.send(commit_request("g", {}), 7)
        assert take(client) == []
        harness.flush()
        assert len(take(client)) == 2


def test_without_a_flush_an_async_broker_answers_what_is_written() -> None:
    offsets = client_of(small_config(flush="async"), t=64)
    offsets.client.send(commit_request("g", {("t", 0): Commit(1)}), 7)
    assert len(take(offsets.client)) == 1


# Bounds


def test_all_offsets_together_are_bounded() -> None:
    """What grows them is refused; what keeps or lowers their size is not."""
    offsets = client_of(small_config(offset_total_size_max_bytes=4 * KIB), t=3, u=1)
    store = offsets.harness.broker._store.state.groups
    number = 0
    while offsets.commit(f"g{number}", {("t", 0): Commit(1, "x" * 100)})[("t", 0)] == 0:
        number += 1
    assert 20 < number < 40
    both = {("t", 0): Commit(2, "y" * 100), ("t", 1): Commit(2, "x" * 100)}
    too_large = dict.fromkeys(both, ErrorCode.invalid_commit_offset_size)
    assert offsets.commit("g0", both) == too_large
    assert offsets.fetch("g0") == {("t", 0): Committed(1, "x" * 100)}
    assert offsets.commit("g0", {("t", 0): Commit(2, "y" * 100)}) == {("t", 0): 0}
    assert offsets.delete("g1", [("t", 0)])[0] == 0
    assert offsets.commit("g0", {("t", 1): Commit(2, "x" * 100)}) == {("t", 1): 0}
    again = offsets.reborn("crash").harness.broker._store.state.groups
    assert store.offsets_size == again.offsets_size == exact_size(offsets.harness)
    assert offsets.harness.groups.delete("g0") == ErrorCode.none
    assert store.offsets_size == exact_size(offsets.harness) > 0
    offsets.harness.delete_topic("t")
    assert store.offsets_size == 0


def test_a_partition_that_is_named_again_and_again_costs_one_entry() -> None:
    """The name of the group stands in each entry, and once in the request."""
    offsets = client_of(small_config(segment_size_bytes=256 * KIB), t=1)
    group = "g" * 32_000
    request = commit_request(group, {("t", 0): Commit(1)})
    request.topics[0].partitions *= 5_000
    request.topics += commit_request(group, {("t", 0): Commit(2)}).topics
    before = offsets.harness.broker.wrote_pos
    answer = offsets.client.ask(request, 7, OffsetCommitResponse)
    assert commit_errors(answer) == {("t", 0): 0}
    assert len(answer.topics[0].partitions) == 1
    assert offsets.harness.broker.wrote_pos - before < 64 * KIB
    assert offsets.reborn("crash").fetch(group) == {("t", 0): Committed(2)}


def test_a_long_name_is_not_stored_for_a_thousand_partitions() -> None:
    """Without this, a request of some KiB would cause as many MiB of the log."""
    offsets = wide_client()
    before = offsets.harness.broker.wrote_pos
    refused = offsets.commit("g" * 2_000, wide_commits(1))
    assert set(refused.values()) == {ErrorCode.invalid_commit_offset_size}
    assert offsets.harness.broker.wrote_pos == before
    assert offsets.harness.groups.find("g" * 2_000) is None
    assert set(offsets.commit("g" * 1_000, wide_commits(1)).values()) == {0}


def exact_size(harness: BrokerHarness) -> int:
    names = harness.broker.groups.names
    return sum(offset_size(e) for g in names for e in harness.broker.groups.offsets(g).values())


def test_a_group_with_the_longest_name_commits_with_the_longest_metadata() -> None:
    offsets = client_of(small_config(segment_size_bytes=256 * KIB), t=3)
    largest = offsets.harness.config.offset_metadata_size_max_bytes
    commits = {("t", index): Commit(index, "x" * largest) for index in range(3)}
    group = "g" * 32_767
    assert set(offsets.commit(group, commits).values()) == {0}
    assert offsets.reborn("crash").fetch(group, version=8) == committed(commits)


# Full disk


def fill(offsets: OffsetsClient) -> None:
    """Let the disk take nothing more, and produce until the broker notices."""
    offsets.harness.disk.free = 0
    while offsets.harness.produce("t", 0, [Record(b"x" * 1000)]).error == 0:
        pass


def test_a_full_disk_refuses_commits_and_keeps_what_was_committed() -> None:
    """With an error after which every client tries again; nothing of a request is stored."""
    offsets = client_of(t=64)
    kept = {("t", index): Commit(1, "kept") for index in range(64)}
    offsets.commit("g", kept)
    fill(offsets)
    new = {("t", index): Commit(2, "lost" * 100) for index in range(64)}
    refused = dict.fromkeys(new, ErrorCode.coordinator_not_available)
    for _ in range(3):
        assert offsets.commit("g", new) == refused
    assert offsets.delete("g", list(kept)) == (ErrorCode.coordinator_not_available, {})
    assert offsets.fetch("g") == committed(kept)
    assert offsets.reborn("crash").fetch("g") == committed(kept)


def test_commits_go_on_once_there_is_room_again() -> None:
    offsets = client_of(t=64)
    fill(offsets)
    large = {("t", index): Commit(1, "x" * 100) for index in range(64)}
    assert set(offsets.commit("g", large).values()) == {ErrorCode.coordinator_not_available}
    offsets.harness.disk.free = 1 << 30
    offsets.harness.clock.advance_ms(1_000)
    assert offsets.commit("g", {("t", 0): Commit(2)}) == {("t", 0): 0}
    assert offsets.reborn("crash").fetch("g") == {("t", 0): Committed(2)}


@pytest.mark.parametrize("size", range(100, 4_000, 300))
def test_a_commit_taken_at_the_last_moment_has_its_place_in_the_reserve(size: int) -> None:
    """Whatever else of the same read fills the segment after it: it is answered, so it stays."""
    offsets = client_of(t=64)
    client, harness = offsets.client, offsets.harness
    harness.disk.free = 0
    acknowledged: dict[tuple[str, int], Committed] = {}
    filler = framed(produce_request([("t", [(0, build_batch([Record(b"f" * size)]))])]), 8, 9)
    refused_count = 0
    for number in range(50):
        places = [("t", (number * 5 + index) % 64) for index in range(5)]
        wanted = [{place: Commit(number, "x" * size)} for place in places]
        requests = [framed(commit_request("g", commits), 7, 1) for commits in wanted]
        client.send_bytes(b"".join(requests) + 20 * filler)
        harness.flush()
        for commits, payload in zip(wanted, take(client), strict=False):
            answer = OffsetCommitResponse.decode(payload, version=7, header=True)
            (error,) = commit_errors(answer).values()
            assert error in (0, ErrorCode.coordinator_not_available)
            refused_count += error != 0
            acknowledged |= {} if error else committed(commits)
    assert refused_count > 0
    assert offsets.fetch("g") == acknowledged
    assert offsets.reborn("crash").fetch("g") == acknowledged


def test_a_member_that_commits_on_a_full_disk_stays_a_member() -> None:
    offsets = client_of(t=64)
    member = join(offsets.harness, "g", ["t"])
    fill(offsets)
    refused = {("t", 0): ErrorCode.coordinator_not_available}
    large = {("t", 0): Commit(1, "x" * 2_000)}
    while offsets.commit("g", large, **member.identity) == {("t", 0): 0}:
        pass
    assert offsets.commit("g", large, **member.identity) == refused
    offsets.harness.disk.free = 1 << 30
    offsets.harness.pass_ms(1_000)
    assert offsets.commit("g", {("t", 0): Commit(1)}, **member.identity) == {("t", 0): 0}
