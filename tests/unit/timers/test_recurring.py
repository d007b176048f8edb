"""Recurring records: a record with a cron expression comes at each of its instants.

`tests/unit/timers/test_cron_rules.py` has the instants; here are the headers and the deliveries.
"""

from datetime import datetime
from typing import Any

import pytest

from appliance.cron_rules import CronRules
from appliance.errors import FindError
from appliance.units import MS_PER_HOUR, MS_PER_MINUTE
from tests.support.clients.wire_client import WireClient
from tests.support.harness import offline_scenario
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.checkpoints import crashed, rebuild
from tests.support.simulator.virtual_clock import START_MS, VirtualClock
from tests.support.values.kafka_records import Fetched, Headers, Record, cancel, delay
from tests.support.values.raw_batch import CODECS, CREATED_MS, Raw, make_batch
from tests.unit.timers.test_held_back import change
from tests.unit.timers.test_pending_timers import items

MINUTE = MS_PER_MINUTE
INVALID_RECORD = 87
MESSAGE_TOO_LARGE = 10
HOURLY = "0 * * * *"


def recurring(
    cron: str = "* * * * *", *, user_id: bytes = b"id", zone: str = "", missed: str = ""
) -> Headers:
    """Headers of a record that recurs."""
    asked = {"x-cron": cron, "x-cron-zone": zone, "x-cron-missed": missed}
    named = [(name, value.encode()) for name, value in asked.items() if value]
    return (*named, ("x-deliver-id", user_id))


def accept(
    harness: BrokerHarness, value: bytes = b"v", *, user_id: bytes = b"id", **asked: str
) -> None:
    record = Record(value, b"k", (("h", b"1"), *recurring(user_id=user_id, **asked)))
    assert harness.produce("t", 0, [record]).error == 0


def due_times(harness: BrokerHarness, value: bytes = b"v") -> list[int]:
    """When what was delivered was due, ms after the start."""
    found = [each for each in harness.fetch("t", 0) if each.value == value]
    return [int(each.header("x-due-at") or -1) - START_MS for each in found]


@pytest.fixture
def harness() -> BrokerHarness:
    return with_topic()


@pytest.fixture
def client(harness: BrokerHarness) -> WireClient:
    return WireClient(harness)


def test_a_record_comes_at_each_instant(harness: BrokerHarness) -> None:
    accept(harness)
    for count in range(1, 4):
        assert harness.tick(MINUTE - 1) == 0
        assert harness.tick(1) == 1
        assert harness.timer_state("t", b"id") == ("pending", START_MS + (count + 1) * MINUTE, 0)
    assert harness.broker.pending_timers == 1
    assert harness.fetch("t", 0) == [
        Fetched(
            offset=count,
            timestamp_ms=1,
            key=b"k",
            value=b"v",
            headers=(
                ("h", b"1"),
                ("x-accepted-at", b"%d" % START_MS),
                ("x-due-at", b"%d" % (START_MS + (count + 1) * MINUTE)),
                ("x-due-id", b"id"),
            ),
        )
        for count in range(3)
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_it_is_accepted_with_others_in_one_batch(client: WireClient, codec: int) -> None:
    headers = [(name.encode(), value) for name, value in recurring("*/30 * * * * *")]
    batch = [
        Raw(b"now", b"k", []),
        Raw(b"tick", b"k", headers, 3),
        Raw(b"later", b"k", [(b"x-delay", b"45s")]),
    ]
    assert client.produce("t", 0, make_batch(batch, codec=codec)).base_offset == -1
    for _ in range(3):
        client.harness.tick(30_000)
    assert client.harness.values() == [b"now", b"tick", b"later", b"tick", b"tick"]
    assert {each.timestamp_ms for each in client.harness.fetch("t", 0)} == {
        CREATED_MS,
        CREATED_MS + 3,
    }


def test_the_topic_decides_about_timestamps(harness: BrokerHarness) -> None:
    harness.create_topic("due", 1, {"delay.timestamp": "due"})
    harness.create_topic("append", 1, {"message.timestamp.type": "LogAppendTime"})
    for topic in ("due", "append"):
        harness.produce(topic, 0, [Record(b"v", b"k", recurring())])
    for _ in range(2):
        harness.tick(MINUTE + 5)
        harness.tick(MINUTE - 5)
    stamps = [each.timestamp_ms - START_MS for each in harness.fetch("due", 0)]
    assert stamps == [MINUTE, 2 * MINUTE, 3 * MINUTE, 4 * MINUTE]
    stamps = [each.timestamp_ms - START_MS for each in harness.fetch("append", 0)]
    assert stamps == [MINUTE + 5, 2 * MINUTE, 3 * MINUTE + 5, 4 * MINUTE]


def test_it_is_replaced_and_cancelled_by_its_id(harness: BrokerHarness) -> None:
    accept(harness)
    harness.tick(MINUTE)
    accept(harness, b"w", cron=HOURLY)
    assert harness.broker.pending_timers == 1
    harness.tick(MS_PER_HOUR)
    assert due_times(harness) == [MINUTE]
    assert due_times(harness, b"w") == [MS_PER_HOUR]
    harness.produce("t", 0, [Record(b"once", b"k", delay(5_000, b"id"))])
    assert harness.broker.pending_timers == 1
    harness.tick(2 * MS_PER_HOUR)
    assert harness.values()[2:] == [b"once"]
    accept(harness)
    harness.tick(MINUTE)
    harness.produce("t", 0, [Record(b"", headers=cancel(b"id"))])
    assert harness.timer_state("t", b"id")[0] == "cancelled"
    assert harness.tick(24 * MS_PER_HOUR) == 0
    assert harness.broker.pending_timers == 0


def test_the_admin_api_cancels_it(harness: BrokerHarness) -> None:
    accept(harness)
    harness.tick(MINUTE)
    assert harness.cancel_timer("t", b"id")[0] == "cancelled"
    harness.flush()
    harness = harness.restart()
    assert harness.tick(MS_PER_HOUR) == 0


def test_a_deleted_topic_ends_it(harness: BrokerHarness) -> None:
    accept(harness)
    harness.tick(MINUTE)
    harness.delete_topic("t")
    harness.create_topic("t")
    assert harness.tick(MS_PER_HOUR) == 0


# Missed instants


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("", [1, 2]),
        ("once", [1, 2]),
        ("all", [1, 2, 3, 4]),
        ("none", [1]),
    ],
)
@pytest.mark.parametrize("is_paused", [False, True])
def test_what_a_stop_or_a_pause_missed_comes_once_each_time_or_not_at_all(
    harness: BrokerHarness, missed: str, expected: list[int], is_paused: bool
) -> None:
    accept(harness, cron=HOURLY, missed=missed)
    harness.tick(MS_PER_HOUR)
    if is_paused:
        change(harness, "delay.paused", "true")
        harness.tick(3 * MS_PER_HOUR + 5 * MINUTE)
        change(harness, "delay.paused", "false")
    else:
        harness.clock.advance_ms(3 * MS_PER_HOUR + 5 * MINUTE)
        harness = harness.restart()
    harness.deliver_all()
    assert due_times(harness) == [hour * MS_PER_HOUR for hour in expected]
    assert harness.timer_state("t", b"id") == ("pending", START_MS + 5 * MS_PER_HOUR, 0)
    harness.tick(55 * MINUTE)
    assert due_times(harness)[-1] == 5 * MS_PER_HOUR
    assert harness.broker.pending_timers == 1


@pytest.mark.parametrize(("late_ms", "is_missed"), [(0, False), (60_000, False), (60_001, True)])
def test_a_minute_late_is_not_missed(harness: BrokerHarness, late_ms: int, is_missed: bool) -> None:
    accept(harness, cron=HOURLY, missed="none")
    harness.tick(MS_PER_HOUR + late_ms)
    assert due_times(harness) == ([] if is_missed else [MS_PER_HOUR])
    assert harness.timer_state("t", b"id")[1] == START_MS + 2 * MS_PER_HOUR


@pytest.mark.parametrize(("late_ms", "is_missed"), [(9_999, False), (10_000, True)])
def test_an_instant_is_missed_when_the_following_one_is_there(
    harness: BrokerHarness, late_ms: int, is_missed: bool
) -> None:
    accept(harness, cron="*/10 * * * * *", missed="none")
    harness.tick(10_000 + late_ms)
    assert due_times(harness) == ([] if is_missed else [10_000])
    assert harness.timer_state("t", b"id")[0] == "pending"


def test_what_is_not_delivered_is_no_delivery_in_the_counts(harness: BrokerHarness) -> None:
    accept(harness, cron=HOURLY, missed="none")
    harness.produce("t", 0, [Record(b"other", b"k", delay(MS_PER_HOUR))])
    assert harness.tick(MS_PER_HOUR + 5 * MINUTE) == 1
    metrics = harness.broker.collect_metrics()
    assert (metrics.moved_occurrences, metrics.delivered_frames) == (1, 1)
    assert (metrics.timers_accepted, metrics.timers_delivered) == (3, 1)
    assert harness.values() == [b"other"]
    assert harness.tick(55 * MINUTE) == 1
    disk = crashed(harness)
    alone = rebuild(harness, disk)
    assert alone.timer_state("t", b"id") == ("pending", START_MS + 3 * MS_PER_HOUR, 0)
    assert alone.values() == [b"other", b"v"]


def test_what_is_missed_comes_in_the_order_of_due_times_with_others(harness: BrokerHarness) -> None:
    """Though an occurrence is pending only once the one before is delivered."""
    accept(harness, b"tick", missed="all")
    accept(harness, b"tack", cron="30 * * * * *", user_id=b"2", missed="all")
    for minutes in (1, 2, 3):
        late = Record(b"d%d" % minutes, b"k", delay(minutes * MINUTE + 10_000))
        harness.produce("t", 0, [late])
    harness.clock.advance_ms(3 * MINUTE + 20_000)
    harness.deliver_all()
    order = [b"tack", b"tick", b"d1", b"tack", b"tick", b"d2", b"tack", b"tick", b"d3"]
    assert harness.values() == order
    assert harness.broker.pending_timers == 2


def at(text: str) -> int:
    """An instant in ISO 8601, ms after the start."""
    return round(datetime.fromisoformat(text).timestamp() * 1000) - START_MS


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("once", ["2026-03-28T01:30Z", "2026-03-31T00:30Z"]),
        (
            "all",
            [
                *("2026-03-28T01:30Z", "2026-03-29T01:00Z", "2026-03-30T00:30Z"),
                "2026-03-31T00:30Z",
            ],
        ),
        ("none", ["2026-03-31T00:30Z"]),
    ],
)
def test_a_stop_across_a_gap_misses_the_instant_after_the_gap(
    harness: BrokerHarness, missed: str, expected: list[str]
) -> None:
    """Half past two does not exist in Berlin on 29 March 2026: it is the end of the gap."""
    harness.clock.advance_to_ms(START_MS + at("2026-03-27T12:00Z"))
    accept(harness, cron="30 2 * * *", zone="Europe/Berlin", missed=missed)
    harness.clock.advance_to_ms(START_MS + at("2026-03-30T12:00Z"))
    harness = harness.restart()
    harness.deliver_all()
    harness.clock.advance_to_ms(START_MS + at("2026-03-31T00:30Z"))
    harness.deliver_all()
    assert due_times(harness) == [at(each) for each in expected]


@pytest.mark.parametrize("missed", ["once", "all", "none"])
def test_a_clock_that_is_set_back_repeats_no_instant(harness: BrokerHarness, missed: str) -> None:
    accept(harness, missed=missed)
    for _ in range(3):
        harness.tick(MINUTE)
    harness.clock.step_ms(-10 * MINUTE)
    harness = harness.restart()
    assert harness.tick(10 * MINUTE) == 0
    assert harness.tick(MINUTE) == 1
    assert due_times(harness) == [count * MINUTE for count in range(1, 5)]


# Zone data


class Zones:
    """Instants at a local time of a zone whose offset changes, or that has no data."""

    def __init__(self) -> None:
        self.offset_ms: int | None = 0

    def next_after(self, expression: bytes, zone: bytes, after_ms: int) -> int | None:
        if self.offset_ms is None:
            raise ValueError(f"no zone {zone!r}")
        day = 24 * MS_PER_HOUR
        local_ms = after_ms + self.offset_ms
        return local_ms - local_ms % day + day - self.offset_ms


@pytest.fixture
def zones(harness: BrokerHarness) -> Zones:
    found = Zones()
    harness.broker.instants = found  # type: ignore[assignment]
    harness.broker._make_paths()
    return found


def test_an_occurrence_that_is_later_by_new_zone_data_is_moved(
    harness: BrokerHarness, zones: Zones
) -> None:
    harness.tick(2 * MS_PER_HOUR)
    accept(harness)
    zones.offset_ms = -MS_PER_HOUR
    assert harness.tick(22 * MS_PER_HOUR) == 0
    assert harness.tick(MS_PER_HOUR - 1) == 0
    assert harness.tick(1) == 1
    assert due_times(harness) == [25 * MS_PER_HOUR]
    assert harness.tick(24 * MS_PER_HOUR) == 1


def test_an_occurrence_that_is_earlier_by_new_zone_data_comes_late_and_once(
    harness: BrokerHarness, zones: Zones
) -> None:
    accept(harness)
    zones.offset_ms = MS_PER_HOUR
    assert harness.tick(24 * MS_PER_HOUR) == 1
    assert due_times(harness) == [23 * MS_PER_HOUR]
    assert harness.timer_state("t", b"id")[1] == START_MS + 47 * MS_PER_HOUR
    assert harness.tick(23 * MS_PER_HOUR) == 1


@pytest.mark.parametrize("missed", ["once", "all", "none"])
def test_a_timer_whose_zone_has_no_data_waits_for_it(
    harness: BrokerHarness, zones: Zones, missed: str
) -> None:
    """Then its instant is what it was, and counts as missed if that is long ago."""
    accept(harness, missed=missed)
    zones.offset_ms = None
    assert harness.tick(24 * MS_PER_HOUR) == 0
    for _ in range(3):
        assert harness.tick(MINUTE) == 0
    zones.offset_ms = 0
    assert harness.tick(MINUTE) == (missed != "none")
    assert due_times(harness) == ([] if missed == "none" else [24 * MS_PER_HOUR])
    assert harness.timer_state("t", b"id")[1] == START_MS + 48 * MS_PER_HOUR


def test_a_broker_without_rules_keeps_its_recurring_records(harness: BrokerHarness) -> None:
    accept(harness)
    rules, harness.broker.instants = harness.broker.instants, None  # type: ignore[assignment]
    harness.broker._make_paths()
    assert harness.tick(MINUTE) == 0
    harness.broker.instants = rules
    harness.broker._make_paths()
    assert harness.tick(MINUTE) == 1


class Once:
    """A schedule with one instant."""

    def next_after(self, expression: bytes, zone: bytes, after_ms: int) -> int | None:
        return START_MS + MINUTE if after_ms < START_MS + MINUTE else None


def test_the_last_instant_of_a_schedule_is_logged(
    harness: BrokerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.broker.instants = Once()  # type: ignore[assignment]
    harness.broker._make_paths()
    accept(harness, user_id=b"i\nd")
    assert harness.tick(MINUTE) == 1
    assert harness.broker.pending_timers == 0
    (logged,) = [each for each in caplog.messages if "recurring" in each]
    assert logged.endswith(r'topic="t" id="i\nd"')


@pytest.mark.parametrize("digits", [11, 12])
def test_the_digits_of_an_instant_may_change(digits: int) -> None:
    """A machine without a clock of its own starts long ago. Then the time is set."""
    start_ms = 10**digits // MINUTE * MINUTE - MINUTE
    harness = with_topic(clock=VirtualClock(wall_ms=start_ms))
    accept(harness)
    for _ in range(3):
        assert harness.tick(MINUTE) == 1
    harness.clock.advance_to_ms(START_MS)
    harness.deliver_all()
    assert harness.tick(MINUTE) == 1
    found = [each.header("x-due-at") or b"" for each in harness.fetch("t", 0)]
    assert [len(each) for each in found] == [digits, digits + 1, digits + 1, digits + 1, 13]
    assert int(found[-1]) == START_MS + MINUTE
    assert offline_scenario.check(crashed(harness)).faults == []


# Many schedules


class Counted:
    """The rules of a broker, which count how often they compute."""

    def __init__(self, rules: CronRules) -> None:
        self.rules = rules
        self.count = 0

    def next_after(self, expression: bytes, zone: bytes, after_ms: int) -> int | None:
        self.count += 1
        return self.rules.next_after(expression, zone, after_ms)


@pytest.mark.parametrize("is_cold", [False, True])
def test_many_schedules_that_are_due_together_share_the_turns_with_others(
    harness: BrokerHarness, is_cold: bool
) -> None:
    """A turn computes some of them. Their partition waits in its order, and no other does."""
    harness.create_topic("other")
    crons = [f"0 0 2,{a},{b} * *" for a in range(3, 15) for b in range(15, 25)]
    for number, cron in enumerate(crons):
        accept(harness, b"%d" % number, cron=cron, user_id=b"%d" % number)
    for topic in ("t", "other"):
        harness.produce(topic, 0, [Record(b"last", b"k", delay(24 * MS_PER_HOUR))])
    counted = Counted(harness.broker.instants)
    harness.broker.instants = counted  # type: ignore[assignment]
    harness.broker._make_paths()
    if is_cold:
        harness.make_cold()
    harness.clock.advance_ms(24 * MS_PER_HOUR)
    turns = 0
    while len(harness.values()) <= len(crons):
        before = counted.count
        harness.deliver_once()
        harness.flush()
        turns += 1
        assert counted.count - before <= (200 if is_cold else 64)
        assert turns < 20
    assert harness.values("other") == [b"last"]
    assert turns >= 3
    assert harness.values() == [*(b"%d" % number for number in range(len(crons))), b"last"]
    assert harness.broker.pending_timers == len(crons)


def test_timers_of_one_schedule_are_computed_together(harness: BrokerHarness) -> None:
    for number in range(200):
        harness.clock.advance_ms(1)
        accept(harness, user_id=b"%d" % number)
    counted = Counted(harness.broker.instants)
    harness.broker.instants = counted  # type: ignore[assignment]
    harness.broker._make_paths()
    harness.clock.advance_to_ms(START_MS + MINUTE)
    assert harness.deliver_all() == 200
    assert counted.count <= 20


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("invalid", ["refuse", "pass"])
def test_schedules_count_as_work_of_a_turn(client: WireClient, invalid: str, codec: int) -> None:
    """Also those that have no instant: else a batch could search for them as often as it likes."""
    client.harness.create_topic("w", 1, {"delay.invalid": invalid})
    path = client.session.produce
    crons = [f"{n} 0 31 2 *" if n % 2 else f"{n} * * * *" for n in range(17)]
    records = [Raw(b"v", b"k", _raw(recurring(cron, user_id=cron.encode()))) for cron in crons]
    for count, expected in ((1, 1), (2, 2), (16, 2 if invalid == "refuse" else 16)):
        before = path.work_bytes
        client.produce("w", 0, make_batch(records[:count], codec=codec))
        assert (path.work_bytes - before) >> 18 == expected
    part = client.produce("w", 0, make_batch(records[::2] * 2, codec=codec))
    assert part.error_code == 0
    part = client.produce("w", 0, make_batch(records, codec=codec))
    assert part.error_code == (INVALID_RECORD if invalid == "refuse" else MESSAGE_TOO_LARGE)
    assert path.delays.refused["cron"] == (3 if invalid == "refuse" else 1)


# Refusals


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ([("x-cron", b"* * * * *")], "x-cron needs x-deliver-id"),
        ([("x-cron-zone", b"UTC")], "x-cron-zone and x-cron-missed go with x-cron"),
        ([("x-cron-missed", b"all")], "x-cron-zone and x-cron-missed go with x-cron"),
        ([("x-cron", b"* * * *")], "x-cron"),
        ([("x-cron", b"61 * * * *")], "x-cron"),
        ([("x-cron", b"")], "x-cron must have 1 to 64 bytes"),
        ([("x-cron", b"* " * 33)], "x-cron must have 1 to 64 bytes"),
        ([("x-cron", b'"' + b"* * * * *".ljust(65) + b'"')], "x-cron must have 1 to 64 bytes"),
        ([("x-cron-zone", b"Europe/Berln"), ("x-cron", b"* * * * *")], "x-cron-zone"),
        ([("x-cron-zone", b"../UTC"), ("x-cron", b"* * * * *")], "x-cron-zone"),
        ([("x-cron-zone", b"\xff"), ("x-cron", b"* * * * *")], "x-cron-zone"),
        ([("x-cron-missed", b"never"), ("x-cron", b"* * * * *")], "once, all or none"),
        ([("x-cron", b"* * * * *"), ("x-delay", b"1s")], "cannot be combined"),
        ([("x-cron", b"* * * * *"), ("x-deliver-at", b"1867225600000")], "cannot be combined"),
        ([("x-cron", b"* * * * *"), ("x-delay-level", b"3")], "cannot be combined"),
        ([("x-cron", b"* * * * *"), ("x-retry-group", b"g")], "cannot be combined"),
        ([("x-cron", b"* * * * *"), ("x-deliver-cancel", b"x")], "cannot be combined"),
    ],
)
def test_what_cannot_recur_is_refused_with_the_reason(
    harness: BrokerHarness, headers: list[tuple[str, bytes]], message: str
) -> None:
    named = [] if "needs" in message or headers[-1][0] == "x-deliver-cancel" else [b"id"]
    asked = (*headers, *(("x-deliver-id", each) for each in named))
    answer = harness.produce("t", 0, [Record(b"whole"), Record(b"v", b"k", asked)])
    assert answer.error == INVALID_RECORD
    assert harness.values() == []
    assert harness.broker.pending_timers == 0
    part = WireClient(harness).produce("t", 0, make_batch([Raw(b"v", b"k", _raw(asked))]))
    assert message in (part.error_message or "")


def _raw(headers: Headers) -> list[tuple[bytes, bytes | None]]:
    return [(name.encode(), value) for name, value in headers]


def test_a_value_may_stand_in_quotes_and_its_name_in_any_case(harness: BrokerHarness) -> None:
    longest = b'"%s"' % b"0 * * * *".ljust(64)
    headers = (("X-Cron", longest), ("X-CRON-ZONE", b'"UTC"'), ("x-deliver-id", b"id"))
    assert harness.produce("t", 0, [Record(b"v", b"k", headers)]).error == 0
    assert harness.tick(MS_PER_HOUR) == 1
    assert items(harness)[0]["cron"] == "0 * * * *".ljust(64)


def test_an_instant_beyond_the_longest_delay_is_refused(harness: BrokerHarness) -> None:
    harness.create_topic("short", 1, {"delay.max.ms": "60000"})
    refused = harness.produce("short", 0, [Record(b"v", b"k", recurring(HOURLY))])
    assert refused.error == INVALID_RECORD
    assert harness.produce("short", 0, [Record(b"v", b"k", recurring())]).error == 0


def test_a_batch_has_so_many_schedules(harness: BrokerHarness) -> None:
    def batch(count: int) -> list[Record]:
        return [
            Record(b"v", b"k", recurring(f"{n} * * * *", user_id=b"%d" % n)) for n in range(count)
        ]

    assert harness.produce("t", 0, batch(17)).error == MESSAGE_TOO_LARGE
    assert harness.produce("t", 0, batch(16)).error == 0
    same = [Record(b"v", b"k", recurring(user_id=b"i%d" % n)) for n in range(100)]
    assert harness.produce("t", 0, same).error == 0
    assert harness.tick(MINUTE) == 101


def test_the_largest_record_fits_twice_into_a_frame(harness: BrokerHarness) -> None:
    size = harness.config.batch_size_max_bytes - 400
    for user_id in (b"0" * 255, b"1" * 255):
        large = Record(bytes(size), b"k", recurring(user_id=user_id))
        assert harness.produce("t", 0, [large]).error == 0
    for _ in range(3):
        assert harness.tick(MINUTE) == 2
    assert offline_scenario.check(crashed(harness)).faults == []


def test_a_topic_that_ignores_delay_headers_refuses_it(harness: BrokerHarness) -> None:
    harness.create_topic("off", 1, {"delay.headers": "off"})
    answer = harness.produce("off", 0, [Record(b"v", b"k", recurring())])
    assert answer.error == INVALID_RECORD
    harness.create_topic("pass", 1, {"delay.headers": "off", "delay.invalid": "pass"})
    assert harness.produce("pass", 0, [Record(b"v", b"k", recurring())]).base_offset == 0


# In sight


def test_it_is_listed_with_its_rule(harness: BrokerHarness) -> None:
    accept(harness, cron="0 9 * * MON-FRI", zone="Europe/Berlin", missed="all")
    (item,) = items(harness)
    rule = {name: item[name] for name in ("cron", "zone", "missed", "occurrence")}
    assert rule == {
        "cron": "0 9 * * MON-FRI",
        "zone": "Europe/Berlin",
        "missed": "all",
        "occurrence": 0,
    }
    harness.tick(24 * MS_PER_HOUR)
    (item,) = items(harness)
    assert item["occurrence"] == 1
    assert item["id"] == b"id"


@pytest.mark.parametrize("due_ms", [None, START_MS + 5_000])
def test_it_cannot_be_moved(harness: BrokerHarness, due_ms: int | None) -> None:
    accept(harness)
    topic = harness.topic()
    timer: Any = harness.broker.timers.listed(topic, b"id")
    with pytest.raises(FindError, match="recurs"):
        harness.broker.timer_moves.move(topic, b"id", timer, items(harness)[0], due_ms)
    assert harness.tick(MINUTE) == 1
