"""What the cron expressions of a record mean, written once more from the rule, without cronsim.

A zone is a list of spans of one offset each, found by a walk over time. In a span, local times run
like those of a zone without changes, so that matching them needs no rule of daylight saving; the
rule is what happens where two spans meet (docs/decisions/0036-recurring-messages.md).
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

HOUR_S: Final = 3_600
DAY_S: Final = 86_400

RANGES: Final = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
"""Least and greatest number of second, minute, hour, day of month, month, day of week."""
MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_EPOCH: Final = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Span:
    """From `begin_s` on, seconds since 1970 UTC, until the next one, a zone has one offset."""

    begin_s: int
    offset_s: int


def zone_spans(zone: str, begin_s: int, end_s: int) -> list[Span]:
    """Walk over time in hours, and in seconds through each hour in which the offset changes."""
    return _walk(ZoneInfo(zone), begin_s, end_s)


def _walk(rules: ZoneInfo, begin_s: int, end_s: int) -> list[Span]:
    def offset_s(instant_s: int) -> int:
        offset = datetime.fromtimestamp(instant_s, rules).utcoffset()
        assert offset is not None
        return int(offset.total_seconds())

    spans = [Span(begin_s, offset_s(begin_s))]
    for hour in range(begin_s, end_s, HOUR_S):
        if offset_s(hour + HOUR_S) == spans[-1].offset_s:
            continue
        for second in range(hour, hour + HOUR_S + 1):
            if offset_s(second) != spans[-1].offset_s:
                spans.append(Span(second, offset_s(second)))
    return spans


@functools.cache
def local_date(days: int) -> date:
    """Return the date that is some days after 1970 began."""
    return _EPOCH + timedelta(days=days)


class CronModel:
    """One expression, five fields or six."""

    def __init__(self, expression: str) -> None:
        fields = expression.upper().split()
        if len(fields) == 5:
            fields = ["0", *fields]
        seconds, minutes, hours = (
            sorted(_numbers(field, bounds))
            for field, bounds in zip(fields[:3], RANGES[:3], strict=True)
        )
        self.is_every_hour = hours == list(range(24))
        self.months = _numbers(fields[4], RANGES[4], MONTHS, 1)
        self.days, self.weekdays = fields[3], fields[5]
        self.needs_both = "*" in (self.days[0], self.weekdays[0])
        self.times = [h * 3600 + m * 60 + s for h in hours for m in minutes for s in seconds]

    def matches_day(self, day: date) -> bool:
        """Return whether the expression matches any time of a day."""
        if day.month not in self.months:
            return False
        of_month = any(_is_day(term, day) for term in self.days.split(","))
        of_week = any(_is_weekday(term, day) for term in self.weekdays.split(","))
        return (of_month and of_week) if self.needs_both else (of_month or of_week)

    def matches_between(self, begin_s: int, end_s: int) -> Iterator[int]:
        """Yield what matches from begin to before end, in seconds since 1970 of one clock."""
        for number in range(begin_s // DAY_S, (end_s - 1) // DAY_S + 1):
            if not self.matches_day(local_date(number)):
                continue
            for second in self.times:
                if begin_s <= number * DAY_S + second < end_s:
                    yield number * DAY_S + second

    def instants_after(self, spans: list[Span], after_s: int, end_s: int) -> Iterator[int]:
        """Yield each delivery after an instant and before another, in seconds since 1970 UTC.

        Args:
            spans: of the zone; they begin more than a day before `after_s`.
            after_s: before the first delivery.
            end_s: after the last one.
        """
        ends = [span.begin_s for span in spans[1:]] + [end_s]
        before = spans[0]
        for span, span_end in zip(spans, ends, strict=True):
            old_local, new_local = (span.begin_s + each.offset_s for each in (before, span))
            before = span
            if span_end <= after_s or span.begin_s >= end_s:
                continue
            last = after_s
            # Skipped local times; there are none if the offset fell.
            if span.begin_s > last and any(self.matches_between(old_local, new_local)):
                last = span.begin_s
                yield last
            # What was there before is here for the second time.
            begin = new_local if self.is_every_hour else max(old_local, new_local)
            begin = max(begin, last + 1 + span.offset_s)
            for local in self.matches_between(begin, min(span_end, end_s) + span.offset_s):
                yield local - span.offset_s


def _numbers(
    field: str, bounds: tuple[int, int], names: tuple[str, ...] = (), first: int = 0
) -> set[int]:
    """Return the numbers of a field without `L` and `#`; the number of `names[0]` is `first`."""
    found: set[int] = set()
    for term in field.split(","):
        part, _, step = term.partition("/")
        low, _, high = part.partition("-")
        if low == "*":
            begin, end = bounds
        else:
            begin = _number(low, names, first)
            end = _number(high, names, first) if high else bounds[1] if step else begin
        found.update(range(begin, end + 1, int(step or 1)))
    return found


def _number(text: str, names: tuple[str, ...], first: int) -> int:
    return names.index(text) + first if text in names else int(text)


def _is_day(term: str, day: date) -> bool:
    tomorrow = day + timedelta(days=1)
    if term == "L":
        return tomorrow.month != day.month
    if term == "LW":
        # It is no day of a weekend, and only such days follow in its month.
        next_working = tomorrow
        while next_working.isoweekday() > 5:
            next_working += timedelta(days=1)
        return day.isoweekday() <= 5 and next_working.month != day.month
    return day.day in _numbers(term, RANGES[3])


def _is_weekday(term: str, day: date) -> bool:
    if term.endswith("L"):
        name, is_in_month = term[:-1], (day + timedelta(days=7)).month != day.month
    elif "#" in term:
        name, _, which = term.partition("#")
        is_in_month = (day.day - 1) // 7 + 1 == int(which)
    else:
        name, is_in_month = term, True
    numbers = {number % 7 for number in _numbers(name, RANGES[5], WEEKDAYS)}
    return is_in_month and day.isoweekday() % 7 in numbers


def epoch_s(*local: int, zone: str = "UTC", fold: int = 0) -> int:
    """Return the seconds since 1970 of a year, month, day, and so on, of a zone."""
    year, month, day, *rest = local
    hour, minute, second = (*rest, 0, 0, 0)[:3]
    moment = datetime(year, month, day, hour, minute, second, tzinfo=ZoneInfo(zone), fold=fold)
    return int(moment.astimezone(UTC).timestamp())
