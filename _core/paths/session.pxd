from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.paths.answer cimport Answer, Reply
from _core.bytes.buffer cimport Buf
from _core.bytes.receive_loop cimport LargeInput
from _core.paths.batch_work cimport BatchWork
from _core.paths.begun cimport Begun
from _core.paths.fetch cimport FetchPath
from _core.bytes.octets cimport Cursor
from _core.paths.parked_fetch cimport ParkedFetch
from _core.paths.produce cimport ProducePath

cdef class Session:
    cdef readonly ProducePath produce
    cdef readonly FetchPath fetch
    cdef readonly str close_reason
    cdef readonly bint paused
    cdef readonly bint yielded
    cdef readonly bint has_more
    cdef readonly int64_t taken_bytes
    cdef readonly int64_t taken_shared_bytes
    cdef readonly int64_t shared_bytes
    cdef readonly list new_parked
    cdef readonly int64_t requests
    cdef readonly int64_t silent_pos
    cdef readonly int64_t late_count
    cdef object control_plane
    # Partition handle -> fetches that are served before the client is sent to the slave again.
    cdef dict redirected
    cdef object answers          # deque of Answer
    cdef int64_t request_size_max
    cdef int64_t queued_bytes    # size of queued responses
    cdef int64_t parked_bytes    # size of the requests of parked fetches
    cdef int64_t work_left       # in this turn
    cdef public int64_t turn_work_bytes
    cdef public int64_t queued_max_bytes
    cdef int parked_count
    cdef Buf input
    cdef readonly LargeInput lent # the bytes of a large request, while a thread receives it
    cdef Py_ssize_t window_size  # of the last `get_buffer`
    cdef bint was_filled         # the last read filled it
    cdef Py_ssize_t consumed     # bytes of `input` that are processed
    cdef Buf merged              # Produce responses of this round, sent together
    cdef int64_t merged_end_pos
    cdef int64_t merged_local_pos
    cdef int64_t merged_wait_ms
    cdef Buf marks               # marks of the batches in `merged`
    cdef Buf out                 # a Fetch response under construction
    cdef public object trace     # called for each request and response; None if nobody listens
    cdef readonly BatchWork work # of a batch of that request, for a thread
    cdef Begun begun             # the next request, if it was begun in an earlier turn
    cdef int merged_traced       # requests that `merged` answers, while they are traced
    cpdef int postpone(self, Py_ssize_t count) except -1
    cdef int _process(self, int64_t now_ns, bint resumes) except -1
    cdef int _request(self, const uint8_t* p, Py_ssize_t size, int64_t now_ms) except -1
    cdef int _trace_request(self, const uint8_t* p, Py_ssize_t size, int64_t now_ms) except -1
    cdef int _produce(self, Cursor* c, int version, int32_t correlation, int64_t now_ms) except -1
    cdef int _fetch(self, Cursor* c, int version, int32_t correlation) except -1
    cdef int _control_plane(self, const uint8_t* p, Py_ssize_t size) except -1
    cdef int _respond(self, Answer answer, Reply reply) except -1
    cdef int _answer_fetch(self, Answer answer, list pieces, int64_t slice_bytes) except -1
    cdef int _end_round(self) except -1
    cdef int _check(self) except -1
    cdef int _fill(self, Answer answer, list pieces) except -1
    cdef int _close(self, str reason) except -1
