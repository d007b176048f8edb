"""What the members of a group read, as their leader wrote it and as people see it."""

import random

import pytest

from appliance.model import AssignedPartition
from compat.kafka.groups.status import read_assignment
from tests.support.oracles.kafka_oracle import protocol_module

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


def test_random_bytes_end_in_an_answer() -> None:
    rng = random.Random(5)
    whole = assigned(1, {"topic": [1, 2], "other": [3]})
    for _ in range(2_000):
        data = bytearray(whole)
        data[rng.randrange(len(data))] = rng.randrange(256)
        found = read_assignment(bytes(data))
        assert found is None or all(isinstance(each, AssignedPartition) for each in found)
