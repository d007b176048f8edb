"""What the members of a group read, as their leader wrote it and as people see it."""

import random

import pytest

from appliance.model import AssignedPartition
from compat.kafka.groups.status import GroupsStatus, check_assignment, walk_assignment
from tests.support.oracles.kafka_oracle import protocol_module
from tests.unit.groups.harness import GroupHarness

ConsumerProtocolAssignment = protocol_module("consumer.metadata").ConsumerProtocolAssignment


def assigned(version: int, parts: dict[str, list[int]]) -> bytes:
    kind = ConsumerProtocolAssignment.TopicPartition
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            kind(topic=name, partitions=indexes) for name, indexes in parts.items()
        ],
        user_data=b"anything",
    )
    encoded = assignment.encode(version=version)
    return encoded if encoded[:2] == version.to_bytes(2, "big") else version.to_bytes(2) + encoded


def read_assignment(data: bytes) -> tuple[AssignedPartition, ...] | None:
    """Check and walk an assignment without pauses; None for another format."""
    steps = check_assignment(data)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return tuple(each for each in walk_assignment(data) if each) if end.value else None


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_an_assignment_is_shown_in_its_order(version: int) -> None:
    data = assigned(version, {"b": [3, 1], "ü": [0], "none": []})
    assert read_assignment(data) == (
        AssignedPartition("b", 3),
        AssignedPartition("b", 1),
        AssignedPartition("ü", 0),
    )


def test_no_assignment_is_no_partitions() -> None:
    assert read_assignment(b"") == ()


def test_what_is_no_assignment_is_not_taken_for_one() -> None:
    """A client may send any bytes; each that is cut short is noticed."""
    whole = assigned(0, {"topic": [1, 2]})
    needed = len(whole) - len(b"\x00\x00\x00\x08anything")
    for size in range(1, needed):
        assert read_assignment(whole[:size]) is None, size
    assert read_assignment(b"\x00\x00\xff\xff\xff\xff") is None
    assert read_assignment(b"\x00\x00\x7f\xff\xff\xff") is None


def test_a_topic_with_a_longer_name_than_kafka_allows_is_no_assignment() -> None:
    """Each partition is shown with its name."""
    for name in ("t" * 250, "ü" * 125):
        assert read_assignment(assigned(0, {"t": [1], name: [1]})) is None
    for name in ("t" * 249, "ü" * 124):
        assert read_assignment(assigned(0, {name: [1]})) == (AssignedPartition(name, 1),)


def test_who_leaves_while_members_are_walked_is_not_shown() -> None:
    harness = GroupHarness()
    first, second, third = harness.stable({}, {}, {})
    found = GroupsStatus(harness.groups).find("g")
    assert found is not None
    members = iter(found.members)
    shown = next(members)
    assert shown is not None
    assert shown.member_id == first.member_id
    harness.leave(second.member_id)
    assert [each and each.member_id for each in members] == [None, third.member_id]


def test_a_topic_is_a_step_whether_it_has_partitions_or_not() -> None:
    """Those who walk a long assignment can pause at each."""
    data = assigned(0, {f"t{number}": [] for number in range(100)})
    assert len(list(check_assignment(data))) == 100
    assert list(walk_assignment(data)) == [None] * 100


def test_random_bytes_end_in_an_answer() -> None:
    rng = random.Random(5)
    whole = assigned(1, {"topic": [1, 2], "other": [3]})
    for _ in range(2_000):
        data = bytearray(whole)
        data[rng.randrange(len(data))] = rng.randrange(256)
        found = read_assignment(bytes(data))
        assert found is None or all(isinstance(each, AssignedPartition) for each in found)
