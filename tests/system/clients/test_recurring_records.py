"""Recurring records through real clients, `latermq` commands and the admin API.

The broker has a virtual clock, so that hours pass when a test advances it.
"""

import gc
import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest
from jsonschema import Draft202012Validator

from appliance.admin.openapi import DESCRIPTION
from appliance.commands.arguments import format_instant
from appliance.units import MS_PER_HOUR, MS_PER_MINUTE
from tests.support.docs.source_files import ROOT
from tests.support.harness.appliance_process import ApplianceProcess, running_appliance
from tests.support.harness.command_line import CommandLine
from tests.system.clients.delayed import Header, Received
from tests.system.clients.suites.library import RefusedError, Sent
from tests.system.clients.suites.using import library_of, reading, receive, send, send_values

# Clients that are closed leave the two ends of their wake-up pipes to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

BERLIN: Final = ZoneInfo("Europe/Berlin")
OWN: Final[Header] = ("own", b"\x00\xff")

REFUSALS: Final = {
    "aiokafka": "[Error -1] UnknownError",
    "confluent": "Broker: Broker failed to validate record",
    "kafka_python": "61",
}
"""Client -> what it shows of a record with the minute 61. Only kafka-python has the reason."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApplianceProcess]:
    directory = tmp_path_factory.mktemp("recurring")
    with running_appliance(directory, ["--clock", "virtual"]) as appliance:
        yield appliance


@pytest.fixture
def latermq(broker: ApplianceProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    """A shell whose environment names the broker, whose clock is half past."""
    shell = CommandLine(monkeypatch, broker.kafka, broker.admin)
    now_ms = shell.ok("clock show --json").json()["now_at"]
    shell.ok(f"clock advance {MS_PER_HOUR - (now_ms - 30 * MS_PER_MINUTE) % MS_PER_HOUR}ms")
    yield shell
    gc.collect()


@pytest.fixture
def topic(request: pytest.FixtureRequest, latermq: CommandLine) -> Iterator[str]:
    """A topic with one partition. What still recurs in it ends with the test."""
    name = re.sub(r"[^a-z]+", "-", request.node.name.removeprefix("test_"))[:80].strip("-")
    latermq.ok(f"topics create {name} --partitions 1")
    yield name
    latermq.ok(f"topics delete {name} --yes")


def now_of(latermq: CommandLine) -> int:
    """The clock of the broker, epoch ms."""
    now_ms: int = latermq.ok("clock show --json").json()["now_at"]
    return now_ms


def advance(latermq: CommandLine, duration: str) -> int:
    """Let time pass; return how many records were delivered."""
    delivered: int = latermq.ok(f"clock advance {duration} --json").json()["delivered"]
    return delivered


def recurring(cron: str, value: bytes) -> Sent:
    return Sent(value, [OWN, ("x-cron", cron.encode()), ("x-deliver-id", b"hourly")])


def due_ms(one: Received) -> int:
    return int(dict(one.headers)["x-due-at"])


@pytest.mark.parametrize("client", REFUSALS)
def test_it_comes_at_each_instant_until_it_is_replaced_or_cancelled(
    latermq: CommandLine, broker: ApplianceProcess, topic: str, client: str
) -> None:
    library = library_of(client, broker.kafka)
    hour_ms = now_of(latermq) // MS_PER_HOUR * MS_PER_HOUR
    send(library, topic, [recurring("0 * * * *", b"full")])
    assert [advance(latermq, "1h") for _ in range(3)] == [1, 1, 1]

    send(library, topic, [recurring("15 * * * *", b"quarter")])
    assert [advance(latermq, "1h") for _ in range(2)] == [1, 1]

    send(library, topic, [Sent(b"", [("x-deliver-cancel", b"hourly")])])
    assert advance(latermq, "2h") == 0
    send_values(library, topic, b"end")
    with reading(library, topic) as consumer:
        *records, end = receive(consumer, 6)
    assert end.value == b"end"
    expected = [(b"full", hours * 60) for hours in (1, 2, 3)]
    expected += [(b"quarter", hours * 60 + 15) for hours in (4, 5)]
    found = [(one.value, (due_ms(one) - hour_ms) / MS_PER_MINUTE) for one in records]
    assert found == expected
    for one in records:
        assert [name for name, _ in one.headers] == ["own", "x-accepted-at", "x-due-at", "x-due-id"]
        assert one.headers[0] == OWN


@pytest.mark.parametrize("client", REFUSALS)
def test_a_bad_expression_is_refused_and_nothing_of_its_batch_is_stored(
    latermq: CommandLine, broker: ApplianceProcess, topic: str, client: str
) -> None:
    library = library_of(client, broker.kafka)
    (refused,) = library.try_send(topic, [recurring("61 * * * *", b"never")])
    assert isinstance(refused, RefusedError)
    assert refused.code == library.invalid_record
    assert REFUSALS[client] in refused.text
    assert latermq.ok(f"timers list {topic}").lines == []
    broker.await_logged(rf'refused topic="{topic}" .*reason=cron message="x-cron: .*61')


def test_an_advance_over_several_instants_is_a_stop_to_it(latermq: CommandLine, topic: str) -> None:
    for missed in ("once", "all", "none"):
        latermq.ok(f"send {topic} {missed} --cron '0 * * * *' --missed {missed} --id {missed}")
    assert advance(latermq, "5h") == 6
    values = [line["value"] for line in latermq.ok(f"tail {topic} --json").json_lines()]
    assert sorted(values) == ["all"] * 5 + ["once"]
    assert advance(latermq, "30m") == 3, "at the instant all of them come"


def test_the_commands_send_list_and_cancel_it(latermq: CommandLine, topic: str) -> None:
    rule = "--cron '0 2 * * *' --zone Europe/Berlin --missed all --id nightly"
    said = latermq.ok(f"send {topic} report {rule} --key k").stdout
    asked = "recurs at 0 2 * * *, in Europe/Berlin, missed: all, id nightly"
    assert said == f"{topic}/0, {asked}\n"
    latermq.ok(f"send {topic} other --delay 9d --id other")

    head, *rows = latermq.ok(f"timers list {topic}").lines
    column = head.index("RECURS")
    assert [row[column:].strip() for row in rows] == ["0 2 * * * Europe/Berlin", "-"]
    (item, _) = latermq.ok(f"timers list {topic} --values --json").json_lines()
    expected = nights(now_of(latermq), 5)
    assert item["instants"] == expected
    assert item["due"] == expected[0]
    text = latermq.ok(f"timers list {topic} --values").lines[0]
    assert f" instants=[{','.join(map(format_instant, expected))}]" in text
    assert re.search(r" after=\d{4}-\d\d-\d\dT", text)

    for command in (f"reschedule {topic} nightly --to 1h", f"deliver-now {topic} nightly"):
        assert "it recurs, so it keeps its instants" in latermq.fails(f"timers {command}")
    assert latermq.ok(f"timers show {topic} nightly").stdout.startswith("nightly: pending, due ")
    assert latermq.ok(f"timers cancel {topic} nightly").stdout.startswith("nightly: cancelled")
    head, row = latermq.ok(f"timers list {topic}").lines
    assert "RECURS" not in head
    assert "other" in row
    assert advance(latermq, "2d") == 0


def nights(after_ms: int, count: int) -> list[int]:
    """The next instants of two in the night in Berlin, epoch ms."""
    day = datetime.fromtimestamp(after_ms / 1000, BERLIN)
    found: list[int] = []
    for _ in range(count + 1):
        night_ms = int(day.replace(hour=2, minute=0, second=0, microsecond=0).timestamp()) * 1000
        found += [night_ms] if night_ms > after_ms else []
        day += timedelta(days=1)
    return found[:count]


def test_a_cancel_says_what_became_of_it(latermq: CommandLine, topic: str) -> None:
    hourly = f"send {topic} v --cron '0 * * * *' --id hourly --reply {topic}-replies"
    latermq.ok(hourly)
    assert advance(latermq, "1h") == 1
    latermq.ok(hourly)
    said = latermq.ok(f"send {topic} --cancel hourly --reply {topic}-replies").stdout
    assert said.endswith(f", cancels hourly, reply in {topic}-replies\n")
    latermq.ok(f"send {topic} --cancel never --reply {topic}-replies")
    advance(latermq, "1s")
    replies = latermq.ok(f"tail {topic}-replies --json").json_lines()
    outcomes = [(each["key"], json.loads(each["value"])["outcome"]) for each in replies]
    assert sorted(outcomes) == [
        ("hourly", "cancelled"),
        ("hourly", "replaced"),
        ("never", "unknown"),
    ]
    assert advance(latermq, "2h") == 0


def test_the_admin_api_has_its_rule_and_its_instants(
    latermq: CommandLine, broker: ApplianceProcess, topic: str
) -> None:
    latermq.ok(f"send {topic} v --key k --header h=1 --cron '0 * * * *' --id hourly")
    assert advance(latermq, "30m") == 1
    status, answer = broker.get_json(f"/api/v1/timers?topic={topic}&values=true")
    assert status == 200
    described = DESCRIPTION["paths"]["/api/v1/timers"]["get"]["responses"]["200"]
    schema = described["content"]["application/json"]["schema"]
    Draft202012Validator({**schema, "components": DESCRIPTION["components"]}).validate(answer)
    (item,) = answer["timers"]
    assert answer["next"] is None
    check_fields(item, now_of(latermq) // MS_PER_HOUR * MS_PER_HOUR)
    _, answer = broker.get_json(f"/api/v1/timers?topic={topic}")
    without = {name: value for name, value in item.items() if name not in ("value", "headers")}
    assert answer["timers"] == [without]


def check_fields(item: dict[str, Any], hour_ms: int) -> None:
    """Check the list's item of an hourly record that came once, at `hour_ms`."""
    rule = {"cron": "0 * * * *", "zone": "UTC", "missed": "once", "occurrence": 1}
    assert {name: item[name] for name in rule} == rule
    assert hour_ms <= item["after"] < hour_ms + MS_PER_MINUTE
    assert item["due"] == hour_ms + MS_PER_HOUR
    assert item["instants"] == [hour_ms + MS_PER_HOUR * count for count in range(1, 6)]
    assert (item["key"], item["value"], item["headers"][0]) == ("k", "v", ["h", "1"])
    added = [name for name, _ in item["headers"][1:]]
    assert added == ["x-accepted-at", "x-due-at", "x-due-id"]
    page = (ROOT / "docs" / "ADMIN.md").read_text()
    undocumented = {name for name in item if f"`{name}`" not in page and f'"{name}"' not in page}
    assert undocumented == set()
