"""The steps of long requests are small: counted in bytes that are copied, in values that are freed,
and in offsets that are committed."""

import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from appliance.units import KIB, MIB
from compat.kafka import dispatch
from compat.kafka.groups.offset_rules import OFFSETS_AT_ONCE_BYTES
from compat.kafka.node import Node
from compat.kafka.protocol.pieces import CUT_BYTES, PieceWriter
from compat.kafka.protocol.slices import FREED_AT_ONCE, SLICE_WORK, VALUE_WORK, free_in_steps
from compat.kafka.protocol.wire import Writer
from tests.support.harness.configs import small_config
from tests.support.harness.memory_broker import MemoryBroker, memory_node
from tests.support.harness.turns import Turns
from tests.support.oracles.kafka_oracle import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    encode_request,
    messages_of,
)
from tests.support.values import group_requests as gr

DescribeConfigsRequest, DescribeConfigsResponse = messages_of("admin", "DescribeConfigs")

ITEMS = 24_000
"""Values of a long request; each is some blocks of memory."""

BLOCKS_MAX = 4 * SLICE_WORK // VALUE_WORK
"""Blocks that one turn may free: a structure has some."""


@pytest.fixture
def node() -> Node:
    return memory_node(MemoryBroker(small_config(segment_size_bytes=1 << 26)))


@pytest.mark.parametrize("is_compact", [False, True])
@pytest.mark.parametrize("size", [0, CUT_BYTES - 1, CUT_BYTES, MIB])
def test_large_bytes_are_not_copied(is_compact: bool, size: int) -> None:
    value = bytes(size)
    writer, plain = PieceWriter(), Writer()
    for each in (writer, plain):
        each.int32(7)
        if isinstance(each, PieceWriter):
            each.begin_array()
        else:
            each.array_count(1, is_compact=is_compact, is_nullable=False)
        each.octets(value, is_compact=is_compact, is_nullable=False)
        each.int8(1)
    writer.end_array(1, is_compact=is_compact)
    assert writer.size_bytes == len(plain.finish())
    pieces = writer.finish_pieces()
    assert b"".join(pieces) == plain.finish()
    assert any(piece is value for piece in pieces) == (size >= CUT_BYTES)


def test_values_are_freed_some_at_a_time() -> None:
    inner = [{"index": number} for number in range(1_000)]
    topics = [{"name": "a", "partitions": inner}, {"name": "b", "partitions": []}]
    by_name = {"a": {number: {} for number in range(1_000)}, "b": {}}
    left = len(inner)
    for work in free_in_steps(topics):
        assert work == FREED_AT_ONCE * VALUE_WORK
        assert left - len(inner) <= FREED_AT_ONCE
        left = len(inner)
    assert (topics, inner) == ([], [])
    partitions = by_name["a"]
    assert sum(1 for _ in free_in_steps(by_name)) >= 1_000 // FREED_AT_ONCE
    assert (by_name, partitions) == ({}, {})


def _offset_fetch() -> bytes:
    kind = OffsetFetchRequest.OffsetFetchRequestTopic
    topics = [kind(name="nosuch", partition_indexes=list(range(ITEMS)))]
    return encode_request(OffsetFetchRequest(group_id="g", topics=topics), 5)


def _describe_groups() -> bytes:
    names = [f"group-{number}" for number in range(ITEMS)]
    return encode_request(
        gr.DescribeGroupsRequest(groups=names, include_authorized_operations=False), 5
    )


def _describe_configs() -> bytes:
    kind = DescribeConfigsRequest.DescribeConfigsResource
    resources = [
        kind(resource_type=2, resource_name=f"topic-{number}", configuration_keys=None)
        for number in range(ITEMS)
    ]
    request = DescribeConfigsRequest(
        resources=resources, include_synonyms=False, include_documentation=False
    )
    return encode_request(request, 4)


@pytest.mark.parametrize("make", [_offset_fetch, _describe_groups, _describe_configs])
def test_what_was_decoded_is_freed_in_turns(node: Node, make: Callable[[], bytes]) -> None:
    """Freed at the end at once, a request of 100,000 items kept the loop for 10 ms."""
    turns = node.later
    assert isinstance(turns, Turns)
    for _ in range(2):  # the first one compiles the codecs
        turns.is_held = True
        answer: Any = dispatch.answer(node, make())
        answer.when_complete(lambda reply: None)
        before, freed = sys.getallocatedblocks(), [0]
        while turns.do_one():
            after = sys.getallocatedblocks()
            freed.append(before - after)
            before = after
    assert max(freed) <= BLOCKS_MAX < ITEMS
    assert sum(each for each in freed if each > 0) >= ITEMS // 2


@pytest.mark.parametrize("make", [_offset_fetch, _describe_groups, _describe_configs])
@pytest.mark.parametrize("part", [0.3, 0.9])
def test_a_closed_connection_frees_in_turns_too(
    node: Node, make: Callable[[], bytes], part: float
) -> None:
    turns = node.later
    assert isinstance(turns, Turns)
    counts = []
    for is_abandoned in (False, True):  # the first one compiles the codecs
        turns.is_held = True
        turns.slice_count = 0
        answer: Any = dispatch.answer(node, make())
        answer.when_complete(lambda reply: None)
        while (not is_abandoned or turns.slice_count < counts[0] * part) and turns.do_one():
            pass
        counts.append(turns.slice_count)
    before, freed = sys.getallocatedblocks(), []
    answer.abandon()
    assert answer.held_bytes == 0
    more = True
    while more:
        after = sys.getallocatedblocks()
        freed.append(before - after)
        before = after
        more = turns.do_one()
    # What a handler has noted of each item is freed with its steps.
    assert max(freed[1:]) <= BLOCKS_MAX
    assert freed[0] <= 2 * ITEMS


def test_offsets_with_much_metadata_are_committed_a_few_at_a_time() -> None:
    limits = {"segment_size_bytes": 1 << 26, "partition_count_max_per_topic": 100}
    broker = MemoryBroker(small_config(**limits))
    node = memory_node(broker)
    assert isinstance(node.later, Turns)
    node.later.is_held = True
    broker.topics.create("t", 100, {})
    kind = OffsetCommitRequest.OffsetCommitRequestTopic
    partitions = [
        kind.OffsetCommitRequestPartition(
            partition_index=index,
            committed_offset=index,
            committed_leader_epoch=-1,
            committed_metadata="m" * (4 * KIB - 1),
        )
        for index in range(100)
    ]
    request = OffsetCommitRequest(
        group_id="g",
        group_instance_id=None,
        topics=[kind(name="t", partitions=partitions)],
        generation_id_or_member_epoch=-1,
        member_id="",
    )
    dispatch.answer(node, encode_request(request, 8))
    counts = [0]
    while node.later.do_one():
        counts.append(len(broker.groups.offsets("g")))
    assert counts[-1] == 100
    # A slice of 256 KiB has some steps of 64 KiB, which the time of a slice parts.
    grown = [after - before for before, after in pairwise(counts)]
    assert max(grown) <= (SLICE_WORK + OFFSETS_AT_ONCE_BYTES) // (4 * KIB)
