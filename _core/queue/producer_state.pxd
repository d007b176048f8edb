from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t

cdef enum:
    REMEMBERED_BATCHES = 5    # Kafka's max.in.flight bound: how old a retry can be

cdef struct Sequenced:
    int32_t first
    int32_t last
    int64_t answer            # base offset in the response, -1 if the batch was split
    int64_t end_pos           # log position after its frame: a retry also waits for this flush
    int64_t store_time_ms

cdef class ProducerState:
    cdef readonly int16_t epoch
    cdef readonly int64_t last_ms
    cdef readonly int64_t last_pos
    cdef Sequenced batches[REMEMBERED_BATCHES]
    cdef int count
    cdef int newest
    # Its place in the table. It belongs to the dict of its partition, which the table names.
    cdef int64_t producer_id
    cdef int32_t handle
    cdef PyObject* older
    cdef PyObject* newer

cdef class ProducerTable:
    cdef readonly int64_t count
    cdef public int64_t count_max
    cdef dict partitions          # by handle, the producers of each partition that has some
    cdef PyObject* oldest
    cdef PyObject* newest
    cdef bint is_sorted
    cdef int note(
        self, dict producers, int32_t handle, int64_t producer_id, int16_t epoch,
        const Sequenced* batch
    ) except -1
    cdef int restore(
        self, dict producers, int32_t handle, bytes payload, int64_t end_pos
    ) except -1
    cdef ProducerState _add(self, dict producers, int32_t handle, int64_t producer_id)
    cdef int _remove(self, ProducerState state) except -1
    cdef void _link(self, ProducerState state) noexcept
    cdef void _unlink(self, ProducerState state) noexcept
    cdef ProducerState _first(self)
    cdef int _sort(self) except -1

# Sizes of the producer state in carry frames and state snapshots: docs/FORMAT.md, sequences.
cdef enum:
    SEQUENCES_HEAD_SIZE = 8
    PRODUCER_SIZE = 20
    SEQUENCE_SIZE = 24

# The sequences of the producers of partition `index`, by producer id.
cdef bytes encode_producers(dict producers, int32_t index)
