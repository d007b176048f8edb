"""Attacks that produce and commit: batches that unpack to more, invented ids, small records."""

import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from perf.attacks import batches, requests
from perf.attacks.arena import Arena
from perf.attacks.batches import GZIP

TOPIC: Final = "attacked"
MIB: Final = 1 << 20
UNPACKED_BYTES: Final = 63 * MIB
LARGE_BYTES: Final = 15 * MIB
PRODUCER_IDS: Final = 200_000
PARTITIONS: Final = 1_000
TIMERS: Final = 100_000
TIMERS_MAX: Final = 30_000
RECORDS_MAX: Final = 1_000_000
"""What limits.delayed_count_max and record_count_max allow."""


def prepare_topic(arena: Arena) -> None:
    """A topic of four partitions, whose batches may have 8 MiB."""
    arena.ask(requests.create_topics({TOPIC: 4}, {"max.message.bytes": str(8 * MIB)}))


def _flood(arena: Arena, count: int, request_of: Callable[[int], bytes]) -> None:
    """Send one request after the other on so many connections, and read the answers."""
    done = itertools.count()

    def send(index: int) -> None:
        wire = arena.connect(limit_s=arena.seconds + 5)
        request = request_of(index)
        while not arena.is_over:
            wire.ask(request)
            next(done)

    arena.side_by_side(count, send)
    arena.notes.append(f"{next(done):,} requests answered")


def unpack_16(arena: Arena) -> None:
    """16 connections with batches that unpack to 63 MiB each, one after the other: 6 KB each."""
    batch = batches.unpacks_to(UNPACKED_BYTES)
    _flood(arena, 16, lambda index: requests.produce({TOPIC: {index % 4: batch}}))


def unpack_400(arena: Arena) -> None:
    """400 connections with such batches."""
    batch = batches.unpacks_to(UNPACKED_BYTES)
    _flood(arena, 400, lambda index: requests.produce({TOPIC: {index % 4: batch}}))


def unpack_large(arena: Arena) -> None:
    """400 connections with batches of 900 KB that unpack to 63 MiB, and wait for their turn."""
    batch = batches.unpacks_to(UNPACKED_BYTES, random_bytes=900_000)
    _flood(arena, 400, lambda index: requests.produce({TOPIC: {index % 4: batch}}))


def unpack_gzip(arena: Arena) -> None:
    """16 connections with batches of gzip that unpack to 63 MiB each: 64 KB each."""
    batch = batches.unpacks_to(UNPACKED_BYTES, codec=GZIP)
    _flood(arena, 16, lambda index: requests.produce({TOPIC: {index % 4: batch}}))


def tiny_frames(arena: Arena) -> None:
    """A batch of 55,000 Zstandard frames of 64 bytes each: 1 MB."""
    batch = batches.frames_of(55_000 * 64, 64)
    arena.time("answer", requests.produce({TOPIC: {0: batch}}))


def unpack_frames(arena: Arena) -> None:
    """4 connections with batches of 512 Zstandard frames that unpack to 8 MiB: 10 KB each."""
    batch = batches.frames_of(8 * MIB, 16_384)
    _flood(arena, 4, lambda index: requests.produce({TOPIC: {index: batch}}))


def six_million_records(arena: Arena) -> None:
    """A batch of six million minimal records: 5 MB, refused; then one of a million."""
    for count in (6_000_000, RECORDS_MAX):
        batch = batches.many_records(count)
        arena.time("answer", requests.produce({TOPIC: {0: batch}}))


def prepare_large_topic(arena: Arena) -> None:
    """A topic whose batches may have 16 MiB, the most."""
    arena.ask(requests.create_topics({TOPIC: 1}, {"max.message.bytes": str(16 * MIB)}))


def large_batch(arena: Arena) -> None:
    """A batch of 15 MiB that is not compressed, to a topic that allows it."""
    batch = batches.plain([bytes(MIB - 200)] * (LARGE_BYTES // MIB))
    arena.time("answer", requests.produce({TOPIC: {0: batch}}))


def prepare_fifty(arena: Arena) -> None:
    """A topic of 50 partitions."""
    arena.create_topics([TOPIC], 50)


def large_request(arena: Arena) -> None:
    """A request of 50 MB with a batch of 1 MB for each of 50 partitions, as franz-go sends it."""
    batch = batches.plain([bytes(MIB - 200)])
    arena.time("answer", requests.produce({TOPIC: dict.fromkeys(range(50), batch)}))


def million_headers(arena: Arena) -> None:
    """One record with a million headers: 360 bytes."""
    batch = batches.many_headers(999_999)
    arena.time("answer", requests.produce({TOPIC: {0: batch}}))


def hundred_thousand_timers(arena: Arena) -> None:
    """A batch of 100,000 held records with an id each: 240 KB, refused; then one of 30,000."""
    for count in (TIMERS, TIMERS_MAX):
        batch = batches.delayed_records(count, "timer", 3_600_000)
        arena.time("answer", requests.produce({TOPIC: {0: batch}}))


def delayed_zeros(arena: Arena) -> None:
    """4 connections with batches of 4 MB of held records, which are kept unpacked: 1 KB each."""
    batch = batches.delayed_zeros(4)
    begin = arena.broker.metric("latermq_log_wrote_pos")
    _flood(arena, 4, lambda index: requests.produce({TOPIC: {index: batch}}))
    wrote = arena.broker.metric("latermq_log_wrote_pos") - begin
    arena.notes.append(f"{wrote / 1e6:,.0f} MB of log for {arena.sent_bytes / 1e3:,.0f} KB")


def prepare_producers(arena: Arena) -> None:
    """A topic of 1,000 partitions."""
    arena.create_topics([TOPIC], PARTITIONS)


def producer_ids(arena: Arena) -> None:
    """200,000 invented producer ids, a batch of one record each: 90 bytes each."""
    records = batches.record(0, b"")
    wire = arena.connect()
    before = arena.broker.observed.anonymous[-1][1]
    for base in range(0, PRODUCER_IDS, PARTITIONS):
        of = {
            index: batches.batch(records, 1, producer_id=1_000_000 + base + index, sequence=0)
            for index in range(PARTITIONS)
        }
        with suppress(OSError):
            wire.ask(requests.produce({TOPIC: of}))
        if arena.broker.has_ended:
            break
    wire = arena.connect()
    wire.ask(requests.api_versions())
    grown = arena.broker.observed.anonymous[-1][1] - before
    each = grown / PRODUCER_IDS
    arena.notes.append(f"{each:.0f} B for each id: 3 million {3e6 * each / 1e6:,.0f} MB")
    arena.time("DescribeProducers", requests.describe_producers(TOPIC, range(PARTITIONS)))


def prepare_offsets(arena: Arena) -> None:
    """A group that committed offsets of 20,000 partitions with 4,000 bytes of metadata each."""
    topics = [f"committed-{number}" for number in range(20)]
    arena.create_topics(topics, PARTITIONS)
    for topic in topics:
        arena.ask(requests.offset_commit("committer", {topic: range(PARTITIONS)}, "n" * 4_000))


def offsets_unread(arena: Arena) -> None:
    """20 connections that ask for all offsets of a group, 80 MB, and read nothing: 500 B."""
    for _ in range(20):
        arena.connect(receive_bytes=4_096).send(requests.offset_fetch("committer", None))
    arena.linger()


def create_partitions(arena: Arena) -> None:
    """One request for 99 topics of 1,000 partitions: 2 KB."""
    counts = {f"wide-{number}": PARTITIONS for number in range(99)}
    arena.time("answer", requests.create_topics(counts))


def commits(arena: Arena) -> None:
    """OffsetCommit for 1,000 partitions with 4,000 bytes of metadata each: 4 MB a request."""
    note = "n" * 4_000
    for number in itertools.count():
        if arena.is_over:
            break
        request = requests.offset_commit(f"committer-{number}", {TOPIC: range(PARTITIONS)}, note)
        with suppress(OSError):
            arena.ask(request)
    arena.notes.append(f"{number} requests")
