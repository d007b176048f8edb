"""Parser of the three delay headers, from bytes to an integer.

| header          | result          | forms                                                  |
|-----------------|-----------------|--------------------------------------------------------|
| `x-delay`       | ms from receipt | `1500`, `250ms 30s 15m 2h 7d`, `P1DT2H1.5S`, `P2W`     |
| `x-deliver-at`  | ms since 1970   | `1767225600000`, `2026-01-01T00:00:00+01:00`           |
| `x-delay-level` | level           | `3`; larger numbers become the largest int64           |

Each may also be a big-endian integer: 8 or 4 bytes of which the first is below 0x20 or above 0x7F.
Any other bytes are text, which may be in JSON's quotes; JSON's `null` is a null value. A null or
negative `x-delay` asks for no delay, a null or negative level is level 0. Fractions of a
millisecond are rounded up, because a record must never be early. Arithmetic does not wrap: sums
saturate, and the result is DELAY_TOO_FAR.

Layer 0: no I/O, no clock. The cdef functions do not need the GIL, allocate no memory, and read
nothing beyond the value.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from libc.string cimport memcmp

from _core.bytes.borrowed cimport Borrowed
from _core.bytes.octets cimport Cursor, cursor_of, load_i32, load_i64

cdef enum:
    SECOND_MS = 1_000
    MINUTE_MS = 60_000
    HOUR_MS = 3_600_000
    DAY_MS = 86_400_000
    WEEK_MS = 604_800_000
    FAST_DIGITS_MAX = 18  # 10**18 - 1 is below RESULT_MAX, so this many digits need no check

# The largest number of the form with 8 bytes; a receive time added to it still fits an int64.
cdef int64_t RESULT_MAX = (<int64_t>1 << 61) - 1
# In milliseconds this is March 1973, in seconds the year 5138. Nobody means either, but many
# confuse the units. The other two are March 1973 in microseconds and in nanoseconds, and the years
# 5138 and about 3,170,000 in milliseconds.
cdef int64_t EPOCH_MS_MIN = 100_000_000_000
cdef int64_t EPOCH_MS_MAX = 100_000_000_000_000
cdef int64_t EPOCH_US_MAX = 100_000_000_000_000_000

cdef struct Value:
    const uint8_t* p
    Py_ssize_t size
    bint is_number            # a big-endian integer, not text


# Leaves: each reads one item at the cursor and moves past it, or leaves the cursor unchanged.

cdef inline int peek(const Cursor* c) noexcept nogil:
    """The next byte, or -1 at the end."""
    return c.p[0] if c.p < c.end else -1


cdef inline bint is_digit(int byte) noexcept nogil:
    return c"0" <= byte <= c"9"


cdef inline bint skip(Cursor* c, int byte, int other) noexcept nogil:
    """Skip the next byte if it is one of the two; return whether it was."""
    cdef int found = peek(c)
    if found < 0 or (found != byte and found != other):
        return False
    c.p += 1
    return True


cdef inline int read_digits(Cursor* c, int64_t* value) noexcept nogil:
    """Read all digits that follow; return how many. The value saturates at INT64_MAX."""
    cdef const uint8_t* start = c.p
    cdef int64_t total = 0
    cdef int digit
    while is_digit(peek(c)):
        digit = c.p[0] - c"0"
        total = total * 10 + digit if total <= (INT64_MAX - digit) // 10 else INT64_MAX
        c.p += 1
    value[0] = total
    return <int>(c.p - start)


cdef inline bint read_two_digits(Cursor* c, int* value) noexcept nogil:
    if c.end - c.p < 2 or not is_digit(c.p[0]) or not is_digit(c.p[1]):
        return False
    value[0] = (c.p[0] - c"0") * 10 + c.p[1] - c"0"
    c.p += 2
    return True


cdef inline bint read_fraction(Cursor* c, int64_t* ms) noexcept nogil:
    """Read the digits after a dot, at least one, as milliseconds rounded up: 0 .. 1000."""
    cdef int64_t total = 0, scale = 100
    cdef bint is_finer = False
    if not is_digit(peek(c)):
        return False
    while is_digit(peek(c)):
        if scale > 0:
            total += (c.p[0] - c"0") * scale
            scale //= 10
        elif c.p[0] != c"0":
            is_finer = True
        c.p += 1
    ms[0] = total + is_finer
    return True


cdef inline int64_t add_scaled(int64_t total, int64_t count, int64_t scale) noexcept nogil:
    """total + count * scale, or INT64_MAX if that exceeds RESULT_MAX.

    REQUIRES: total and count 0 or more, scale 1 or more.
    """
    if total > RESULT_MAX or count > (RESULT_MAX - total) // scale:
        return INT64_MAX
    return total + count * scale


cdef int blame(int byte, int otherwise) noexcept nogil:
    """The error for a misplaced byte; `otherwise` if the byte does not suggest a specific one."""
    if byte == c"-":
        return DELAY_NEGATIVE
    if byte == c"+":
        return DELAY_SIGN
    if byte == c" ":
        return DELAY_SPACE
    return otherwise


cdef int blame_after_number(int byte, int otherwise) noexcept nogil:
    if byte == c" ":
        return DELAY_SPACE
    if byte == c"." or byte == c",":
        return DELAY_FRACTION
    return otherwise


cdef int blame_letter(int byte, int otherwise) noexcept nogil:
    return DELAY_UNIT if c"a" <= (byte | 0x20) <= c"z" else blame_after_number(byte, otherwise)


# x-delay

cdef int read_unit(Cursor* c, int64_t* scale) noexcept nogil:
    """Read the unit after a number, which ends the value."""
    if skip(c, c"m", c"m"):
        scale[0] = 1 if skip(c, c"s", c"s") else MINUTE_MS
    elif skip(c, c"s", c"s"):
        scale[0] = SECOND_MS
    elif skip(c, c"h", c"h"):
        scale[0] = HOUR_MS
    elif skip(c, c"d", c"d"):
        scale[0] = DAY_MS
    else:
        return blame_letter(peek(c), DELAY_MALFORMED)
    if peek(c) < 0:
        return DELAY_OK
    return DELAY_UNITS_MIXED if is_digit(peek(c)) else blame_letter(peek(c), DELAY_MALFORMED)


cdef int read_designator(Cursor* c, bint in_time, int* rank, int64_t* scale) noexcept nogil:
    """Read the letter after a number of an ISO 8601 duration.

    `rank` is the rank of the previous letter, 0 if none; ranks must increase. Weeks stand alone:
    they must come first, and have the highest rank.
    """
    cdef int letter = peek(c)
    cdef int found = 0
    if in_time:
        if letter == c"H":
            found, scale[0] = 2, HOUR_MS
        elif letter == c"M":
            found, scale[0] = 3, MINUTE_MS
        elif letter == c"S":
            found, scale[0] = 4, SECOND_MS
    elif letter == c"D":
        found, scale[0] = 1, DAY_MS
    elif letter == c"W" and rank[0] == 0:
        found, scale[0] = 5, WEEK_MS
    elif letter == c"M" or letter == c"Y":
        return DELAY_CALENDAR_UNIT
    if found <= rank[0]:
        return blame_after_number(letter, DELAY_DURATION)
    rank[0] = found
    c.p += 1
    return DELAY_OK


cdef int read_duration(Cursor* c, int64_t* ms) noexcept nogil:
    """Read the rest of an ISO 8601 duration after the P."""
    cdef bint in_time = False, is_whole = True
    cdef int rank = 0, error
    cdef int64_t total = 0, count = 0, scale = 0, fraction_ms = 0
    while peek(c) >= 0:
        if not in_time and skip(c, c"T", c"T"):
            in_time = True
            if peek(c) < 0:
                return DELAY_DURATION
            continue
        if not read_digits(c, &count):
            return blame(peek(c), DELAY_DURATION)
        if skip(c, c".", c"."):
            is_whole = False
            if not read_fraction(c, &fraction_ms):
                return DELAY_DURATION
        error = read_designator(c, in_time, &rank, &scale)
        if error != DELAY_OK:
            return error
        if not is_whole and scale != SECOND_MS:
            return DELAY_FRACTION
        total = add_scaled(total, count, scale)
    if rank == 0:
        return DELAY_DURATION
    ms[0] = add_scaled(total, fraction_ms, 1)
    return DELAY_OK


cdef int read_delay(Cursor* c, int64_t* ms) noexcept nogil:
    """Read a delay without its sign."""
    cdef int64_t count = 0, scale = 1
    cdef int error
    if skip(c, c"P", c"P"):
        return read_duration(c, ms)
    if not read_digits(c, &count):
        return blame(peek(c), DELAY_MALFORMED)
    if peek(c) >= 0:
        error = read_unit(c, &scale)
        if error != DELAY_OK:
            return error
    ms[0] = add_scaled(0, count, scale)
    return DELAY_OK


# x-deliver-at

cdef int days_in_month(int64_t year, int month) noexcept nogil:
    """REQUIRES: month 1 .. 12."""
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


cdef int64_t days_since_epoch(int64_t year, int month, int day) noexcept nogil:
    """Days from 1970-01-01 to a Gregorian date. REQUIRES: year 0 .. 9999, a date that exists."""
    # Count years from March, so that the leap day is the last day. 400 extra years keep the result
    # positive.
    cdef int64_t from_march = year + 400 - (month <= 2)
    cdef int month_index = (month + 9) % 12
    cdef int64_t days = from_march * 365 + from_march // 4 - from_march // 100 + from_march // 400
    days += (153 * month_index + 2) // 5 + day - 1
    return days - (719_468 + 146_097)  # 0000-03-01 to 1970-01-01, and 400 years


cdef int read_offset(Cursor* c, int64_t* minutes) noexcept nogil:
    """Read the offset from UTC, which ends the value."""
    cdef bint is_behind
    cdef int hour = 0, minute = 0
    if peek(c) < 0:
        return DELAY_NO_OFFSET
    if skip(c, c"Z", c"z"):
        minutes[0] = 0
        return DELAY_OK if peek(c) < 0 else DELAY_INSTANT
    is_behind = peek(c) == c"-"
    if not (
        skip(c, c"+", c"-")
        and read_two_digits(c, &hour)
        and skip(c, c":", c":")
        and read_two_digits(c, &minute)
        and peek(c) < 0
    ):
        return DELAY_INSTANT
    if hour > 23 or minute > 59:
        return DELAY_NO_SUCH_OFFSET
    minutes[0] = (hour * 60 + minute) * (-1 if is_behind else 1)
    return DELAY_OK


cdef int read_instant(Cursor* c, int64_t year, int64_t* epoch_ms) noexcept nogil:
    """Read the rest of an RFC 3339 date and time after the year."""
    cdef int month = 0, day = 0, hour = 0, minute = 0, second = 0, error
    cdef int64_t fraction_ms = 0, offset_minutes = 0, minutes
    if not (
        skip(c, c"-", c"-")
        and read_two_digits(c, &month)
        and skip(c, c"-", c"-")
        and read_two_digits(c, &day)
        and (skip(c, c"T", c"t") or skip(c, c" ", c" "))
        and read_two_digits(c, &hour)
        and skip(c, c":", c":")
        and read_two_digits(c, &minute)
    ):
        return DELAY_INSTANT
    if skip(c, c":", c":"):  # Java leaves seconds out that are zero
        if not read_two_digits(c, &second):
            return DELAY_INSTANT
        if skip(c, c".", c".") and not read_fraction(c, &fraction_ms):
            return DELAY_INSTANT
    error = read_offset(c, &offset_minutes)
    if error != DELAY_OK:
        return error
    if not 1 <= month <= 12 or not 1 <= day <= days_in_month(year, month):
        return DELAY_NO_SUCH_DATE
    if hour > 23 or minute > 59 or second > 59:
        return DELAY_NO_SUCH_TIME
    minutes = (days_since_epoch(year, month, day) * 24 + hour) * 60 + minute - offset_minutes
    epoch_ms[0] = (minutes * 60 + second) * SECOND_MS + fraction_ms
    return DELAY_OK if epoch_ms[0] >= 0 else DELAY_BEFORE_EPOCH


cdef int check_epoch(int64_t value) noexcept nogil:
    """The error if a number is not one of milliseconds since the epoch."""
    if value < 0:
        return DELAY_NEGATIVE
    if value < EPOCH_MS_MIN:
        return DELAY_SECONDS
    if value > EPOCH_US_MAX:
        return DELAY_NANOSECONDS
    return DELAY_MICROSECONDS if value > EPOCH_MS_MAX else DELAY_OK


cdef int read_deliver_at(const Value* text, int64_t* epoch_ms) noexcept nogil:
    cdef Cursor c = cursor_of(text.p, text.size)
    cdef int64_t value = 0
    cdef int digits = read_digits(&c, &value)
    if digits == 0:
        return blame(peek(&c), DELAY_MALFORMED)
    if digits == 4 and peek(&c) == c"-":
        return read_instant(&c, value, epoch_ms)
    if peek(&c) >= 0:
        return blame_after_number(peek(&c), DELAY_MALFORMED)
    epoch_ms[0] = value
    return check_epoch(value)


# x-delay-level

cdef int read_level(Cursor* c, int64_t* level) noexcept nogil:
    """Read a level without its sign."""
    if not read_digits(c, level):
        return blame(peek(c), DELAY_MALFORMED)
    return DELAY_OK if peek(c) < 0 else blame_after_number(peek(c), DELAY_MALFORMED)


# The three entry points

cdef inline int open_value(const uint8_t* p, Py_ssize_t n, Value* value) noexcept nogil:
    """Find out whether a value is a number or text, take text out of its quotes, check its size."""
    value.p, value.size = p, n
    value.is_number = (n == 8 or n == 4) and (p[0] < 0x20 or p[0] >= 0x80)
    if n >= 2 and p[0] == c'"' and p[n - 1] == c'"':
        value.p += 1
        value.size -= 2
    if n == 4 and memcmp(p, b"null", 4) == 0:
        value.size = -1
    if value.size <= 0:
        return DELAY_EMPTY if value.size == 0 else DELAY_NULL
    return DELAY_OK if value.size <= DELAY_VALUE_SIZE_MAX else DELAY_TOO_LONG


cdef inline bint read_plain_number(const Value* text, int64_t* value) noexcept nogil:
    """Read the forms that programs send, a number or a few digits. REQUIRES: it is not empty."""
    cdef int64_t total = 0
    cdef Py_ssize_t i
    if text.is_number:
        value[0] = load_i64(text.p) if text.size == 8 else load_i32(text.p)
        return True
    if text.size > FAST_DIGITS_MAX:
        return False
    for i in range(text.size):
        if not is_digit(text.p[i]):
            return False
        total = total * 10 + text.p[i] - c"0"
    value[0] = total
    return True


cdef int complete(const Value* text, int error, int64_t value, int64_t* result) noexcept nogil:
    """Store the value, or return the error. DELAY_NOT_TEXT takes precedence over other errors."""
    cdef Py_ssize_t i
    if error == DELAY_OK:
        result[0] = value
        return DELAY_OK
    if text.is_number:
        return error
    for i in range(text.size):
        if not 0x20 <= text.p[i] <= 0x7E:
            return DELAY_NOT_TEXT
    return error


cdef int parse_delay(const uint8_t* p, Py_ssize_t n, int64_t* ms) noexcept nogil:
    """Read an `x-delay`: milliseconds from the receive time, 0 .. 2**61 - 1, or DELAY_NOW if it is
    negative, or NO_DELAY if it is null.
    """
    cdef Value text
    cdef Cursor c
    cdef int64_t value = 0
    cdef bint is_negative
    cdef int error = open_value(p, n, &text)
    if error == DELAY_NULL:
        ms[0] = NO_DELAY
        return DELAY_OK
    if error != DELAY_OK:
        return error
    if not read_plain_number(&text, &value):
        c = cursor_of(text.p, text.size)
        is_negative = skip(&c, c"-", c"-")
        error = read_delay(&c, &value)
        if is_negative:
            value = DELAY_NOW
    if value < 0:
        value = DELAY_NOW
    if error == DELAY_OK and value > RESULT_MAX:
        error = DELAY_TOO_FAR
    return complete(&text, error, value, ms)


cdef int parse_deliver_at(const uint8_t* p, Py_ssize_t n, int64_t* epoch_ms) noexcept nogil:
    """Read an `x-deliver-at`: milliseconds since the epoch, 0 .. 2**61 - 1."""
    cdef Value text
    cdef int64_t value = 0
    cdef int error = open_value(p, n, &text)
    if error != DELAY_OK:
        return error
    if read_plain_number(&text, &value):
        error = check_epoch(value)
    else:
        error = read_deliver_at(&text, &value)
    return complete(&text, error, value, epoch_ms)


cdef int parse_level(const uint8_t* p, Py_ssize_t n, int64_t* level) noexcept nogil:
    """Read an `x-delay-level`, 0 .. INT64_MAX. A larger number saturates: no level is that high."""
    cdef Value text
    cdef Cursor c
    cdef int64_t value = 0
    cdef bint is_negative
    cdef int error = open_value(p, n, &text)
    if error == DELAY_NULL:
        level[0] = 0
        return DELAY_OK
    if error != DELAY_OK:
        return error
    if not read_plain_number(&text, &value):
        c = cursor_of(text.p, text.size)
        is_negative = skip(&c, c"-", c"-")
        error = read_level(&c, &value)
        if is_negative:
            value = 0
    return complete(&text, error, max(value, 0), level)


# Error messages

_FORMS = {
    "x-delay": (
        "write milliseconds (1500), a number with one unit (250ms 30s 15m 2h 7d)"
        " or an ISO 8601 duration (PT15M)"
    ),
    "x-deliver-at": "write epoch milliseconds (1767225600000) or RFC 3339 (2026-01-01T00:00:00Z)",
    "x-delay-level": "write a level in decimal digits (3)",
    "x-retry-attempt": "leave it as it came with the record, or write decimal digits (3)",
}

_SENTENCES = {
    DELAY_NULL: "has a null value; {form}",
    DELAY_EMPTY: "is empty; {form}",
    DELAY_TOO_LONG: "is longer than 64 bytes; {form}",
    DELAY_NOT_TEXT: "is neither ASCII text nor a big-endian number of 4 or 8 bytes; {form}",
    DELAY_NEGATIVE: "is negative; {form}",
    DELAY_SIGN: "has a sign; {form}",
    DELAY_SPACE: "contains a space; {form}",
    DELAY_FRACTION: "has a fraction, which only seconds may have, after a dot (PT1.5S); {form}",
    DELAY_MALFORMED: "is malformed; {form}",
    DELAY_UNIT: "has an unknown unit; write one of ms s m h d, in lower case",
    DELAY_UNITS_MIXED: "has more than one unit; write one (90m) or an ISO 8601 duration (PT1H30M)",
    DELAY_CALENDAR_UNIT: "has months or years, which vary; write days (P30D), or minutes as PT5M",
    DELAY_DURATION: (
        "is not an ISO 8601 duration; write days, hours, minutes and seconds in this order"
        " (P1DT2H3M4.5S), each at most once, or weeks alone (P2W)"
    ),
    DELAY_TOO_FAR: "is too far away; the setting delay.max.ms limits the delay",
    DELAY_SECONDS: "looks like seconds; milliseconds are expected",
    DELAY_MICROSECONDS: "looks like microseconds; milliseconds are expected",
    DELAY_NANOSECONDS: "looks like nanoseconds; milliseconds are expected",
    DELAY_INSTANT: "is not an RFC 3339 date and time; write it like 2026-01-01T00:00:00Z",
    DELAY_NO_OFFSET: "has no offset from UTC; end it with Z or with an offset like +01:00",
    DELAY_NO_SUCH_DATE: "names a date that does not exist; write one of the Gregorian calendar",
    DELAY_NO_SUCH_TIME: "names a time that does not exist; write 00:00:00 to 23:59:59",
    DELAY_NO_SUCH_OFFSET: "has an offset that does not exist; write -23:59 to +23:59",
    DELAY_BEFORE_EPOCH: "lies before 1970-01-01T00:00:00Z, a negative value; write a later one",
}


def _quote(bytes value):
    """Quote at most 64 bytes of the value as printable ASCII."""
    if len(value) in (4, 8) and not 0x20 <= value[0] < 0x80:
        return f"{int.from_bytes(value, 'big', signed=True)} ({len(value)}-byte number)"
    shown = "".join(
        chr(byte) if 0x20 <= byte <= 0x7E and byte not in b'"\\' else f"\\x{byte:02x}"
        for byte in value[:DELAY_VALUE_SIZE_MAX]
    )
    return f'"{shown}"' + ("..." if len(value) > DELAY_VALUE_SIZE_MAX else "")


def describe(int code, str header not None, bytes value):
    """Describe what is wrong with the value of a header and what to write instead.

    Args:
        code: the result of a parse function, any DelayError except DELAY_OK.
        header: name of the header.
        value: the value, None if it is null. At most 64 bytes of it are quoted, as printable ASCII.

    Returns:
        One line of text. It is printable ASCII if the name is.

    Raises:
        LookupError: the error code or the name of the header is unknown.
    """
    sentence = _SENTENCES[code].format(form=_FORMS[header])
    return f"{header} {sentence}" if not value else f"{header} {_quote(value)}: {sentence}"


def parse(str header not None, value):
    """Read the value of a delay header.

    Args:
        header: `x-delay`, `x-deliver-at` or `x-delay-level`.
        value: the value, any contiguous buffer of bytes, None if it is null.

    Returns:
        Milliseconds from the receive time, milliseconds since the epoch, or the level: 0 or more.
        -1 if an `x-delay` asks for no delay.

    Raises:
        ValueError: the value is not valid; the message comes from `describe`.
        LookupError: the name of the header is unknown.
    """
    cdef Borrowed octets = None
    cdef const uint8_t* p = NULL
    cdef Py_ssize_t n = -1
    cdef int64_t result = 0
    cdef int code
    if value is not None:
        octets = Borrowed(value)
        p = octets.p
        n = octets.size
    if header == "x-delay":
        code = parse_delay(p, n, &result)
    elif header == "x-deliver-at":
        code = parse_deliver_at(p, n, &result)
    elif header == "x-delay-level":
        code = parse_level(p, n, &result)
    else:
        raise LookupError(f"{header} is not a delay header")
    if code != DELAY_OK:
        raise ValueError(describe(code, header, None if value is None else bytes(value)))
    return result
