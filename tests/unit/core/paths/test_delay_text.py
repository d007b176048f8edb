"""The values of the delay headers mean what the contract says, and nothing else is accepted.

The tables follow the contract sentence by sentence. Everything else is compared with `oracle`,
which shares nothing with the code under test: regular expressions, fractions and datetime instead
of a cursor.
"""

import re
from datetime import UTC, datetime
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from _core.paths.delay_text import describe, parse

DELAY = "x-delay"
DELIVER_AT = "x-deliver-at"
LEVEL = "x-delay-level"
HEADERS = (DELAY, DELIVER_AT, LEVEL)
CODES = range(1, 24)  # of DelayError in the .pxd file

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

INT64_MAX = 2**63 - 1
RESULT_MAX = 2**61 - 1
NEW_YEAR = 1_767_225_600_000  # 2026-01-01T00:00:00Z


def long(value: int) -> bytes:
    """What a Java Long serializer writes."""
    return value.to_bytes(8, "big", signed=True)


def integer(value: int) -> bytes:
    """What a Java Integer serializer writes."""
    return value.to_bytes(4, "big", signed=True)


# The oracle

UNIT_MS = {"ms": 1, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
DURATION = re.compile(
    r"P(?=.)(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.ASCII
)
INSTANT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d)(?::(\d\d)(\.\d+)?)?"
    r"(?:[Zz]|([+-])(\d\d):(\d\d))",
    re.ASCII,
)
NULL = {DELAY: -2, LEVEL: 0}
NEGATIVE = {DELAY: -1, LEVEL: 0}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def oracle_delay(text: str) -> int | None:
    if re.fullmatch(r"[0-9]+", text):
        return int(text)
    if found := re.fullmatch(r"([0-9]+)(ms|[smhd])", text):
        return int(found[1]) * UNIT_MS[found[2]]
    if found := re.fullmatch(r"P([0-9]+)W", text):
        return int(found[1]) * 7 * DAY
    if found := DURATION.fullmatch(text):
        parts = [Fraction(part or 0) for part in found.groups()]
        return ceil(sum(p * ms for p, ms in zip(parts, (DAY, HOUR, MINUTE, SECOND), strict=True)))
    return None


def oracle_deliver_at(text: str) -> int | None:
    if re.fullmatch(r"[0-9]+", text):
        return int(text) if 10**11 <= int(text) <= 10**14 else None
    found = INSTANT.fullmatch(text)
    if not found:
        return None
    try:
        local = datetime(*(int(part or 0) for part in found.groups()[:6]), tzinfo=UTC)
    except ValueError:
        return None
    offset = 0
    if found[8]:
        if int(found[9]) > 23 or int(found[10]) > 59:
            return None
        offset = int(f"{found[8]}1") * (int(found[9]) * 60 + int(found[10])) * MINUTE
    since = local - EPOCH
    whole = since.days * DAY + since.seconds * SECOND - offset
    result = whole + ceil(Fraction("0" + (found[7] or "")) * SECOND)
    return result if result >= 0 else None


def oracle(header: str, value: bytes | None) -> int | None:
    """The number, or None if the value is refused."""
    if value is None or value == b"null":
        return NULL.get(header)
    if len(value) in (4, 8) and not 0x20 <= value[0] < 0x80:
        number = int.from_bytes(value, "big", signed=True)
        if header == DELIVER_AT:
            return number if 10**11 <= number <= 10**14 else None
        return number if number >= 0 else NEGATIVE[header]
    if found := re.fullmatch(rb'"(.*)"', value, re.DOTALL):
        value = found[1]
    if not value or len(value) > 64:
        return None
    text = value.decode("latin-1")
    if header == DELIVER_AT:
        return oracle_deliver_at(text)
    is_negative, text = text.startswith("-"), text.removeprefix("-")
    if header == LEVEL:
        result = min(int(text), INT64_MAX) if re.fullmatch(r"[0-9]+", text) else None
    else:
        result = oracle_delay(text)
    if is_negative and result is not None:
        return NEGATIVE[header]
    return None if header == DELAY and result is not None and result > RESULT_MAX else result


def assert_agrees(header: str, value: bytes) -> None:
    expected = oracle(header, value)
    try:
        found = parse(header, value)
    except ValueError as refusal:
        message = str(refusal)
    else:
        assert found == expected, f"{header} {value!r}"
        return
    assert expected is None, f"{header} {value!r} was refused: {message}"
    assert message.isascii()
    assert message.isprintable()
    assert message in {describe(code, header, value) for code in CODES}


# Accepted

ACCEPTED: list[tuple[str, bytes | None, int]] = [
    (DELAY, b"1500", 1500),
    (DELAY, b"0", 0),
    (DELAY, b"0000000000000000000000000000000000001500", 1500),
    (DELAY, b"0" * 63 + b"7", 7),
    (DELAY, b"86400000", DAY),  # eight bytes, and text
    (DELAY, b"250ms", 250),
    (DELAY, b"30s", 30 * SECOND),
    (DELAY, b"15m", 15 * MINUTE),
    (DELAY, b"2h", 2 * HOUR),
    (DELAY, b"7d", 7 * DAY),
    (DELAY, b"007d", 7 * DAY),
    (DELAY, b"0000015m", 15 * MINUTE),  # eight bytes, and text
    (DELAY, b"PT15M", 15 * MINUTE),
    (DELAY, b"P1DT2H", 26 * HOUR),
    (DELAY, b"P1D", DAY),
    (DELAY, b"PT1.5S", 1500),
    (DELAY, b"P2W", 14 * DAY),
    (DELAY, b"P1DT2H3M4.567S", DAY + 2 * HOUR + 3 * MINUTE + 4567),
    (DELAY, b"PT90M", 90 * MINUTE),
    (DELAY, b"PT100H", 100 * HOUR),
    (DELAY, b"PT0S", 0),
    (DELAY, b"PT1H0.25S", HOUR + 250),
    (DELAY, b"PT0.001S", 1),
    (DELAY, b"PT0.0001S", 1),
    (DELAY, b"PT0.0010000000000000000000000000001S", 2),
    (DELAY, b"PT1.0000000S", 1000),
    (DELAY, b"PT1.9999S", 2000),
    (DELAY, long(0), 0),
    (DELAY, long(1500), 1500),
    (DELAY, integer(0), 0),
    (DELAY, integer(1500), 1500),
    (DELAY, integer(2**29 - 1), 2**29 - 1),
    (DELAY, b"1000", 1000),  # four bytes, and text
    (DELAY, b"P10D", 10 * DAY),  # four bytes, and text
    # JSON's quotes, around text of any form.
    (DELAY, b'"1500"', 1500),
    (DELAY, b'"30s"', 30 * SECOND),
    (DELAY, b'"10"', 10),  # four bytes, and text
    (DELAY, b'"123ms"', 123),
    (DELAY, b'"PT15M"', 15 * MINUTE),
    (DELAY, b'"-30s"', -1),
    (DELAY, b'"' + b"0" * 63 + b'7"', 7),
    (DELIVER_AT, b'"1767225600000"', NEW_YEAR),
    (DELIVER_AT, b'"2026-01-01T00:00:00Z"', NEW_YEAR),
    (LEVEL, b'"3"', 3),
    (LEVEL, b'"-3"', 0),
    # Null and what is negative ask for no delay.
    (DELAY, None, -2),
    (DELAY, b"null", -2),
    (LEVEL, None, 0),
    (LEVEL, b"null", 0),
    *((DELAY, text, -1) for text in b"-1500 -1 -0 -30s -250ms -7d -PT15M -P1DT2H -P2W".split()),
    (DELAY, b"-" + b"9" * 63, -1),
    (DELAY, b"-0000015", -1),  # eight bytes, and text
    *((DELAY, number, -1) for number in (long(-1), long(-(2**63)), long(-1500))),
    *((DELAY, number, -1) for number in (integer(-1), integer(-(2**31)), integer(-1500))),
    *((LEVEL, text, 0) for text in (b"-1", b"-0", b"-18", b"-" + b"9" * 63)),
    *((LEVEL, number, 0) for number in (long(-1), long(-(2**63)), integer(-1))),
    (LEVEL, integer(18), 18),
    (DELAY, long(RESULT_MAX), RESULT_MAX),
    (DELAY, str(RESULT_MAX).encode(), RESULT_MAX),
    (DELAY, b"2305843009213693951ms", RESULT_MAX),
    (DELAY, b"PT2305843009213693.951S", RESULT_MAX),
    (DELIVER_AT, b"1767225600000", NEW_YEAR),
    (DELIVER_AT, b"100000000000", 100_000_000_000),
    (DELIVER_AT, b"100000000000000", 100_000_000_000_000),
    (DELIVER_AT, long(100_000_000_000_000), 100_000_000_000_000),
    (DELIVER_AT, b"0001767225600000", NEW_YEAR),
    (DELIVER_AT, b"0" * 20 + b"100000000000", 100_000_000_000),
    (DELIVER_AT, long(NEW_YEAR), NEW_YEAR),
    (DELIVER_AT, long(100_000_000_000), 100_000_000_000),
    (DELIVER_AT, b"2026-01-01T00:00:00Z", NEW_YEAR),
    (DELIVER_AT, b"2026-01-01t00:00:00z", NEW_YEAR),
    # Java's OffsetDateTime.toString() leaves out seconds that are zero.
    (DELIVER_AT, b"2026-01-01T00:00Z", NEW_YEAR),
    (DELIVER_AT, b"2026-01-01 00:01z", NEW_YEAR + MINUTE),
    (DELIVER_AT, b"2026-01-01T01:30+01:00", NEW_YEAR + 30 * MINUTE),
    (DELIVER_AT, b"2026-01-01 00:00:00Z", NEW_YEAR),
    (DELIVER_AT, b"2026-01-01T01:00:00+01:00", NEW_YEAR),
    (DELIVER_AT, b"2025-12-31T18:30:00-05:30", NEW_YEAR),
    (DELIVER_AT, b"2026-01-01T00:00:00-00:00", NEW_YEAR),
    (DELIVER_AT, b"2026-01-01T23:59:00+23:59", NEW_YEAR),
    (DELIVER_AT, b"2026-01-01T00:00:00.5Z", NEW_YEAR + 500),
    (DELIVER_AT, b"2026-01-01T00:00:00.0001Z", NEW_YEAR + 1),
    (DELIVER_AT, b"2026-01-01T00:00:00.000999+00:00", NEW_YEAR + 1),
    (DELIVER_AT, b"2026-01-01T00:00:00.123000000000Z", NEW_YEAR + 123),
    (DELIVER_AT, b"2025-12-31T23:59:59.9999Z", NEW_YEAR),
    (DELIVER_AT, b"1970-01-01T00:00:00Z", 0),
    (DELIVER_AT, b"1969-12-31T23:59:59.9999Z", 0),
    (DELIVER_AT, b"1969-12-31T23:00:00-01:00", 0),
    (DELIVER_AT, b"2024-02-29T00:00:00Z", 1_709_164_800_000),
    (DELIVER_AT, b"2000-02-29T00:00:00Z", 951_782_400_000),
    (DELIVER_AT, b"9999-12-31T23:59:59.999Z", 253_402_300_799_999),
    (DELIVER_AT, b"9999-12-31T23:59:59-23:59", 253_402_300_799_000 + 23 * HOUR + 59 * MINUTE),
    (LEVEL, b"1", 1),
    (LEVEL, b"18", 18),
    (LEVEL, b"0", 0),
    (LEVEL, b"03", 3),
    (LEVEL, b"19", 19),
    (LEVEL, b"00000005", 5),
    (LEVEL, long(3), 3),
    (LEVEL, long(0), 0),
    (LEVEL, b"9223372036854775806", INT64_MAX - 1),
    (LEVEL, b"9223372036854775807", INT64_MAX),
    (LEVEL, b"9223372036854775808", INT64_MAX),
    (LEVEL, b"9" * 64, INT64_MAX),
]


@pytest.mark.parametrize(("header", "value", "expected"), ACCEPTED)
def test_every_form_of_the_contract_is_read(
    header: str, value: bytes | None, expected: int
) -> None:
    """A value in one of the contract's forms gives its number, and the oracle says the same."""
    assert parse(header, value) == expected
    assert oracle(header, value) == expected


# Refused, each with what the producer reads


def rows(header: str, reason: str, values: bytes) -> list[tuple[str, bytes, str]]:
    """One row for each of the values, which contain no space."""
    return [(header, value, reason) for value in values.split()]


def in_each(reason: str, *values: bytes | None) -> list[tuple[str, bytes | None, str]]:
    return [(header, value, reason) for header in HEADERS for value in values]


REFUSED = [
    (DELIVER_AT, None, "has a null value"),
    (DELIVER_AT, b"null", "has a null value"),
    *in_each("is empty", b'""'),
    *in_each("is empty", b""),
    *in_each("is longer than 64 bytes", b"0" * 65),
    (DELAY, b"1" * 100_000, "is longer than 64 bytes"),
    # One leading minus is no delay; no other is anything, and no instant is negative.
    *rows(DELAY, "is negative", b"--5 -PT-5S PT-5S P-1DT5S"),
    (LEVEL, b"--5", "is negative"),
    *rows(DELIVER_AT, "is negative", b'-1 -0 -1767225600000 "-1767225600000"'),
    (DELIVER_AT, long(-1), "-1 (8-byte number): is negative"),
    (DELIVER_AT, long(-(2**63)), "is negative"),
    (DELIVER_AT, integer(-1), "-1 (4-byte number): is negative"),
    *rows(DELAY, "is malformed", b"- -soon"),
    (DELAY, b"-+5", "has a sign"),
    (DELAY, b"-1.5", "has a fraction"),
    (DELAY, b"-P1M", "has months or years"),
    (DELAY, b"-" + b"9" * 64, "is longer than 64 bytes"),
    # JSON's quotes: one pair around text, nothing else of JSON.
    *in_each("is malformed", b'"', b'"5', b'5"', b"'5'", b'""5""', b'"null"', b"Null", b"{}"),
    *in_each("is longer than 64 bytes", b'"' + b"0" * 65 + b'"'),
    *in_each("contains a space", b'" 5"'),
    *in_each("neither ASCII text", b'"' + bytes(8) + b'"', b'"' + bytes(4) + b'"', b'"\x00\x01"'),
    *rows(
        DELIVER_AT,
        "lies before 1970",
        b"1969-12-31T23:59:59Z 1970-01-01T00:59:59+01:00 0001-01-01T00:00:00Z 0000-01-01T00:00:00Z",
    ),
    # Numbers are decimal digits only.
    *in_each("has a sign", b"+5"),
    *in_each("contains a space", b" 5", b"5 ", b"1 000", b" "),
    *in_each("has a fraction", b"1.5", b"1,5"),
    (DELIVER_AT, b"1767225600e3", "is malformed; write epoch milliseconds"),
    (LEVEL, b"1e1", "is malformed; write a level"),
    *in_each("write ", b"0x10"),
    *in_each("is malformed", b"1_000", b"tomorrow"),
    *in_each("neither ASCII text", b"15\n", b"15\x00", b"15\x7f", "\u0661\u0662\u0665".encode()),
    *in_each("neither ASCII text", bytes(3), bytes(5), bytes(7), bytes(9)),
    *in_each("neither ASCII text", b"\x20" + bytes(7), b"\x20" + bytes(3), b"\x7f" + bytes(3)),
    # Units are lower case, one per value.
    *rows(DELAY, "has an unknown unit", b"1e3 5S 5M 5mS 5us 5min 2w 5msx"),
    (DELAY, b"1h30m", "has more than one unit"),
    (DELAY, b"5 m", "contains a space"),
    (DELAY, b"5m ", "contains a space"),
    (DELAY, b"1.5s", "has a fraction"),
    *rows(DELAY, "is malformed; write milliseconds", b"m 5/ 5m/ 2026-01-01T00:00:00Z"),
    (DELIVER_AT, b"15m", "is malformed; write epoch"),
    (DELIVER_AT, b"PT15M", "is malformed; write epoch"),
    (LEVEL, b"5s", "is malformed; write a level"),
    # ISO 8601: days, hours, minutes, seconds, or weeks.
    *rows(DELAY, "has months or years", b"P1Y P1M P1Y2DT3H"),
    *rows(
        DELAY,
        "is not an ISO 8601 duration",
        b"P PT P1DT P1 PT1 P1H P1S PT1D PT1W P1W2D P1D2W P1WT1H PT1M1H PT1S1S PT1HT1M "
        b"PTT1M PT1m PT.5S PT1.S PP1D PT15Mx",
    ),
    (DELAY, b"pt15m", "is malformed"),
    *rows(DELAY, "has a fraction", b"PT1.5M PT1.5H2S P0.5D P1.5W PT1,5S"),
    (DELAY, b"PT+5S", "has a sign"),
    (DELAY, b"PT15M ", "contains a space"),
    # Too large never wraps.
    *rows(
        DELAY,
        "is too far away",
        # The last two are 2**64 + 1500 and, in ms, a little more than 2**64.
        b"2305843009213693952 9223372036854775807 9223372036854775808 18446744073709551616 "
        b"26687997792d P3812571114W P26687997791DT20H PT2305843009213693.9511S "
        b"18446744073709553116 213503982335d",
    ),
    (DELAY, b"9" * 64, "is too far away"),
    (DELAY, b"PT" + b"9" * 60 + b"S", "is too far away"),
    (DELAY, b"P" + b"9" * 30 + b"DT" + b"9" * 25 + b"S", "is too far away"),
    # Milliseconds, not another unit.
    *rows(
        DELIVER_AT,
        "looks like microseconds; milliseconds are expected",
        b"1767225600000000 100000000000001 100000000000000000",
    ),
    (DELIVER_AT, long(1_767_225_600_000_000), "looks like microseconds"),
    *rows(
        DELIVER_AT,
        "looks like nanoseconds; milliseconds are expected",
        b"1767225600000000000 100000000000000001 2305843009213693952 18448511299309551616",
    ),
    (DELIVER_AT, b"9" * 64, "looks like nanoseconds; milliseconds are expected"),
    (DELIVER_AT, long(1_767_225_600_000_000_000), "looks like nanoseconds"),
    (DELIVER_AT, integer(0), "looks like seconds"),
    (DELIVER_AT, integer(2**29 - 1), "looks like seconds"),
    *rows(DELIVER_AT, "looks like seconds; milliseconds are expected", b"0 1767225600 99999999999"),
    (DELIVER_AT, b"0" * 30 + b"1767225600", "looks like seconds; milliseconds are expected"),
    (DELIVER_AT, long(1_767_225_600), "looks like seconds; milliseconds are expected"),
    (DELIVER_AT, long(99_999_999_999), "looks like seconds; milliseconds are expected"),
    # RFC 3339.
    (DELIVER_AT, b"2026-01-01T00:00:00", "has no offset from UTC"),
    (DELIVER_AT, b"2026-01-01T00:00:00.5", "has no offset from UTC"),
    (DELIVER_AT, b"2026-01-01T00:00", "has no offset from UTC"),
    *rows(
        DELIVER_AT,
        "is not an RFC 3339 date and time",
        b"2026-01-01 2026-01-01T00Z 2026-1-01T00:00:00Z 2026-01-01_00:00:00Z "
        b"2026-01-01T00:00.5Z 2026-01-01T00:00:Z 2026-01-01T00:0Z "
        b"2026-01-01T00:00:00.Z 2026-01-01T00:00:00,5Z 2026-01-01T00:00:00+0100 "
        b"2026-01-01T00:00:00+01 2026-01-01T00:00:00+01:00Z 2026-01-01T00:00:00ZZ "
        b"2026-01-01T00:00:00Z[Europe/Paris]",
    ),
    (DELIVER_AT, b"2026-01-01  00:00:00Z", "is not an RFC 3339 date and time"),
    (DELIVER_AT, b"2026-01-01T00:00:00 Z", "is not an RFC 3339 date and time"),
    *rows(
        DELIVER_AT,
        "is malformed",
        b"12026-01-01T00:00:00Z 026-01-01T00:00:00Z 20260101T000000Z 2026/01/01",
    ),
    *rows(
        DELIVER_AT,
        "names a time that does not exist",
        b"2026-01-01T24:00:00Z 2026-01-01T24:00Z 2026-01-01T00:60Z 2026-01-01T00:60:00Z "
        b"2016-12-31T23:59:60Z",
    ),
    *rows(
        DELIVER_AT,
        "names a date that does not exist",
        b"2026-00-01T00:00:00Z 2026-13-01T00:00:00Z 2026-01-00T00:00:00Z "
        b"2026-01-32T00:00:00Z 2026-04-31T00:00:00Z 2026-02-29T00:00:00Z "
        b"2100-02-29T00:00:00Z 2024-02-30T00:00:00Z",
    ),
    (DELIVER_AT, b"2026-01-01T00:00:00+24:00", "has an offset that does not exist"),
    (DELIVER_AT, b"2026-01-01T00:00:00-01:60", "has an offset that does not exist"),
]


@pytest.mark.parametrize(("header", "value", "reason"), REFUSED)
def test_anything_else_is_refused_with_its_reason(
    header: str, value: bytes | None, reason: str
) -> None:
    """A value outside the contract is refused; the sentence names header and reason."""
    assert oracle(header, value) is None
    with pytest.raises(ValueError, match=re.escape(reason)) as refusal:
        parse(header, value)
    assert str(refusal.value).startswith(header + " ")


def test_every_reason_has_its_own_sentence_and_the_table_reaches_each() -> None:
    """No two errors read alike, and none is without an example above."""
    for header in HEADERS:
        assert len({describe(code, header, b"?") for code in CODES}) == len(CODES)
    reached = set()
    for header, value, _ in REFUSED:
        with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the table test checks the text
            parse(header, value)
        reached |= {code for code in CODES if describe(code, header, value) == str(refusal.value)}
    assert reached == set(CODES)


def test_only_errors_and_delay_headers_are_described() -> None:
    """A code or a name that is not ours is a programmer's mistake, not a refusal."""
    for code in (-1, 0, CODES[-1] + 1):
        with pytest.raises(LookupError):
            describe(code, DELAY, b"1")
    for name in ("", "X-Delay", "x-deliver-id"):
        with pytest.raises(LookupError):
            describe(CODES[0], name, b"1")
        with pytest.raises(LookupError):
            parse(name, b"1")


def test_the_sentence_quotes_the_value() -> None:
    """The producer finds its value in the message: escaped, bounded, binary as a number."""
    seconds = "looks like seconds; milliseconds are expected"
    for value, quoted in (
        (b"1767225600", '"1767225600"'),
        (integer(-2), "-2 (4-byte number)"),
        (b'"5"', '"\\x225\\x22"'),
        (long(1_767_225_600), "1767225600 (8-byte number)"),
        (b'a"b\\c', '"a\\x22b\\x5cc"'),
        (b"\x00\r\n\x7f\xff", '"\\x00\\x0d\\x0a\\x7f\\xff"'),
        (b"7" * 64, '"' + "7" * 64 + '"'),
        (b"7" * 65, '"' + "7" * 64 + '"...'),
    ):
        assert describe(15, DELIVER_AT, value) == f"{DELIVER_AT} {quoted}: {seconds}"


def test_nothing_after_the_value_is_read() -> None:
    """A value that ends inside a longer buffer is read as if it stood alone, wherever it ends."""
    for header, value, _ in (*ACCEPTED, *REFUSED):
        if not value or len(value) > 64:
            continue
        for end in range(len(value) + 1):
            for behind in (value[end:], b"9", b"S", b".9", b"Z", b"\x00", b"s", b'"'):
                window = memoryview(value[:end] + behind + value)[:end]
                assert outcome(header, window) == outcome(header, value[:end])


def outcome(header: str, value: bytes | memoryview) -> int | str:
    try:
        return parse(header, value)
    except ValueError as refusal:
        return str(refusal)


# Against the oracle

SEEDS = [
    b"1500",
    b"86400000",
    b"250ms",
    b"15m",
    b"PT15M",
    b"P1DT2H3M4.5S",
    b"PT0.0019S",
    b"P2W",
    b"100000000000",
    b"2305843009213693951",
    b"9223372036854775807",
    b"26687997791d",
    b"2026-01-01T00:00:00Z",
    b"2024-02-29t23:59:59.9995-05:30",
    b"1970-01-01 00:00:00+00:00",
    b"9999-12-31T23:59:59.999z",
    long(1_767_225_600_000),
    long(99_999_999_999),
    b"-15m",
    b'"1500"',
    b"2026-01-01T00:00Z",
    b"100000000000000",
    integer(1500),
    integer(-1500),
]
INTERESTING = b'\x00\x1f\x20\x7f\x80\xff0123456789.,:+-_/"eETtZzPDHMSWYmshdw'


def test_one_changed_byte_is_judged_as_the_oracle_does() -> None:
    """Each byte of a good value replaced, removed or doubled: same number, or refused by both."""
    for header in HEADERS:
        for seed in SEEDS:
            for at in range(len(seed)):
                assert_agrees(header, seed[:at] + seed[at + 1 :])
                assert_agrees(header, seed[: at + 1] + seed[at:])
                for byte in INTERESTING:
                    assert_agrees(header, seed[:at] + bytes([byte]) + seed[at + 1 :])


def test_every_day_of_four_centuries_is_the_calendars_day() -> None:
    """The dates accepted are exactly those of the calendar, and each begins where it should."""
    for year in (*range(1968, 2108), 2200, 2300, 2400, 9999):
        for month in range(14):
            for day in (*range(3), *range(28, 33)):
                assert_agrees(DELIVER_AT, f"{year:04}-{month:02}-{day:02}T12:34:56Z".encode())


PIECES = [
    *"0123456789",
    *'PTDHMSWYsmhdeZtz.,:+-" ',
    "ms",
    "00",
    "60",
    "T1H",
    ".0005",
    "999999999999",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=24).map(lambda parts: "".join(parts).encode())
DIGITS = st.text("0123456789", min_size=1, max_size=12)
DURATIONS = st.builds(
    lambda d, h, m, s, f: (
        "P"
        + (f"{d}D" if d else "")
        + ("T" if h or m or s else "")
        + (f"{h}H" if h else "")
        + (f"{m}M" if m else "")
        + (f"{s}{f}S" if s else "")
    ).encode(),
    *[st.none() | DIGITS] * 4,
    st.just("") | DIGITS.map(lambda digits: "." + digits),
)
INSTANTS = st.builds(
    lambda date, sep, clock, fraction, zone: (date + sep + clock + fraction + zone).encode(),
    st.dates().map(str) | st.from_regex(r"[0-9]{4}-[01][0-9]-[0-3][0-9]", fullmatch=True),
    st.sampled_from("Tt "),
    st.from_regex(r"[0-2][0-9]:[0-6][0-9](:[0-6][0-9])?", fullmatch=True),
    st.just("") | DIGITS.map(lambda digits: "." + digits),
    st.sampled_from(["Z", "z", ""]) | st.from_regex(r"[+-][0-2][0-9]:[0-6][0-9]", fullmatch=True),
)
NUMBERS = st.builds(
    lambda sign, number, zeros, unit: sign + b"0" * zeros + str(number).encode() + unit,
    st.sampled_from([b"", b"", b"-"]),
    st.integers(0, 2**66),
    st.integers(0, 40),
    st.sampled_from([b"", b"", b"ms", b"s", b"m", b"h", b"d", b"w"]),
)
LONGS = st.integers(-(2**63), 2**63 - 1).map(long) | st.binary(min_size=8, max_size=8)
INTEGERS = st.integers(-(2**31), 2**31 - 1).map(integer)
PLAIN = TEXTS | DURATIONS | INSTANTS | NUMBERS | LONGS | INTEGERS | st.binary(max_size=70)


@settings(max_examples=2_000)
@example(DELAY, b"P")
@example(DELIVER_AT, b"\x00\x00\x00\x17\x48\x76\xe8\x00")
@given(
    st.sampled_from(HEADERS),
    PLAIN | PLAIN.map(lambda text: b'"' + text + b'"'),
)
def test_any_value_is_judged_as_the_oracle_does(header: str, value: bytes) -> None:
    """Whatever the bytes: the oracle's number, or a refusal where the oracle refuses."""
    assert_agrees(header, value)
