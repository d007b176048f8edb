"""Which instants cron expressions name, and what is refused."""

import itertools
import random
import struct
import sys
import threading
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from appliance import cron_rules
from appliance.cron_rules import AFTER_MS_MAX, HORIZON_MS, CronError, CronRules
from tests.support.oracles.cron_model import (
    DAY_S,
    HOUR_S,
    MONTHS,
    RANGES,
    WEEKDAYS,
    CronModel,
    Span,
    epoch_s,
    zone_spans,
)

BEGIN_S: Final = epoch_s(2026, 1, 1)
END_S: Final = epoch_s(2036, 1, 1)
HORIZON_S: Final = HORIZON_MS // 1000

ZONES: Final = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",  # half an hour
    "Africa/Casablanca",  # back for Ramadan, twice a year
    "America/Havana",  # at midnight
    "Asia/Beirut",  # at midnight
    "America/Nuuk",  # on the evening before
    "Antarctica/Troll",  # two hours
    "Asia/Kathmandu",  # no change, 5:45
)
SPANS: Final[dict[str, list[Span]]] = {}


def spans_of(zone: str) -> list[Span]:
    """As far as the horizon of the last instant that is looked at."""
    if zone not in SPANS:
        SPANS[zone] = zone_spans(zone, BEGIN_S - 2 * DAY_S, END_S + HORIZON_S + DAY_S)
    return SPANS[zone]


def changes_of(zone: str) -> list[int]:
    return [span.begin_s for span in spans_of(zone)[1:] if BEGIN_S < span.begin_s < END_S]


def sequence(rules: CronRules, expression: str, zone: str, begin_s: int, end_s: int) -> list[int]:
    """Each delivery from an instant on, from one to the next, in seconds."""
    found: list[int] = []
    after_ms = begin_s * 1000 - 1
    while True:
        instant = rules.next_after(expression.encode(), zone.encode(), after_ms)
        if instant is None or instant >= end_s * 1000:
            return found
        assert instant % 1000 == 0
        assert instant > after_ms
        found.append(instant // 1000)
        after_ms = instant


SPARSE: Final = (
    "0 9 * * MON-FRI",
    "30 2 * 3,4,9-11 *",
    "15,45 0,23 * * SAT,SUN",
    "10 2 L * *",
    "59 59 23 LW * *",
    "45 1 13 * FRI",
    "0 3 * */2 7#2,0L",
    "29 1 * 3,10,11 */7",
)


@pytest.mark.parametrize("zone", ZONES[:5])
def test_ten_years_are_those_of_the_model(zone: str) -> None:
    rules = CronRules()
    for expression in SPARSE:
        expected = list(CronModel(expression).instants_after(spans_of(zone), BEGIN_S - 1, END_S))
        assert len(expected) > 100
        assert sequence(rules, expression, zone, BEGIN_S, END_S) == expected, expression


DENSE: Final = (
    "* * * * *",
    "*/7 */1 * * *",
    "*/10 0-23 * * *",
    "30 * * * *",
    "*/5 0-4 * * *",
    "*/20 */2 * * *",
    "17 */6 1-4,23 * * *",
)


@pytest.mark.parametrize("zone", ZONES)
def test_the_hours_around_each_change_are_those_of_the_model(zone: str) -> None:
    rules = CronRules()
    for expression, change in itertools.product(DENSE, changes_of(zone)):
        begin, end = change - 3 * HOUR_S, change + 4 * HOUR_S
        expected = list(CronModel(expression).instants_after(spans_of(zone), begin - 1, end))
        assert sequence(rules, expression, zone, begin, end) == expected, (expression, change)


def test_each_second_around_a_change_has_the_next_instant_of_the_model() -> None:
    rules, zone = CronRules(), "Europe/Berlin"
    for expression, change in itertools.product(("*/30 * * * *", "*/15 2 * * *"), (0, 1)):
        begin, end = (changes_of(zone)[change] + hours * HOUR_S for hours in (-2, 2))
        instants = list(CronModel(expression).instants_after(spans_of(zone), begin, end + DAY_S))
        for after in range(begin, end, 7):
            while instants[0] <= after:
                del instants[0]
            for part_ms in (0, 999):
                found = rules.next_after(expression.encode(), zone.encode(), after * 1000 + part_ms)
                assert found == instants[0] * 1000, (expression, after)


@pytest.mark.parametrize(
    ("expression", "zone", "begin", "expected"),
    [
        # Samoa had no 30 December 2011.
        (
            "0 12 * * *",
            "Pacific/Apia",
            (2011, 12, 29, 23),
            [(2011, 12, 30, 10), (2011, 12, 30, 22)],
        ),
        ("0 * 30 12 *", "Pacific/Apia", (2011, 12, 29), [(2011, 12, 30, 10), (2012, 12, 29, 10)]),
        ("30 2 * * *", "Europe/Berlin", (2026, 3, 29), [(2026, 3, 29, 1), (2026, 3, 30, 0, 30)]),
        ("30 2 * * *", "Europe/Berlin", (2026, 10, 25), [(2026, 10, 25, 0, 30)]),
        ("10 2 * * *", "Australia/Lord_Howe", (2026, 10, 3, 15), [(2026, 10, 3, 15, 30)]),
        ("0 0 29 2 *", "UTC", (2096, 3, 1), [(2104, 2, 29)]),
        # A range of one with a step, which cronsim takes for one that goes on.
        ("0 3-3/4 * * *", "UTC", (2026, 3, 1, 3), [(2026, 3, 2, 3)]),
        ("@yearly", "Asia/Tokyo", (2026, 3, 1), [(2026, 12, 31, 15)]),
        (" @Daily ", "UTC", (2026, 3, 1), [(2026, 3, 2)]),
        ("@hourly", "UTC", (2026, 3, 1), [(2026, 3, 1, 1)]),
        ("@weekly", "UTC", (2026, 11, 27), [(2026, 11, 29)]),
        ("@monthly", "UTC", (2026, 11, 27), [(2026, 12, 1), (2027, 1, 1)]),
        ('"0 9 * * mon"', '"Etc/GMT+5"', (2026, 11, 27), [(2026, 11, 30, 14)]),
    ],
)
def test_an_instant_is_where_it_was_worked_out_by_hand(
    expression: str, zone: str, begin: tuple[int, ...], expected: list[tuple[int, ...]]
) -> None:
    found = CronRules().next_instants(
        expression.encode(), zone.encode(), epoch_s(*begin) * 1000, len(expected)
    )
    assert found == [epoch_s(*each) * 1000 for each in expected]


def random_field(rng: random.Random, place: int) -> str:
    """A field of an expression; one of the last three is often `*`."""
    low, high = RANGES[place]
    names = {4: MONTHS, 5: WEEKDAYS}.get(place, ())

    def number() -> str:
        value = rng.randint(low, high)
        return rng.choice(names) if names and rng.random() < 0.3 else str(value)

    def term() -> str:
        kind = rng.random()
        if kind < 0.15:
            return f"*/{rng.randint(1, high)}"
        if kind < 0.45:
            begin, end = sorted(rng.randint(low, high) for _ in range(2))
            return f"{begin}-{end}" + rng.choice(["", f"/{rng.randint(1, high)}"])
        if kind < 0.5:
            return f"{number()}/{rng.randint(1, high)}"
        if place == 3 and kind < 0.65:
            return rng.choice(["L", "LW"])
        if place == 5 and kind < 0.65:
            return rng.choice([f"{rng.randint(0, 7)}L", f"{number()}#{rng.randint(1, 5)}"])
        return number()

    if rng.random() < (0.6 if place > 2 else 0.3):
        return "*"
    return ",".join(term() for _ in range(rng.choice([1, 1, 2, 3])))


def random_expression(rng: random.Random) -> str:
    """At most as long as is allowed."""
    while True:
        first = rng.choice([0, 1, 1])
        text = " ".join(random_field(rng, place) for place in range(first, 6))
        if len(text) <= cron_rules.VALUE_SIZE_MAX:
            return text


def test_random_schedules_are_those_of_the_model(schedules: int) -> None:
    rules, refused, rare = CronRules(), 0, 0
    for seed in range(schedules):
        rng = random.Random(seed)
        expression, zone = random_expression(rng), rng.choice(ZONES)
        after = rng.randrange(BEGIN_S, END_S)
        if rng.random() < 0.7 and changes_of(zone):
            after = rng.choice(changes_of(zone)) + rng.randint(-3 * HOUR_S, 3 * HOUR_S)
        model = CronModel(expression)
        last: int | None = after
        for _ in range(4):
            if last is None or last > END_S:
                rare += 1
                break
            instants = model.instants_after(spans_of(zone), last, last + HORIZON_S + 1)
            expected = next(instants, None)
            try:
                found = rules.next_after(expression.encode(), zone.encode(), last * 1000)
            except CronError:
                refused, found = refused + 1, None
            wanted = None if expected is None else expected * 1000
            assert found == wanted, (seed, expression, zone, last)
            last = expected
    assert refused < schedules / 20
    assert rare < schedules / 10


def test_an_instant_depends_on_nothing_that_was_asked_before() -> None:
    asked = [
        (expression, zone, after)
        for expression in (b"30 2 * * *", b"*/9 * * * *", b"0 9 1 * MON")
        for zone in (b"Europe/Berlin", b"America/Havana")
        for after in range(BEGIN_S * 1000, (BEGIN_S + 400 * DAY_S) * 1000, 20 * DAY_S * 1000 + 1)
    ]
    rules = CronRules()
    first = [rules.next_after(*each) for each in asked]
    assert [rules.next_after(*each) for each in reversed(asked)] == first[::-1]
    assert [CronRules().next_after(*each) for each in asked] == first


def test_threads_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cron_rules, "EXPRESSIONS_MAX", 3)
    monkeypatch.setattr(cron_rules, "ZONES_MAX", 2)
    rules = CronRules()
    asked = [(each.encode(), zone.encode()) for each in SPARSE for zone in ZONES]
    expected = [CronRules().next_instants(*each, BEGIN_S * 1000, 3) for each in asked]
    wrong: list[object] = []

    def ask(seed: int) -> None:
        order = list(zip(asked, expected, strict=True))
        random.Random(seed).shuffle(order)
        for each, instants in order:
            if (found := rules.next_instants(*each, BEGIN_S * 1000, 3)) != instants:
                wrong.append((each, found))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []


def test_after_the_horizon_there_is_nothing() -> None:
    rules = CronRules()
    # 29 February is a Sunday in 2032 and in 2060.
    rare, day = b"0 0 29 2 */20", epoch_s(2032, 2, 29) * 1000
    assert rules.next_after(rare, b"UTC", day - HORIZON_MS) == day
    assert rules.next_after(rare, b"UTC", day - HORIZON_MS - 1) is None
    assert rules.next_instants(rare, b"UTC", day - 1, 3) == [day]
    assert rules.next_after(b"* * * * * *", b"UTC", AFTER_MS_MAX) == AFTER_MS_MAX + 1000
    assert rules.next_after(b"* * * * * *", b"UTC", AFTER_MS_MAX + 1) is None
    assert rules.next_after(b"* * * * * *", b"UTC", 0) == 1000


FORM: Final = (
    "use five fields (minute hour day-of-month month day-of-week) or six with seconds first"
)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("61 * * * *", f"x-cron: bad minute in '61 * * * *': {FORM}"),
        ("* * * * * 8", f"x-cron: bad day-of-week in '* * * * * 8': {FORM}"),
        ("60 * * * * *", f"x-cron: bad second in '60 * * * * *': {FORM}"),
        ("* 24 * * *", f"x-cron: bad hour in '* 24 * * *': {FORM}"),
        ("* * 0 * *", f"x-cron: bad day-of-month in '* * 0 * *': {FORM}"),
        ("* * * FOO *", f"x-cron: bad month in '* * * FOO *': {FORM}"),
        ("* 22-2 * * *", f"x-cron: bad hour in '* 22-2 * * *': {FORM}"),
        ("*/0 * * * *", f"x-cron: bad minute in '*/0 * * * *': {FORM}"),
        ("1,,2 * * * *", f"x-cron: bad minute in '1,,2 * * * *': {FORM}"),
        ("* * * * 1#6", f"x-cron: bad day-of-week in '* * * * 1#6': {FORM}"),
        ("-1 * * * *", f"x-cron: bad minute in '-1 * * * *': {FORM}"),
        ("* * * *", f"x-cron: '* * * *' has 4 fields: {FORM}"),
        ("daily", f"x-cron: 'daily' has 1 field: {FORM}"),
        ("", f"x-cron: '' has 0 fields: {FORM}"),
        ("0 0 1 1 * * 2027", f"x-cron: '0 0 1 1 * * 2027' has 7 fields: {FORM}"),
        (
            "@reboot",
            "x-cron: '@reboot' is no known short form: use one of @hourly, @daily, @midnight, "
            "@weekly, @monthly, @yearly, @annually, or write fields",
        ),
        (
            "* * */20 * 1L",
            "x-cron: '* * */20 * 1L' matches no day of any year: change its day-of-month, month or "
            "day-of-week",
        ),
        ("0 0 31 2 *", f"x-cron: bad day-of-month in '0 0 31 2 *': {FORM}"),
        ("1" * 65, "x-cron: 65 bytes are too many: use at most 64"),
        ("0 9 * *\t*", "x-cron: bad character in '0 9 * *\\t*': use printable ASCII"),
        ("0 9 * * \xa0*", "x-cron: bad character in '0 9 * * \\xa0*': use printable ASCII"),
        ("0 9 * * *\0", "x-cron: bad character in '0 9 * * *\\x00': use printable ASCII"),
    ],
)
def test_an_expression_is_refused(expression: str, message: str) -> None:
    rules = CronRules()
    for _ in range(2):  # also from what is kept
        for call in (
            lambda: rules.check(expression.encode("latin-1"), b"UTC"),
            lambda: rules.next_after(expression.encode("latin-1"), b"UTC", 0),
            lambda: rules.next_instants(expression.encode("latin-1"), b"UTC", 0, 0),
        ):
            with pytest.raises(CronError) as caught:
                call()
            assert str(caught.value) == caught.value.message == message
            assert message.isascii()
            assert message.isprintable()


@pytest.mark.parametrize(
    "zone",
    [
        *("Europe/Berln", "europe/berlin", "Europe", "Europe/", "", "CEST", "+02:00", "zone.tab"),
        *("../UTC", "Europe/../UTC", "./UTC", "/UTC", "//UTC", "UTC/..", "Europe//Berlin"),
        *("right/UTC", "posix/UTC", "localtime", "posixrules", "tzdata.zi", "leapseconds"),
        *("Europe\\Berlin", "Europe/Berlin ", "UTC|x"),
    ],
)
def test_a_zone_is_refused(zone: str) -> None:
    rules = CronRules()
    shown = repr(zone)
    for _ in range(2):
        with pytest.raises(CronError) as caught:
            rules.check(b"* * * * *", zone.encode())
        assert caught.value.message == (
            f"x-cron-zone: {shown} is no IANA time zone, such as Europe/Berlin or UTC"
        )


def test_a_zone_that_is_no_text_is_refused() -> None:
    with pytest.raises(CronError, match="x-cron-zone: 65 bytes are too many: use at most 64"):
        CronRules().check(b"* * * * *", b"A" * 65)
    with pytest.raises(CronError, match=r"x-cron-zone: bad character in .Z.xfcrich.: use"):
        CronRules().check(b"* * * * *", "Z\xfcrich".encode("latin-1"))


@pytest.mark.parametrize("value", [b"0 9 * * *", b'"0 9 * * *"', b"  0  9 * * *  "])
def test_what_is_allowed_passes(value: bytes) -> None:
    CronRules().check(value, b"America/Argentina/Buenos_Aires")
    CronRules().check(b'"' + b"0 0 1 1 1".ljust(64) + b'"', b"Etc/GMT+12")


def calls_of_next(rules: CronRules, expression: str, after_s: int) -> int:
    """How many functions one call enters, of Python and of C."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        rules.next_after(expression.encode(), b"Europe/Berlin", after_s * 1000)
    except CronError:
        pass
    finally:
        sys.setprofile(None)
    return count


HARD: Final = (
    "* * */20 * 1L",
    "0 0 29 2 */20",
    "59 59 23 29 2 */8",
    "59 59 23 L,LW 12 1L,2L,3L,4L,5L,6L,7L",
    "58,59 58,59 22,23 */30 2-12 */5",
    "1,3,58 59 23 */29 2 0#5",
    "1 1 1 */31 2,4,6,9,11 *",
    "59 59 23 31 12 *",
)


def test_no_expression_costs_much() -> None:
    """Counted, since time depends on the machine. cronsim alone takes 100,000 for the first."""
    rng = random.Random(1)
    expressions = [*HARD, *(random_expression(rng) for _ in range(200))]
    overlap = changes_of("Europe/Berlin")[1]
    for expression in expressions:
        rules = CronRules()
        assert calls_of_next(rules, expression, BEGIN_S) < 6_000, expression
        # After the last one for 28 years the search ends at the horizon.
        for after in (BEGIN_S, overlap - 1_000, overlap + 1_000, epoch_s(2032, 3, 1)):
            count = calls_of_next(rules, expression, after)
            assert count < 1_500, (expression, after, count)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cron_rules, "EXPRESSIONS_MAX", 10)
    parsed: list[str] = []
    parse = cron_rules._parse
    monkeypatch.setattr(cron_rules, "_parse", lambda text: parsed.append(text) or parse(text))
    rules = CronRules()
    for minute in range(11):
        rules.check(b"%d * * * *" % minute, b"UTC")
    rules.check(b"1 * * * *", b"UTC")
    with pytest.raises(CronError):
        rules.check(b"99 * * * *", b"UTC")  # takes the place of minute 2
    for _ in range(3):
        with pytest.raises(CronError):
            rules.check(b"99 * * * *", b"UTC")
        rules.check(b"1 * * * *", b"UTC")
    assert len(parsed) == 12
    rules.check(b"2 * * * *", b"UTC")
    assert len(parsed) == 13


@pytest.fixture
def zone_directory(tmp_path: Path) -> Iterator[Path]:
    """Where zoneinfo finds zones meanwhile, and nowhere else but in tzdata."""
    zoneinfo.reset_tzpath(to=[str(tmp_path)])
    yield tmp_path
    zoneinfo.reset_tzpath()


def zone_file(offset_s: int, *changes: tuple[int, int]) -> bytes:
    """A zone of one offset, and of others from instants on, in the format of RFC 9636."""
    offsets = [offset_s, *(offset for _, offset in changes)]
    counts = struct.pack(">6l", 0, 0, 0, len(changes), len(offsets), 4)
    types = b"".join(struct.pack(">lBB", offset, 0, 0) for offset in offsets)
    kinds = bytes(range(1, len(offsets)))
    parts = b""
    for form in ("l", "q"):
        instants = b"".join(struct.pack(f">{form}", instant) for instant, _ in changes)
        parts += b"TZif2" + bytes(15) + counts + instants + kinds + types + b"ABC\0"
    return parts + b"\n\n"


def test_an_update_of_the_zone_data_counts_after_an_hour(zone_directory: Path) -> None:
    path = zone_directory / "Here"
    path.write_bytes(zone_file(HOUR_S))
    now_ns, hour_ns = 5, HOUR_S * 10**9
    rules, forever = CronRules(lambda: now_ns), CronRules()

    def hour_of(rules: CronRules) -> int:
        instant = rules.next_after(b"0 9 * * *", b"Here", BEGIN_S * 1000)
        assert instant is not None
        return (instant // 1000 - BEGIN_S) // HOUR_S

    assert hour_of(rules) == hour_of(forever) == 8
    path.write_bytes(zone_file(2 * HOUR_S))
    now_ns += hour_ns - 10**6
    assert hour_of(rules) == 8
    now_ns += 10**6
    assert hour_of(rules) == 7
    assert hour_of(forever) == 8
    # It is being replaced: the zone stays as it was, and is loaded when it is there again.
    path.unlink()
    now_ns += hour_ns
    assert hour_of(rules) == 7
    path.write_bytes(zone_file(3 * HOUR_S))
    now_ns += hour_ns
    assert hour_of(rules) == 6


def test_a_zone_that_comes_with_an_update_is_known_after_an_hour(zone_directory: Path) -> None:
    now_ns = 0
    rules = CronRules(lambda: now_ns)
    with pytest.raises(CronError):
        rules.check(b"* * * * *", b"Here")
    (zone_directory / "Here").write_bytes(zone_file(0))
    with pytest.raises(CronError):
        rules.check(b"* * * * *", b"Here")
    now_ns += HOUR_S * 10**9
    rules.check(b"* * * * *", b"Here")


def test_without_zones_of_the_system_those_of_tzdata_are_used(zone_directory: Path) -> None:
    after = epoch_s(2026, 7, 1) * 1000
    found = CronRules().next_after(b"0 9 * * *", b"Europe/Berlin", after)
    assert found == after + 7 * HOUR_S * 1000


def test_a_damaged_zone_is_refused(zone_directory: Path) -> None:
    whole = zone_file(0, (BEGIN_S, HOUR_S))
    for size in range(0, len(whole) - 2, 7):
        (zone_directory / "Here").write_bytes(whole[:size])
        with pytest.raises(CronError, match="'Here' is no IANA time zone"):
            CronRules().check(b"* * * * *", b"Here")


def test_instants_rise_even_in_a_zone_that_changes_all_the_time(zone_directory: Path) -> None:
    rng = random.Random(7)
    for _ in range(20):
        changes = [(BEGIN_S + 600 * number, 60 * rng.randint(-200, 200)) for number in range(1, 60)]
        (zone_directory / "Here").write_bytes(zone_file(0, *changes))
        rules = CronRules()
        for expression in ("*/13 * * * *", "*/11 0-20 * * *"):
            found = sequence(rules, expression, "Here", BEGIN_S, BEGIN_S + DAY_S)
            assert len(found) > 10  # and `sequence` checks that they rise
