"""A changed setting of a topic holds at once, for every record, and survives any stop."""

import pytest

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import WireClient, split_answers
from tests.support.harness.broker_harness import BrokerHarness, Stop
from tests.support.simulator.virtual_clock import START_MS
from tests.support.values.raw_batch import CREATED_MS, Raw, make_batch
from tests.support.values.topic_requests import (
    DELETE,
    SET,
    TOPIC,
    change_settings,
    incremental_request,
    replace_settings,
    settings_of,
)


def send(client: WireClient, *records: Raw) -> tuple[int, int]:
    """Error code and base offset."""
    part = client.produce("t", 0, make_batch(list(records)))
    return part.error_code, part.base_offset


def stored(client: WireClient) -> list[tuple[bytes, int]]:
    """Value and timestamp of what can be fetched."""
    return [(record.value, record.timestamp_ms) for record in client.harness.fetch("t", 0)]


def later(delay_ms: int, value: bytes = b"later") -> Raw:
    return Raw(value, headers=((b"x-delay", b"%d" % delay_ms),))


def test_the_largest_batch_changes_at_once(client: WireClient) -> None:
    large = Raw(b"x" * 1000)
    assert send(client, large) == (0, 0)
    assert change_settings(client, "t", ("max.message.bytes", SET, "500")) == 0
    assert send(client, large) == (ErrorCode.message_too_large, -1)
    assert change_settings(client, "t", ("max.message.bytes", DELETE, None)) == 0
    assert send(client, large) == (0, 1)


def test_the_kind_of_timestamp_changes_at_once(client: WireClient) -> None:
    assert send(client, Raw(b"a")) == (0, 0)
    assert replace_settings(client, "t", {"message.timestamp.type": "LogAppendTime"}) == 0
    client.harness.clock.advance_ms(77)
    assert send(client, Raw(b"b")) == (0, 1)
    assert replace_settings(client, "t", {}) == 0
    assert send(client, Raw(b"c")) == (0, 2)
    assert stored(client) == [(b"a", CREATED_MS), (b"b", START_MS + 77), (b"c", CREATED_MS)]


def test_delay_headers_are_read_and_not_read_as_they_are_switched(client: WireClient) -> None:
    assert change_settings(client, "t", ("delay.headers", SET, "off")) == 0
    assert send(client, later(1000, b"unread")) == (0, 0)
    assert change_settings(client, "t", ("delay.headers", SET, "on")) == 0
    assert send(client, later(1000, b"read")) == (0, -1)
    assert [value for value, _ in stored(client)] == [b"unread"]
    client.harness.tick(1000)
    assert [value for value, _ in stored(client)] == [b"unread", b"read"]


def test_the_longest_delay_changes_at_once_and_pending_records_stay(client: WireClient) -> None:
    assert send(client, later(5000)) == (0, -1)
    assert change_settings(client, "t", ("delay.max.ms", SET, "4999")) == 0
    assert send(client, later(5000)) == (ErrorCode.invalid_record, -1)
    assert send(client, later(4999)) == (0, -1)
    client.harness.tick(5000)
    assert len(stored(client)) == 2


def test_what_is_pending_is_delivered_by_the_setting_of_that_moment(client: WireClient) -> None:
    assert send(client, later(1000)) == (0, -1)
    assert change_settings(client, "t", ("delay.timestamp", SET, "due")) == 0
    client.harness.tick(2000)
    assert stored(client) == [(b"later", START_MS + 1000)]


@pytest.mark.parametrize("mode", ["clean", "kept", "dropped"])
def test_a_changed_setting_survives(mode: Stop) -> None:
    """Also when the segment of its frame is full and others have followed."""
    client = WireClient(BrokerHarness())
    client.harness.create_topic("t", 2, {"delay.timestamp": "due", "delay.max.ms": "9000"})
    steps = ("max.message.bytes", SET, "4000"), ("delay.timestamp", DELETE, None)
    assert change_settings(client, "t", *steps) == 0
    given = {"max.message.bytes": "4000", "delay.max.ms": "9000"}
    assert settings_of(client, "t") == given
    for _ in range(60):
        assert send(client, Raw(b"x" * 3500))[0] == 0
    client = WireClient(client.harness.reborn(mode))
    assert settings_of(client, "t") == given
    assert send(client, Raw(b"x" * 4000)) == (ErrorCode.message_too_large, -1)
    assert send(client, Raw(b"x" * 3500)) == (0, 60)


def test_the_answer_waits_for_the_flush_unless_nothing_changed(client: WireClient) -> None:
    request = incremental_request([(TOPIC, "t", [("delay.headers", SET, "off")])])
    client.send(request, 1)
    assert client.take() == b""
    client.harness.flush()
    assert len(list(split_answers(client.take()))) == 1
    wrote_pos = client.harness.broker.wrote_pos
    client.send(request, 1)
    assert len(list(split_answers(client.take()))) == 1
    assert client.harness.broker.wrote_pos == wrote_pos


def test_settings_on_a_full_disk_change_until_its_reserve_is_used_up(client: WireClient) -> None:
    """Then they stay as they are."""
    client.harness.disk.free = 0
    for size in (3500, 1):
        while send(client, Raw(b"x" * size))[0] == 0:
            pass
    limit_ms = 1_000
    while change_settings(client, "t", ("delay.max.ms", SET, str(limit_ms))) == 0:
        limit_ms += 1
    assert limit_ms > 1_000
    change = ("delay.headers", SET, "off")
    assert change_settings(client, "t", change) == ErrorCode.kafka_storage_error
    kept = {"delay.max.ms": str(limit_ms - 1)}
    assert settings_of(client, "t") == kept
    assert settings_of(WireClient(client.harness.restart()), "t") == kept
