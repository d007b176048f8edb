"""/api/v1: as its OpenAPI description says, and closed to foreign web pages."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from appliance.admin import AdminServer
from appliance.admin.api import SLICE_WORK
from appliance.admin.openapi import DESCRIPTION
from appliance.config.config import Address
from appliance.errors import ClockError, DiskFullError, RoleError, SnapshotError
from appliance.find import FindRequest
from appliance.model import (
    AssignedPartition,
    CommittedOffset,
    GroupStatus,
    GroupSummary,
    MemberStatus,
    PartitionStatus,
    SnapshotStatus,
    TimerState,
    TopicStatus,
    TopicSummary,
)
from tests.support.clients.admin_client import BROKER, Answer, Client, Status, serving

NAME: Final = "bücher/1"
ESCAPED: Final = "b%C3%BCcher%2F1"
TIMER: Final = f"/api/v1/topics/{ESCAPED}/timers/"
TOPIC_ID: Final = "7d5f1c9e-0000-4000-8000-000000000002"


def full_status() -> Status:
    """A broker that has one of everything."""
    timers = {
        b"p": TimerState("pending", 1_767_225_600_000, 3),
        b"c": TimerState("cancelled", 2, 0),
        b"d": TimerState("delivered", 1, 0),
    }
    part = PartitionStatus(
        partition=0, start_offset=1, visible_offset=3, next_offset=4, pending_timers=5
    )
    offset = CommittedOffset(
        topic=NAME, partition=0, offset=2, metadata=None, committed_at=9, end_offset=3, lag=1
    )
    members = (
        MemberStatus("m-1", None, "client", "127.0.0.1", (AssignedPartition(NAME, 0),)),
        MemberStatus("m-2", "static", "", "::1", None),
    )
    group = GroupStatus(NAME, "Stable", "consumer", "range", 3, members, (offset,))
    return Status(
        timers={NAME: timers},
        known_topics={
            NAME: (
                TopicSummary(NAME, TOPIC_ID, partition_count=1, record_count=2, pending_timers=5),
                TopicStatus(NAME, TOPIC_ID, {"delay.headers": "off"}, (part,)),
            )
        },
        known_groups={NAME: (GroupSummary(NAME, "Stable", "consumer", 2), group)},
        known_snapshots={
            "old": SnapshotStatus(
                name="old",
                path="/data/snapshots/old",
                created_at=1,
                start=0,
                end=9,
                size_bytes=64,
                kept_bytes=0,
            )
        },
    )


def operation_of(path: str) -> str:
    """The path of the description that a path of a request belongs to."""
    parts = path.partition("?")[0].split("/")
    for template in DESCRIPTION["paths"]:
        wanted = template.split("/")
        if len(wanted) == len(parts) and all(
            each.startswith("{") or each == part for each, part in zip(wanted, parts, strict=True)
        ):
            return str(template)
    raise KeyError(path)


def check_answer(method: str, path: str, answer: Answer) -> None:
    """Compare an answer with the schema that the description has for it."""
    operation = DESCRIPTION["paths"][operation_of(path)][method.lower()]
    content = operation["responses"][str(answer.status)]["content"]
    ((kind, described),) = content.items()
    assert answer.headers["Content-Type"].split(";")[0] == kind
    if kind == "application/json":
        schema = {**described["schema"], "components": DESCRIPTION["components"]}
        checker = Draft202012Validator.FORMAT_CHECKER
        Draft202012Validator(schema, format_checker=checker).validate(answer.json())


async def test_the_query_of_a_find_is_read_as_bytes() -> None:
    status = full_status()
    async with serving(status) as client:
        await client.ask(FIND + f"?key=a%FF+b&topic={ESCAPED}&partition=7&from=1&limit=3&after=4.5")
        await client.ask(FIND + "?id=%00")
    assert status.finds == [
        FindRequest(
            key=b"a\xff+b", topic=NAME, partition=7, stored=(1, None), limit=3, after="4.5"
        ),
        FindRequest(user_id=b"\0"),
    ]


# The description


async def test_the_description_is_openapi_and_is_what_is_served() -> None:
    validate(DESCRIPTION)
    async with serving(Status(ready=False)) as client:
        assert (await client.ask("/api/v1/openapi.json")).json() == DESCRIPTION


def test_every_path_is_described_and_every_description_has_a_path() -> None:
    server = AdminServer(Status(), Address("127.0.0.1", 0))
    routes = {
        (route.method, re.sub(r":[^}]*}", "}", route.resource.canonical))
        for route in server.app.router.routes()
        if route.resource is not None
    }
    described = {
        (method.upper(), path)
        for path, item in DESCRIPTION["paths"].items()
        for method in item
        if method != "parameters"
    }
    assert {route for route in routes if route[0] != "HEAD"} == described
    names = {path: set(re.findall("{(.*?)}", path)) for path in DESCRIPTION["paths"]}
    for path, item in DESCRIPTION["paths"].items():
        assert {each["name"] for each in item.get("parameters", ())} == names[path]


def test_only_a_description_that_is_closed_can_fail() -> None:
    """An answer with a field too many or too few must not pass."""
    schemas = list(DESCRIPTION["components"]["schemas"].values())
    while schemas:
        schema = schemas.pop()
        if schema.get("type") == "object" and "properties" in schema:
            assert schema["additionalProperties"] is False
            assert schema["required"] == list(schema["properties"])
            schemas += schema["properties"].values()
        if "items" in schema:
            schemas.append(schema["items"])


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
ADVANCE: Final = "/api/v1/clock/advance"
PURGE: Final = "/api/v1/timers/purge"
TIMERS: Final = "/api/v1/timers"
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


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.method} {c.path} {c.status}")
async def test_each_answer_is_as_described(case: Case) -> None:
    status = full_status()
    case.prepare(status)
    async with serving(status) as client:
        answer = await client.ask(case.path, case.method, case.headers, case.body)
        assert answer.status == case.status
        check_answer(case.method, case.path, answer)
        if case.status >= 400 and case.status != 503:
            assert answer.json()["error"]


def test_every_answer_that_is_described_was_looked_at() -> None:
    looked_at = {(c.method.lower(), operation_of(c.path), str(c.status)) for c in CASES}
    described = {
        (method, path, status)
        for path, item in DESCRIPTION["paths"].items()
        for method, operation in item.items()
        if method != "parameters"
        for status in operation["responses"]
    }
    assert looked_at == described


def pieces() -> Iterator[st.SearchStrategy[str]]:
    yield st.sampled_from(
        ("api", "v1", "topics", "groups", "timers", "snapshots", "status", "metrics", ESCAPED)
    )
    yield st.sampled_from(
        ("", "p", "c", "d", "..", ".", "%00", "%2F", "%ff", "%", "%41", "a" * 300)
    )
    yield st.text("aZ0.-_~!$&'()*+,;=:@%", max_size=8)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str]:
    """A method and a path: one of the description filled at random, or any."""
    segment = st.one_of(*pieces())
    if draw(st.booleans()):
        template = draw(st.sampled_from(sorted(DESCRIPTION["paths"])))
        path = re.sub("{.*?}", lambda _: draw(segment), template)
    else:
        path = "/" + "/".join(draw(st.lists(segment, max_size=7)))
    return draw(st.sampled_from(("GET", "DELETE", "HEAD", "POST", "PUT", "OPTIONS"))), path


@settings(max_examples=60)
@given(st.lists(requests(), min_size=5, max_size=10))
def test_nothing_is_answered_that_is_not_declared(asked: list[tuple[str, str]]) -> None:
    async def scenario() -> None:
        async with serving(full_status()) as client:
            for method, path in asked:
                check_declared(method, path, await client.ask(path, method))

    asyncio.run(scenario())


def check_declared(method: str, path: str, answer: Answer) -> None:
    try:
        operations = DESCRIPTION["paths"][operation_of(path)]
    except KeyError:
        assert answer.status == 404
        return
    if method == "HEAD" and "get" in operations:
        assert str(answer.status) in operations["get"]["responses"]
        assert answer.body == b""
    elif method.lower() in operations:
        check_answer(method, path, answer)
    else:
        assert answer.status == 405


# What the answers say


async def test_answers_hold_what_the_broker_says() -> None:
    status = full_status()
    async with serving(status) as client:
        shown = (await client.ask("/api/v1/status")).json()
        assert shown == asdict(BROKER) | {"damage": []}
        (topic,) = (await client.ask("/api/v1/topics")).json()["topics"]
        assert topic["pending_timers"] == 5
        shown = (await client.ask(f"/api/v1/topics/{ESCAPED}")).json()
        assert shown["settings"] == {"delay.headers": "off"}
        assert shown["partitions"][0]["visible_offset"] == 3
        shown = (await client.ask(f"/api/v1/groups/{ESCAPED}")).json()
        assert shown["members"][0]["assignment"] == [{"topic": NAME, "partition": 0}]
        assert shown["members"][1]["assignment"] is None
        assert shown["offsets"][0]["lag"] == 1


async def test_a_cancel_is_answered_with_what_became_of_the_timer() -> None:
    status = full_status()
    async with serving(status) as client:
        for _ in range(2):  # a second one finds what the first one did
            answer = await client.ask(TIMER + "p", "DELETE")
            assert answer.json() == {
                "state": "cancelled",
                "due_at": 1_767_225_600_000,
                "partition": 3,
            }
        late = (await client.ask(TIMER + "d", "DELETE")).json()
        assert late["state"] == "delivered"
        assert "too late" in late["error"]
        assert (await client.ask(TIMER + "%00", "DELETE")).json()["state"] == "unknown"
        assert status.cancelled == [(NAME, b"p")]


async def test_a_long_list_gives_way_to_others() -> None:
    status = Status()
    gone_by = 0

    def summaries() -> Iterator[TopicSummary]:
        for number in range(10 * SLICE_WORK // 2):
            turns.append(gone_by)
            yield TopicSummary(f"t{number}", TOPIC_ID, 1, 0, 0)

    async def others() -> None:
        nonlocal gone_by
        while True:
            gone_by += 1
            await asyncio.sleep(0)

    turns: list[int] = []
    status.topics = summaries  # type: ignore[method-assign]
    async with serving(status) as client:
        task = asyncio.create_task(others())
        answer = await client.ask("/api/v1/topics")
        task.cancel()
    assert len(answer.json()["topics"]) == len(turns)
    # The work of a topic is 2 with its partition. A slice also ends where a piece is full, so that
    # two may be counted for one turn.
    assert max(Counter(turns).values()) <= 2 * SLICE_WORK // 2, "too much was made in one turn"


# Foreign web pages


async def delete(client: Client, headers: dict[str, str]) -> int:
    return (await client.ask(TIMER + "p", "DELETE", headers)).status


@pytest.mark.usefixtures("loop")
async def test_a_web_page_of_another_origin_can_cancel_nothing() -> None:
    status = full_status()
    async with serving(status) as client:
        port = client.address[1]
        for origin in (
            "http://evil.example",
            "http://localhost",
            f"https://127.0.0.1:{port}",
            f"http://127.0.0.1:{port}.evil.example",
            f"http://localhost:{port}",
            "null",
            "",
        ):
            assert await delete(client, {"Origin": origin}) == 403, origin
        assert status.cancelled == []
        assert await delete(client, {"Origin": f"http://127.0.0.1:{port}"}) == 200


async def test_the_question_of_a_browser_whether_it_may_is_never_answered_with_yes() -> None:
    async with serving(full_status()) as client:
        preflight = {
            "Origin": "http://evil.example",
            "Access-Control-Request-Method": "DELETE",
        }
        answer = await client.ask(TIMER + "p", "OPTIONS", preflight)
        assert answer.status == 405
        # Nor may a page read what a GET answers, which a browser sends without asking.
        shown = await client.ask(TIMER + "p", headers={"Origin": "http://evil.example"})
        for each in (answer, shown):
            assert not [name for name in each.headers if name.startswith("Access-Control")]


async def test_no_request_that_a_form_can_send_changes_anything() -> None:
    """Browsers send these without asking; and no header turns one into another."""
    status = full_status()
    async with serving(status) as client:
        for method in ("GET", "HEAD", "POST"):
            headers = {"X-HTTP-Method-Override": "DELETE"}
            await client.ask(TIMER + "p?_method=DELETE", method, headers)
        assert status.cancelled == []
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            await client.ask(SNAPSHOTS, "POST", {"Content-Type": kind}, b'{"name": "new"}')
        assert list(status.known_snapshots) == ["old"]
