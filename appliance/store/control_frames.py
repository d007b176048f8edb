"""The payloads of topic, producer and epoch frames.

docs/FORMAT.md draws them. The log pads a payload with zeros to a multiple of eight, so a decoder reads by the counts in
it and ignores what follows. Layer 2; pure functions of bytes.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from appliance.errors import CorruptionError


TOPIC_DECLARED: Final = 1
TOPIC_DELETED: Final = 2

_TOPIC: Final = struct.Struct(">BxH16sIHxx")
"""op, name size, uuid, partition count, setting count; then name, partitions, settings."""
_PARTITION: Final = struct.Struct(">qqq")
"""Start offset, next offset, highest timestamp."""
_SIZE: Final = struct.Struct(">H")
_PRODUCER: Final = struct.Struct(">q")
_EPOCH: Final = struct.Struct(">ixxxxq16s")


@dataclass(frozen=True, slots=True)
class TopicFrame:
    """One topic as a topic frame tells it; `partitions` and `settings` are empty if it is deleted."""

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
        _TOPIC.pack(
            frame.op, len(name), frame.uuid.bytes, len(frame.partitions), len(frame.settings)
        ),
        name,
    ]
    parts += [_PARTITION.pack(*partition) for partition in frame.partitions]
    for item in frame.settings.items():
        for text in item:
            data = text.encode()
            parts += [_SIZE.pack(len(data)), data]
    return b"".join(parts)


def decode_topic(payload: bytes) -> TopicFrame:
    """Read the payload of a topic frame.

    Raises:
        CorruptionError: it is shorter than its counts say, or no text.
    """
    try:
        op, name_size, uuid, partition_count, setting_count = _TOPIC.unpack_from(payload)
        at = _TOPIC.size
        name = payload[at : at + name_size].decode("ascii")
        at += name_size
        partitions = []
        for _ in range(partition_count):
            partitions.append(_PARTITION.unpack_from(payload, at))
            at += _PARTITION.size
        texts = []
        for _ in range(2 * setting_count):
            (size,) = _SIZE.unpack_from(payload, at)
            at += _SIZE.size
            texts.append(payload[at : at + size].decode())
            at += size
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptionError(Path("commitlog"), 0, "a topic frame", str(error)) from error
    settings = dict(zip(texts[::2], texts[1::2], strict=True))
    return TopicFrame(op, name, UUID(bytes=uuid), tuple(partitions), settings)


def encode_producer(next_producer_id: int) -> bytes:
    """The payload of a producer frame: ids below `next_producer_id` may be in use."""
    return _PRODUCER.pack(next_producer_id)


def decode_producer(payload: bytes) -> int:
    """The next producer id that a producer frame tells."""
    value: int = _PRODUCER.unpack_from(payload)[0]
    return value


def encode_epoch(frame: EpochFrame) -> bytes:
    """The payload of an epoch frame."""
    return _EPOCH.pack(frame.epoch, frame.start_pos, frame.cluster.bytes)


def decode_epoch(payload: bytes) -> EpochFrame:
    """Read the payload of an epoch frame."""
    epoch, start_pos, cluster = _EPOCH.unpack_from(payload)
    return EpochFrame(epoch, start_pos, UUID(bytes=cluster))
