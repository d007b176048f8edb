"""Attacks that ask: searches, fetches, and answers that grow with state."""

import time
from contextlib import suppress
from typing import Final

from perf.attacks import batches, requests
from perf.attacks.arena import GOOD_TOPIC, Arena

SEARCHED: Final = "searched"
SEARCHED_PARTITIONS: Final = 96
RECORDS: Final = 1_000_000
TAG_BYTES: Final = 30_000_000
WIDE_TOPICS: Final = 100
WIDE_PARTITIONS: Final = 1_000
ITEMS: Final = 99_000
_FAR: Final = 1 << 40
"""An offset beyond the end, or bytes that never come together."""


def prepare_search(arena: Arena) -> None:
    """96 partitions with a batch of a million records each."""
    arena.create_topics([SEARCHED], SEARCHED_PARTITIONS)
    batch = batches.many_records(RECORDS)
    wire = arena.connect()
    for index in range(SEARCHED_PARTITIONS):
        wire.ask(requests.produce({SEARCHED: {index: batch}}))


def search_one_96_times(arena: Arena) -> None:
    """ListOffsets by time that names one partition 96 times: 1.2 KB."""
    arena.time("answer", requests.list_offsets({SEARCHED: [0] * SEARCHED_PARTITIONS}, 1))


def search_once(arena: Arena) -> None:
    """ListOffsets by time over one batch of a million records: 60 bytes."""
    arena.time("answer", requests.list_offsets({SEARCHED: [0]}, 1))


def search_96(arena: Arena) -> None:
    """ListOffsets by time over 96 partitions with a million records each: 1.2 KB."""
    arena.time("answer", requests.list_offsets({SEARCHED: range(SEARCHED_PARTITIONS)}, 1))


def park_large_fetches(arena: Arena) -> None:
    """60 Fetch requests with an unknown tag of 30 MB, which wait: 1.8 GB, once."""
    request = requests.fetch_with_tag(GOOD_TOPIC, 0, wait_ms=60_000, tag_size=TAG_BYTES)

    def send(_: int) -> None:
        arena.connect(limit_s=arena.seconds).send(request)

    arena.side_by_side(60, send)
    arena.linger()


def park_and_hang_up(arena: Arena) -> None:
    """The same, one connection after another, each closed once its request was sent."""
    request = requests.fetch_with_tag(GOOD_TOPIC, 0, wait_ms=60_000, tag_size=TAG_BYTES)
    count = 0
    while not arena.is_over:
        wire = arena.connect(limit_s=5)
        with suppress(OSError):
            wire.send(request)
            count += 1
        time.sleep(0.02)
        arena.close(wire)
    arena.notes.append(f"{count} connections")


def _endless_fetch(arena: Arena, more: requests.Partitions) -> bytes:
    """A fetch of the good client's next records and of other partitions, which never has enough."""
    end = int.from_bytes(arena.ask(requests.list_offsets({GOOD_TOPIC: [0]}, -1))[-8:], "big")
    return requests.fetch(
        {**more, GOOD_TOPIC: [0]},
        wait_ms=60_000,
        min_bytes=1 << 30,
        size=1 << 30,
        offsets={GOOD_TOPIC: end},
    )


def prepare_wide(arena: Arena) -> None:
    """100 topics of 1,000 partitions, less the ones of the good client."""
    names = [f"wide-{number}" for number in range(WIDE_TOPICS - 1)]
    arena.create_topics(names, WIDE_PARTITIONS)


def park_wide_fetches(arena: Arena) -> None:
    """20 fetches of 99,001 partitions each, which wait for ever: 1.6 MB each."""
    names = {f"wide-{number}": range(WIDE_PARTITIONS) for number in range(WIDE_TOPICS - 1)}
    request = _endless_fetch(arena, names)

    def send(_: int) -> None:
        arena.connect(limit_s=arena.seconds).send(request)

    arena.side_by_side(20, send)
    arena.linger()


def park_many_fetches(arena: Arena) -> None:
    """2,000 connections with a fetch each of the good client's records, which waits: 200 KB."""
    request = _endless_fetch(arena, {})
    for _ in range(2_000):
        arena.connect().send(request)
    arena.linger()


def ask_large(arena: Arena) -> None:
    """600 connections with a request of 900 KB each that names thousands: 500 MB."""
    names = [f"{number}-" + "y" * 200 for number in range(4_000)]
    kinds = [
        requests.metadata(names),
        requests.list_offsets({SEARCHED: range(16)} | {name: [0] for name in names}, 1),
        requests.describe_groups(names),
        requests.offset_fetch("g", {name: [0] for name in names}),
    ]

    def send(index: int) -> None:
        arena.connect(limit_s=arena.seconds).send(kinds[index % len(kinds)])

    arena.side_by_side(600, send)
    arena.linger()


def fill_topic(arena: Arena) -> None:
    """128 MB of records."""
    arena.create_topics(["large"], 4)
    batch = batches.plain([bytes(1_000)] * 1_000)
    wire = arena.connect()
    for _ in range(32):
        wire.ask(requests.produce({"large": dict.fromkeys(range(4), batch)}))


def fetch_unread(arena: Arena) -> None:
    """200 connections that fetch 50 MB ten times each and read nothing: 150 KB."""
    request = requests.fetch({"large": range(4)}, 0, size=50 << 20) * 10
    for _ in range(200):
        arena.connect(receive_bytes=4_096).send(request)
    arena.linger()


def prepare_metadata(arena: Arena) -> None:
    """1,000 topics of ten partitions."""
    arena.create_topics([f"listed-{number}" for number in range(1_000)], 10)


def metadata_unread(arena: Arena) -> None:
    """40 connections that ask for all topics 100 times each and read nothing: 110 KB."""
    request = requests.metadata(None) * 100
    for _ in range(40):
        arena.connect(receive_bytes=4_096).send(request)
    arena.linger()


def configs_unread(arena: Arena) -> None:
    """20 connections that ask for the settings of 1,000 topics ten times and read nothing."""
    names = [(2, f"listed-{number}") for number in range(1_000)]
    request = requests.describe_configs(names) * 10
    for _ in range(20):
        arena.connect(receive_bytes=4_096).send(request)
    arena.linger()


def many_items(arena: Arena) -> None:
    """One request with 99,000 items of each of five kinds: up to 1.5 MB each."""
    names = [f"nosuch-{number}" for number in range(ITEMS)]
    nowhere = {"nosuch": range(ITEMS)}
    arena.time("ListOffsets", requests.list_offsets(nowhere, -1))
    arena.time("OffsetFetch", requests.offset_fetch("nobody", nowhere))
    arena.time("DescribeGroups", requests.describe_groups(names))
    arena.time("DescribeConfigs", requests.describe_configs((2, name) for name in names))
    arena.time("DescribeProducers", requests.describe_producers("nosuch", range(ITEMS)))


def name_new_topics(arena: Arena) -> None:
    """Metadata with 10,000 new names, then another client creates a topic: 150 KB, once."""
    names = [f"invented-{number}" for number in range(10_000)]
    arena.time("answer", requests.metadata(names))
    answer = arena.ask(requests.create_topics({"another": 1}))
    # Throttle time, one topic, its name.
    error = int.from_bytes(answer[4 + 4 + 2 + len("another") :][:2], "big")
    if error:
        arena.faults.append(f"another client cannot create a topic: error {error}")


def churn(arena: Arena) -> None:
    """Connects, asks for the versions and resets the connection, as fast as it can."""
    count = 0
    while not arena.is_over:
        count += 1
        wire = arena.connect(limit_s=5)
        with suppress(OSError):
            wire.send(requests.api_versions() * 10)
        arena.close(wire)
    arena.notes.append(f"{count} connections")
