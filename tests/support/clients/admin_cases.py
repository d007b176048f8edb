"""Requests to the admin API, and the status of the answer to each."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from appliance.errors import ClockError, DiskFullError, PolicyError, RoleError, SnapshotError
from tests.support.clients.admin_client import Status

NAME: Final = "bücher/1"
ESCAPED: Final = "b%C3%BCcher%2F1"
TIMER: Final = f"/api/v1/topics/{ESCAPED}/timers/"


@dataclass(frozen=True)
class Case:
    """A request, and the status of its answer.

    Attributes:
        prepare: makes the broker what it has to be for that.
    """

    method: str
    path: str
    status: int
    prepare: Callable[[Status], object] = lambda _: None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None


def starting(status: Status) -> None:
    status.ready = False


def full_disk(status: Status) -> None:
    status.failure = DiskFullError("the disk is full")


def refuses_records(status: Status) -> None:
    status.failure = PolicyError("the record is too large")


def other_role(status: Status) -> None:
    status.failure = RoleError("this node has another role")


def no_virtual_clock(status: Status) -> None:
    status.failure = ClockError("the clock is the machine's")


def refusing(status: Status) -> None:
    status.refusal = "the broker's disk is almost full"


def refused(reason: str) -> Callable[[Status], object]:
    def refuse(status: Status) -> None:
        status.failure = SnapshotError(reason, "not now")

    return refuse


SNAPSHOTS: Final = "/api/v1/snapshots"
FIND: Final = "/api/v1/find"
DLQ: Final = f"/api/v1/groups/{ESCAPED}/dlq"
TOO_MANY_PLACES: Final = json.dumps({"places": [f"0:{n}" for n in range(101)]}).encode()
ADVANCE: Final = "/api/v1/clock/advance"
PURGE: Final = "/api/v1/timers/purge"
TIMERS: Final = "/api/v1/timers"
MOVE: Final = "/api/v1/timers/reschedule"
STAGES: Final = "/api/v1/timers/stages"
STOP: Final = b'{"stage": "dequeue", "stopped": true}'
CLEANUP: Final = "/api/v1/cleanup"
NOW: Final = b'{"due_at": null}'
JSON: Final = {"Content-Type": "application/json"}
FOREIGN: Final = {"Origin": "http://evil.example"}

CASES: Final = (
    Case("GET", "/healthz", 200),
    Case("GET", "/readyz", 200),
    Case("GET", "/readyz", 503, starting),
    Case("GET", "/readyz", 503, refusing),
    Case("GET", "/metrics", 200),
    Case("GET", "/api/v1/openapi.json", 200),
    Case("GET", "/api/v1/replication", 200),
    Case("GET", "/api/v1/replication", 503, starting),
    *(
        case
        for path in ("/api/v1/promote", "/api/v1/handover", "/api/v1/alone", "/api/v1/solo")
        for case in (
            Case("POST", path, 200, headers=JSON, body=b"{}"),
            Case("POST", path, 403, headers=JSON | FOREIGN, body=b"{}"),
            Case("POST", path, 409, other_role, headers=JSON, body=b"{}"),
            Case("POST", path, 503, starting, headers=JSON, body=b"{}"),
        )
    ),
    Case("POST", "/api/v1/promote", 200, headers=JSON, body=b'{"force": true}'),
    Case("POST", "/api/v1/promote", 400, headers=JSON, body=b'{"force": 1}'),
    Case("POST", "/api/v1/promote", 415, body=b"{}"),
    Case("POST", "/api/v1/solo", 200, headers=JSON, body=b'{"slave_is_off": true}'),
    Case("POST", "/api/v1/solo", 400, headers=JSON, body=b'{"slave_is_off": 1}'),
    Case("POST", "/api/v1/solo", 415, body=b"{}"),
    Case("GET", "/api/v1/status", 200),
    Case("GET", "/api/v1/status", 503, starting),
    Case("GET", "/metrics/topics", 200),
    Case("GET", "/metrics/topics", 503, starting),
    Case("GET", "/api/v1/topics", 200),
    Case("GET", "/api/v1/topics", 503, starting),
    Case("GET", f"/api/v1/topics/{ESCAPED}", 200),
    Case("GET", "/api/v1/topics/nowhere", 404),
    Case("GET", "/api/v1/topics/nowhere", 503, starting),
    Case("GET", "/api/v1/groups", 200),
    Case("GET", "/api/v1/groups", 503, starting),
    Case("GET", f"/api/v1/groups/{ESCAPED}", 200),
    Case("GET", "/api/v1/groups/nobody", 404),
    Case("GET", "/api/v1/groups/nobody", 503, starting),
    Case("GET", TIMER + "p", 200),
    Case("GET", TIMER + "unheard-of", 200),
    Case("GET", TIMER, 400),
    Case("GET", "/api/v1/topics/nowhere/timers/p", 404),
    Case("GET", TIMER + "p", 503, starting),
    Case("DELETE", TIMER + "p", 200),
    Case("DELETE", TIMER + "c", 200),
    Case("DELETE", TIMER + "%zz", 400),
    Case("DELETE", TIMER + "p", 403, headers={"Origin": "http://evil.example"}),
    Case("DELETE", TIMER + "unheard-of", 404),
    Case("DELETE", "/api/v1/topics/nowhere/timers/p", 404),
    Case("DELETE", TIMER + "d", 409),
    Case("DELETE", TIMER + "p", 503, starting),
    Case("DELETE", TIMER + "p", 507, full_disk),
    Case("POST", TIMER + "p/reschedule", 200, headers=JSON, body=b'{"due_at": 1893456000000}'),
    Case("POST", TIMER + "p/reschedule", 200, headers=JSON, body=b'{"due_at": null}'),
    Case("POST", TIMER + "c/reschedule", 409, headers=JSON, body=NOW),
    Case("POST", TIMER + "d/reschedule", 409, headers=JSON, body=NOW),
    Case("POST", TIMER + "unheard-of/reschedule", 404, headers=JSON, body=NOW),
    Case("POST", "/api/v1/topics/nowhere/timers/p/reschedule", 404, headers=JSON, body=NOW),
    Case("POST", TIMER + "%zz/reschedule", 400, headers=JSON, body=NOW),
    Case("POST", TIMER + "p/reschedule", 403, headers=JSON | FOREIGN, body=NOW),
    Case("POST", TIMER + "p/reschedule", 413, headers=JSON, body=b" " * 5_000),
    Case("POST", TIMER + "p/reschedule", 415, body=NOW),
    Case("POST", TIMER + "p/reschedule", 503, starting, headers=JSON, body=NOW),
    Case("POST", TIMER + "p/reschedule", 507, full_disk, headers=JSON, body=NOW),
    *(
        Case("POST", TIMER + "p/reschedule", 400, headers=JSON, body=body)
        for body in (b"{}", b'{"due_at": "1h"}', b'{"due_at": true}', b'{"due_at": -1}', b"[]")
    ),
    Case("POST", CLEANUP, 200, headers=JSON, body=b"{}"),
    Case("POST", CLEANUP, 200, headers=JSON, body=b'{"before_at": 1, "dry_run": true}'),
    Case("POST", CLEANUP, 400, headers=JSON, body=b'{"before": 1}'),
    Case("POST", CLEANUP, 400, headers=JSON, body=b'{"before_at": true}'),
    Case("POST", CLEANUP, 400, headers=JSON, body=b'{"dry_run": 1}'),
    Case("POST", CLEANUP, 400, headers=JSON, body=b"[]"),
    Case("POST", CLEANUP, 403, headers=JSON | FOREIGN, body=b"{}"),
    Case("POST", CLEANUP, 404, headers=JSON, body=b'{"topic": "nowhere"}'),
    Case("POST", CLEANUP, 413, headers=JSON, body=b" " * 5_000),
    Case("POST", CLEANUP, 415, headers={"Content-Type": "text/plain"}, body=b"{}"),
    Case("POST", CLEANUP, 400, headers=JSON, body=b'{"dry_run": true, "confirm_clock": true}'),
    Case("POST", CLEANUP, 503, starting, headers=JSON, body=b"{}"),
    Case("POST", CLEANUP, 507, full_disk, headers=JSON, body=b"{}"),
    Case(
        "GET", FIND + f"?key=a%FFb&topic={ESCAPED}&partition=0&from=1&to=2&limit=3&after=4.5", 200
    ),
    Case("GET", FIND + "?offset=a/b/7@8", 404),
    *(
        Case("GET", FIND + query, 400)
        for query in (
            *("", "?", "?limit=1", "?key=a&id=b", "?key=a&key=b", "?key=%zz", "?key", "?x=1"),
            *("?id=", "?position=-1", "?position=x", "?offset=a@1", "?key=a&limit=0"),
            *("?key=a&limit=1001", "?key=a&partition=a", "?from=1e3"),
        )
    ),
    Case("GET", FIND + "?key=a&topic=nowhere", 404),
    Case("GET", DLQ, 200),
    Case("GET", DLQ + "?partition=2&limit=1000", 200),
    Case("GET", DLQ + "?after=0:17&partition=0", 200),
    *(
        Case("GET", DLQ + query, 400)
        for query in (
            *("?limit=0", "?limit=1001", "?partition=-1", "?partition=2147483648", "?x=1"),
            *("?after=17", "?after=0:-1", "?after=", "?after=1:0&partition=0"),
        )
    ),
    Case("GET", "/api/v1/groups/nobody/dlq", 404),
    Case("GET", DLQ, 503, starting),
    Case("GET", f"{DLQ}/0:17", 200),
    Case("GET", f"{DLQ}/0%3A17", 200),
    *(Case("GET", f"{DLQ}/{place}", 400) for place in ("", "17", "0:%zz", "-1:0")),
    Case("GET", "/api/v1/groups/nobody/dlq/0:17", 404),
    Case("GET", f"{DLQ}/0:17", 503, starting),
    *(
        case
        for path, body in ((f"{DLQ}/replay", b'{"places": ["0:17"]}'), (f"{DLQ}/purge", b"{}"))
        for case in (
            Case("POST", path, 200, headers=JSON, body=body),
            Case("POST", path, 403, headers=JSON | FOREIGN, body=body),
            Case("POST", path, 413, headers=JSON, body=b" " * 5_000),
            Case("POST", path, 415, body=body),
            Case("POST", path, 503, starting, headers=JSON, body=body),
            Case("POST", path, 507, full_disk, headers=JSON, body=body),
            Case("POST", path.replace(ESCAPED, "nobody"), 404, headers=JSON, body=body),
            Case("POST", path, 400, headers=JSON, body=b"[]"),
        )
    ),
    Case("POST", f"{DLQ}/replay", 200, headers=JSON, body=b'{"all": true}'),
    Case("POST", f"{DLQ}/replay", 200, headers=JSON, body=b'{"all": true, "partition": 3}'),
    Case("POST", f"{DLQ}/replay", 409, refuses_records, headers=JSON, body=b'{"all": true}'),
    *(
        Case("POST", f"{DLQ}/replay", 400, headers=JSON, body=body)
        for body in (
            *(b"{}", b'{"all": false}', b'{"all": 1}', b'{"all": true, "places": ["0:1"]}'),
            *(b'{"places": []}', b'{"places": "0:1"}', b'{"places": [1]}', b'{"places": ["1"]}'),
            *(b'{"places": ["0:1"], "partition": 0}', b'{"all": true, "partition": -1}'),
            *(b'{"all": true, "partition": true}', b'{"places": null}', TOO_MANY_PLACES),
        )
    ),
    Case("POST", f"{DLQ}/purge", 200, headers=JSON, body=b'{"before": "0:17"}'),
    Case("POST", f"{DLQ}/purge", 400, headers=JSON, body=b'{"before": 17}'),
    Case("POST", f"{DLQ}/purge", 400, headers=JSON, body=b'{"before": "17"}'),
    Case("GET", "/api/v1/clock", 200),
    Case("GET", "/api/v1/clock", 503, starting),
    Case("POST", ADVANCE, 200, headers=JSON, body=b'{"by_ms": 5}'),
    Case("POST", ADVANCE, 409, no_virtual_clock, headers=JSON, body=b'{"by_ms": 5}'),
    Case("POST", ADVANCE, 503, starting, headers=JSON, body=b'{"by_ms": 5}'),
    Case("POST", ADVANCE, 415, body=b'{"by_ms": 5}'),
    Case("POST", ADVANCE, 403, headers=JSON | FOREIGN, body=b'{"by_ms": 5}'),
    Case("POST", ADVANCE, 413, headers=JSON, body=b" " * 5_000),
    *(
        Case("POST", ADVANCE, 400, headers=JSON, body=body)
        for body in (b"", b"{}", b'{"by_ms": -1}', b'{"by_ms": "5"}', b'{"by_ms": true}', b"[]")
    ),
    Case("GET", TIMERS, 200),
    Case("GET", TIMERS + f"?topic={ESCAPED}&partition=0&from=1&to=2&limit=1000&values=true", 200),
    Case("GET", TIMERS + "?after=1.2.3&values=false", 200),
    Case("GET", TIMERS + "?topic=nowhere", 404),
    Case("GET", TIMERS, 503, starting),
    Case("POST", PURGE, 200, headers=JSON, body=f'{{"topic": "{NAME}"}}'.encode()),
    Case("POST", PURGE, 404, headers=JSON, body=b'{"topic": "nowhere", "partition": 0}'),
    Case("POST", PURGE, 507, full_disk, headers=JSON, body=b'{"topic": "t", "to_at": 5}'),
    Case("POST", PURGE, 503, starting, headers=JSON, body=b'{"topic": "t"}'),
    Case("POST", PURGE, 415, body=b'{"topic": "t"}'),
    Case("POST", PURGE, 403, headers=JSON | FOREIGN, body=b'{"topic": "t"}'),
    Case("POST", PURGE, 413, headers=JSON, body=b" " * 5_000),
    *(
        Case("POST", PURGE, 400, headers=JSON, body=body)
        for body in (b"{}", b'{"topic": 1}', b'{"topic": "t", "to_at": "1h"}', b'{"all": true}')
    ),
    Case("GET", TIMERS + "/counts", 200),
    Case("GET", TIMERS + f"/counts?topic={ESCAPED}&partition=0&from=1&step_ms=1&count=10000", 200),
    Case("GET", TIMERS + "/counts?topic=nowhere", 404),
    Case("GET", TIMERS + "/counts", 503, starting),
    Case("POST", MOVE, 200, headers=JSON, body=b'{"place": "1.8.0", "due_at": 5}'),
    Case("POST", MOVE, 200, headers=JSON, body=b'{"place": "1.8.0", "due_at": null}'),
    Case("POST", MOVE, 404, headers=JSON, body=b'{"place": "1.8.1", "due_at": null}'),
    Case("POST", MOVE, 507, full_disk, headers=JSON, body=b'{"place": "1.8.0", "due_at": 5}'),
    Case("POST", MOVE, 503, starting, headers=JSON, body=b'{"place": "1.8.0", "due_at": 5}'),
    Case("POST", MOVE, 415, body=b'{"place": "1.8.0", "due_at": 5}'),
    Case("POST", MOVE, 403, headers=JSON | FOREIGN, body=b'{"place": "1.8.0", "due_at": 5}'),
    Case("POST", MOVE, 413, headers=JSON, body=b" " * 5_000),
    *(
        Case("POST", MOVE, 400, headers=JSON, body=body)
        for body in (
            *(b"{}", b'{"place": "1.8.0"}', b'{"place": "1.8", "due_at": 5}', b'{"due_at": 5}'),
            *(b'{"place": 1, "due_at": 5}', b'{"place": "1.8.0", "due_at": -1}', b"[" * 4_000),
        )
    ),
    Case("GET", TIMERS + "/levels", 200),
    Case("GET", TIMERS + "/levels", 503, starting),
    Case("GET", STAGES, 200),
    Case("GET", STAGES, 503, starting),
    Case("POST", STAGES, 200, body=STOP, headers=JSON),
    Case("POST", STAGES, 403, body=STOP, headers=JSON | FOREIGN),
    Case("POST", STAGES, 415, body=STOP),
    Case("POST", STAGES, 413, body=bytes(1 << 20), headers=JSON),
    Case("POST", STAGES, 503, starting, body=STOP, headers=JSON),
    *(
        Case("POST", STAGES, 400, body=each, headers=JSON)
        for each in (
            *(b"", b"{}", b"[]", b'{"stage": "enqueue"}', b'{"stage": "all", "stopped": true}'),
            *(b'{"stage": [], "stopped": true}', b'{"stage": "dequeue", "stopped": 1}'),
        )
    ),
    *(
        Case("GET", TIMERS + query, 400)
        for query in (
            *("?partition=1", "?limit=0", "?limit=1001", "?values=yes", "?after=1.2", "?after="),
            *("?after=1.2.3.4", "?after=1.2.99999999999", "?from=-1", "?from=x", "?key=a", "?a"),
            *("/counts?step_ms=0", "/counts?count=0", "/counts?count=10001", "/counts?to=1"),
            *("/counts?partition=1", f"/counts?step_ms={1 << 41}"),
        )
    ),
    Case("GET", FIND + "?key=a", 503, starting),
    Case("GET", SNAPSHOTS, 200),
    Case("GET", SNAPSHOTS, 503, starting),
    Case("GET", SNAPSHOTS + "/old", 200),
    Case("GET", SNAPSHOTS + "/none", 404),
    Case("GET", SNAPSHOTS + "/old", 503, starting),
    Case("POST", SNAPSHOTS, 201, headers=JSON, body=b'{"name": "new"}'),
    Case("POST", SNAPSHOTS, 201, headers=JSON, body=b"{}"),
    Case("POST", SNAPSHOTS, 201, headers=JSON, body=b""),
    Case("POST", SNAPSHOTS, 400, refused("name"), headers=JSON, body=b'{"name": ".."}'),
    Case("POST", SNAPSHOTS, 400, headers=JSON, body=b'{"name": 1}'),
    Case("POST", SNAPSHOTS, 400, headers=JSON, body=b'{"nam": "new"}'),
    Case("POST", SNAPSHOTS, 400, headers=JSON, body=b"new"),
    Case("POST", SNAPSHOTS, 403, headers=JSON | FOREIGN, body=b"{}"),
    Case("POST", SNAPSHOTS, 409, headers=JSON, body=b'{"name": "old"}'),
    Case("POST", SNAPSHOTS, 413, headers=JSON, body=b" " * 5_000),
    Case("POST", SNAPSHOTS, 415, headers={"Content-Type": "text/plain"}, body=b"{}"),
    Case("POST", SNAPSHOTS, 501, refused("unsupported"), headers=JSON, body=b"{}"),
    Case("POST", SNAPSHOTS, 503, starting, headers=JSON, body=b"{}"),
    Case("POST", SNAPSHOTS, 507, refused("full"), headers=JSON, body=b"{}"),
    Case("DELETE", SNAPSHOTS + "/old", 200),
    Case("DELETE", SNAPSHOTS + "/old", 403, headers=FOREIGN),
    Case("DELETE", SNAPSHOTS + "/none", 404),
    Case("DELETE", SNAPSHOTS + "/old", 503, starting),
)
