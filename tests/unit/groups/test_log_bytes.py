"""How much a request about a group may add to the log: about its own size, however large the group.

Sizes are of payloads; each frame has 160 bytes more.
"""

from itertools import pairwise
from typing import Final

import pytest

from appliance.units import KIB, MIB
from compat.kafka.groups.group import GroupState
from compat.kafka.protocol.error_codes import ErrorCode
from tests.unit.groups.harness import DELAY_MS, REBALANCE_MS, GroupHarness

MEMBER_COUNT: Final = 20
METADATA: Final = bytes(20 * KIB)
FRAME_MAX_BYTES: Final = 400
"""Payload of a change that concerns one member."""


def static(number: int) -> dict[str, str]:
    return {"instance_id": f"i-{number}"}


@pytest.fixture
def harness() -> GroupHarness:
    return GroupHarness(
        group_size_max_bytes=MIB, group_total_size_max_bytes=4 * MIB, segment_size_bytes=4 * MIB
    )


@pytest.fixture
def large(harness: GroupHarness) -> GroupHarness:
    """A stable group whose members have much to say."""
    members = [static(number) for number in range(MEMBER_COUNT)]
    harness.stable(*members, protocols={"range": METADATA}, session_timeout_ms=100_000)
    assert harness.group().size_bytes > MEMBER_COUNT * len(METADATA)
    return harness


def written(harness: GroupHarness) -> int:
    """Bytes written since the last call."""
    size, harness.log.written_bytes = harness.log.written_bytes, 0
    return size


def test_a_static_member_that_rejoins_writes_only_its_new_id(large: GroupHarness) -> None:
    written(large)
    for number in range(200):
        back = large.join("g", protocols={"range": METADATA}, **static(number % 3)).answer
        assert back.error is ErrorCode.none
        assert written(large) < FRAME_MAX_BYTES
    assert large.log.groups["g"] == large.group().to_frame()


def test_a_static_member_that_rejoins_with_other_metadata_writes_that(large: GroupHarness) -> None:
    written(large)
    large.join("g", protocols={"range": b"small"}, **static(1))
    assert written(large) < FRAME_MAX_BYTES
    large.join("g", protocols={"range": bytes(3_000)}, **static(1))
    assert 3_000 < written(large) < 3_000 + FRAME_MAX_BYTES


def test_a_heartbeat_and_a_rejoin_of_what_is_current_write_nothing(large: GroupHarness) -> None:
    written(large)
    member_id = large.group().static_ids["i-1"]
    assert large.heartbeat(member_id, 1, "i-1") is ErrorCode.none
    again = large.join("g", member_id, protocols={"range": METADATA}, **static(1))
    assert again.answer.generation == 1
    assert large.sync(member_id, 1, instance_id="i-1").is_answered
    assert written(large) == 0


def test_a_rebalance_writes_no_metadata_that_did_not_change(large: GroupHarness) -> None:
    """All members lose their assignment: that is said once."""
    written(large)
    leader_id = large.group().leader_id or ""
    waiting = large.join("g", leader_id, protocols={"range": METADATA}, **static(0))
    large.advance(REBALANCE_MS)
    assert waiting.answer.generation == 2
    assert written(large) < FRAME_MAX_BYTES
    large.sync(leader_id, 2, {leader_id: bytes(1_000)}, instance_id="i-0")
    assert large.group().state is GroupState.STABLE
    assert 1_000 < written(large) < 1_000 + FRAME_MAX_BYTES


def test_a_member_that_joins_or_leaves_writes_about_itself(large: GroupHarness) -> None:
    written(large)
    waiting = large.join("g", protocols={"range": bytes(500)}, client_id="new")
    large.advance(REBALANCE_MS)
    assert waiting.answer.generation == 2
    assert 500 < written(large) < 500 + FRAME_MAX_BYTES
    large.leave(waiting.answer.member_id, ("", "i-1"))
    large.join("g", large.group().static_ids["i-0"], protocols={"range": METADATA}, **static(0))
    large.advance(REBALANCE_MS)
    assert large.group().generation == 3
    assert written(large) < FRAME_MAX_BYTES
    assert large.log.groups["g"] == large.group().to_frame()


def test_a_static_member_that_leaves_and_joins_writes_about_itself(large: GroupHarness) -> None:
    """It has the last place then."""
    written(large)
    large.leave(("", "i-1"))
    waiting = large.join("g", protocols={"range": bytes(500)}, **static(1))
    large.advance(REBALANCE_MS)
    assert waiting.answer.generation == 2
    assert 500 < written(large) < 500 + FRAME_MAX_BYTES
    assert large.log.groups["g"] == large.group().to_frame()


def test_a_large_group_that_becomes_empty_writes_little(harness: GroupHarness) -> None:
    (member,) = harness.stable({}, protocols={"range": METADATA})
    written(harness)
    harness.leave(member.member_id)
    harness.advance(2 * DELAY_MS)
    assert harness.group().state is GroupState.EMPTY
    assert written(harness) < FRAME_MAX_BYTES


def test_a_group_changes_its_protocol_again_only_after_a_time_that_grows_with_its_size(
    harness: GroupHarness,
) -> None:
    """One member's vote decides, and the metadata of all members for that protocol is written."""
    given = {"session_timeout_ms": 1_000_000, "rebalance_timeout_ms": 100}
    large = {name: name.encode() * (400 * KIB) for name in "xy"}
    first = static(0) | {"protocols": {"x": b"", "y": b""}}
    second = static(1) | {"protocols": large}
    harness.stable(first, second)
    for member in (first, second):
        harness.join("g", **member, **given)
    written(harness)
    times = []
    for turn in range(6):
        names = "y" if turn % 2 == 0 else "xy"
        voting = harness.join("g", protocols=dict.fromkeys(names, b""), **static(0), **given)
        while not voting.is_answered:
            harness.advance(100)
        times.append(harness.now_ms)
        assert voting.answer.protocol == names[0]
        assert 400 * KIB < written(harness) < 401 * KIB
        for number in (1, 0):
            member_id = harness.group().static_ids[f"i-{number}"]
            harness.sync(member_id, voting.answer.generation, instance_id=f"i-{number}")
        assert harness.group().state is GroupState.STABLE
    made_up_ms = 800 * KIB * 1_000 // MIB
    assert harness.group().size_bytes > 800 * KIB
    assert all(second - first >= made_up_ms for first, second in pairwise(times))
