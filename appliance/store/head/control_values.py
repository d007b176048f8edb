"""All control values of a state, in slices, for carry frames.

Before a segment is freed, every value that a frame in it may have set is appended again, as it is
now. So the log stays complete by itself. Layer 2; does no I/O.
"""

from collections.abc import Iterator
from typing import Final

from _core.bytes.layout import KIND_EPOCH, KIND_GROUP, KIND_OFFSET, KIND_PRODUCER, KIND_TOPIC
from appliance.store.state import control_frames, group_frames
from appliance.store.state.carry_frames import VALUE_LEVELS, encode_levels
from appliance.store.state.control_frames import EpochFrame
from appliance.store.state.snapshot import VALUE_SEQUENCES, encode_value
from appliance.store.state.state import State

ENTRIES_PER_SLICE: Final = 256
"""Values encoded in one slice, or partitions of topics: about a millisecond."""


def control_values(state: State) -> Iterator[list[bytes]]:
    """Yield the encoded values of a state, in slices for one carry frame each.

    A slice holds what the state is when the slice is made: append it before anything changes. A
    change between two slices has a frame of its own, before the later slice or after the earlier.
    """
    yield _few_values(state)
    yield from _topics(state)
    yield from _groups(state)
    yield from _offsets(state)
    yield from _sequences(state)


def _few_values(state: State) -> list[bytes]:
    epochs = [
        encode_value(KIND_EPOCH, control_frames.encode_epoch(EpochFrame(epoch, pos, state.cluster)))
        for epoch, pos in state.epochs.all()
    ]
    levels = encode_levels(state.projections.level_offsets())
    producer = control_frames.encode_producer(state.producer_id_limit)
    return [*epochs, encode_value(KIND_PRODUCER, producer), encode_value(VALUE_LEVELS, levels)]


def _topics(state: State) -> Iterator[list[bytes]]:
    values: list[bytes] = []
    weight = 0
    for topic_id in list(state.projections.topics_by_id):
        topic = state.projections.topics_by_id.get(topic_id)
        if topic is None:
            continue
        values.append(encode_value(KIND_TOPIC, state.topics.payload(topic), topic_id))
        weight += 1 + len(topic.partitions)
        if weight >= ENTRIES_PER_SLICE:
            yield values
            values, weight = [], 0
    if values:
        yield values


def _groups(state: State) -> Iterator[list[bytes]]:
    values: list[bytes] = []
    weight = 0
    for name in state.groups.names:
        group = state.groups.groups.get(name)
        if group is None:
            continue
        values.append(encode_value(KIND_GROUP, group_frames.encode_group(group)))
        weight += 1 + len(group.members)
        if weight >= ENTRIES_PER_SLICE:
            yield values
            values, weight = [], 0
    if values:
        yield values


def _offsets(state: State) -> Iterator[list[bytes]]:
    groups = state.groups
    for name in groups.names:
        keys = list(groups.offsets(name))
        for start in range(0, len(keys), ENTRIES_PER_SLICE):
            # As they are now: a commit since the keys were listed has its frame already.
            present = groups.offsets(name)
            entries = [present[k] for k in keys[start : start + ENTRIES_PER_SLICE] if k in present]
            if entries:
                encoded = [group_frames.encode_offset(entry) for entry in entries]
                yield [encode_value(KIND_OFFSET, group_frames.join_offsets(encoded))]


def _sequences(state: State) -> Iterator[list[bytes]]:
    values: list[bytes] = []
    weight = 0
    for topic_id in list(state.projections.topics_by_id):
        for index in range(_partition_count(state, topic_id)):
            topic = state.projections.topics_by_id.get(topic_id)
            if topic is None:
                break
            partition = topic.partitions[index]
            if partition.producers:
                value = encode_value(VALUE_SEQUENCES, partition.encode_producers(), topic_id)
                values.append(value)
                weight += len(partition.producers)
            weight += 1
            if weight >= ENTRIES_PER_SLICE:
                yield values
                values, weight = [], 0
    if values:
        yield values


def _partition_count(state: State, topic_id: int) -> int:
    topic = state.projections.topics_by_id.get(topic_id)
    return 0 if topic is None else len(topic.partitions)
