"""One Kafka connection without its socket: bytes in, answers out, in order.

Produce and Fetch are handled here from bytes to bytes; what is rare goes to `rare`. Answers leave
in the order of their requests: one that waits for a flush, or a fetch that waits for data, holds
those behind it. All answers to produce requests of one read are joined into one buffer.

The owner (compat.kafka.server) calls, for each read: `received`, then the store's commit, then
`compact` - slices of the input buffer are part of what the commit writes - and sends what `output`
gives. Layer 0: no I/O, no clock.

What one connection takes is bounded. Of memory: a request by its size, the answers that wait by
their number and bytes, and `held_bytes` tells the owner of it. Of time: when a turn has done
TURN_WORK_BYTES of work, the rest of the input waits for the next turn, after everybody else.
"""

from collections import deque

from cpython.buffer cimport PyBUF_WRITE
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memmove

from _core.answer cimport REQUEST_TIMED_OUT, Answer, time_out
from _core.buffer cimport Buf, fence, fit, release, reserve, shrink, unfence
from _core.fetch cimport (
    FETCH_ANSWERED, FETCH_COLD, FETCH_MALFORMED, FETCH_TOO_LARGE, FETCH_TOO_LITTLE, FetchAsk,
    FetchPath,
)
from _core.kafka_wire cimport put_i32, put_i8, skip_tags, take_string
from _core.octets cimport Cursor, cursor_of, load_i16, load_i32, store_u32, take_i16, take_i32
from _core.partition cimport Partition
from _core.produce cimport (
    PRODUCE_ANSWERED, PRODUCE_CLOSE, PRODUCE_MALFORMED, PRODUCE_TOO_LARGE, ProducePath,
)

# Bytes of answers that may wait, after which no more requests are looked at.
QUEUED_MAX_BYTES = 8 << 20

cdef enum:
    KEY_PRODUCE = 0
    KEY_FETCH = 1
    PRODUCE_MIN = 3
    PRODUCE_MAX = 11
    PRODUCE_FLEXIBLE = 9
    FETCH_MIN = 4
    FETCH_MAX = 17
    FETCH_FLEXIBLE = 12
    INPUT_MIN_BYTES = 16 << 10
    INPUT_KEEP_BYTES = 4 << 20
    KEEP_BYTES = 64 << 10
    # A client that sends requests and does not read answers is not read any further.
    ANSWERS_MAX = 256
    # Some ms of work. Each request counts as so many bytes, however small it is; what is unpacked
    # or copied counts as well.
    TURN_WORK_BYTES = 2 << 20
    REQUEST_WORK_BYTES = 1024


cdef class ParkedFetch:
    """A fetch that waits: for more data, or for frames to be read from the disk.

    Attributes:
        session: the connection.
        wait_ms: how long the client is willing to wait.
        cold: what a thread must read first (`FrameFinder.place`); empty if it waits for data.
        answered: True when it is over.
        timer: the owner's handle of the time-out.
        is_expired: set by the owner when its time is over.
    """

    def unpark(self):
        """Stop watching its partitions."""
        cdef Partition partition
        for partition in self.partitions:
            if self in partition.waiters:
                partition.waiters.remove(self)
        self.partitions = []


cdef class ParkedAnswer:
    """The answer to a rare request that is not known yet; the requests behind it wait.

    Attributes:
        session: the connection, once it knows of this.
        answered: True when it is over.
    """

    def complete(self, bytes payload not None, int64_t end_pos):
        """Give the answer; nothing happens if the connection is gone.

        Args:
            payload: the response without its size prefix.
            end_pos: log position that must be durable before it leaves.
        """
        assert not self.answered
        self.answered = True
        if self.session is None:
            self.payload = payload
            self.end_pos = end_pos
            return
        self.answer.parked = False
        self.session.parked_count -= 1
        self.session._tell(self.answer, payload, end_pos)


cdef class Session:
    """State of one connection.

    Attributes:
        close_reason: why the connection must be closed once its output is sent, or None.
        paused: True while input is not looked at, because too many answers wait.
        yielded: True while input is left for the next turn, because this one did enough: call
            `resume` then, whatever waits.
        has_more: the last `output` left answers that may leave as well.
        taken_bytes: bytes of the last `output`.
        new_parked: fetches parked by the last `received`, to be timed by the owner.
        requests: requests seen.
        silent_pos: up to where the log holds what nobody waits for any more: it came without a wish
            for an answer (acks=0), or timed out.
    """

    def __cinit__(self, ProducePath produce not None, FetchPath fetch not None, rare not None, *,
                  int64_t request_size_max):
        """Begin a connection.

        Args:
            produce, fetch: the shared hot paths.
            rare: function of a request's bytes -> (answer without size prefix, log position that
                must be durable first), or a ParkedAnswer if it comes later, or a text that says
                why to close the connection.
            request_size_max: largest request, bytes.
        """
        self.produce = produce
        self.fetch = fetch
        self.rare = rare
        self.request_size_max = request_size_max
        self.queued_max_bytes = QUEUED_MAX_BYTES
        self.answers = deque()
        self.new_parked = []
        self.merged_wait_ms = INT64_MAX

    def __dealloc__(self):
        release(&self.input)
        release(&self.merged)
        release(&self.marks)
        release(&self.out)

    # Input

    def get_buffer(self):
        """Where bytes from the socket go next: writable, valid until `received` or `compact`."""
        cdef Py_ssize_t room = self.input.capacity - self.input.size
        # Grows as bytes arrive, not by what a size field claims.
        if room < INPUT_MIN_BYTES // 2:
            reserve(&self.input, self.input.capacity if self.input.capacity else INPUT_MIN_BYTES)
            room = self.input.capacity - self.input.size
        return PyMemoryView_FromMemory(<char*>self.input.data + self.input.size, room, PyBUF_WRITE)

    def received(self, Py_ssize_t count, int64_t now_ms):
        """`count` bytes were put into the buffer: handle every whole request.

        Args:
            count: bytes, at most the size of the last `get_buffer`.
            now_ms: epoch ms, the receive time of these requests.
        """
        assert 0 <= count <= self.input.capacity - self.input.size
        self.input.size += count
        self.new_parked = []
        self._process(now_ms)

    def resume(self, int64_t now_ms):
        """Handle requests that were left while `paused` or `yielded`."""
        self.new_parked = []
        self.paused = False
        self._process(now_ms)

    def yield_turn(self):
        """Let the request that is handled now be the last one of this turn."""
        self.work_left = 0

    cdef int _process(self, int64_t now_ms) except -1:
        cdef Py_ssize_t rest
        cdef int32_t size
        cdef int64_t before
        self.yielded = False
        self.work_left = TURN_WORK_BYTES
        while self.close_reason is None:
            rest = self.input.size - self.consumed
            if rest < 4:
                break
            # Behind a fetch that waits Kafka looks at nothing else either.
            if (
                self.parked_count or len(self.answers) >= ANSWERS_MAX
                or self.queued_bytes >= self.queued_max_bytes
            ):
                self.paused = True
                break
            size = load_i32(self.input.data + self.consumed)
            if size < 8 or size > self.request_size_max:
                self._close(
                    f"a request of {size} bytes; "
                    f"network.request_size_max_bytes is {self.request_size_max}"
                )
                break
            if rest - 4 < size:
                break
            if self.work_left <= 0:
                self.yielded = True
                break
            self.consumed += 4 + size
            self.requests += 1
            before = self.produce.work_bytes + self.fetch.work_bytes
            # What is behind the request is none of its reader's business.
            fence(self.input.data + self.consumed, self.input.capacity - self.consumed)
            self._request(self.input.data + self.consumed - size, size, now_ms)
            unfence(self.input.data + self.consumed, self.input.capacity - self.consumed)
            # A request may have ended the turn already, by yield_turn.
            self.work_left -= REQUEST_WORK_BYTES + size
            self.work_left -= self.produce.work_bytes + self.fetch.work_bytes - before
        return self._end_round()

    def compact(self, Py_ssize_t keep_bytes=INPUT_KEEP_BYTES):
        """Drop what is dealt with. Call after the commit: until then frames refer to the input.

        Args:
            keep_bytes: size up to which the input buffer is kept for the next request.
        """
        cdef Py_ssize_t rest = self.input.size - self.consumed
        if rest and self.consumed:
            memmove(self.input.data, self.input.data + self.consumed, rest)
        self.input.size = rest
        self.consumed = 0
        fit(&self.input, keep_bytes)

    def trim(self):
        """Give the memory of an idle connection back. Not between `get_buffer` and `received`."""
        if self.input.size == 0:
            release(&self.input)
        if self.merged.size == 0:
            release(&self.merged)
            release(&self.marks)
        release(&self.out)

    @property
    def held_bytes(self):
        """Memory that this connection takes; a slice counts in full, though others may hold it."""
        buffers = self.input.capacity + self.merged.capacity + self.out.capacity
        return buffers + self.queued_bytes + self.parked_bytes

    @property
    def partial_bytes(self):
        """Bytes of a request of which the rest has not come yet; 0 if there is none."""
        cdef Py_ssize_t rest = self.input.size - self.consumed
        if self.paused or self.yielded or self.close_reason is not None:
            return 0
        return rest

    cdef int _fill(self, Answer answer, list pieces) except -1:
        answer.pieces = pieces
        for piece in pieces:
            self.queued_bytes += len(piece)
        return 0

    cdef int _close(self, str reason) except -1:
        self.close_reason = reason
        return 0

    # Requests

    cdef int _request(self, const uint8_t* p, Py_ssize_t size, int64_t now_ms) except -1:
        cdef Cursor c = cursor_of(p, size)
        cdef int64_t client_id_size
        cdef int key = take_i16(&c)
        cdef int version = take_i16(&c)
        cdef int32_t correlation = take_i32(&c)
        if key == KEY_PRODUCE and PRODUCE_MIN <= version <= PRODUCE_MAX:
            take_string(&c, False, &client_id_size)
            skip_tags(&c, version >= PRODUCE_FLEXIBLE)
            self.produce.requests += 1
            return self._produce(&c, version, correlation, now_ms)
        if key == KEY_FETCH and FETCH_MIN <= version <= FETCH_MAX:
            take_string(&c, False, &client_id_size)
            skip_tags(&c, version >= FETCH_FLEXIBLE)
            self.fetch.requests += 1
            return self._fetch(&c, version, correlation)
        return self._rare(p, size)

    cdef int _begin_answer(self, Buf* out, int32_t correlation, bint flexible) except -1:
        put_i32(out, 0)  # size, filled in at the end
        put_i32(out, correlation)
        if flexible:
            put_i8(out, 0)
        return 0

    cdef int _produce(self, Cursor* c, int version, int32_t correlation, int64_t now_ms) except -1:
        cdef Py_ssize_t start = self.merged.size, marked = self.marks.size
        cdef int result
        self._begin_answer(&self.merged, correlation, version >= PRODUCE_FLEXIBLE)
        result = self.produce.handle(
            c, version, now_ms, &self.merged, &self.marks, &self.merged_end_pos
        )
        if result == PRODUCE_ANSWERED:
            store_u32(self.merged.data + start, <uint32_t>(self.merged.size - start - 4))
            # What leaves together waits together, no longer than the least patient of them.
            self.merged_wait_ms = min(self.merged_wait_ms, self.produce.timeout_ms)
            return 0
        self.merged.size = start
        self.marks.size = marked
        self.silent_pos = max(self.silent_pos, self.merged_end_pos)
        if result == PRODUCE_MALFORMED:
            return self._close("malformed Produce request")
        if result == PRODUCE_TOO_LARGE:
            return self._close("a Produce that names more topics and partitions than there can be")
        if result == PRODUCE_CLOSE:
            # Nobody waits for an answer, so this is how a producer with acks=0 learns of it.
            return self._close("a batch sent with acks=0 was refused")
        return 0

    cdef int _fetch(self, Cursor* c, int version, int32_t correlation) except -1:
        cdef const uint8_t* body = c.p
        cdef Py_ssize_t size = c.end - c.p
        cdef FetchAsk ask
        cdef ParkedFetch parked
        cdef Answer answer = Answer()
        cdef int result
        self._end_round()
        shrink(&self.out, KEEP_BYTES)
        self._begin_answer(&self.out, correlation, version >= FETCH_FLEXIBLE)
        result = self.fetch.handle(c, version, True, False, &self.out, &ask)
        if result == FETCH_MALFORMED:
            return self._close("malformed Fetch request")
        if result == FETCH_TOO_LARGE:
            return self._close("a Fetch that names more topics and partitions than there can be")
        self.answers.append(answer)
        if result == FETCH_ANSWERED:
            self._fill(answer, self.fetch.pieces(&self.out, 0))
            shrink(&self.out, KEEP_BYTES)
            return 0
        parked = ParkedFetch()
        parked.session = self
        parked.answer = answer
        parked.request = PyBytes_FromStringAndSize(<const char*>body, size)
        self.parked_bytes += size
        parked.version = version
        parked.correlation = correlation
        parked.wait_ms = ask.max_wait_ms
        answer.parked = True
        self.parked_count += 1
        self._park(parked, result)
        self.new_parked.append(parked)
        return 0

    cdef int _park(self, ParkedFetch parked, int result) except -1:
        cdef Partition partition
        parked.cold = self.fetch.cold if result == FETCH_COLD else []
        parked.partitions = []
        if result == FETCH_TOO_LITTLE:
            parked.partitions = self.fetch.watched
            for partition in parked.partitions:
                partition.waiters.append(parked)
        return 0

    def retry(self, ParkedFetch parked not None):
        """Look at a parked fetch again.

        Args:
            parked: one of this session's; once it `is_expired`, what there is is the answer.

        Returns:
            True when it is answered; False when it waits on, see `parked.cold`.
        """
        cdef Cursor c
        cdef FetchAsk ask
        cdef int result
        if parked.answered:
            return True
        parked.unpark()
        c = cursor_of(<const uint8_t*><const char*>parked.request, len(parked.request))
        shrink(&self.out, KEEP_BYTES)
        self._begin_answer(&self.out, parked.correlation, parked.version >= FETCH_FLEXIBLE)
        result = self.fetch.handle(&c, parked.version, not parked.is_expired, True, &self.out, &ask)
        if result != FETCH_ANSWERED:
            self._park(parked, result)
            return False
        self._fill(parked.answer, self.fetch.pieces(&self.out, 0))
        shrink(&self.out, KEEP_BYTES)
        self.parked_bytes -= len(parked.request)
        parked.answer.parked = False
        self.parked_count -= 1
        parked.answered = True
        return True

    cdef int _rare(self, const uint8_t* p, Py_ssize_t size) except -1:
        cdef Answer answer
        cdef ParkedAnswer parked
        self._end_round()
        told = self.rare(PyBytes_FromStringAndSize(<const char*>p, size))
        if isinstance(told, str):
            return self._close(told)
        answer = Answer()
        self.answers.append(answer)
        if not isinstance(told, ParkedAnswer):
            payload, end_pos = told
            return self._tell(answer, payload, end_pos)
        parked = <ParkedAnswer>told
        if parked.answered:
            return self._tell(answer, parked.payload, parked.end_pos)
        parked.session = self
        parked.answer = answer
        answer.parked = True
        self.parked_count += 1
        return 0

    cdef int _tell(self, Answer answer, bytes payload, int64_t end_pos) except -1:
        answer.end_pos = end_pos
        return self._fill(answer, [len(payload).to_bytes(4, "big") + payload])

    # Output

    cdef int _end_round(self) except -1:
        """What was merged becomes an answer of its own."""
        cdef Answer answer
        if self.merged.size:
            answer = Answer()
            answer.end_pos = self.merged_end_pos
            answer.wait_ms = self.merged_wait_ms
            answer.marks = PyBytes_FromStringAndSize(<char*>self.marks.data, self.marks.size)
            self._fill(
                answer, [PyBytes_FromStringAndSize(<char*>self.merged.data, self.merged.size)]
            )
            self.answers.append(answer)
            shrink(&self.merged, KEEP_BYTES)
            shrink(&self.marks, KEEP_BYTES)
        self.merged_end_pos = 0
        self.merged_wait_ms = INT64_MAX
        return 0

    def output(self, int64_t durable_pos, int64_t size_max=INT64_MAX):
        """Answers that may leave now, as buffers to send in order.

        Args:
            durable_pos: log position up to which acknowledgements are allowed.
            size_max: bytes after which the rest is left for the next call, in the middle of an
                answer as well.
        """
        cdef Answer answer
        cdef int64_t room = size_max
        result = []
        self.has_more = False
        self.taken_bytes = 0
        while self.answers:
            answer = <Answer>self.answers[0]
            if answer.parked or answer.end_pos > durable_pos:
                break
            if room <= 0:
                self.has_more = True
                break
            room -= answer.take(room, result)
            if not answer.pieces:
                self.answers.popleft()
        self.taken_bytes = size_max - room
        self.queued_bytes -= self.taken_bytes
        return result

    def time_out(self, int64_t now_ms, int64_t wait_max_ms, int64_t durable_pos):
        """Answer REQUEST_TIMED_OUT to what of Produce has waited, since a first call, too long.

        Args:
            now_ms: monotonic ms.
            wait_max_ms: most that any waits; less if the request says so.
            durable_pos: log position up to which acknowledgements are allowed.

        Returns:
            How many batches were given up on; `output` has their answers.
        """
        given_up = time_out(self.answers, now_ms, wait_max_ms, durable_pos, &self.silent_pos)
        self.produce.count_refused(REQUEST_TIMED_OUT, given_up)
        return given_up

    @property
    def is_waiting(self):
        """True while an answer waits for a flush, for data or for the disk."""
        return bool(self.answers)

    @property
    def awaits_flush(self):
        """True while the first answer waits for the log to become durable."""
        if not self.answers or self.has_more:
            return False
        return not (<Answer>self.answers[0]).parked

    def close(self):
        """The connection is gone. Its owner unparks its fetches."""
        self.close_reason = self.close_reason or "closed"
        self.answers.clear()
        self.queued_bytes = self.parked_bytes = 0
        release(&self.input)
        self.consumed = 0
