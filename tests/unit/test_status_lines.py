"""What `latermq status` shows of a limit that is nearly reached."""

from dataclasses import asdict, replace

import pytest

from appliance.commands.status import _status_fields
from tests.support.clients.admin_client import BROKER


@pytest.mark.parametrize(
    ("count", "line"),
    [
        (89, None),
        (90, "90% of limits.pending_timers_max = 100 are used"),
        (101, "101% of limits.pending_timers_max = 100 are used"),
    ],
)
def test_nearly_all_pending_timers_that_there_may_be_are_shown(
    count: int, line: str | None
) -> None:
    found = replace(BROKER, pending_timers=count, pending_timers_max=100)
    assert dict(_status_fields(asdict(found))).get("NEARLY FULL") == line
