"""When records recur: the rule of a produced record, and what follows a due occurrence.

    x-cron, x-cron-zone, x-cron-missed  --resolve-->  rule, first due time
    rule, due time, now                 --decide--->  deliver, move or end; next due time

A timer entry holds the rule, so that each occurrence can be set anew from the frame that holds the
one before. Instants are computed here alone, when a frame is written. A replay reads them.

The instants follow from the rule and the zone data of today. An update of the zone data may move
the instant of an occurrence that is already set. So the rule keeps the instant that the occurrence
follows. If its due time is no instant any more when it is due, the timer is moved to the one that
follows by the data of today. That may be in the past: then it is due at once.

An instant is missed if the broker comes to it more than a minute late, or after the instant that
follows it. A timer whose zone has no data any more, or that comes where there are no rules, is
tried again each minute.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from _core.bytes.batch cimport Slice
from _core.bytes.buffer cimport Buf, append
from _core.bytes.layout cimport (
    MISSED_ALL, MISSED_NONE, MISSED_ONCE, RULE_AT_AFTER, RULE_AT_EXPRESSION_SIZE, RULE_AT_MISSED,
    RULE_AT_ZONE_SIZE, RULE_HEAD_SIZE,
)
from _core.bytes.octets cimport load_i64
from _core.paths.delay_ask cimport DelayAsk
from _core.paths.delay_fault_codes cimport SPLIT_CRON, SPLIT_OK, SPLIT_TOO_MANY_SCHEDULES
from _core.paths.delay_names cimport HEADER_CRON, HEADER_CRON_MISSED, HEADER_CRON_ZONE
from _core.paths.due_records cimport (
    OCCURRENCE_FOLLOWED, OCCURRENCE_LAST, OCCURRENCE_MOVED, Due,
)

cdef enum:
    VALUE_SIZE_MAX = 64
    LATE_MS_MAX = 60_000      # more than this, and an instant is missed
    AGAIN_MS = 60_000         # after this, a zone without data is looked up again
    # Schedules of a round of delivery whose instants are computed: some milliseconds of work.
    COMPUTED_MAX = 32
    # What a schedule counts as in a turn of a connection, about as long as to inspect these bytes.
    SCHEDULE_WORK_BYTES = 256 << 10

_MISSED = {b"once": MISSED_ONCE, b"all": MISSED_ALL, b"none": MISSED_NONE}
_NAMES = ("x-cron", "x-cron-zone", "x-cron-missed")


cdef bytes _text_of(const Slice* value):
    """The text of a header, without JSON's quotes; None if it is null, empty or too long."""
    if not 0 < value.size <= VALUE_SIZE_MAX + 2:
        return None
    text = (<const char*>value.data)[:value.size]
    if value.size > 2 and text.startswith(b'"') and text.endswith(b'"'):
        text = text[1:value.size - 1]    # as Spring and Connect's JsonConverter write it
    return text if len(text) <= VALUE_SIZE_MAX else None


cdef bytes _encode(bytes expression, bytes zone, int missed, int64_t after_ms):
    head = bytes((missed, len(expression), len(zone), 0))
    return head + int(after_ms).to_bytes(8, "big") + expression + zone


cdef class Recurrences:
    """The schedules of one batch after the other. It has no Python API."""

    def __cinit__(self, rules):
        self.rules = rules
        self.known, self.encoded = {}, []

    cdef void begin(self) noexcept nogil:
        self.count = 0

    cdef int64_t work(self) noexcept nogil:
        return self.computed * SCHEDULE_WORK_BYTES if self.count else 0

    cdef int _forget(self) except -1:
        if self.count == 0:
            self.known, self.encoded, self.computed = {}, [], 0
        self.count += 1
        return 0

    cdef int _refuse(self, str message) except -1:
        self.message = message
        return SPLIT_CRON

    # Produced records

    cdef int resolve(self, DelayAsk* ask, int64_t now_ms) except -1 nogil:
        with gil:
            return self._resolve(ask, now_ms)

    cdef int _resolve(self, DelayAsk* ask, int64_t now_ms) except -1:
        cdef list texts = [b"", b"UTC", b"once"]
        cdef tuple asked
        cdef int i
        self._forget()
        for i, name in enumerate(_NAMES):
            if ask.present[HEADER_CRON + i]:
                texts[i] = _text_of(&ask.value[HEADER_CRON + i])
                if texts[i] is None:
                    return self._refuse(f"{name} must have 1 to {<int>VALUE_SIZE_MAX} bytes")
        asked = tuple(texts)
        found = self.known.get(asked)
        if found is None:
            if len(self.known) == SCHEDULES_MAX:
                return SPLIT_TOO_MANY_SCHEDULES
            found = self.known[asked] = self._find_first(asked, now_ms)
        if isinstance(found, str):
            return self._refuse(found)
        ask.due_ms, ask.rule = found
        return SPLIT_OK

    def _find_first(self, tuple asked not None, int64_t now_ms):
        """Return the first instant and the number of the rule, or what is wrong with a schedule."""
        expression, zone, missed = asked
        if missed not in _MISSED:
            return "x-cron-missed must be once, all or none"
        if self.rules is None:
            return "x-cron is not available here: leave it out"
        self.computed += 1
        try:
            due_ms = self.rules.next_after(expression, zone, now_ms)
        except ValueError as error:
            return str(error)
        if due_ms is None:
            return (
                f"x-cron: {expression.decode('ascii', 'replace')!r} has no instant within the next "
                "ten years"
            )
        self.encoded.append(_encode(expression, zone, _MISSED[missed], now_ms))
        return due_ms, len(self.encoded) - 1

    cdef int append_rule(self, const DelayAsk* ask, Buf* out) except -1 nogil:
        with gil:
            return self._append_rule(ask.rule, out)

    cdef int _append_rule(self, int number, Buf* out) except -1:
        cdef bytes rule = self.encoded[number]
        append(out, <const uint8_t*><const char*>rule, len(rule))
        return <int>len(rule)

    # Due timers

    cdef bint decide(self, Due* due, int64_t due_ms, int64_t now_ms) except -1:
        cdef bytes rule = (<const char*>due.rule)[:due.rule_size]
        cdef Py_ssize_t size = due.rule_size
        self._forget()
        # Timers of one schedule that are due together have the same one next.
        asked = rule[:<Py_ssize_t>RULE_AT_AFTER], rule[<Py_ssize_t>RULE_HEAD_SIZE:size], due_ms
        found = self.known.get(asked)
        if found is None:
            if self.computed >= COMPUTED_MAX:
                return False
            self.computed += 1
            found, is_regular = self._follow(rule, due_ms, now_ms)
            if is_regular:
                self.known[asked] = found
        due.following.occurrence, due.following.due_ms, due.following.after_ms = found
        return True

    def _follow(self, bytes rule not None, int64_t due_ms, int64_t now_ms):
        """Return what follows, as `Following` has it, and whether the timer is due at an instant.

        It is not if its zone had other data when it was set.
        """
        cdef const uint8_t* head = rule
        cdef Py_ssize_t zone_at = RULE_HEAD_SIZE + head[RULE_AT_EXPRESSION_SIZE]
        cdef Py_ssize_t size = len(rule)
        cdef int missed = head[RULE_AT_MISSED]
        cdef int64_t after_ms = load_i64(head + RULE_AT_AFTER)
        expression, zone = rule[<Py_ssize_t>RULE_HEAD_SIZE:zone_at], rule[zone_at:size]
        is_regular = False
        if self.rules is None:
            return (OCCURRENCE_MOVED, now_ms + AGAIN_MS, after_ms), False
        try:
            is_regular = self.rules.next_after(expression, zone, due_ms - 1) == due_ms
            if not is_regular:
                right_ms = self.rules.next_after(expression, zone, after_ms)
                if right_ms is not None:
                    return (OCCURRENCE_MOVED, right_ms, after_ms), False
            if missed == MISSED_NONE and now_ms > due_ms:
                next_ms = self.rules.next_after(expression, zone, due_ms)
                is_over = next_ms is not None and next_ms <= now_ms
                if is_over or now_ms - due_ms > LATE_MS_MAX:
                    next_ms = self.rules.next_after(expression, zone, now_ms)
                    if next_ms is not None:
                        return (OCCURRENCE_MOVED, next_ms, now_ms), is_regular
            from_ms = due_ms if missed == MISSED_ALL else max(due_ms, now_ms)
            next_ms = self.rules.next_after(expression, zone, from_ms)
        except ValueError:
            return (OCCURRENCE_MOVED, now_ms + AGAIN_MS, after_ms), False
        if next_ms is None:
            return (OCCURRENCE_LAST, 0, 0), is_regular
        return (OCCURRENCE_FOLLOWED, next_ms, from_ms), is_regular
