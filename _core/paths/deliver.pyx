"""The deliver path: copies the records of due timers from the log and appends them as batches.

    due queue --+------------------------> locate --+-- in memory:  group by partition --> frames
                |                            ^      +-- cold:       set aside --> a thread reads
                '-- held back by its topic --'      '-- unreadable: retry later

A chunk of timers is popped from the due queue in order (due millisecond, then arrival) and grouped
by partition. Each group becomes one or more deliver frames. A deliver frame has the visible batch
*and* the ids of the timers that it completes, in one atomic append. After any crash a timer is
therefore either pending or delivered, never both and never neither.

Records are copied only from `LogView`, so they have been checked. A timer whose record is not in
memory is set aside, and so are the later timers of its partition, so that a partition keeps its
order. They stay pending, and all other partitions go on. If a recurring timer of the partition is
due again before them, they go back into the queue. The owner has the records of these timers read,
in order. A timer whose record the disk cannot read waits by itself and delays no other timer.
It is retried when `LogView` allows it, and is then delivered late.

A timer may point to a partition of another topic. It counts as one of that partition, and its
completed entry names the topic that it comes from.

A topic that is paused, or that delivers only so many records a second, holds back its due timers
(`HeldBack`).

Records were rewritten when they were accepted, so a delivery copies key, value and headers as they
are. Delivered batches have producer id, epoch and sequence -1.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memmove, memset

from _core.timers.due_queue cimport DueQueue, Timer
from _core.paths.deliver_frames cimport DeliverFrames
from _core.paths.due_records cimport (
    LOCATE_COLD, LOCATE_CONTRADICTED, LOCATE_LATER, LOCATED, Due, HeldRecords,
)
from _core.paths.held_back cimport HeldBack
from _core.log.view cimport LogView
from _core.state.writer cimport LogWriter
from _core.queue.lateness cimport lateness_counts
from _core.queue.partition cimport Partition
from _core.timers.waiting_timers cimport drop_first, push_timer

cdef enum:
    # Maximum timers that wait for the disk, and timers whose records are read at a time.
    ASIDE_MAX = 1 << 20
    READ_COUNT = 256
    # Timers delivered per call after they waited for the disk: other timers are still on time.
    # The same for timers that their topics held back.
    ASIDE_CHUNK = 128
    # Unreadable timers retried at a time, and checked to choose them.
    RETRIES_MAX = 64
    LOOKED_AT_MAX = 1024


cdef set _NONE = set()


cdef class DeliverPath:
    """Delivers chunks of due timers.

    Attributes:
        ready: number of timers whose records have been read after they waited for the disk.
        damaged_timers: number of timers that their accept frame does not contain. They are never
            delivered.
    """

    def __cinit__(
        self, LogWriter writer not None, LogView view not None, *, Py_ssize_t chunk_max,
        int64_t batch_size_max, rules=None
    ):
        """Connect the parts of the path.

        Args:
            writer: appends frames.
            view: the frame cache, for held records.
            chunk_max: maximum number of timers per call.
            batch_size_max: a delivered batch ends once it has at least this many bytes.
            rules: computes the instants of recurring timers; without it they wait.
        """
        self.writer = writer
        self.view = view
        self.places = writer.projections.moved
        self.records = HeldRecords(view, self.places)
        self.chunk_max = chunk_max
        self.out = DeliverFrames(writer, rules, batch_size_max=batch_size_max)
        self.retried = set()
        self.held_back = HeldBack(writer.projections, view)
        self.timers = <Timer*>malloc(chunk_max * sizeof(Timer))
        self.found = <Due*>malloc(chunk_max * sizeof(Due))
        if self.timers == NULL or self.found == NULL:
            raise MemoryError(f"cannot allocate chunks of {chunk_max} timers")

    def __dealloc__(self):
        free(self.timers)
        free(self.found)
        free(self.group_of)
        free(self.held)
        free(self.aside.timers)
        free(self.unreadable.timers)

    def deliver(self, int64_t now_ms, Py_ssize_t limit):
        """Append the records of due timers that are in memory.

        Args:
            now_ms: epoch ms; timers due later are not touched.
            limit: maximum number of timers, limited to `chunk_max`.

        Returns:
            The number of timers delivered.
        """
        cdef Py_ssize_t count, room
        cdef int32_t first
        cdef Partition partition
        cdef set overtaken = set()
        self.out.begin()
        self.now_ms = now_ms
        self._begin()
        limit = min(limit, self.chunk_max)
        count = self._take_unreadable(0, limit // 2)
        # The limit ensures that timers which waited for the disk do not delay the others.
        count = self._take_aside(count, min(count + ASIDE_CHUNK, (limit + 1) // 2))
        room = min(ASIDE_CHUNK, limit // 4) if self.writer.projections.due.held else 0
        count = self._take_due(count, now_ms, limit - room)
        count = self._take_held(count, now_ms, limit)
        for first in self._group(count):
            partition = <Partition>self.writer.projections.partitions[self.timers[first].partition]
            self.out.begin_partition()
            while first >= 0:
                if self.out.disk_full or self.out.is_overtaken:
                    self.writer.projections.due.unpop(&self.timers[first], 1)
                    first = self.found[first].next
                else:
                    first = self.out.deliver_run(
                        partition, self.timers, self.found, first, now_ms
                    )
            if self.out.anew_due_ms <= now_ms and self.held[partition.handle]:
                overtaken.add(partition.handle)
        self.records.end()
        if self.out.disk_full:
            self._return_aside(None)
        elif overtaken:
            self._return_aside(overtaken)
        return self.out.delivered

    cdef int _begin(self) except -1:
        cdef Py_ssize_t handles = len(self.writer.projections.partitions)
        cdef int32_t* grown
        self.records.begin()
        if handles > self.handle_count:
            grown = <int32_t*>realloc(self.held, handles * sizeof(int32_t))
            if grown == NULL:
                raise MemoryError("cannot allocate the table of partitions that wait for the disk")
            self.held = grown
            memset(grown + self.handle_count, 0, (handles - self.handle_count) * sizeof(int32_t))
            self.handle_count = handles
        return 0

    cdef Py_ssize_t _take_due(
        self, Py_ssize_t count, int64_t now_ms, Py_ssize_t limit
    ) except -1:
        """Pop due timers into `timers` from index `count` on, and set aside those that must wait.

        Returns the new count.
        """
        cdef DueQueue due = self.writer.projections.due
        cdef Py_ssize_t i, end
        cdef Timer timer
        cdef int result
        if self.is_clogged or count >= limit:
            return count
        end = count + due.pop_due(now_ms, self.timers + count, limit - count)
        for i in range(count, end):
            timer = self.timers[i]
            if self.held_back.holds_back(timer.partition):
                self.held_back.hold(&timer)
                continue
            if self.records.is_spent():
                due.unpop(&self.timers[i], end - i)
                break
            if self.held[timer.partition]:
                self._set_aside(&timer)
                continue
            result = self._locate(&timer, count)
            if result == LOCATED:
                self.timers[count] = timer
                count += 1
            elif result == LOCATE_COLD or result == LOCATE_LATER:
                self._set_aside(&timer)
            else:
                self._note_unreadable(&timer, result)
        return count

    cdef int _locate(self, const Timer* timer, Py_ssize_t i) except -1:
        """Locate the record of a timer, and decide what follows it if it recurs.

        Writes both to `found` at index `i`. Returns a LocateResult.
        """
        cdef Due* due = &self.found[i]
        cdef int result = self.records.locate(timer, due)
        if result != LOCATED or due.rule_size == 0:
            return result
        if self.out.recurrences.decide(due, timer.due_ms, self.now_ms):
            return LOCATED
        return LOCATE_LATER

    # Timers that their topics hold back: pending, but no longer in the due queue

    cdef Py_ssize_t _take_held(
        self, Py_ssize_t count, int64_t now_ms, Py_ssize_t limit
    ) except -1:
        """Move timers that are released now to `timers`, from index `count` on.

        One whose record is cold stays first of its topic until that is read: so it counts for the
        bounds of its topic when it goes. Returns the new count.
        """
        cdef DueQueue due = self.writer.projections.due
        cdef Timer timer
        cdef int result
        if self.is_clogged or not self.held_back.begin_turn():
            return count
        if 0 <= due.next_due_ms() <= now_ms:
            limit = min(limit, count + ASIDE_CHUNK)
        while count < limit and not self.records.is_spent():
            if not self.held_back.peek(&timer, now_ms):
                break
            if self.held[timer.partition]:
                self._return_aside(_NONE)    # earlier ones, before the topic held any back
                continue
            result = self._locate(&timer, count)
            if result == LOCATE_LATER:
                break
            if result == LOCATED:
                self.held_back.release(&timer, now_ms)
                self.timers[count] = timer
                self.found[count].is_held = True
                count += 1
            elif result == LOCATE_COLD:
                self.held_back.block()
            else:
                self.held_back.drop(&timer)
                self._note_unreadable(&timer, result)
        return count

    # Timers that wait for the disk: pending, but no longer in the due queue

    cdef int _set_aside(self, const Timer* timer) except -1:
        """Let a timer wait for its record; later timers of its partition wait after it."""
        if self.writer.projections.due.keep(timer):
            push_timer(&self.aside, timer)
            self.held[timer.partition] += 1
        return 0

    cdef int _note_unreadable(self, const Timer* timer, int result) except -1:
        """Let a timer whose record cannot be read wait by itself, without delaying others."""
        if result == LOCATE_CONTRADICTED:
            # The frame is whole but does not contain the timer, so the timer is wrong.
            self.damaged_timers += 1
            self.writer.projections.dropped.add((timer.position, timer.record_index))
        elif self.writer.projections.due.keep(timer):
            push_timer(&self.unreadable, timer)
        return 0

    cdef Py_ssize_t _take_aside(self, Py_ssize_t count, Py_ssize_t limit) except -1:
        """Move timers whose records were read to `timers`, in order, from index `count` on.

        Returns the new count.
        """
        cdef DueQueue due = self.writer.projections.due
        cdef Timer* first = self.aside.timers + self.aside.start
        cdef Py_ssize_t n = min(self.ready, max(limit - count, 0)), k, left = 0
        cdef Timer timer
        cdef int result
        for k in range(n):
            if self.held_back.holds_back(first[k].partition):
                self._return_aside(_NONE)
                n = min(self.ready, n)
                break
        k = 0
        # Partitions with an earlier timer that is still cold; few, because all were just read.
        stuck = set()
        while k < n and not self.records.is_spent():
            timer = first[k]
            k += 1
            if timer.partition in stuck:
                first[left] = timer
                left += 1
                continue
            result = LOCATE_COLD
            if due.take_kept(&timer):
                result = self._locate(&timer, count)
                if result == LOCATED:
                    self.timers[count] = timer
                    count += 1
                elif result == LOCATE_COLD or result == LOCATE_LATER:
                    due.keep(&timer)
                    stuck.add(timer.partition)
                    first[left] = timer
                    left += 1
                    continue
                else:
                    self._note_unreadable(&timer, result)
            self.held[timer.partition] -= 1
        memmove(first + k - left, first, left * sizeof(Timer))
        drop_first(&self.aside, k - left)
        self.ready -= k
        return count

    cdef Py_ssize_t _take_unreadable(self, Py_ssize_t count, Py_ssize_t limit) except -1:
        """Move retried timers that are readable now to `timers`. Returns the new count."""
        cdef DueQueue due = self.writer.projections.due
        cdef Py_ssize_t i, left = 0
        cdef Timer timer
        cdef int64_t pos
        if not self.is_retried:
            return count
        self.is_retried = False
        for i in range(self.unreadable.count):
            timer = self.unreadable.timers[self.unreadable.start + i]
            pos = self.places.place_of(timer.position)
            if pos in self.retried and count < limit and not self.view.is_damaged(pos):
                if not due.take_kept(&timer):
                    continue
                if not self.held_back.is_paused(timer.partition):
                    if self._locate(&timer, count) == LOCATED:
                        self.timers[count] = timer
                        count += 1
                        continue
                due.keep(&timer)
            self.unreadable.timers[self.unreadable.start + left] = timer
            left += 1
        self.unreadable.count = left
        return count

    cdef int _return_aside(self, set partitions) except -1:
        """Put timers set aside back into the due queue: of some partitions (handles), or of all.

        Those whose topics hold back now are held back instead, whatever their partition.
        """
        cdef DueQueue due = self.writer.projections.due
        cdef Timer* first = self.aside.timers + self.aside.start
        cdef Py_ssize_t i, left = 0, ready = 0, reading = 0
        cdef Timer timer
        cdef bint is_held
        for i in range(self.aside.count):
            timer = first[i]
            is_held = self.held_back.holds_back(timer.partition)
            if is_held or partitions is None or timer.partition in partitions:
                self.held[timer.partition] -= 1
                if due.take_kept(&timer):
                    if is_held:
                        self.held_back.hold(&timer)
                    else:
                        due.unpop(&timer, 1)
                continue
            ready += i < self.ready
            reading += i < self.reading
            first[left] = timer
            left += 1
        self.aside.count = left
        self.ready, self.reading = ready, reading
        drop_first(&self.aside, 0)    # frees an empty one
        return 0

    def next_cold(self):
        """Log positions of the frames to read next. Call `note_read` when they are read.

        Empty while frames are being read, or if no timer waits.
        """
        cdef Py_ssize_t i
        cdef int32_t size
        cdef int64_t pos
        if self.is_reading or self.ready:
            return []
        found = {}
        self.retried = set()
        for i in range(min(self.unreadable.count, LOOKED_AT_MAX)):
            self.cursor = self.cursor + 1 if self.cursor + 1 < self.unreadable.count else 0
            pos = self.places.place_of(
                self.unreadable.timers[self.unreadable.start + self.cursor].position
            )
            if len(found) < RETRIES_MAX and not self.view.is_damaged(pos):
                found[pos] = True
                self.retried.add(pos)
        self.reading = min(self.aside.count, READ_COUNT)
        for i in range(self.reading):
            pos = self.places.place_of(self.aside.timers[self.aside.start + i].position)
            if pos >= 0 and self.view._find(pos, &size) == NULL:
                if not self.view.is_damaged(pos):
                    found[pos] = True
        for pos in self.held_back.cold:
            if not self.view.is_damaged(pos):
                found[pos] = True
        if not found:
            self.ready = self.reading
        self.is_reading = bool(found)
        return list(found)

    def note_read(self):
        """Note that the frames from `next_cold` were read, as far as they are readable."""
        self.is_reading = False
        self.is_retried = bool(self.retried)
        self.ready = min(self.reading, self.aside.count)

    def look_ahead(self, int64_t until_ms):
        """Log positions of frames to read ahead: those of timers due soon that are not in memory.

        Args:
            until_ms: epoch ms; timers due later are not considered.
        """
        cdef DueQueue due = self.writer.projections.due
        cdef int32_t size
        cdef int64_t pos
        cdef Py_ssize_t i, count
        if not 0 <= due.next_due_ms() <= until_ms:
            return []
        count = due.pop_due(until_ms, self.timers, self.chunk_max)
        found = set()
        for i in range(count):
            pos = self.places.place_of(self.timers[i].position)
            if pos >= 0 and self.view._find(pos, &size) == NULL and not self.view.is_damaged(pos):
                found.add(pos)
        due.unpop(self.timers, count)
        return list(found)

    @property
    def is_clogged(self):
        """Whether so many timers wait for the disk that no more are popped until some are read."""
        return self.aside.count >= ASIDE_MAX

    @property
    def waiting(self):
        """Number of due timers that wait for the disk, or for an earlier timer that does."""
        return self.aside.count

    def kept(self, Py_ssize_t limit):
        """Return the pending timers that the due queue does not have: they are due, and wait.

        Args:
            limit: timers at most of those that wait for the disk, and of the unreadable ones.

        Returns:
            Tuples of due_ms, position, record_index and partition handle, in no order.
        """
        return self._kept_of(&self.aside, limit) + self._kept_of(&self.unreadable, limit)

    cdef list _kept_of(self, const Waiting* waiting, Py_ssize_t limit):
        cdef list found = []
        cdef const Timer* timer
        cdef Py_ssize_t i
        for i in range(min(waiting.count, limit)):
            timer = &waiting.timers[waiting.start + i]
            if not self.writer.projections.due.tree.is_cancelled(timer):
                found.append((timer.due_ms, timer.position, timer.record_index, timer.partition))
        return found

    @property
    def unreadable_count(self):
        """Number of due timers whose records cannot be read at present; they are retried."""
        return self.unreadable.count

    cdef list _group(self, Py_ssize_t count):
        """Link the timers of each partition; return the first of each, in order of due time."""
        cdef Py_ssize_t handles = len(self.writer.projections.partitions), i
        cdef int32_t* grown
        cdef int32_t handle, last
        if handles > self.group_capacity:
            grown = <int32_t*>realloc(self.group_of, handles * sizeof(int32_t))
            if grown == NULL:
                raise MemoryError("cannot allocate the groups of a delivery")
            self.group_of = grown
            for i in range(self.group_capacity, handles):
                grown[i] = -1
            self.group_capacity = handles
        firsts = []
        for i in range(count):
            handle = self.timers[i].partition
            last = self.group_of[handle]
            if last < 0:
                firsts.append(i)
            else:
                self.found[last].next = <int32_t>i
            self.found[i].next = -1
            self.group_of[handle] = <int32_t>i
        for i in range(count):
            self.group_of[self.timers[i].partition] = -1
        return firsts

    @property
    def lateness(self):
        """Delivered timers by lateness: a count for each of LATENESS_BOUNDS_MS, and one above."""
        return lateness_counts(&self.out.late)

    @property
    def lateness_sum_ms(self):
        """The sum of what they were late by, ms."""
        return self.out.late.sum_ms

    def take_ended(self):
        """Forget the recurring timers that were delivered for the last time, and return them.

        Returns:
            Topic and id of each, of the first few.
        """
        ended, self.out.ended = self.out.ended, []
        return ended

    @property
    def late_ms_max(self):
        """How late the latest timer of the last `deliver` was, ms."""
        return self.out.late_ms_max

    @property
    def frames(self):
        """Number of deliver frames since the start."""
        return self.out.frames

    @property
    def moved_count(self):
        """Occurrences of recurring timers since the start that were moved and not delivered."""
        return self.out.moved_count

    @property
    def disk_full(self):
        """Whether the last `deliver` stopped because the disk was full.

        The timers that were not delivered are still due.
        """
        return self.out.disk_full
