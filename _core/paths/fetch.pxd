from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.buffer cimport Buf
from _core.queue.frame_finder cimport FrameFinder
from _core.log.view cimport LogView
from _core.bytes.octets cimport Cursor
from _core.paths.read_replica cimport ReadReplica
from _core.queue.partition cimport Partition, Topic
from _core.state.projections cimport Projections

# A batch to serve: its place in memory, and the index of its block in `blocks`.
cdef struct Extent:
    const uint8_t* data
    int32_t size
    Py_ssize_t block

# A slice of a block, inserted at an index of the response's own bytes.
cdef struct Insert:
    Py_ssize_t at
    Extent extent

cdef enum FetchResult:
    FETCH_ANSWERED = 0
    FETCH_TOO_LITTLE = 1      # fewer bytes than min_bytes, and the client is willing to wait
    FETCH_COLD = 2            # a thread must read the places in `cold` first
    FETCH_MALFORMED = 3
    FETCH_TOO_LARGE = 4       # too many partitions, and the version has no error for the request
    FETCH_UNFINISHED = 5      # of a `WideFetch`: it goes on in a later turn

cdef struct FetchAsk:
    int32_t max_wait_ms
    int32_t min_bytes
    int32_t max_bytes
    int32_t session_id
    int32_t session_epoch

cdef class FetchPath:
    cdef readonly Projections projections
    cdef readonly LogView view
    cdef FrameFinder finder
    cdef public int32_t epoch
    cdef public bint is_shut            # nothing may be read here now
    cdef public bint is_slave
    cdef readonly ReadReplica replica
    cdef dict redirected                # of the connection: see `Session.redirected`
    cdef bint is_near                   # the consumer is in the rack of the slave
    cdef bint is_redirecting            # a partition is sent to the slave
    cdef bint is_patient                # the request may still wait
    cdef int64_t size_max
    cdef int64_t item_count_max
    cdef frozenset closed_topics
    cdef bint is_closed         # the topic that was read last is one of them
    cdef int64_t copies_max
    cdef int64_t blocks_max
    cdef readonly int64_t work_bytes
    cdef readonly list cold
    cdef readonly list ahead
    cdef list watched
    cdef readonly int64_t sent_bytes
    cdef readonly dict refused          # partitions by Kafka error code
    cdef public int64_t requests
    cdef int _refuse(self, int error) except -1
    cdef Extent* extents
    cdef Py_ssize_t extent_count
    cdef Py_ssize_t extent_capacity
    cdef Insert* inserts
    cdef Py_ssize_t insert_count
    cdef Py_ssize_t insert_capacity
    # State of the current request:
    cdef int64_t room                   # maximum record bytes of the response
    cdef int64_t answered_bytes
    cdef Py_ssize_t extents_left
    cdef int64_t copies_left
    cdef list blocks                    # blocks of its batches
    cdef int64_t user                   # see `LogView.user`
    cdef int64_t blocks_left            # bytes of memory that more blocks may take
    cdef int64_t slice_bytes            # of the last `pieces`
    cdef int64_t kept_items             # topics and partitions of the last `kept_ask`
    cdef dict named                     # Topic: bitmap of its named partitions; None if not wide
    cdef object waiter                  # whom to wake for these, in `Topic.waiters`
    cdef bint any_error
    cdef bint is_full                   # waiting would not add any data
    # Writes the response body to `out`. `patient`: return FETCH_TOO_LITTLE if there is too little
    # data. `is_retry`: the request has waited before, so any data found is returned although other
    # partitions are cold.
    cdef int handle(
        self, Cursor* c, int version, bint patient, bint is_retry, Buf* out, FetchAsk* ask
    ) except -1
    cdef int adopt(self, FetchPath shared) except -1
    cdef int _begin(self, Cursor* c, int version, FetchAsk* ask) except -1
    cdef int _outcome(self, bint patient, bint is_retry, const FetchAsk* ask) except -1
    # Writes the response to a request that is refused as a whole; returns a FetchResult.
    cdef int refuse_all(self, int version, int error, Buf* out) except -1
    cdef int _count_work(self) except -1
    # What a parked fetch keeps of its request body: what `handle` reads, without tagged fields and
    # without the end. None if it is malformed.
    cdef bytes kept_ask(self, const uint8_t* body, Py_ssize_t size, int version)
    cdef int64_t _copy_ask(self, Cursor* c, int version, Buf* out) except -2
    cdef int _read_ask(self, Cursor* c, int version, FetchAsk* ask) except -1
    cdef int _put_head(self, Buf* out, int version, int error) except -1
    cdef int _topics(self, Cursor* c, int version, Buf* out) except -1
    cdef Topic _take_topic(self, Cursor* c, int version, Buf* out)
    cdef int _partition(self, Cursor* c, int version, Topic topic, Buf* out) except -1
    cdef bint _is_named_again(self, Partition partition) except -1
    cdef int _check_position(
        self, Partition partition, int32_t leader_epoch, int64_t offset
    ) except -1
    # Whether the consumer that sends this body is in the rack of the slave.
    cdef bint find_near(self, const uint8_t* body, Py_ssize_t size, int version) except -1
    cdef int64_t _collect(
        self, Partition partition, int64_t offset, int64_t limit, bint at_least_one
    ) except -1
    cdef int _put_records(self, Buf* out, bint flexible, int64_t size) except -1
    cdef list pieces(self, Buf* out, Py_ssize_t start)
