"""The operator finds in the log why delay requests were refused, and nothing that is secret."""

import logging
import re
from pathlib import Path

import pytest

from tests.support.harness.live_broker import LiveBroker
from tests.support.values.kafka_records import Record

REASON = (
    r'message="x-delay \\"soon\\": is malformed; write milliseconds \(1500\), a number with one '
    r'unit \(250ms 30s 15m 2h 7d\) or an ISO 8601 duration \(PT15M\)"'
)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines about delays."""
    return [each.getMessage() for each in caplog.records if each.name.endswith("delay_reports")]


async def test_a_refusal_is_said_with_its_client_and_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with LiveBroker(tmp_path) as live:
        client = await live.connect()
        bad = Record(b"body", b"key", headers=(("authorization", b"secret"), ("X-Delay", b"soon")))
        assert (await client.produce("t", 0, [Record(b"good"), bad])).error == 87
        (line,) = said(caplog)
        pattern = (
            r'delay request refused topic="t" partition=0 record=1 reason=value '
            rf'{REASON} client_id="the-oracle" peer=127\.0\.0\.1:\d+'
        )
        assert re.fullmatch(pattern, line)
        assert not re.search("secret|body|key", line)
        assert live.broker.collect_metrics().delay_refused["value"] == 1


async def test_a_refusal_without_an_answer_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With acks=0 the connection is closed, and the log is the only place that says why."""
    caplog.set_level(logging.WARNING)
    async with LiveBroker(tmp_path) as live:
        client = await live.connect()
        client.send_produce("t", 0, [Record(b"", headers=(("x-cron", b"* * * * *"),))], acks=0)
        assert await client.is_closed_by_broker()
        (line,) = said(caplog)
        assert (
            'reason=cron message="x-cron needs x-deliver-id, by which it is replaced and cancelled"'
            in line
        )


async def test_what_passes_is_said_with_its_offset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with LiveBroker(tmp_path) as live:
        live.broker.topics.create("p", 1, {"delay.invalid": "pass"})
        client = await live.connect()
        late = Record(b"late", headers=(("x-delay", b"1h"),))
        bad = Record(b"body", b"key", headers=(("authorization", b"secret"), ("x-delay", b"soon")))
        assert (await client.produce("p", 0, [Record(b"good"), late, bad, bad])).error == 0
        (line,) = said(caplog)
        pattern = (
            r'delay request passed topic="p" partition=0 offset=1 records=2 reason=value '
            rf'{REASON} client_id="the-oracle" peer=127\.0\.0\.1:\d+'
        )
        assert re.fullmatch(pattern, line)
        found = await client.fetch("p", 0, 0)
        assert [record.value for record in found] == [b"good", b"body", b"body"]
