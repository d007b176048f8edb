"""Memory of requests that were answered goes back to the system."""

import re
import time
from pathlib import Path

from perf.attacks.requests import Wire, fetch_with_tag
from tests.support.harness.appliance_process import ApplianceProcess, running_appliance

LIMIT_S = 20.0
TAG_BYTES = 30_000_000
LEFT_MAX_BYTES = 20_000_000


def anonymous_bytes(appliance: ApplianceProcess) -> int:
    _, page = appliance.get("/metrics")
    match = re.search(rb"^latermq_anonymous_bytes (\S+)$", page, re.MULTILINE)
    assert match is not None
    return int(float(match[1]))


def test_a_large_request_leaves_nothing_behind(tmp_path: Path) -> None:
    request = fetch_with_tag("none", 0, wait_ms=0, tag_size=TAG_BYTES)
    with running_appliance(tmp_path) as appliance:
        before = anonymous_bytes(appliance)
        most = 0
        for _ in range(3):
            wire = Wire(appliance.kafka)
            wire.send(request[:-1])
            while anonymous_bytes(appliance) - before < TAG_BYTES:
                pass  # it has not read everything yet
            most = max(most, anonymous_bytes(appliance) - before)
            wire.send(request[-1:])
            wire.receive()
            wire.close()
        assert most > TAG_BYTES
        deadline_s = time.monotonic() + LIMIT_S
        while (left := anonymous_bytes(appliance) - before) > LEFT_MAX_BYTES:
            assert time.monotonic() < deadline_s, f"{left} bytes are left"
