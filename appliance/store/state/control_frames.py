"""The payloads of topic, producer, epoch, head, verdict and stages frames.

docs/FORMAT.md describes them. The payloads of offset and group frames are in `group_frames`. Layer
2; pure functions of bytes.
"""

import struct
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from appliance.store.state.payload import SIZE, PayloadReader, pack_text

TOPIC_DECLARED: Final = 1
TOPIC_DELETED: Final = 2

TOPIC_HEAD: Final = struct.Struct(">BxH16sIHxx")
"""Op, name size, uuid, partition count, setting count; then name, partitions, settings."""
TOPIC_PARTITION: Final = struct.Struct(">qqq")
"""Start offset, next offset, highest timestamp."""
PRODUCER: Final = struct.Struct(">q")
EPOCH: Final = struct.Struct(">iBxxxq16s")
HEAD: Final = struct.Struct(">16sIiqiBxxxIxxxx")
"""Cluster, salt, next topic id, next producer id, generation floor, node, range count."""
VERDICT: Final = struct.Struct(">qiiiI")
"""Next producer id, next topic id, generation floor, generation jump, range count."""
RANGE: Final = struct.Struct(">qq")
"""From, to."""
STAGES: Final = struct.Struct(">BBxxxxxx")
"""Whether enqueue is stopped, whether dequeue is."""

PRODUCER_ID_BLOCK: Final = 1000
"""Producer ids reserved by one producer frame, so that not every new producer costs a frame."""

Ranges = tuple[tuple[int, int], ...]
"""(from, to) log positions of parts of the log that are declared lost for good, ascending."""


@dataclass(frozen=True, slots=True)
class TopicFrame:
    """The content of a topic frame; without partitions and settings if the topic is deleted."""

    op: int
    name: str
    uuid: UUID
    partitions: tuple[tuple[int, int, int], ...]
    """(start offset, next offset, highest timestamp) by index."""
    settings: dict[str, str]


@dataclass(frozen=True, slots=True)
class EpochFrame:
    """An epoch, its start in the log, and the cluster that the log belongs to."""

    epoch: int
    start_pos: int
    cluster: UUID
    node: int = 0
    """The writer: 0 if single; 1 or 2 in a pair, whose epochs are odd and even."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """The values at which allocators continue: lower ones may be in use.

    Attributes:
        producer_id, topic_id: the next ids.
        generation: the generations of an unknown group start above this.
    """

    producer_id: int = 0
    topic_id: int = 1
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadFrame:
    """The first frame of a segment: what must survive the loss of all others."""

    cluster: UUID
    salt: int = 0
    node: int = 0
    floors: Floors = Floors()
    lost: Ranges = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictFrame:
    """The ranges that a start declares lost for good, and where the allocators continue.

    Attributes:
        floors: the floors after this verdict.
        generation_jump: added to the generation of every known group.
        lost: the new ranges; those of earlier starts are in their frames and in heads.
    """

    floors: Floors
    generation_jump: int
    lost: Ranges


@dataclass(frozen=True, slots=True)
class StoppedStages:
    """Which stages of timers an operator has stopped."""

    enqueue: bool = False
    dequeue: bool = False


NONE_STOPPED: Final = StoppedStages()


def encode_topic(frame: TopicFrame) -> bytes:
    """Encode the payload of a topic frame."""
    name = frame.name.encode("ascii")
    parts = [
        TOPIC_HEAD.pack(
            frame.op, len(name), frame.uuid.bytes, len(frame.partitions), len(frame.settings)
        ),
        name,
    ]
    parts += [TOPIC_PARTITION.pack(*partition) for partition in frame.partitions]
    parts += [pack_text(text) for item in frame.settings.items() for text in item]
    return b"".join(parts)


def decode_topic(payload: bytes) -> TopicFrame:
    """Decode the payload of a topic frame.

    Raises:
        CorruptionError: its size does not match its counts, or a text is not UTF-8.
    """
    reader = PayloadReader(payload, "a topic frame")
    op, name_size, uuid, partition_count, setting_count = reader.fields(TOPIC_HEAD)
    reader.chosen(op, range(TOPIC_DECLARED, TOPIC_DELETED + 1))
    name = reader.text_of(name_size)
    reader.check_count(partition_count, TOPIC_PARTITION.size)
    partitions = [reader.fields(TOPIC_PARTITION) for _ in range(partition_count)]
    reader.check_count(setting_count, 2 * SIZE.size)
    settings = {}
    for _ in range(setting_count):
        key = reader.text()
        settings[key] = reader.text()
    reader.finish()
    return TopicFrame(op, name, UUID(bytes=uuid), tuple(partitions), settings)


def encode_producer(next_producer_id: int) -> bytes:
    """Encode the payload of a producer frame: ids below `next_producer_id` may be in use."""
    return PRODUCER.pack(next_producer_id)


def decode_producer(payload: bytes) -> int:
    """Decode the payload of a producer frame: the next producer id.

    Raises:
        CorruptionError: it has the wrong size.
    """
    reader = PayloadReader(payload, "a producer frame")
    next_producer_id: int = reader.fields(PRODUCER)[0]
    reader.finish()
    return next_producer_id


def encode_epoch(frame: EpochFrame) -> bytes:
    """Encode the payload of an epoch frame."""
    return EPOCH.pack(frame.epoch, frame.node, frame.start_pos, frame.cluster.bytes)


def decode_epoch(payload: bytes) -> EpochFrame:
    """Decode the payload of an epoch frame.

    Raises:
        CorruptionError: it has the wrong size.
    """
    reader = PayloadReader(payload, "an epoch frame")
    epoch, node, start_pos, cluster = reader.fields(EPOCH)
    reader.finish()
    return EpochFrame(epoch, start_pos, UUID(bytes=cluster), node)


def encode_stages(stopped: StoppedStages) -> bytes:
    """Encode the payload of a stages frame."""
    return STAGES.pack(stopped.enqueue, stopped.dequeue)


def decode_stages(payload: bytes) -> StoppedStages:
    """Decode the payload of a stages frame.

    Raises:
        CorruptionError: it has the wrong size, or a number is neither 0 nor 1.
    """
    reader = PayloadReader(payload, "a stages frame")
    stopped = reader.fields(STAGES)
    for each in stopped:
        reader.chosen(each, range(2))
    reader.finish()
    return StoppedStages(*map(bool, stopped))


def encode_head(frame: HeadFrame) -> bytes:
    """Encode the payload of a head frame."""
    floors = frame.floors
    head = HEAD.pack(
        frame.cluster.bytes,
        frame.salt,
        floors.topic_id,
        floors.producer_id,
        floors.generation,
        frame.node,
        len(frame.lost),
    )
    return head + _encode_ranges(frame.lost)


def decode_head(payload: bytes) -> HeadFrame:
    """Decode the payload of a head frame.

    Raises:
        CorruptionError: its size does not match its count.
    """
    reader = PayloadReader(payload, "a head frame")
    cluster, salt, topic_id, producer_id, generation, node, count = reader.fields(HEAD)
    lost = _read_ranges(reader, count)
    return HeadFrame(
        cluster=UUID(bytes=cluster),
        salt=salt,
        node=node,
        floors=Floors(producer_id=producer_id, topic_id=topic_id, generation=generation),
        lost=lost,
    )


def encode_verdict(frame: VerdictFrame) -> bytes:
    """Encode the payload of a verdict frame."""
    floors = frame.floors
    head = VERDICT.pack(
        floors.producer_id,
        floors.topic_id,
        floors.generation,
        frame.generation_jump,
        len(frame.lost),
    )
    return head + _encode_ranges(frame.lost)


def decode_verdict(payload: bytes) -> VerdictFrame:
    """Decode the payload of a verdict frame.

    Raises:
        CorruptionError: its size does not match its count.
    """
    reader = PayloadReader(payload, "a verdict frame")
    producer_id, topic_id, generation, jump, count = reader.fields(VERDICT)
    return VerdictFrame(
        floors=Floors(producer_id=producer_id, topic_id=topic_id, generation=generation),
        generation_jump=jump,
        lost=_read_ranges(reader, count),
    )


def _encode_ranges(ranges: Ranges) -> bytes:
    return b"".join(RANGE.pack(*each) for each in ranges)


def _read_ranges(reader: PayloadReader, count: int) -> Ranges:
    reader.check_count(count, RANGE.size)
    ranges = []
    for _ in range(count):
        start, end = reader.fields(RANGE)
        ranges.append((start, end))
    reader.finish()
    return tuple(ranges)
