"""Cron expressions: which instants one names in a time zone.

The library cronsim parses an expression and says which local times match it. Here is what it leaves
open: which instant a local time is when clocks change (docs/decisions/0036-recurring-messages.md),
how far a search goes and what it costs, and what a client is answered.

- The five fields are minute, hour, day of month, month, day of week; a sixth in front has seconds.
  A field is a list of `*`, `5`, `1-5`, and any of these with a step: `*/15`, `10-40/10`, `5/20`
  (from 5 on). Months and days of the week may be names of three letters, in either case. Sunday is
  0 and 7. A range does not wrap: `22-2` is refused, `22-23,0-2` is the same.
- Day of month also: `L`, the last day, and `LW`, the last of Monday to Friday. Day of week also:
  `5L`, the last Friday of the month, and `1#2`, its second Monday.
- If one of the two day fields begins with `*`, a day must match both. Otherwise one suffices:
  `0 0 13 * FRI` is each 13th and each Friday, as in Debian's cron.
- `@hourly`, `@daily`, `@midnight`, `@weekly`, `@monthly`, `@yearly` and `@annually` are short
  forms.

An expression that matches no day of any year is refused. A search visits at most the months until
the horizon, then one day; which days of a month match is found out once for each shape of a month.
Layer 3; reads no clock, and no file but through zoneinfo.
"""

import calendar
import copy
import re
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Final, Generic, TypeVar
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from cronsim.cronsim import Field

from appliance.units import MS_PER_DAY, MS_PER_SECOND, NS_PER_MS

EXPRESSION_HEADER: Final = "x-cron"
ZONE_HEADER: Final = "x-cron-zone"

VALUE_SIZE_MAX: Final = 64
"""Bytes of an expression or of a zone's name, without quotes: as for the other delay headers."""

HORIZON_MS: Final = 3_700 * MS_PER_DAY
"""How far after an instant the next one may be: ten years and 47 days.

29 February comes at least every eight years.
"""

AFTER_MS_MAX: Final = 10**14
"""After the year 5138 nothing comes any more; `x-deliver-at` refuses such instants too."""

ZONE_AGE_MAX_MS: Final = 3_600_000
"""A zone is loaded again after an hour: an update of the zone data needs no restart."""

EXPRESSIONS_MAX: Final = 1_024
"""Parsed expressions that are kept, and refused ones. One takes about 6 KB."""

ZONES_MAX: Final = 1_024
"""Zones that are kept, and refused names. There are about 600 zones, of about 6 KB each."""

_FORM: Final = (
    "use five fields (minute hour day-of-month month day-of-week) or six with seconds first"
)
_SHORT_FORMS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

# No dot, and no slash at either end: no name leads out of the directory of zones.
_ZONE_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z][A-Za-z0-9_+-]*)*", re.ASCII)
# Directories and links of a system that are no zones of IANA. `right/` counts leap seconds.
_OF_SYSTEM: Final = ("right/", "posix/", "localtime", "posixrules")

_START: Final = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)
_SECOND: Final = timedelta(seconds=1)
# A local time differs from UTC by less than a day.
_SEARCHED: Final = timedelta(milliseconds=HORIZON_MS, days=2)
# The days of the week of a month repeat after 28 years, if no century is among them without leap
# year; every shape of a month is in these.
_YEARS_OF_ALL_SHAPES: Final = range(2000, 2028)

_Value = TypeVar("_Value")


class CronError(ValueError):
    """An expression or a zone is refused and its producer can correct it.

    Args:
        message: one line of printable ASCII for a client: the header, what is wrong, what to do.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class CronRules:
    """Computes the instants of cron expressions.

    Expressions and zones are kept once they are parsed, refused ones as well, within bounds. Any
    thread may call it. The first use of an expression takes up to 2 ms, the first use of a zone up
    to 1 ms, a later call 20 to 300 microseconds.

    Args:
        monotonic_ns: the monotonic clock by which zones grow old; without one they are kept as they
            were first loaded.
    """

    def __init__(self, monotonic_ns: Callable[[], int] | None = None) -> None:
        self._monotonic_ns = monotonic_ns
        self._schedules: _Recent[_Schedule | str] = _Recent(EXPRESSIONS_MAX)
        self._zones: _Recent[_Loaded] = _Recent(ZONES_MAX)

    def check(self, expression: bytes, zone: bytes) -> None:
        """Check the values of the two headers.

        Args:
            expression: value of `x-cron`.
            zone: value of `x-cron-zone`, `UTC` if there is none.

        Raises:
            CronError: one of them is not allowed, or the expression matches no day of any year.
        """
        self._schedule_of(expression)
        self._zone_of(zone)

    def next_after(self, expression: bytes, zone: bytes, after_ms: int) -> int | None:
        """Return the first instant after another; it depends on nothing but the arguments.

        Args:
            expression: value of `x-cron`.
            zone: value of `x-cron-zone`, `UTC` if there is none.
            after_ms: epoch ms, 0 or more.

        Returns:
            Epoch ms, above `after_ms`, a whole second. None if there is no instant until the
            horizon, HORIZON_MS after `after_ms`, or if `after_ms` exceeds AFTER_MS_MAX.

        Raises:
            CronError: as by `check`.
        """
        schedule, rules = self._schedule_of(expression), self._zone_of(zone)
        if after_ms > AFTER_MS_MAX:
            return None
        found = _next_second(schedule, rules, after_ms // MS_PER_SECOND)
        if found is None or found * MS_PER_SECOND > after_ms + HORIZON_MS:
            return None
        return found * MS_PER_SECOND

    def next_instants(self, expression: bytes, zone: bytes, after_ms: int, count: int) -> list[int]:
        """Return the first instants after another, in their order.

        Args:
            expression: value of `x-cron`.
            zone: value of `x-cron-zone`, `UTC` if there is none.
            after_ms: epoch ms, 0 or more.
            count: how many at most; the cost grows with it.

        Returns:
            Epoch ms; fewer than `count` if one has no next instant until its horizon.

        Raises:
            CronError: as by `check`.
        """
        found: list[int] = []
        self.check(expression, zone)
        while len(found) < count:
            instant = self.next_after(expression, zone, after_ms)
            if instant is None:
                break
            found.append(instant)
            after_ms = instant
        return found

    def _schedule_of(self, expression: bytes) -> "_Schedule":
        text = _read_text(EXPRESSION_HEADER, expression)
        schedule = self._schedules.find(text)
        if schedule is None:
            try:
                schedule = _parse(text)
            except CronError as error:
                schedule = error.message
            self._schedules.keep(text, schedule)
        if isinstance(schedule, str):
            raise CronError(schedule)
        return schedule

    def _zone_of(self, zone: bytes) -> tzinfo:
        name = _read_text(ZONE_HEADER, zone)
        loaded = self._zones.find(name)
        now_ms = 0 if self._monotonic_ns is None else self._monotonic_ns() // NS_PER_MS
        if loaded is None or now_ms - loaded.at_ms >= ZONE_AGE_MAX_MS:
            rules = _load_zone(name)
            if rules is None and loaded is not None:
                # Its file is being replaced, or is gone: messages of a known zone come on.
                rules = loaded.rules
            loaded = _Loaded(rules, now_ms)
            self._zones.keep(name, loaded)
        if loaded.rules is None:
            raise CronError(
                f"{ZONE_HEADER}: {name!r} is no IANA time zone, such as Europe/Berlin or UTC"
            )
        return loaded.rules


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A zone as it was at one moment.

    Attributes:
        rules: None if there was no such zone.
        at_ms: when, monotonic ms.
    """

    rules: tzinfo | None
    at_ms: int


class _Recent(Generic[_Value]):
    """The values that were used last, by their text; any thread may call it."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._values: OrderedDict[str, _Value] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, text: str) -> _Value | None:
        """Return the value of a text, which now was used last; None if it is not kept."""
        with self._lock:
            value = self._values.get(text)
            if value is not None:
                self._values.move_to_end(text)
            return value

    def keep(self, text: str, value: _Value) -> None:
        """Keep a value; the one that was not used for longest makes room for it."""
        with self._lock:
            self._values[text] = value
            self._values.move_to_end(text)
            if len(self._values) > self._count_max:
                self._values.popitem(last=False)


class _Schedule(CronSim):
    """A parsed expression, which iterates over local times without a zone.

    For those cronsim has no rules of daylight saving. Unlike CronSim, it stops at an end instead
    of after 50 years, and looks at the days of a month once for each shape of a month.

    Attributes:
        is_every_hour: it has all hours: `*`, or another way to write that.

    Raises:
        CronSimError: the expression is not allowed.
    """

    def __init__(self, expression: str) -> None:
        super().__init__(_without_ranges_of_one(expression), _START)
        self.is_every_hour = len(self.hours) == 24
        self._end = _START
        # By the day of the week of its first day and its length: 28 at most. Copies share it.
        self._days_by_shape: dict[tuple[int, int], tuple[int, ...]] = {}

    def is_possible(self) -> bool:
        """Return whether any day of any year matches."""
        months = sorted(self.months)
        return any(self._days(year, month) for year in _YEARS_OF_ALL_SHAPES for month in months)

    def first_after(self, local: datetime, end: datetime) -> datetime | None:
        """Return the first local time after another that matches; None if there is none until end.

        Args:
            local: without zone and fraction of a second.
            end: the same; at least until there, and no month further.
        """
        walk = copy.copy(self)
        walk.dt, walk._end = local, end
        return next(walk, None)

    def advance_month(self) -> None:
        super().advance_month()
        if self.dt > self._end:
            raise StopIteration

    def advance_day(self) -> bool:
        day = self.dt.day
        days = self._days(self.dt.year, self.dt.month)
        if day in days:
            return False
        midnight = datetime.combine(self.dt.date(), time())
        later = next((each for each in days if each > day), None)
        if later is None:
            # To the first day of the next month, whose name may not match.
            self.dt = (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
        else:
            self.dt = midnight.replace(day=later)
        return True

    def _days(self, year: int, month: int) -> tuple[int, ...]:
        """Return the days of a month that match."""
        shape = calendar.monthrange(year, month)
        days = self._days_by_shape.get(shape)
        if days is None:
            first = datetime(year, month, 1, tzinfo=UTC).date()
            dates = (first.replace(day=number) for number in range(1, shape[1] + 1))
            days = tuple(date.day for date in dates if self.match_day(date))
            self._days_by_shape[shape] = days
        return days


def _read_text(header: str, value: bytes) -> str:
    """Return the text of a header, without JSON's quotes.

    Raises:
        CronError: it is too long, or is not printable ASCII.
    """
    if len(value) >= 2 and value[:1] == value[-1:] == b'"':
        value = value[1:-1]
    if len(value) > VALUE_SIZE_MAX:
        raise CronError(f"{header}: {len(value)} bytes are too many: use at most {VALUE_SIZE_MAX}")
    text = value.decode("latin-1")
    if not (text.isascii() and text.isprintable()):
        raise CronError(f"{header}: bad character in {text!a}: use printable ASCII")
    return text


def _parse(text: str) -> _Schedule:
    """Parse an expression.

    Raises:
        CronError: it is not allowed.
    """
    shown = f"{EXPRESSION_HEADER}: {text!r}"
    expression = text.strip()
    if expression.startswith("@"):
        full = _SHORT_FORMS.get(expression.lower())
        if full is None:
            names = ", ".join(_SHORT_FORMS)
            raise CronError(f"{shown} is no known short form: use one of {names}, or write fields")
        expression = full
    field_count = len(expression.split())
    if field_count not in (5, 6):
        fields = "1 field" if field_count == 1 else f"{field_count} fields"
        raise CronError(f"{shown} has {fields}: {_FORM}")
    try:
        schedule = _Schedule(expression)
    except CronSimError as error:
        fault = str(error).lower()
        raise CronError(f"{EXPRESSION_HEADER}: {fault} in {text!r}: {_FORM}") from error
    if not schedule.is_possible():
        raise CronError(
            f"{shown} matches no day of any year: change its day-of-month, month or day-of-week"
        )
    return schedule


def _without_ranges_of_one(expression: str) -> str:
    """Return an expression in which no range of one number has a step.

    cronsim takes `3-3/2` for `3/2`, which goes on after 3.

    Raises:
        CronSimError: such a range is not allowed.
    """
    fields = expression.upper().split()
    for place, field in enumerate(fields, start=6 - len(fields)):
        terms = field.split(",")
        for index, term in enumerate(terms):
            part, _, step = term.partition("/")
            if "-" in part and step.strip("0").isdigit() and len(Field(place).parse(part)) == 1:
                terms[index] = part
        fields[place - (6 - len(fields))] = ",".join(terms)
    return " ".join(fields)


def _load_zone(name: str) -> tzinfo | None:
    """Return a zone as its file is now; None if there is no such zone."""
    if not _ZONE_NAME.fullmatch(name) or name.startswith(_OF_SYSTEM):
        return None
    try:
        return ZoneInfo.no_cache(name)
    except (AssertionError, EOFError, LookupError, OSError, ValueError, struct.error):
        # ZoneInfoNotFoundError is a LookupError. The others are of directories and damaged files.
        return None


def _next_second(schedule: _Schedule, rules: tzinfo, after_s: int) -> int | None:
    """Return the first second after another, both since 1970; see CronRules.next_after."""
    start = datetime.fromtimestamp(after_s, rules)
    local = start.replace(tzinfo=None, fold=0)
    end = local + _SEARCHED
    first, second = _offset_s(rules, local, fold=0), _offset_s(rules, local, fold=1)
    if first > second:
        # `after_s` is in an overlap; at `change` its second pass begins.
        wall_s = _seconds(local)
        change = _find_change(rules, wall_s - first, wall_s - second)
        overlap_begin, overlap_end = _local(change + second), _local(change + first)
        is_first_pass = after_s == wall_s - first
        found = schedule.first_after(local, end)
        if is_first_pass and found is not None and found < overlap_end:
            return _seconds(found) - first
        if schedule.is_every_hour:
            if is_first_pass:
                found = schedule.first_after(overlap_begin - _SECOND, end)
            if found is not None and after_s < _seconds(found) - second < change + first - second:
                return _seconds(found) - second
        # The first pass is over, and the second one is not for this schedule.
        local = overlap_end - _SECOND
    found = schedule.first_after(local, end)
    while found is not None:
        instant = _first_instant(rules, found)
        if instant > after_s:
            return instant
        # Only if a zone has two changes within hours. Each turn comes closer to the end.
        found = schedule.first_after(found, end)
    return None


def _first_instant(rules: tzinfo, local: datetime) -> int:
    """Return when a local time is delivered, in seconds since 1970.

    That is its instant, the first of two, or the end of the gap that it is in.
    """
    before, after = _offset_s(rules, local, fold=0), _offset_s(rules, local, fold=1)
    wall_s = _seconds(local)
    if before >= after:
        return wall_s - before
    return _find_change(rules, wall_s - after, wall_s - before)


def _find_change(rules: tzinfo, low_s: int, high_s: int) -> int:
    """Return the first second with another offset than `low_s` has; `high_s` has another."""
    old = datetime.fromtimestamp(low_s, rules).utcoffset()
    while high_s - low_s > 1:
        middle_s = (low_s + high_s) // 2
        if datetime.fromtimestamp(middle_s, rules).utcoffset() == old:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s


def _offset_s(rules: tzinfo, local: datetime, *, fold: int) -> int:
    """Return the offset from UTC of a local time, in seconds."""
    offset = local.replace(tzinfo=rules, fold=fold).utcoffset()
    assert offset is not None
    return offset // _SECOND


def _seconds(local: datetime) -> int:
    """Return how many seconds a local time is after 1970 began on the same clock."""
    return (local - _START) // _SECOND


def _local(wall_s: int) -> datetime:
    """Return the local time of what `_seconds` counts."""
    return _START + timedelta(seconds=wall_s)
