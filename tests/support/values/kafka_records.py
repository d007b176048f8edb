"""Records as Kafka clients send and get them: aiokafka builds and reads the batches."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from appliance.units import MIB

Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """A record to send; `timestamp_ms` is the producer's."""

    value: bytes
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = 1


@dataclass(frozen=True, slots=True)
class Fetched:
    """A record as a consumer got it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes
    headers: Headers

    def header(self, name: str) -> bytes | None:
        return dict(self.headers).get(name)


@dataclass(frozen=True, slots=True)
class Producer:
    """An idempotent producer's part of a batch."""

    producer_id: int
    epoch: int
    sequence: int


def delay(delay_ms: int, user_id: bytes | None = None) -> Headers:
    """Headers that request a delay, and name the timer if `user_id` is given."""
    return (("x-delay", b"%d" % delay_ms), *_named(user_id))


def deliver_at(due_ms: int, user_id: bytes | None = None) -> Headers:
    """Headers that request delivery at an instant, epoch ms."""
    return (("x-deliver-at", b"%d" % due_ms), *_named(user_id))


def by_level(level: int, user_id: bytes | None = None) -> Headers:
    """Headers that request a delay by level."""
    return (("x-delay-level", b"%d" % level), *_named(user_id))


def cancel(user_id: bytes) -> Headers:
    """Headers that cancel a timer."""
    return (("x-deliver-cancel", user_id),)


def _named(user_id: bytes | None) -> Headers:
    return () if user_id is None else (("x-deliver-id", user_id),)


def build_batch(
    records: Sequence[Record], producer: Producer | None = None, *, codec: int = 0
) -> bytes:
    """A Kafka record batch, version 2, as aiokafka builds it; `codec` is 0 to 4."""
    by = producer or Producer(-1, -1, -1)
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=by.producer_id,
        producer_epoch=by.epoch,
        base_sequence=by.sequence,
        batch_size=64 * MIB,
    )
    for index, record in enumerate(records):
        builder.append(
            index, record.timestamp_ms, record.key, record.value, headers=list(record.headers)
        )
    return bytes(builder.build())


def read_batches(data: bytes, from_offset: int = 0) -> list[Fetched]:
    """The records of a fetched record section, from an offset on; every batch CRC is checked."""
    found = []
    batches = MemoryRecords(data)
    while batches.has_next():
        batch = batches.next_batch()
        assert batch is not None
        assert batch.validate_crc(), f"the batch at {batch.base_offset} has a wrong CRC"
        found += [
            Fetched(
                record.offset,
                record.timestamp,
                record.key,
                record.value or b"",
                tuple((name, value or b"") for name, value in record.headers),
            )
            for record in batch
            if record.offset >= from_offset
        ]
    return found


def end_of_batches(data: bytes) -> int:
    """The offset after the last batch of a fetched record section, even an empty batch."""
    end, at = -1, 0
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        (last_delta,) = struct.unpack_from(">i", data, at + 23)
        end, at = base + last_delta + 1, at + 12 + length
    assert end >= 0, "there is no batch"
    return end
