"""The commands that stop and start the stages of delayed records, by a real broker."""

import time
from typing import Final

from tests.support.harness.appliance_process import ApplianceProcess
from tests.support.harness.command_line import CommandLine

LIMIT_S: Final = 60.0


def test_a_stage_is_stopped_and_goes_on(
    latermq: CommandLine, topic: str, broker: ApplianceProcess
) -> None:
    try:
        assert "stopped" in latermq.ok("timers stop dequeue").lines[2]
        latermq.ok(f"send {topic} waits --delay 1ms")
        assert b"latermq_dequeue_stopped 1.0" in broker.get("/metrics")[1]
        assert "due records wait" in latermq.ok("status").stdout
        stages = latermq.ok("timers stages --json").json_lines()
        assert [each["stage"] for each in stages] == ["enqueue", "dequeue"]
        latermq.ok("timers stop enqueue")
        assert "STOPPED" in latermq.ok("status").stdout
        assert latermq.ok(f"tail {topic}").stdout == ""
        assert latermq.ok("status --json").json()["stopped_stages"] == ["enqueue", "dequeue"]
    finally:
        latermq.ok("timers start dequeue")
        latermq.ok("timers start enqueue")
    latermq.ok(f"send {topic} more --delay 1ms")
    deadline_s = time.monotonic() + LIMIT_S
    while len(found := latermq.ok(f"tail {topic} --json").json_lines()) < 2:
        assert time.monotonic() < deadline_s
    assert sorted(each["value"] for each in found) == ["more", "waits"]
    assert latermq.ok("status --json").json()["stopped_stages"] == []
    assert latermq.run("timers stop all").status == 2
