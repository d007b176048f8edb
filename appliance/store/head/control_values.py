"""All control values of a state, in slices, for carry frames.

Before a segment is freed, every value that a frame in it may have set is appended again, as it is
now. So the log stays complete by itself. Layer 2; does no I/O.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from _core.bytes.layout import KIND_EPOCH, KIND_GROUP, KIND_OFFSET, KIND_PRODUCER, KIND_TOPIC
from appliance.store.state import control_frames, group_frames
from appliance.store.state.carry_frames import VALUE_LEVELS, encode_carry, encode_levels
from appliance.store.state.control_frames import EpochFrame
from appliance.store.state.payload import COUNT
from appliance.store.state.sequences import split_sequences
from appliance.store.state.snapshot import VALUE_SEQUENCES, encode_value
from appliance.store.state.state import State
from appliance.units import KIB

ENTRIES_PER_SLICE: Final = 256
"""Values encoded in one slice, or partitions of topics: about a millisecond."""

SLICE_BYTES: Final = 256 * KIB
"""A slice ends once it has this many bytes."""

VALUE_BYTES: Final = 16 * KIB
"""Offsets and sequences are divided into values of about this many bytes at most."""


def control_values(state: State) -> Iterator[list[bytes]]:
    """Yield the encoded values of a state, in slices.

    A slice holds what the state is when the slice is made: append it before anything changes. A
    change between two slices has a frame of its own, before the later slice or after the earlier.
    No value is much larger than a frame that an earlier change of it had.
    """
    yield _few_values(state)
    yield from _topics(state)
    yield from _groups(state)
    yield from _offsets(state)
    yield from _sequences(state)


def frames_of(values: Sequence[bytes], size_max: int) -> Iterator[bytes]:
    """Divide a slice into payloads of carry frames; only a single value can exceed `size_max`."""
    for part in _parts(values, size_max - COUNT.size):
        yield encode_carry(part)


def _parts(items: Sequence[bytes], size_max: int) -> Iterator[list[bytes]]:
    part: list[bytes] = []
    size = 0
    for item in items:
        if part and size + len(item) > size_max:
            yield part
            part, size = [], 0
        part.append(item)
        size += len(item)
    if part:
        yield part


class _Slice:
    """The values of a slice that is being made."""

    def __init__(self) -> None:
        self._values: list[bytes] = []
        self._weight = 0
        self._size = 0

    def add(self, weight: int, *values: bytes) -> None:
        self._values += values
        self._weight += weight
        self._size += sum(map(len, values))

    @property
    def is_full(self) -> bool:
        return self._weight >= ENTRIES_PER_SLICE or self._size >= SLICE_BYTES

    def take(self) -> list[bytes]:
        values, self._values = self._values, []
        self._weight = self._size = 0
        return values


def _few_values(state: State) -> list[bytes]:
    epochs = [
        encode_value(KIND_EPOCH, control_frames.encode_epoch(EpochFrame(epoch, pos, state.cluster)))
        for epoch, pos in state.epochs.all()
    ]
    levels = encode_levels(state.projections.levels.all())
    producer = control_frames.encode_producer(state.producer_id_limit)
    return [*epochs, encode_value(KIND_PRODUCER, producer), encode_value(VALUE_LEVELS, levels)]


def _topics(state: State) -> Iterator[list[bytes]]:
    made = _Slice()
    for topic_id in list(state.projections.topics_by_id):
        topic = state.projections.topics_by_id.get(topic_id)
        if topic is None:
            continue
        value = encode_value(KIND_TOPIC, state.topics.payload(topic), topic_id)
        made.add(1 + len(topic.partitions), value)
        if made.is_full:
            yield made.take()
    yield made.take()


def _groups(state: State) -> Iterator[list[bytes]]:
    made = _Slice()
    for name in state.groups.names:
        group = state.groups.groups.get(name)
        if group is None:
            continue
        value = encode_value(KIND_GROUP, group_frames.encode_group(group))
        made.add(1 + len(group.members), value)
        if made.is_full:
            yield made.take()
    yield made.take()


def _offsets(state: State) -> Iterator[list[bytes]]:
    groups = state.groups
    for name in groups.names:
        keys = list(groups.offsets(name))
        for start in range(0, len(keys), ENTRIES_PER_SLICE):
            # As they are now: a commit since the keys were listed has its frame already.
            present = groups.offsets(name)
            entries = [present[k] for k in keys[start : start + ENTRIES_PER_SLICE] if k in present]
            encoded = [group_frames.encode_offset(entry) for entry in entries]
            yield [
                encode_value(KIND_OFFSET, group_frames.join_offsets(part))
                for part in _parts(encoded, VALUE_BYTES)
            ]


def _sequences(state: State) -> Iterator[list[bytes]]:
    made = _Slice()
    for topic_id in list(state.projections.topics_by_id):
        for index in range(_partition_count(state, topic_id)):
            topic = state.projections.topics_by_id.get(topic_id)
            if topic is None:
                break
            partition = topic.partitions[index]
            made.add(1)
            if partition.producers:
                parts = split_sequences(partition.encode_producers(), VALUE_BYTES)
                values = [encode_value(VALUE_SEQUENCES, part, topic_id) for part in parts]
                made.add(len(partition.producers), *values)
            if made.is_full:
                yield made.take()
    yield made.take()


def _partition_count(state: State, topic_id: int) -> int:
    topic = state.projections.topics_by_id.get(topic_id)
    return 0 if topic is None else len(topic.partitions)
