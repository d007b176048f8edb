"""/api/v1: as its OpenAPI description says, and closed to foreign web pages."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from appliance.admin import AdminServer
from appliance.admin.api import SLICE_WORK
from appliance.admin.openapi import DESCRIPTION
from appliance.config.config import Address
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
from tests.support.clients.admin_cases import CASES, ESCAPED, FIND, NAME, SNAPSHOTS, TIMER, Case
from tests.support.clients.admin_client import BROKER, Answer, Client, Status, serving

TOPIC_ID: Final = "7d5f1c9e-0000-4000-8000-000000000002"


def full_status() -> Status:
    """A broker that has one of everything."""
    timers = {
        b"p": TimerState("pending", 1_767_225_600_000, 3),
        b"c": TimerState("cancelled", 2, 0),
        b"d": TimerState("delivered", 1, 0, 5),
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
@example([("GET", "/api/v1/groups/api/dlq/purge"), ("HEAD", "/api/v1/groups/g/dlq/replay")])
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
    elif method in ("GET", "HEAD") and path.endswith(("/dlq/purge", "/dlq/replay")):
        assert answer.status == 400  # they are no places of dead letters
    else:
        assert answer.status == 405


# What the answers say


async def test_answers_hold_what_the_broker_says() -> None:
    status = full_status()
    async with serving(status) as client:
        shown = (await client.ask("/api/v1/status")).json()
        assert shown == asdict(BROKER) | {"damage": [], "stopped_stages": []}
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
                "offset": None,
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
