"""Log lines about delay requests."""

import logging

import pytest

from _core.paths.delay_notices import NOTICES_MAX
from appliance.client_log import ClientLog
from compat.kafka.network.delay_reports import DelayReports
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import with_topic
from tests.support.simulator.virtual_clock import VirtualClock
from tests.support.values.raw_batch import Raw, make_batch


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines since the last call."""
    found = [each.getMessage() for each in caplog.records if each.name.endswith("delay_reports")]
    caplog.clear()
    return found


@pytest.fixture
def reports(caplog: pytest.LogCaptureFixture) -> DelayReports:
    caplog.set_level(logging.WARNING)
    return DelayReports(ClientLog(VirtualClock()))


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
