"""OffsetDelete: offsets that nobody uses may go, and only those."""

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.offsets_client import Commit, Committed, OffsetsClient
from tests.unit.offsets.members import join

NONE = ErrorCode.none


def test_offsets_are_deleted_one_by_one(offsets: OffsetsClient) -> None:
    """What was never committed is no error; a partition that does not exist is one."""
    offsets.commit("g", {("t", 0): Commit(1), ("t", 1): Commit(2), ("u", 0): Commit(3)})
    offsets.commit("h", {("t", 0): Commit(4)})
    places = [("t", 1), ("t", 2), ("t", 3), ("missing", 0), ("u", 0)]
    assert offsets.delete("g", places) == (
        NONE,
        {
            ("t", 1): NONE,
            ("t", 2): NONE,
            ("t", 3): ErrorCode.unknown_topic_or_partition,
            ("missing", 0): ErrorCode.unknown_topic_or_partition,
            ("u", 0): NONE,
        },
    )
    assert offsets.fetch("g") == {("t", 0): Committed(1)}
    assert offsets.fetch("h") == {("t", 0): Committed(4)}
    assert offsets.delete("g", [("t", 2)]) == (NONE, {("t", 2): NONE})


def test_a_group_that_does_not_exist_has_no_offsets(offsets: OffsetsClient) -> None:
    assert offsets.delete("g", [("t", 0)]) == (ErrorCode.group_id_not_found, {})
    assert offsets.delete("", [("t", 0)]) == (ErrorCode.invalid_group_id, {})


def test_nothing_to_delete_needs_no_group(offsets: OffsetsClient) -> None:
    """As in Kafka: without a partition that exists the group is not looked at."""
    unknown = {("t", 9): ErrorCode.unknown_topic_or_partition}
    assert offsets.delete("g", [("t", 9)]) == (NONE, unknown)
    assert offsets.delete("g", []) == (NONE, {})


def test_a_topic_that_is_subscribed_to_keeps_its_offsets(offsets: OffsetsClient) -> None:
    offsets.commit("g", {("t", 0): Commit(1), ("u", 0): Commit(2)})
    member = join(offsets.harness, "g", ["t"])
    assert offsets.delete("g", [("t", 0), ("u", 0)]) == (
        NONE,
        {("t", 0): ErrorCode.group_subscribed_to_topic, ("u", 0): NONE},
    )
    assert offsets.fetch("g") == {("t", 0): Committed(1)}
    member.leave()
    assert offsets.delete("g", [("t", 0)]) == (NONE, {("t", 0): NONE})
    assert offsets.fetch("g") == {}


def test_a_group_with_members_that_are_no_consumers_keeps_its_offsets(
    offsets: OffsetsClient,
) -> None:
    """Nobody can say which topics its members read."""
    offsets.commit("g", {("t", 0): Commit(1)})
    member = join(offsets.harness, "g", ["u"], protocol_type="connect")
    assert offsets.delete("g", [("t", 0)]) == (ErrorCode.non_empty_group, {})
    member.leave()
    assert offsets.delete("g", [("t", 0)]) == (NONE, {("t", 0): NONE})
