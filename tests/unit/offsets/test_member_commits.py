"""Who is a member of a group commits as one; everybody else waits until the group has none."""

from typing import Any

import pytest

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.offsets_client import Commit, Committed, OffsetsClient
from tests.unit.offsets.members import RawMember, join

VERSIONS = range(2, 10)
VERSIONS_WITH_INSTANCE_IDS = range(7, 10)
PLACE = ("t", 0)


def commit(offsets: OffsetsClient, offset: int, version: int = 7, **identity: Any) -> int:
    """Commit one offset of group `g`; the error code."""
    (error,) = offsets.commit("g", {PLACE: Commit(offset)}, version=version, **identity).values()
    return error


@pytest.mark.parametrize("version", VERSIONS)
def test_a_member_commits_in_its_generation_alone(offsets: OffsetsClient, version: int) -> None:
    member = join(offsets.harness, "g", ["t"])
    me = member.identity
    assert commit(offsets, 1, version, **me) == ErrorCode.none
    wrong: list[tuple[dict[str, Any], ErrorCode]] = [
        ({"generation": member.generation + 1}, ErrorCode.illegal_generation),
        ({"generation": member.generation - 1}, ErrorCode.illegal_generation),
        ({"generation": -1}, ErrorCode.illegal_generation),
        ({"member_id": "somebody"}, ErrorCode.unknown_member_id),
        ({"member_id": ""}, ErrorCode.unknown_member_id),
        ({"member_id": "", "generation": -1}, ErrorCode.unknown_member_id),
    ]
    for change, error in wrong:
        assert commit(offsets, 2, version, **me | change) == error, change
    assert offsets.fetch("g") == {PLACE: Committed(1)}


def test_when_the_last_member_has_left_tools_may_commit_again(offsets: OffsetsClient) -> None:
    member = join(offsets.harness, "g", ["t"])
    assert commit(offsets, 1) == ErrorCode.unknown_member_id
    member.leave()
    assert commit(offsets, 2) == ErrorCode.none
    assert commit(offsets, 3, **member.identity) == ErrorCode.unknown_member_id
    assert offsets.fetch("g") == {PLACE: Committed(2)}


@pytest.mark.parametrize("version", VERSIONS_WITH_INSTANCE_IDS)
def test_a_static_member_that_was_replaced_is_fenced(offsets: OffsetsClient, version: int) -> None:
    old = join(offsets.harness, "g", ["t"], instance_id="i")
    assert commit(offsets, 1, version, **old.identity) == ErrorCode.none
    before = old.identity
    old.member_id = ""
    old.take(old.ask_to_join())
    assert old.member_id != before["member_id"]
    assert commit(offsets, 2, version, **before) == ErrorCode.fenced_instance_id
    unknown = before | {"instance_id": "j"}
    assert commit(offsets, 2, version, **unknown) == ErrorCode.unknown_member_id
    assert commit(offsets, 3, version, **old.identity) == ErrorCode.none


def test_during_a_rebalance_members_commit_until_they_have_joined_again(
    offsets: OffsetsClient,
) -> None:
    """Kafka's rule: a member may commit until its partition is taken away."""
    first = join(offsets.harness, "g", ["t"])
    second = RawMember(offsets.harness, "g", ["t"], "consumer")
    assert commit(offsets, 1, **first.identity) == ErrorCode.none
    second_waits = second.ask_to_join()
    assert commit(offsets, 2, **first.identity) == ErrorCode.none
    first_waits = first.ask_to_join()
    first.take(first_waits)
    second.take(second_waits)
    for member in (first, second):
        assert commit(offsets, 3, **member.identity) == ErrorCode.rebalance_in_progress
    first.sync()
    for number, member in enumerate((first, second)):
        assert commit(offsets, 4 + number, **member.identity) == ErrorCode.none
    assert offsets.fetch("g") == {PLACE: Committed(5)}


def test_a_member_goes_on_committing_after_a_restart(offsets: OffsetsClient) -> None:
    member = join(offsets.harness, "g", ["t"])
    commit(offsets, 1, **member.identity)
    offsets = offsets.reborn("crash")
    assert commit(offsets, 2, **member.identity) == ErrorCode.none
    assert commit(offsets, 3) == ErrorCode.unknown_member_id
    assert offsets.fetch("g") == {PLACE: Committed(2)}
