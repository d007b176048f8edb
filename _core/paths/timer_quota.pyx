"""The quota of pending timers: how many there may be, and how many of one address.

    batch --> check: is there room? --> append --> charge: its timers, less those it cancels
                  |
                  '-- refused with a retriable error

Only records that are held count: those that replace a pending one take no room. While no more than
half of the limit is used, everything is admitted, whoever asks. Beyond that, one address may have
half of what the others leave of the limit: then everybody finds room who has none. A topic may have
a limit of its own, which is looked at first.

Until a checkpoint has saved them, changes of timers and ids take memory. A limit bounds what has
changed and is not saved: whoever schedules faster than checkpoints are written is slowed down.

A limit bounds how many timers are due in one second. The last quarter of these two limits is given
away by lot, so that it fills ever more slowly: of the batches that come when half of that quarter
is used, every other one is refused. Where timers are counted by minutes alone, sixty times as many
may be due in a minute.

A reply is due at once and counts for no limit, so that a full quota never keeps anybody from a
cancel. But replies pile up if they come faster than they are delivered: those that wait are limited
to a part of the limit. They also pile up where their topic holds records back: there the limits
apply.

What an address has is an estimate (`due_charges`), at most all that is pending. Timers that a start
has found, and those of addresses that were forgotten, are nobody's. Memory is bounded: ACCOUNTS_MAX
addresses; to make room for another, the half with the fewest timers is forgotten.

docs/decisions/0025 has the reasons. Layer 0: no I/O, no clock. Runs on the event loop.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from _core.bytes.batch cimport Batch
from _core.bytes.layout cimport (
    TIMER_AT_DUE, TIMER_AT_ID_POS, TIMER_AT_ID_SIZE, TIMER_ENTRY_SIZE,
)
from _core.bytes.octets cimport load_i64, load_u32
from _core.paths.delay_notices cimport (
    QUOTA_ADDRESS, QUOTA_FULL, QUOTA_SECOND, QUOTA_STOPPED, QUOTA_TOPIC, QUOTA_UNSAVED,
    DelayNotices,
)
from _core.paths.delay_split cimport BatchSplitter
from _core.queue.partition cimport Partition, Topic
from _core.state.projections cimport Projections
from _core.timers.due_charges cimport DueCharges
from _core.timers.due_queue cimport DueQueue
from _core.timers.id_index cimport PENDING, NamedTimer
from _core.timers.memtable cimport TimerMemtable

# Addresses whose timers are charged, 4 KiB each.
ACCOUNTS_MAX = 1_000

# Three million timers. A checkpoint begins at a third of that.
UNSAVED_MAX_BYTES = 192 << 20

cdef enum:
    REPLIES_PART = 8          # one of so many parts of the limit may be replies that wait
    LOT_PART = 4              # one of so many parts of a second is given away by lot
    SECOND_MS = 1000
    SECONDS_OF_MINUTE = 60


cdef class TimerQuota:
    """Admits and charges the timers of Produce requests.

    Attributes:
        count_max: maximum number of pending timers.
        second_max: maximum number of those that are due in one second.
        unsaved_max_bytes: maximum size of changes that no checkpoint has, at first
            UNSAVED_MAX_BYTES.
        refusal: why all timers are refused; None if they are not.
        address: IP address of the client whose requests are handled.
        await_again: called with partition handle, producer id and sequence of a batch of an
            idempotent producer that was refused, and is expected again; or None.
    """

    def __cinit__(
        self, Projections projections not None, *, int64_t count_max, int64_t second_max
    ):
        """Charge nobody for the timers that are pending.

        Args:
            projections: has the pending timers.
            count_max: maximum number of them, 1 or more.
            second_max: maximum number of those that are due in one second, 1 or more.
        """
        self.projections = projections
        self.count_max = count_max
        self.second_max = second_max
        self.unsaved_max_bytes = UNSAVED_MAX_BYTES
        self.address = ""
        self.accounts = {}

    @property
    def account_count(self):
        """Number of addresses that are remembered, at most ACCOUNTS_MAX."""
        return len(self.accounts)

    cdef str check(
        self, Partition partition, const Batch* b, BatchSplitter s, list reply_topics,
        int64_t now_ms, DelayNotices delays
    ):
        cdef str message = None
        if s.timer_count:
            message = self._check_timers(partition, b, s, now_ms, delays)
        if message is None and s.reply_asks.count:
            message = self._check_replies(
                partition, b, reply_topics, s.reply_asks.count, now_ms, delays
            )
        return message

    cdef str _check_timers(
        self, Partition partition, const Batch* b, BatchSplitter s, int64_t now_ms,
        DelayNotices delays
    ):
        cdef int64_t pending = self.projections.due.pending
        cdef int64_t added, own
        cdef int reason
        if self.refusal is not None:
            return self._refuse(partition, b, QUOTA_STOPPED, self.refusal, delays)
        if self._loses(self._unsaved_bytes(), self.unsaved_max_bytes):
            message = (
                f"{self._unsaved_bytes() >> 20} MiB of changes of delayed records wait for a "
                "checkpoint, which fails or is not written fast enough; the limit is "
                f"{self.unsaved_max_bytes >> 20} MiB"
            )
            return self._refuse(partition, b, QUOTA_UNSAVED, message, delays)
        message = self._check_topics(partition, s)
        if message is not None:
            return self._refuse(partition, b, QUOTA_TOPIC, message, delays)
        # No second can be nearly full before this.
        if pending + s.timer_count > self.second_max - self.second_max // LOT_PART:
            message = self._check_seconds(s)
            if message is not None:
                return self._refuse(partition, b, QUOTA_SECOND, message, delays)
        if pending + s.timer_count <= self.count_max >> 1:
            return None
        added = self._new_count(partition, s)
        if added == 0:
            return None
        if pending + added > self.count_max:
            reason = QUOTA_FULL
            message = (
                f"{pending} delayed records are pending, {added} more would exceed "
                f"limits.pending_timers_max = {self.count_max}"
            )
        else:
            own = self._own_count(now_ms, pending)
            if own + added <= (self.count_max - (pending - own) + 1) >> 1:
                return None
            reason = QUOTA_ADDRESS
            message = (
                f"{pending} delayed records are pending, about {own} of them from this address; "
                f"with {added} more it would have over half of what others leave of "
                f"limits.pending_timers_max = {self.count_max}"
            )
        return self._refuse(partition, b, reason, message, delays)

    cdef str _check_replies(
        self, Partition partition, const Batch* b, list topics, int64_t count, int64_t now_ms,
        DelayNotices delays
    ):
        cdef int64_t pending = self.projections.due.pending
        cdef Topic topic
        if self.refusal is not None:
            return self._refuse(partition, b, QUOTA_STOPPED, self.refusal, delays)
        # Replies are due when they are written, so none of them waits if nothing is due.
        if not self.projections.due.may_have_due(now_ms):
            self.replies_waiting = 0
        if self.replies_waiting and self.replies_waiting + count > self.count_max // REPLIES_PART:
            message = (
                f"up to {self.replies_waiting} replies wait for their delivery; {count} more would "
                f"be over an eighth of limits.pending_timers_max = {self.count_max}"
            )
            return self._refuse(partition, b, QUOTA_FULL, message, delays)
        for topic in topics:
            if self.projections.due.held_of(topic) == 0:
                continue
            if self._exceeds_topic(topic, count) or pending + count > self.count_max:
                message = (
                    f"{topic.name} holds records back, and {count} more replies would exceed its "
                    "delay.pending.max or limits.pending_timers_max"
                )
                return self._refuse(partition, b, QUOTA_TOPIC, message, delays)
        self.replies_waiting += count
        return None

    cdef str _check_topics(self, Partition partition, BatchSplitter s):
        """Whether a topic with a limit of its own would have too many timers: a message, or None.

        Retried records count in the topic that they are delivered to.
        """
        cdef int64_t own = s.timer_count - s.retries.count
        cdef Topic topic
        if s.retries.count == 0 and partition.topic.pending_max < 0:
            return None
        if own and partition.topic.pending_max >= 0:
            own = self._new_count(partition, s) - s.retries.count
        counts = {partition.topic: own}
        s.retries.count_by_topic(counts)
        for topic, added in counts.items():
            if self._exceeds_topic(topic, added):
                return (
                    f"{self._pending_of(topic)} delayed records of {topic.name} are pending, "
                    f"{added} more would exceed its delay.pending.max = {topic.pending_max}"
                )
        return None

    cdef str _check_seconds(self, BatchSplitter s):
        """Whether too many timers would be due in one second: a message, or None."""
        cdef DueQueue due = self.projections.due
        cdef const uint8_t* e = s.timers.data
        cdef int64_t due_ms, slot_ms, count, limit, added
        cdef bint is_minute
        cdef int32_t i
        cdef dict slots = {}
        if not self._is_near_limit(s):
            return None
        for i in range(s.timer_count):
            due_ms = load_i64(e + TIMER_AT_DUE)
            count = due.wheels.count_at(due_ms, &is_minute)
            if count >= 0:
                slot_ms = SECOND_MS * SECONDS_OF_MINUTE if is_minute else SECOND_MS
                slot = (due_ms - due_ms % slot_ms, is_minute)
                slots[slot] = slots.get(slot, 0) + 1
            e += TIMER_ENTRY_SIZE
        for (due_ms, in_minute), added in slots.items():
            count = due.wheels.count_at(due_ms, &is_minute)
            limit = self.second_max * (SECONDS_OF_MINUTE if in_minute else 1)
            if count + added > limit or self._loses(count, limit):
                return (
                    f"{count} delayed records are due in one "
                    f"{'minute' if in_minute else 'second'}, {added} more are refused: "
                    f"limits.due_per_second_max = {self.second_max}"
                )
        return None

    cdef bint _is_near_limit(self, BatchSplitter s) noexcept nogil:
        """Whether the batch as a whole, in a slot of one of its timers, would come near the limit.
        """
        cdef const uint8_t* e = s.timers.data
        cdef int64_t count, limit
        cdef bint is_minute
        cdef int32_t i
        for i in range(s.timer_count):
            count = self.projections.due.wheels.count_at(load_i64(e + TIMER_AT_DUE), &is_minute)
            limit = self.second_max * (SECONDS_OF_MINUTE if is_minute else 1)
            if count >= 0 and count + s.timer_count > limit - limit // LOT_PART:
                return True
            e += TIMER_ENTRY_SIZE
        return False

    cdef int64_t _unsaved_bytes(self) except -1:
        """Memory of the changes that no checkpoint has."""
        cdef TimerMemtable memtable = self.projections.memtable
        return 0 if memtable is None else memtable.row_bytes() + memtable.older_bytes

    cdef bint _loses(self, int64_t count, int64_t limit) noexcept nogil:
        """Draw lots for a batch in the last part of a limit."""
        cdef int64_t part = max(limit // LOT_PART, 1)
        if count <= limit - part:
            return False
        # Knuth's MMIX generator; its high bits are the random ones.
        self.lots = self.lots * 6364136223846793005ULL + 1442695040888963407ULL
        return <int64_t>((self.lots >> 33) % <uint64_t>part) < count - (limit - part)

    cdef str _refuse(
        self, Partition partition, const Batch* b, int reason, str message, DelayNotices delays
    ):
        delays.refuse_timers(partition, reason, message)
        self.expect_again(partition, b)
        return message

    cdef int expect_again(self, Partition partition, const Batch* b) except -1:
        if b.producer_id >= 0 and self.await_again is not None:
            self.await_again(partition.handle, b.producer_id, b.base_sequence)
        return 0

    cdef bint _exceeds_topic(self, Topic topic, int64_t added) except -1:
        """Whether a topic with a limit of its own would have too many timers."""
        return added and topic.pending_max >= 0 and (
            self._pending_of(topic) + added > topic.pending_max
        )

    cdef int64_t _pending_of(self, Topic topic) except -1:
        cdef DueQueue due = self.projections.due
        cdef int64_t count = 0
        cdef Partition partition
        for partition in topic.partitions:
            if partition.handle < due.partition_capacity:
                count += due.partition_pending[partition.handle]
        return count

    cdef int64_t _new_count(self, Partition partition, BatchSplitter s) noexcept nogil:
        """Timers of the batch that replace no pending one; at least as many as become pending."""
        cdef const uint8_t* e = s.timers.data
        cdef int64_t count = 0
        cdef NamedTimer known
        cdef int32_t i
        for i in range(s.timer_count):
            if not (
                e[TIMER_AT_ID_SIZE]
                and self.projections.ids.find(
                    partition.topic.topic_id, s.ids.data + load_u32(e + TIMER_AT_ID_POS),
                    e[TIMER_AT_ID_SIZE], &known,
                )
                and known.state == PENDING
            ):
                count += 1
            e += TIMER_ENTRY_SIZE
        return count

    cdef int64_t _own_count(self, int64_t now_ms, int64_t pending) except -1:
        """The estimate of what the current address has pending."""
        cdef DueCharges account = self.accounts.get(self.address)
        return 0 if account is None else min(account.total(now_ms), pending)

    cdef int charge(self, BatchSplitter s, int64_t now_ms) except -1:
        cdef DueCharges account = self.accounts.get(self.address)
        if account is None and s.timer_count:
            if len(self.accounts) >= ACCOUNTS_MAX:
                self._forget_some(now_ms)
            account = self.accounts[self.address] = DueCharges()
        if s.timer_count:
            account.add_entries(
                now_ms, s.timers.data, s.timer_count, s.min_due, s.max_due,
                s.recurrences.count > 0,
            )
        self.projections.canceller = account
        return 0

    cdef int _forget_some(self, int64_t now_ms) except -1:
        """Forget half of the addresses, those with the fewest timers. O(n log n)."""
        cdef DueCharges account
        counts = {}
        for address, account in self.accounts.items():
            counts[address] = account.total(now_ms)
        fewest = sorted(counts, key=counts.__getitem__)
        for address in fewest[:(len(fewest) + 1) // 2]:
            del self.accounts[address]
        return 0

    def charged_to(self, str address not None, *, int64_t now_ms):
        """Number of timers for which an address is charged; now_ms is epoch ms."""
        cdef DueCharges account = self.accounts.get(address)
        return 0 if account is None else account.total(now_ms)
