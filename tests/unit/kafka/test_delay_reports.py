"""Log lines about delay requests are limited, by source and in total."""

import logging

import pytest

from _core.paths.delay_notices import NOTICES_MAX
from compat.kafka.network.delay_reports import (
    INTERVAL_MS,
    LINES_MAX,
    SOURCE_LINES_MAX,
    DelayReports,
)
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import with_topic
from tests.support.simulator.virtual_clock import VirtualClock
from tests.support.values.raw_batch import Raw, RawHeaders, make_batch

SOON: RawHeaders = [(b"authorization", b"secret"), (b"x-delay", b"soon")]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines since the last call."""
    found = [each.getMessage() for each in caplog.records if each.name.endswith("delay_reports")]
    caplog.clear()
    return found


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def reports(clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> DelayReports:
    caplog.set_level(logging.WARNING)
    return DelayReports(clock)


def refuse(client: WireClient, reports: DelayReports, address: str, *, count: int = 1) -> None:
    """Let a client at that address send that many batches that are refused."""
    for _ in range(count):
        client.produce("t", 0, make_batch([Raw(b"body", b"key", headers=SOON)]))
        reports.report(address, f"{address}:5000", client.session.produce.delays.take())


def test_each_source_has_a_few_lines_in_each_interval(
    client: WireClient, reports: DelayReports, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """What was left out is said by the next line; one source takes nothing from another."""
    refuse(client, reports, "10.0.0.1", count=SOURCE_LINES_MAX + 7)
    refuse(client, reports, "10.0.0.2")
    lines = said(caplog)
    assert len(lines) == SOURCE_LINES_MAX + 1
    assert all(line.endswith("peer=10.0.0.1:5000 left_out=0") for line in lines[:-1])
    assert lines[-1].endswith("peer=10.0.0.2:5000 left_out=7")
    clock.advance_ms(INTERVAL_MS - 1)
    refuse(client, reports, "10.0.0.1")
    assert said(caplog) == []
    clock.advance_ms(1)
    refuse(client, reports, "10.0.0.1")
    (line,) = said(caplog)
    assert line.endswith("peer=10.0.0.1:5000 left_out=1")


def test_all_sources_together_have_a_limit(
    client: WireClient, reports: DelayReports, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Which bounds what is remembered of them as well."""
    for number in range(LINES_MAX + 20):
        refuse(client, reports, f"10.0.{number // 256}.{number % 256}")
    assert len(said(caplog)) == LINES_MAX
    assert len(reports._lines) == LINES_MAX
    clock.advance_ms(INTERVAL_MS)
    refuse(client, reports, "10.1.0.0")
    (line,) = said(caplog)
    assert line.endswith("left_out=20")


def test_a_client_cannot_forge_a_line(
    reports: DelayReports, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither with its name nor with a value."""
    client = WireClient(with_topic(1))
    client.produce("t", 0, make_batch([Raw(headers=[(b"x-delay", b'a" peer=evil\nb')])]))
    notices = client.session.produce.delays.take()
    assert len(notices) < NOTICES_MAX
    reports.report("10.0.0.1", "10.0.0.1:5000", notices)
    (line,) = said(caplog)
    assert "\n" not in line
    assert r"x-delay \"a\\x22 peer=evil\\x0ab\": " in line
