"""A Kafka connection without its socket: request bytes in, response bytes out, in order.

    socket -> received --+-- ProducePath -------+--> queue of answers -> output -> socket
                         +-- FetchPath ---------+
                         '-- control_plane: others --'

Produce and Fetch are handled here, from bytes to bytes. All other requests go to `control_plane`.
Responses leave in the order of their requests: a response that waits for a flush, or a fetch that
waits for data, holds back those after it. All Produce responses of one read are merged into one
buffer.

For each read the owner (compat.kafka.network.server) calls `received`, then the store's commit,
then `compact`, and sends the result of `output`. `compact` must follow the commit, because the
commit writes slices of the input buffer.

The resources of a connection are bounded. Memory: a request is limited in size, and the queued
responses are limited in number and bytes; `held_bytes` reports the total to the owner. Time: once a
turn has done TURN_WORK_BYTES of work, the rest of the input waits for the connection's next turn,
after all other connections. A Produce request may take several turns; then it is answered.

Layer 0: no I/O, no clock.
"""

from collections import deque

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memmove

from _core.paths.answer cimport (
    Answer, Durable, Patience, Queued, Reply, ResponseSlot, TimedOut, begin_answer, count_queued,
    patience_of, time_out,
)
from _core.bytes.batch cimport Slice
from _core.bytes.debug cimport SELF_CHECKS
from _core.bytes.buffer cimport Buf, fence, fit, release, shrink, unfence
from _core.paths.arriving cimport WINDOW_BYTES, make_room, next_growth, next_size
from _core.paths.begun cimport discard, set_aside, take_up
from _core.paths.fetch cimport (
    FETCH_ANSWERED, FETCH_MALFORMED, FETCH_TOO_LARGE, FETCH_UNFINISHED, FetchAsk, FetchPath,
)
from _core.bytes.kafka_errors cimport INVALID_REQUEST
from _core.bytes.kafka_wire cimport skip_tags, take_string
from _core.bytes.octets cimport Cursor, cursor_of, load_i32, store_u32, take_i16, take_i32
from _core.bytes.receive_loop cimport LargeInput, lend
from _core.paths.parked_fetch cimport ParkedFetch, new_parked
from _core.paths.produce cimport (
    PRODUCE_ANSWERED, PRODUCE_CLOSE, PRODUCE_MALFORMED, PRODUCE_TOO_LARGE, PRODUCE_UNFINISHED,
    ProducePath,
)
from _core.paths.request_size cimport describe_size
from _core.paths.traced cimport TRACE_ANSWERED, TRACE_PARKED, TRACE_SILENT, traced_head
from _core.paths.wide_fetch cimport WIDE_MIN_BYTES, WIDE_MIN_ITEMS, WideFetch

# Bytes of queued responses beyond which no more requests are processed.
QUEUED_MAX_BYTES = 8 << 20

# The APIs that are answered here; the control plane advertises these versions.
cpdef enum:
    KEY_PRODUCE = 0
    KEY_FETCH = 1
    PRODUCE_MIN = 3
    PRODUCE_MAX = 11
    PRODUCE_FLEXIBLE = 9
    FETCH_MIN = 4
    FETCH_MAX = 17
    FETCH_FLEXIBLE = 12

cdef enum:
    INPUT_KEEP_BYTES = 4 << 20
    SPENT_MIN_BYTES = 512 << 10  # to free less takes less than 0.1 ms
    KEEP_BYTES = 64 << 10
    # Pause a client that sends requests but does not read responses.
    ANSWERS_MAX = 256
    # Of a session whose owner sets no other (`appliance.loop_turns`). A request counts as
    # REQUEST_WORK_BYTES plus its size, plus the bytes that it decompresses or copies.
    TURN_WORK_BYTES = 2 << 20
    REQUEST_WORK_BYTES = 8 << 10


cdef class Session:
    """State of one connection.

    Attributes:
        close_reason: why the connection must be closed once its output is sent, or None.
        paused: whether input is not processed because a response is parked or too many are queued.
        lent: None, or what has arrived of a large request, which a thread receives.
        yielded: whether input is left for the next turn because this turn has done enough work.
            Call `resume` in that turn, even if responses wait.
        work: None, or what a thread must do before the input goes on, which has `yielded`. Call
            `resume` when it is this connection's turn to have a thread, and if there is work then
            that is made, again after its `run`.
        has_more: whether the last `output` left responses that may be sent.
        taken_bytes, taken_shared_bytes: bytes of the last `output`, and those of them that are
            slices of the frame cache.
        shared_bytes: the same of the responses that wait.
        new_parked: fetches parked by the last `received`; the owner sets their time-outs.
        requests: number of requests processed.
        silent_pos: end of the frames in the log that no response waits for, because they were sent
            with acks=0 or timed out.
        late_count: responses of the control plane that timed out.
        trace: None, or an object called before and after each request and for each response that
            leaves: `begin()`, `end((key, version, correlation id, client id or None), bytes,
            TRACE_...)`, `leave(count)`. Set it before the first `received`.
    """

    def __cinit__(self, ProducePath produce not None, FetchPath fetch not None,
                  control_plane not None, *, int64_t request_size_max):
        """Start a connection.

        Args:
            produce, fetch: the shared hot paths.
            control_plane: function of a request, of which it keeps no view, that returns a Reply, a
                ResponseSlot if the response comes later, or the reason to close the connection.
            request_size_max: largest request, bytes.
        """
        self.produce = produce
        self.fetch = fetch
        self.control_plane = control_plane
        self.request_size_max = request_size_max
        self.turn_work_bytes = TURN_WORK_BYTES
        self.queued_max_bytes = QUEUED_MAX_BYTES
        self.answers = deque()
        self.new_parked = []
        self.redirected = {}
        self.merged_wait_ms = INT64_MAX

    def __dealloc__(self):
        release(&self.input)
        release(&self.merged)
        release(&self.marks)
        discard(&self.begun)
        release(&self.out)

    # Input

    def get_buffer(self):
        """Writable memory for the next bytes from the socket, until `received` or `compact`."""
        if make_room(&self.input, self.consumed, self.request_size_max, self.was_filled):
            self.was_filled = False
        cdef char* end = <char*>self.input.data + self.input.size
        self.window_size = min(self.input.capacity - self.input.size, WINDOW_BYTES)
        return PyMemoryView_FromMemory(end, self.window_size, PyBUF_WRITE)

    def received(self, Py_ssize_t count, *, int64_t now_ns):
        """Handle every whole request after `count` bytes were written to the buffer.

        Args:
            count: bytes, at most the size of the last `get_buffer`.
            now_ns: epoch ns, 0 or more, the receive time of these requests.
        """
        assert 0 <= count <= self.input.capacity - self.input.size
        self.postpone(count)
        self.new_parked = []
        self._process(now_ns, False)

    cpdef int postpone(self, Py_ssize_t count) except -1:
        """Leave the `count` bytes that were written to the buffer for `resume`."""
        self.input.size += count
        self.was_filled = count == self.window_size
        self.yielded = True

    def resume(self, *, int64_t now_ns):
        """Handle requests that were left while `paused` or `yielded`."""
        self.new_parked = []
        self.paused = False
        self._process(now_ns, True)

    def yield_turn(self):
        """End this turn after the current request."""
        self.work_left = 0

    cdef int _process(self, int64_t now_ns, bint resumes) except -1:
        cdef int64_t now_ms = self.produce.begin(now_ns)
        cdef Py_ssize_t rest
        cdef int32_t size
        cdef int64_t before
        if self.work is not None and not resumes:
            return 0
        self.yielded = False
        self.work_left = self.turn_work_bytes
        while self.close_reason is None:
            rest = self.input.size - self.consumed
            if rest < 4:
                break
            # Like Kafka, process nothing after a parked fetch.
            if (
                self.parked_count or len(self.answers) >= ANSWERS_MAX
                or self.queued_bytes >= self.queued_max_bytes
            ):
                self.paused = True
                break
            size = load_i32(self.input.data + self.consumed)
            if size < 8 or size > self.request_size_max:
                self._close(describe_size(size, self.request_size_max))
                break
            if rest - 4 < size:
                break
            if self.work_left <= 0:
                self.yielded = True
                break
            self.consumed += 4 + size
            before = self.produce.work_bytes + self.fetch.work_bytes
            # Poison the bytes after the request so that the sanitizer catches over-reads.
            fence(self.input.data + self.consumed, self.input.capacity - self.consumed)
            if self.trace is None:
                self._request(self.input.data + self.consumed - size, size, now_ms)
            else:
                self._trace_request(self.input.data + self.consumed - size, size, now_ms)
            unfence(self.input.data + self.consumed, self.input.capacity - self.consumed)
            if self.begun.exists:
                self.consumed -= 4 + size
                self.yielded = True
                break
            self.requests += 1
            # The request may have ended the turn already, through yield_turn.
            self.work_left -= REQUEST_WORK_BYTES + size
            self.work_left -= self.produce.work_bytes + self.fetch.work_bytes - before
        return self._end_round()

    def compact(self, Py_ssize_t keep_bytes=INPUT_KEEP_BYTES):
        """Drop processed input. Call it after the commit: until then frames refer to the input.

        Args:
            keep_bytes: capacity of the input buffer that is kept for the next request, bytes.

        Returns:
            None, or memory that is no longer needed and takes long to free.
        """
        cdef Py_ssize_t rest = self.input.size - self.consumed
        if rest and self.consumed:
            memmove(self.input.data, self.input.data + self.consumed, rest)
        self.input.size = rest
        self.consumed = 0
        if not rest and self.input.capacity > max(keep_bytes, SPENT_MIN_BYTES):
            return lend(&self.input, 0)
        fit(&self.input, keep_bytes)
        return None

    def lend_input(self):
        """Return what has arrived of a large request, with room for the rest of it.

        Nothing is received here until `take_back`. REQUIRES: `wanted_bytes` is not 0. None before
        `compact`: frames that are not written refer to the bytes before that request.
        """
        self.lent = None if self.consumed else lend(&self.input, self.wanted_bytes)
        return self.lent

    def take_back(self):
        """Have what was lent again, with what has arrived since."""
        self.lent.move_to(&self.input)
        self.lent = None

    def trim(self):
        """Free the memory of an idle connection. Not between `get_buffer` and `received`."""
        if self.input.size == 0:
            release(&self.input)
        if self.merged.size == 0:
            release(&self.merged)
            release(&self.marks)
        release(&self.out)

    @property
    def held_bytes(self):
        """Memory of this connection, bytes. A slice counts in full even if others share it."""
        buffers = self.input.capacity + self.merged.capacity + self.out.capacity
        buffers += self.begun.answer.capacity + self.begun.marks.capacity
        if self.lent is not None:
            buffers += self.lent.received_bytes
        return buffers + self.queued_bytes + self.parked_bytes

    @property
    def partial_bytes(self):
        """Bytes received of an incomplete request; 0 if there is none."""
        cdef Py_ssize_t rest = self.input.size - self.consumed
        if self.lent is not None:
            return self.lent.received_bytes
        if self.paused or self.yielded or self.close_reason is not None:
            return 0
        return rest

    @property
    def growth_bytes(self):
        """Bytes by which the next `get_buffer` grows the buffer; 0 if it stays within 64 KiB."""
        return next_growth(&self.input, self.consumed, self.request_size_max)

    @property
    def wanted_bytes(self):
        """Size of an incomplete request with its prefix, once that has arrived; 0 if none."""
        if self.lent is not None:
            return self.lent.wanted_bytes
        size = next_size(&self.input, self.consumed, self.request_size_max)
        return size if self.partial_bytes else 0

    cdef int _fill(self, Answer answer, list pieces) except -1:
        answer.pieces = pieces
        self.queued_bytes += sum(map(len, pieces))
        return 0

    cdef int _close(self, str reason) except -1:
        self.close_reason = reason
        return 0

    # Requests

    cdef int _request(self, const uint8_t* p, Py_ssize_t size, int64_t now_ms) except -1:
        cdef Cursor c = cursor_of(p, size)
        cdef Slice* client_id = &self.produce.delays.client_id
        cdef int key = take_i16(&c)
        cdef int version = take_i16(&c)
        cdef int32_t correlation = take_i32(&c)
        if key == KEY_PRODUCE and PRODUCE_MIN <= version <= PRODUCE_MAX:
            client_id.data = take_string(&c, False, &client_id.size)
            skip_tags(&c, version >= PRODUCE_FLEXIBLE)
            self.produce.requests += 0 if self.begun.exists else 1
            return self._produce(&c, version, correlation, now_ms)
        if key == KEY_FETCH and FETCH_MIN <= version <= FETCH_MAX:
            client_id.data = take_string(&c, False, &client_id.size)
            skip_tags(&c, version >= FETCH_FLEXIBLE)
            self.fetch.requests += 1
            return self._fetch(&c, version, correlation)
        return self._control_plane(p, size)

    cdef int _trace_request(self, const uint8_t* p, Py_ssize_t size, int64_t now_ms) except -1:
        """Handle a request, and tell `trace` of it, which is not None."""
        cdef int parked_before = self.parked_count
        cdef Py_ssize_t merged_before = self.merged.size
        cdef tuple head = traced_head(p, size)
        self.trace.begin()
        self._request(p, size, now_ms)
        if self.begun.exists:
            return 0
        is_produce = head[0] == KEY_PRODUCE
        if self.parked_count > parked_before:
            outcome = TRACE_PARKED
        elif self.close_reason is None and (not is_produce or self.merged.size > merged_before):
            self.merged_traced += is_produce
            outcome = TRACE_ANSWERED
        else:
            outcome = TRACE_SILENT
        self.trace.end(head, size, outcome)
        return 0

    cdef int _produce(self, Cursor* c, int version, int32_t correlation, int64_t now_ms) except -1:
        cdef Py_ssize_t start = self.merged.size, marked = self.marks.size
        cdef int result
        if not take_up(&self.begun, &self.merged, &self.marks):
            begin_answer(&self.merged, correlation, version >= PRODUCE_FLEXIBLE)
        self.produce.work = self.work
        result = self.produce.handle(
            c, version, now_ms, &self.merged, &self.marks, &self.begun.progress, self.work_left
        )
        self.work = self.produce.work
        if result == PRODUCE_UNFINISHED:
            return set_aside(&self.begun, &self.merged, start, &self.marks, marked)
        self.merged_end_pos = max(self.merged_end_pos, self.begun.progress.end_pos)
        self.merged_local_pos = max(self.merged_local_pos, self.begun.progress.local_pos)
        if result == PRODUCE_ANSWERED:
            store_u32(self.merged.data + start, <uint32_t>(self.merged.size - start - 4))
            # Merged responses wait together, no longer than the shortest time-out among them.
            self.merged_wait_ms = min(self.merged_wait_ms, self.produce.timeout_ms)
            return 0
        self.merged.size = start
        self.marks.size = marked
        self.silent_pos = max(self.silent_pos, self.merged_end_pos, self.merged_local_pos)
        if result == PRODUCE_MALFORMED:
            return self._close("malformed Produce request")
        if result == PRODUCE_TOO_LARGE:
            return self._close("a Produce request names too many topics and partitions")
        if result == PRODUCE_CLOSE:
            # There is no response with acks=0: closing is how the producer learns of the error.
            return self._close("a batch sent with acks=0 was refused")
        return 0

    cdef int _fetch(self, Cursor* c, int version, int32_t correlation) except -1:
        cdef const uint8_t* body = c.p
        cdef Py_ssize_t size = c.end - c.p
        cdef FetchAsk ask
        cdef ParkedFetch parked
        cdef Answer answer = Answer()
        cdef bytes request = None
        cdef int result = FETCH_UNFINISHED
        self._end_round()
        self.fetch.redirected = self.redirected
        self.fetch.is_near = self.fetch.find_near(body, size, version)
        shrink(&self.out, KEEP_BYTES)
        begin_answer(&self.out, correlation, version >= FETCH_FLEXIBLE)
        if size >= WIDE_MIN_BYTES:
            request = self.fetch.kept_ask(body, size, version)
            if request is None:
                return self._close("malformed Fetch request")
        if request is not None and self.fetch.kept_items > self.fetch.item_count_max:
            result = self.fetch.refuse_all(version, INVALID_REQUEST, &self.out)
        elif request is None or self.fetch.kept_items <= WIDE_MIN_ITEMS:
            result = self.fetch.handle(c, version, True, False, &self.out, &ask)
        if result == FETCH_MALFORMED:
            return self._close("malformed Fetch request")
        if result == FETCH_TOO_LARGE:
            return self._close("a Fetch request names too many topics and partitions")
        self.answers.append(answer)
        if result == FETCH_ANSWERED:
            pieces = self.fetch.pieces(&self.out, 0)
            return self._answer_fetch(answer, pieces, self.fetch.slice_bytes)
        parked = new_parked(self, answer, version, correlation)
        self.parked_count += 1
        if result == FETCH_UNFINISHED:
            parked.request = request
            parked.wide = WideFetch(self.fetch, parked)
            self.parked_bytes += parked.held_bytes()
            if self.retry(parked):
                return 0
            parked.wait_ms = parked.wide.ask.max_wait_ms
        else:
            parked.request = self.fetch.kept_ask(body, size, version)
            parked.wait_ms = ask.max_wait_ms
            parked.wait(self.fetch, result, ask.min_bytes, self.fetch.projections.visible_pos)
            self.parked_bytes += parked.held_bytes()
        self.new_parked.append(parked)
        return 0

    cdef int _answer_fetch(self, Answer answer, list pieces, int64_t slice_bytes) except -1:
        self._fill(answer, pieces)
        answer.slice_bytes = slice_bytes
        self.shared_bytes += slice_bytes
        shrink(&self.out, KEEP_BYTES)
        return 0

    def retry(self, ParkedFetch parked not None):
        """Retry a parked fetch, or do another part of one that `is_unfinished`.

        Args:
            parked: a fetch of this session. Once it `is_expired`, it is answered with any data
                there is.

        Returns:
            True if it is answered, False if it still waits; see `parked.cold`.
        """
        cdef list pieces
        if parked.answered:
            return True
        self.parked_bytes -= parked.held_bytes()
        self.fetch.redirected = self.redirected
        self.fetch.is_near = False  # what is kept of the request has no rack
        shrink(&self.out, KEEP_BYTES)
        pieces = parked.attempt(self.fetch, &self.out)
        if pieces is None:
            self.parked_bytes += parked.held_bytes()
            return False
        self._answer_fetch(parked.answer, pieces, parked.slice_bytes)
        parked.answer.parked = False
        parked.finish()
        self.parked_count -= 1
        return True

    cdef int _control_plane(self, const uint8_t* p, Py_ssize_t size) except -1:
        cdef Answer answer
        cdef ResponseSlot parked
        self._end_round()
        outcome = self.control_plane(PyMemoryView_FromMemory(<char*>p, size, PyBUF_READ))
        if isinstance(outcome, str):
            return self._close(outcome)
        answer = Answer()
        self.answers.append(answer)
        if not isinstance(outcome, ResponseSlot):
            return self._respond(answer, outcome)
        parked = <ResponseSlot>outcome
        if parked.answered:
            return self._respond(answer, parked.reply)
        parked.wait(self, answer)
        self.parked_count += 1
        return 0

    def end_wait(self, Answer answer not None, Reply reply not None):
        """Set a response that comes later; called by its ResponseSlot."""
        self.parked_count -= 1
        if self.control_plane is not None:    # else it is closed
            self._respond(answer, reply)

    cdef int _respond(self, Answer answer, Reply reply) except -1:
        answer.set_reply(reply)
        self.queued_bytes += answer.kept_bytes
        return self._fill(answer, answer.pieces)

    # Output

    cdef int _end_round(self) except -1:
        """Queue the merged Produce responses as one answer."""
        cdef Answer answer
        if self.merged.size:
            answer = Answer()
            answer.end_pos, answer.local_pos = self.merged_end_pos, self.merged_local_pos
            answer.wait_ms = self.merged_wait_ms
            answer.marks = PyBytes_FromStringAndSize(<char*>self.marks.data, self.marks.size)
            answer.traced = self.merged_traced
            pieces = [PyBytes_FromStringAndSize(<char*>self.merged.data, self.merged.size)]
            self._fill(answer, pieces)
            self.answers.append(answer)
            shrink(&self.merged, KEEP_BYTES)
            shrink(&self.marks, KEEP_BYTES)
        self.merged_traced = 0
        self.merged_end_pos = self.merged_local_pos = 0
        self.merged_wait_ms = INT64_MAX
        return 0

    def output(self, int64_t durable_pos, int64_t size_max=INT64_MAX, *, int64_t local_pos=0):
        """Take the responses that may be sent now, as buffers in order.

        Args:
            durable_pos: log position up to which acknowledgements are allowed.
            size_max: bytes after which the rest is left for the next call, even of one response.
            local_pos: the same for those that do not wait for a slave; `durable_pos` if it is less.
        """
        cdef Answer answer
        cdef Durable durable = Durable(durable_pos, max(durable_pos, local_pos))
        cdef int64_t room = size_max, shared = self.shared_bytes
        result = []
        self.has_more = False
        self.taken_bytes = 0
        while self.answers:
            answer = <Answer>self.answers[0]
            if answer.parked or not answer.may_leave(&durable):
                break
            if room <= 0:
                self.has_more = True
                break
            self.shared_bytes -= answer.slice_bytes
            room -= answer.take(room, result)
            self.shared_bytes += answer.slice_bytes
            if not answer.pieces:
                self.queued_bytes -= answer.kept_bytes
                self.answers.popleft()
                if self.trace is not None:
                    self.trace.leave(max(1, answer.traced))
        self.taken_bytes = size_max - room
        self.taken_shared_bytes = shared - self.shared_bytes
        self.queued_bytes -= self.taken_bytes
        if SELF_CHECKS:
            self._check()
        return result

    cdef int _check(self) except -1:
        """The counters agree with the queued responses."""
        cdef Queued found = count_queued(self.answers)
        assert found.bytes == self.queued_bytes and found.slice_bytes == self.shared_bytes
        # The owner of a closed session unparks its fetches later.
        assert self.parked_count <= found.waiting or self.close_reason is not None
        assert 0 <= self.consumed <= self.input.size
        return 0

    def time_out(self, int64_t now_ms, int64_t wait_max_ms, int64_t durable_pos,
                 int64_t local_pos=0):
        """Answer what has waited too long since the first call that found it waiting.

        Args:
            now_ms, wait_max_ms: monotonic; the time-out of a request may be shorter.
            durable_pos, local_pos: as of `output`.

        Returns:
            The number of batches and other responses timed out; `output` has the responses.
        """
        cdef Patience patience = patience_of(durable_pos, local_pos, now_ms, wait_max_ms)
        self.produce.set_late_errors(&patience)
        cdef TimedOut found = time_out(self.answers, &patience)
        # The records are in the log: their client must still wait for the disk to send more.
        self.silent_pos = max(self.silent_pos, found.end_pos)
        self.queued_bytes += found.grown_bytes
        self.late_count += found.late
        self.produce.count_late(&patience, &found)
        return found.batches + found.local_batches + found.late

    @property
    def is_waiting(self):
        """Whether any response is queued, waiting for a flush, for data or for the disk."""
        return bool(self.answers)

    @property
    def awaits_flush(self):
        """Whether the first queued response waits for the log to become durable."""
        return bool(self.answers) and not (self.has_more or (<Answer>self.answers[0]).parked)

    @property
    def is_begun(self):
        """Whether a Produce request was begun, and goes on in a later turn."""
        return self.begun.exists

    def close(self):
        """Mark the connection as closed, and free its memory. Its owner unparks its fetches."""
        self.close_reason = self.close_reason or "closed"
        self.answers.clear()
        self.queued_bytes = self.parked_bytes = self.shared_bytes = self.consumed = 0
        release(&self.input)
        release(&self.merged)
        release(&self.marks)
        release(&self.out)
        discard(&self.begun)
        # Reference cycles would keep the requests until the garbage collector runs.
        self.new_parked = []
        self.control_plane = self.trace = self.work = self.lent = None
