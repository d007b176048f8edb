"""The payloads of topic, producer and epoch frames.

docs/FORMAT.md draws them. The payloads of offset and group frames are in `group_frames`. Layer 2;
pure functions of bytes.
"""

import struct
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from appliance.store.payload import SIZE, PayloadReader, pack_text

TOPIC_DECLARED: Final = 1
TOPIC_DELETED: Final = 2

TOPIC_HEAD: Final = struct.Struct(">BxH16sIHxx")
"""op, name size, uuid, partition count, setting count; then name, partitions, settings."""
TOPIC_PARTITION: Final = struct.Struct(">qqq")
"""Start offset, next offset, highest timestamp."""
PRODUCER: Final = struct.Struct(">q")
EPOCH: Final = struct.Struct(">ixxxxq16s")


@dataclass(frozen=True, slots=True)
class TopicFrame:
    """One topic as a topic frame tells it; if it is deleted, without partitions and settings."""

    op: int
    name: str
    uuid: UUID
    partitions: tuple[tuple[int, int, int], ...]
    """(start offset, next offset, highest timestamp) by index."""
    settings: dict[str, str]


@dataclass(frozen=True, slots=True)
class EpochFrame:
    """An epoch, where in the log it starts, and the cluster that the log belongs to."""

    epoch: int
    start_pos: int
    cluster: UUID


def encode_topic(frame: TopicFrame) -> bytes:
    """The payload of a topic frame."""
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
    """Read the payload of a topic frame.

    Raises:
        CorruptionError: it is shorter or longer than its counts say, or no text.
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
    """The payload of a producer frame: ids below `next_producer_id` may be in use."""
    return PRODUCER.pack(next_producer_id)


def decode_producer(payload: bytes) -> int:
    """The next producer id that a producer frame tells.

    Raises:
        CorruptionError: the payload is shorter or longer.
    """
    reader = PayloadReader(payload, "a producer frame")
    next_producer_id: int = reader.fields(PRODUCER)[0]
    reader.finish()
    return next_producer_id


def encode_epoch(frame: EpochFrame) -> bytes:
    """The payload of an epoch frame."""
    return EPOCH.pack(frame.epoch, frame.start_pos, frame.cluster.bytes)


def decode_epoch(payload: bytes) -> EpochFrame:
    """Read the payload of an epoch frame.

    Raises:
        CorruptionError: it is shorter or longer.
    """
    reader = PayloadReader(payload, "an epoch frame")
    epoch, start_pos, cluster = reader.fields(EPOCH)
    reader.finish()
    return EpochFrame(epoch, start_pos, UUID(bytes=cluster))
