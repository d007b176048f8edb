from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.answer cimport Answer
from _core.buffer cimport Buf
from _core.fetch cimport FetchPath
from _core.octets cimport Cursor
from _core.produce cimport ProducePath

cdef class ParkedFetch:
    cdef readonly Session session
    cdef readonly int32_t wait_ms
    cdef readonly list cold
    cdef readonly bint answered
    cdef public object timer
    cdef public bint is_expired
    cdef Answer answer
    cdef bytes request
    cdef int version
    cdef int32_t correlation
    cdef list partitions

cdef class ParkedAnswer:
    cdef readonly Session session
    cdef readonly bint answered
    cdef Answer answer
    cdef bytes payload           # given before the session knew of it
    cdef int64_t end_pos

cdef class Session:
    cdef readonly ProducePath produce
    cdef readonly FetchPath fetch
    cdef readonly str close_reason
    cdef readonly bint paused
    cdef readonly bint yielded
    cdef readonly bint has_more
    cdef readonly int64_t taken_bytes
    cdef readonly list new_parked
    cdef readonly int64_t requests
    cdef readonly int64_t silent_pos
    cdef object rare
    cdef object answers          # deque of Answer
    cdef int64_t request_size_max
    cdef int64_t queued_bytes    # of answers that wait
    cdef int64_t parked_bytes    # of the requests of fetches that wait
    cdef int64_t work_left       # of this turn
    cdef public int64_t queued_max_bytes
    cdef int parked_count
    cdef Buf input
    cdef Py_ssize_t consumed     # bytes of `input` that are dealt with
    cdef Buf merged              # answers of this round that leave together
    cdef int64_t merged_end_pos
    cdef int64_t merged_wait_ms
    cdef Buf marks               # of the batches in `merged`
    cdef Buf out                 # a fetch answer under construction
    cdef int _process(self, int64_t now_ms) except -1
    cdef int _request(self, const uint8_t* p, Py_ssize_t size, int64_t now_ms) except -1
    cdef int _produce(self, Cursor* c, int version, int32_t correlation, int64_t now_ms) except -1
    cdef int _fetch(self, Cursor* c, int version, int32_t correlation) except -1
    cdef int _rare(self, const uint8_t* p, Py_ssize_t size) except -1
    cdef int _tell(self, Answer answer, bytes payload, int64_t end_pos) except -1
    cdef int _park(self, ParkedFetch parked, int result) except -1
    cdef int _end_round(self) except -1
    cdef int _fill(self, Answer answer, list pieces) except -1
    cdef int _close(self, str reason) except -1
    cdef int _begin_answer(self, Buf* out, int32_t correlation, bint flexible) except -1
