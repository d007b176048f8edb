"""The debug log of a broker with sockets: connections, requests, flushes."""

import logging
import re
from pathlib import Path

import pytest

from appliance.system.clock import SystemClock
from tests.support.harness.live_broker import LIMIT_S, LiveBroker, until
from tests.support.values.kafka_records import Record

FORGED = b'a\n2026-01-01 00:00:00,000 INFO latermq: all is well " correlation_id=1'


def said(caplog: pytest.LogCaptureFixture, pattern: str) -> list[re.Match[str]]:
    """The lines at level debug that begin with a pattern."""
    texts = [each.getMessage() for each in caplog.records if each.levelno == logging.DEBUG]
    return [match for text in texts if (match := re.match(pattern, text)) is not None]


def api_versions(client_id: bytes) -> bytes:
    """ApiVersions version 0 with correlation id 7."""
    body = b"\0\x12\0\0\0\0\0\x07" + len(client_id).to_bytes(2, "big") + client_id
    return len(body).to_bytes(4, "big") + body


async def test_connections_are_said_when_they_come_and_go(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with LiveBroker(tmp_path, connection_count_max=2) as live:
        first, second = await live.connect(), await live.connect()
        third = await live.connect()
        assert await third.is_closed_by_broker()
        opened = said(caplog, r"connection opened peer=(127\.0\.0\.1:\d+) connections=(\d)$")
        assert [match[2] for match in opened] == ["1", "2"]
        assert len(said(caplog, r"connection refused peer=127\.0\.0\.1:\d+ limit=count$")) == 1
        first.send_bytes(api_versions(b"a"))
        await first.read_answer()
        await first.close()
        await until(lambda: live.server.connection_count == 1)
        second.send_bytes(b"\0\0\0\0")
        assert await second.is_closed_by_broker()
        await until(lambda: live.server.connection_count == 0)
        closed = said(caplog, r"connection closed peer=(\S+) connections=(\d) requests=(\d) ")
        assert [match[1] for match in closed] == [match[1] for match in opened]
        assert [(match[2], match[3]) for match in closed] == [("1", "1"), ("0", "0")]
        assert closed[0].string.endswith('unanswered=0 reason="closed by the client"')
        assert (
            'unanswered=0 reason="a request of 0 bytes is out of range; network.'
            in closed[1].string
        )


async def test_produce_is_followed_through_its_flush(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with LiveBroker(tmp_path, flush="sync") as live:
        client = await live.connect()
        begin = live.broker.flushed_pos
        live.disk.hold()
        client.send_produce("t", 0, [Record(b"a")])
        await until(lambda: len(said(caplog, "request ")) == 1)
        assert said(caplog, "answer ") == []
        live.disk.let_go()
        await client.read_produced()
        end = live.broker.flushed_pos
        (request,) = said(caplog, r"request (api=Produce version=8 client_id=.*) bytes=\d+ ")
        assert re.search(r" took_us=\d+ answer=ready$", request.string)
        assert " correlation_id=1 peer=127.0.0.1:" in request[1]
        assert said(caplog, rf"flush bytes={end - begin} from={begin} to={end} took_us=\d+$")
        (answer,) = said(caplog, r"answer (.*) waited_us=\d+ parked=no$")
        assert answer[1] == request[1]


async def test_fetch_that_waits_is_said_to_be_parked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with LiveBroker(tmp_path) as live:
        consumer, producer = await live.connect(), await live.connect()
        consumer.send_fetch("t", 0, 0, wait_ms=LIMIT_S * 1000)
        await until(lambda: len(said(caplog, "request api=Fetch .* answer=parked$")) == 1)
        await producer.produce("t", 0, [Record(b"a")])
        assert len(await consumer.read_fetched()) == 1
        assert len(said(caplog, r"answer api=Fetch .* waited_us=\d+ parked=yes$")) == 1
        consumer.send_fetch("t", 0, 1, wait_ms=LIMIT_S * 1000)
        await until(lambda: len(said(caplog, "request api=Fetch .* answer=parked$")) == 2)
        await consumer.close()
        await until(lambda: live.server.connection_count == 1)
        assert len(said(caplog, r"connection closed .* requests=2 unanswered=1 reason=")) == 1


async def test_client_id_with_a_line_break_makes_no_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with LiveBroker(tmp_path) as live:
        client = await live.connect()
        client.send_bytes(api_versions(FORGED))
        await client.read_answer()
        shown = re.escape('client_id="a\\n2026-01-01 00:00:00,000 INFO latermq: all is well \\"')
        pattern = rf'api=ApiVersions version=0 {shown} correlation_id=1" correlation_id=7 peer='
        assert len(said(caplog, f"request {pattern}")) == 1
        assert len(said(caplog, f"answer {pattern}")) == 1
        assert all("\n" not in each.getMessage() for each in caplog.records)


async def test_nothing_is_said_or_traced_at_level_info(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with LiveBroker(tmp_path, clock=SystemClock()) as live:
        client = await live.connect()
        await client.produce("t", 0, [Record(b"a")])
        await client.fetch("t", 0, 0)
        (session,) = live.server._connections
        assert session.trace is None
        await client.close()
        await until(lambda: live.server.connection_count == 0)
    assert [each for each in caplog.records if each.levelno < logging.INFO] == []
