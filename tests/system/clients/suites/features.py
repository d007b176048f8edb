"""The features of docs/KAFKA.md, once for all libraries in Python and kcat.

`python -m tests.system.clients.suites.features CLIENT ADDRESS [FEATURE ...]` tries those that the
client has. For each it writes one line of JSON to standard output: `feature`, `ok`, `detail` (what
went wrong) and `seconds`.
"""

import json
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import pytest

from tests.support.clients.client_features import CLIENTS, FEATURES
from tests.system.clients.delayed import (
    BAD,
    CODECS,
    OWN_HEADERS,
    Header,
    Received,
    check_delivery,
    check_wishes,
    now_ms,
    wishes,
)
from tests.system.clients.suites.groups import GROUP_FEATURES
from tests.system.clients.suites.library import (
    MESSAGE_TOO_LARGE,
    TOPIC_ALREADY_EXISTS,
    Library,
    RefusedError,
    Sent,
)
from tests.system.clients.suites.using import (
    create_and_send,
    library_of,
    reading,
    receive,
    send,
    send_values,
    values_of,
)

WORKER_COUNT: Final = 4
"""Features at a time: most of them wait most of the time."""

TIME_MS: Final = 1_700_000_000_000
TEXT_HEADERS: Final[tuple[Header, ...]] = (("a", b"1"), ("b", b"text"), ("a", b""))

GAP_RECORDS: Final = [(0, b"a"), (1, b"b"), (7, b"c"), (8, b"d")]
"""Of a topic that exists: tests/support/harness/gap_scenario.py. Empty batches close the gaps."""
GAP_END: Final = 1_009
GAP_STARTS: Final = (9, 500)
"""Offsets that are gone, at which a consumer may stand."""

Feature = Callable[[Library, str], None]


# Topics and the cluster


def create_topic(library: Library, name: str) -> None:
    library.create(name, 3)
    assert library.describe_topic(name) == 3
    with pytest.raises(RefusedError) as refused:
        library.create(name, 3)
    assert refused.value.code == TOPIC_ALREADY_EXISTS


def list_topics(library: Library, name: str) -> None:
    create_and_send(library, name, b"first")
    assert name in library.topics()
    assert library.describe_topic(name) > 0


def auto_create(library: Library, name: str) -> None:
    send_values(library, name, b"first")
    assert library.describe_topic(name) == 4


def describe_cluster(library: Library, _name: str) -> None:
    address, cluster_id = library.cluster()
    assert address == library.address
    assert cluster_id


# Records


def produce_with_acks(library: Library, name: str, acks: int) -> None:
    create_and_send(library, name, b"one", b"two", acks=acks)
    with reading(library, name) as consumer:
        assert values_of(receive(consumer, 2)) == [b"one", b"two"]


def use_codec(library: Library, name: str, codec: str) -> None:
    """Also with every form of delay, in one batch with what is not delayed."""
    library.create(name)
    records = [
        Sent(
            b"value %d " % index * 50,
            OWN_HEADERS if library.is_binary else TEXT_HEADERS,
            None if library.is_binary and index % 3 == 0 else b"key-%d" % index,
            TIME_MS + index if library.sets_time else None,
        )
        for index in range(200)
    ]
    offsets = send(library, name, records, codec=codec)
    assert not library.is_binary or sorted(offsets) == list(range(200))
    with reading(library, name) as consumer:
        for index, (one, wanted) in enumerate(zip(receive(consumer, 200), records, strict=True)):
            assert (one.offset, one.key, one.value) == (index, wanted.key, wanted.value)
            assert one.headers == wanted.headers
            assert wanted.timestamp_ms in (None, one.timestamp_ms)
        send_wishes(library, name, consumer, codec=codec)


def send_wishes(library: Library, name: str, consumer: Any, **how: Any) -> None:
    sent = [wish for wish in wishes() if library.is_binary or wish.value != b"Java long"]
    own = OWN_HEADERS if library.is_binary else TEXT_HEADERS
    sent_ms = now_ms()
    # Nothing comes out by order of arrival.
    records = [Sent(one.value, one.headers(own)) for one in (*reversed(sent[2:]), *sent[:2])]
    send(library, name, records, **how)
    check_wishes(sent, sent_ms, receive(consumer, len(sent)), own)


def headers(library: Library, name: str) -> None:
    """At once and delayed: key, body and timestamp stay, also a null or empty body."""
    library.create(name)
    own = OWN_HEADERS if library.is_binary else TEXT_HEADERS
    values = [b"body", b"", None] if library.is_binary else [b"body"]
    time_ms = TIME_MS if library.sets_time else None
    sent_ms = now_ms()
    send(library, name, [Sent(value, own, b"key", time_ms) for value in values])
    later = [*own, ("x-delay", b"50")]
    send(library, name, [Sent(value, later, b"key", time_ms) for value in values])
    with reading(library, name) as consumer:
        found = receive(consumer, 2 * len(values))
    assert [one.value or None for one in found] == [value or None for value in values * 2]
    for one in found:
        assert one.key == b"key"
        assert time_ms in (None, one.timestamp_ms)
    for one in found[: len(values)]:
        assert one.headers == own
    for one in found[len(values) :]:
        check_delivery(one, sent_ms, delay_ms=50, own=own)


def idempotent(library: Library, name: str) -> None:
    values = [b"%d" % index for index in range(1_000)]
    create_and_send(library, name, *values, is_idempotent=True, batch_bytes=2_000)
    with reading(library, name) as consumer:
        assert values_of(receive(consumer, 1_000)) == values


# Delays


def delay(library: Library, name: str) -> None:
    """In every form, by an idempotent producer."""
    library.create(name)
    with reading(library, name) as consumer:
        send_wishes(library, name, consumer, is_idempotent=True)


def deliver_at(library: Library, name: str) -> None:
    library.create(name)
    sent_ms = now_ms()
    due_ms = sent_ms + 400
    send(library, name, [Sent(b"late", [("x-deliver-at", b"%d" % due_ms)])])
    with reading(library, name) as consumer:
        (late,) = receive(consumer, 1)
    check_delivery(late, sent_ms, due_ms=due_ms, own=())


def named(value: bytes, delay_ms: int, timer_id: bytes) -> Sent:
    return Sent(value, [("x-delay", b"%d" % delay_ms), ("x-deliver-id", timer_id)])


def cancel(library: Library, name: str) -> None:
    """Where a batch mixes headers, all are in one; else it may take a while to send them."""
    for delay_ms in (500, 4_000, 32_000):
        topic = f"{name}-{delay_ms}"
        library.create(topic)
        sent_ms = now_ms()
        cancelled = named(b"cancelled", delay_ms, b"one")
        end = Sent(b"end", [("x-delay", b"%d" % (delay_ms + 200))])
        send(library, topic, [cancelled, Sent(b"-", [("x-deliver-cancel", b"one")]), end])
        if now_ms() < sent_ms + delay_ms:
            break
    with reading(library, topic) as consumer:
        assert values_of(receive(consumer, 1)) == [b"end"]


def replace(library: Library, name: str) -> None:
    library.create(name)
    sent_ms = now_ms()
    old, new = named(b"old", 3_600_000, b"one"), named(b"new", 300, b"one")
    send(library, name, [old, new, Sent(b"end", [("x-delay", b"700ms")])])
    with reading(library, name) as consumer:
        found, end = receive(consumer, 2)
    assert (found.value, end.value) == (b"new", b"end")
    check_delivery(found, sent_ms, delay_ms=300, timer_id=b"one", own=())


def bad_delay(library: Library, name: str) -> None:
    """The whole batch is refused, nothing of it is stored, and a producer goes on."""
    create_and_send(library, name, b"first")
    batch = [Sent(b"bad", [BAD])]
    if library.is_binary:
        batch = [Sent(b"before"), *batch, Sent(b"after", [("x-delay", b"10")])]
    outcomes = library.try_send(name, batch)
    errors = [one for one in outcomes if isinstance(one, RefusedError)]
    assert len(errors) == len(batch), outcomes
    bad = errors[len(batch) // 2]
    assert bad.code == library.invalid_record
    assert not library.shows_reason or "x-delay" in bad.text
    send_values(library, name, b"good")
    with reading(library, name) as consumer:
        assert values_of(receive(consumer, 2)) == [b"first", b"good"]


# Reading


def assign(library: Library, name: str) -> None:
    library.create(name, 2)
    for partition in (0, 1):
        send_values(library, name, b"%d" % partition, partition=partition)
    with library.consuming() as consumer:
        consumer.assign(name, {0: None, 1: None})
        assert sorted(values_of(receive(consumer, 2))) == [b"0", b"1"]


def seek(library: Library, name: str) -> None:
    create_and_send(library, name, *[b"%d" % index for index in range(10)])
    with reading(library, name) as consumer:
        receive(consumer, 10)
        consumer.seek(name, 0, 7)
        assert values_of(receive(consumer, 3)) == [b"7", b"8", b"9"]


def gaps(library: Library, name: str) -> None:
    def places(records: Sequence[Received]) -> list[tuple[int, bytes]]:
        return [(one.offset, one.value) for one in records]

    with reading(library, name) as consumer:
        assert places(receive(consumer, len(GAP_RECORDS))) == GAP_RECORDS
        send_values(library, name, b"after")
        assert places(receive(consumer, 1)) == [(GAP_END, b"after")]
    for start in GAP_STARTS:
        with library.consuming(can_reset=False) as consumer:
            consumer.assign(name, {0: start})
            assert places(receive(consumer, 1)) == [(GAP_END, b"after")]
            assert consumer.poll(0.2) == []


def wait(library: Library, name: str) -> None:
    """Long before the fetch that waits would end, for what is sent and for what becomes due."""
    create_and_send(library, name, b"first")
    with reading(library, name, fetch_wait_ms=20_000) as consumer:
        receive(consumer, 1)
        assert consumer.poll(0.05) == []  # the next fetch waits
        begin_s = time.monotonic()
        send_values(library, name, b"now")
        assert values_of(receive(consumer, 1)) == [b"now"]
        send(library, name, [Sent(b"late", [("x-delay", b"300")])])
        assert values_of(receive(consumer, 1)) == [b"late"]
        assert 0.3 <= time.monotonic() - begin_s < 15.0  # a fetch waits for 20 s


def ends(library: Library, name: str) -> None:
    create_and_send(library, name, b"one", b"two")
    with library.consuming() as consumer:
        assert consumer.ends(name) == (0, 2)


def offsets_by_time(library: Library, name: str) -> None:
    library.create(name)
    times_ms = [TIME_MS + 1_000 * index if library.sets_time else None for index in range(5)]
    send(library, name, [Sent(b"x", timestamp_ms=time_ms) for time_ms in times_ms])
    asked_ms, expected = (TIME_MS + 2_500, 3) if library.sets_time else (TIME_MS, 0)
    with library.consuming() as consumer:
        assert consumer.offset_at(name, asked_ms) == expected
        assert consumer.offset_at(name, now_ms() + 60_000) is None


# Administration


def create_partitions(library: Library, name: str) -> None:
    library.create(name)
    library.create_partitions(name, 3)
    assert library.describe_topic(name) == 3
    send_values(library, name, b"new", partition=2)
    with reading(library, name, 2) as consumer:
        assert values_of(receive(consumer, 1)) == [b"new"]


def describe_configs(library: Library, name: str) -> None:
    library.create(name)
    assert library.settings_of(name)["cleanup.policy"] == "delete"
    assert library.settings_of(None)["message.max.bytes"] == "1048588"


RETENTION: Final = {
    "retention.ms": "-1",
    "retention.bytes": "1073741824",
    "segment.bytes": "104857600",
}
"""What applications and infrastructure tools set, beside `max.message.bytes`."""


def alter_configs(library: Library, name: str) -> None:
    library.create(name)
    for key, value in RETENTION.items():
        library.change_setting(name, key, value)
        assert library.settings_of(name)[key] == value
    library.change_setting(name, "max.message.bytes", "2000")
    assert library.settings_of(name)["max.message.bytes"] == "2000"
    (refused,) = library.try_send(name, [Sent(b"x" * 3_000)])
    assert isinstance(refused, RefusedError)
    assert refused.code == MESSAGE_TOO_LARGE


def delete_records(library: Library, name: str) -> None:
    create_and_send(library, name, *[b"%d" % index for index in range(5)])
    assert library.delete_records(name, 3) == 3
    with reading(library, name) as consumer:
        assert values_of(receive(consumer, 2)) == [b"3", b"4"]


def delete_topic(library: Library, name: str) -> None:
    library.create(name)
    library.delete_topic(name)
    assert name not in library.topics()


_PLAIN: Final = (
    *(create_topic, list_topics, auto_create, describe_cluster, headers, idempotent),
    *(delay, deliver_at, cancel, replace, bad_delay),
    *(assign, seek, gaps, wait, ends, offsets_by_time),
    *(create_partitions, describe_configs, alter_configs, delete_records, delete_topic),
)
TRIED: Final[dict[str, Feature]] = {
    **{function.__name__: function for function in _PLAIN},
    **{
        f"acks_{name}": partial(produce_with_acks, acks=acks)
        for name, acks in (("0", 0), ("1", 1), ("all", -1))
    },
    **{f"codec_{codec}": partial(use_codec, codec=codec) for codec in CODECS},
    **GROUP_FEATURES,
}


def main() -> None:
    client, address, *names = sys.argv[1:]
    (declared,) = [one for one in CLIENTS if one.name == client]
    library = library_of(client, address)
    lock = threading.Lock()

    def try_feature(name: str) -> None:
        begin_s = time.monotonic()
        detail = ""
        try:
            TRIED[name](library, f"{client}-{name}".replace("_", "-"))
        except BaseException:  # noqa: BLE001 - whatever it is, it is the result of this feature
            detail = traceback.format_exc()
        seconds = round(time.monotonic() - begin_s, 2)
        line = {"feature": name, "ok": not detail, "detail": detail, "seconds": seconds}
        with lock:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()

    has = [one.name for one in FEATURES if one.name not in declared.lacks]
    with ThreadPoolExecutor(WORKER_COUNT) as pool:
        list(pool.map(try_feature, names or has))


if __name__ == "__main__":
    main()
