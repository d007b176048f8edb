from libc.stdint cimport int16_t, int32_t, int64_t

from _core.buffer cimport Buf
from _core.unit_blocks cimport UnitBlocks
from _core.unit_runs cimport UnitRuns

cdef enum:
    REMEMBERED_BATCHES = 5    # Kafka's max.in.flight bound: a retry can be this far behind

cdef struct Sequenced:
    int32_t first
    int32_t last
    int64_t answer            # base offset that was answered, -1 if the batch was split
    int64_t end_pos           # log position behind its frame: a retry waits for this flush too
    int64_t store_time_ms

cdef class ProducerState:
    cdef readonly int16_t epoch
    cdef readonly int64_t last_ms
    cdef Sequenced batches[REMEMBERED_BATCHES]
    cdef int count
    cdef int newest

cdef enum SequenceVerdict:
    SEQUENCE_NEXT = 0
    SEQUENCE_DUPLICATE
    SEQUENCE_OUT_OF_ORDER
    SEQUENCE_OLD_EPOCH

cdef struct Unit:
    int64_t pos
    int32_t size              # negative: the record was lost, this is the next frame
    int64_t tags_code
    int64_t first             # the first offset that shares it in a run, else its own
    int64_t end               # the one behind the last

cdef enum UnitPlace:
    UNIT_NONE = 0             # there is no such record
    UNIT_COLD                 # a thread must read it first
    UNIT_IN_MEMORY
    UNIT_FROM_FILE            # may have rotted: the frame that it names must hold the record

cdef class Topic:
    cdef readonly str name
    cdef readonly bytes name_bytes
    cdef readonly object uuid
    cdef readonly int32_t topic_id
    cdef readonly list partitions
    cdef readonly dict settings
    cdef readonly bint deleted
    cdef bint reads_delay_headers
    cdef bint log_append_time
    cdef bint due_timestamp
    cdef int64_t batch_size_max
    cdef int64_t delay_max_ms
    cdef public int64_t declared_in   # end of the segment that holds its last topic frame

cdef class Partition:
    cdef readonly Topic topic
    cdef readonly int32_t index
    cdef readonly int32_t handle
    cdef readonly int64_t start_offset
    cdef readonly int64_t next_offset
    cdef readonly int64_t visible_offset
    cdef readonly int64_t running_max
    cdef readonly int64_t log_bytes   # of its frames in the log
    cdef readonly int64_t confirmed_pos     # of the last frame that told its next offset
    cdef readonly int64_t offset_floor      # a topic frame told that offsets below it were given
    cdef public list waiters
    cdef readonly dict producers
    cdef readonly bint units_dirty
    cdef readonly UnitRuns runs   # offsets that have no unit of their own
    cdef Buf units
    cdef int64_t units_base       # number of the first unit in memory, runs not counted
    cdef readonly int64_t units_saved       # queue offset up to which units are in the file
    cdef public UnitBlocks blocks
    cdef int64_t mentioned_in     # serial of the last request that named it among others
    cdef bint mentioned_again     # and more than once
    cdef int64_t captured_in      # serial of the last capture that has its producers
    cdef void confirm(self, int64_t pos, int64_t next_offset, int64_t running_max) noexcept
    cdef void mention(self, int64_t serial) noexcept
    cdef bint is_mentioned_again(self, int64_t serial) noexcept
    cdef int add_units(
        self, int64_t count, int64_t pos, int32_t size, int64_t tags_code
    ) except -1
    cdef int add_run(self, int64_t end, int64_t pos, int32_t size, int64_t tags_code) except -1
    cdef int find_unit(self, int64_t offset, Unit* unit) except -1
    cdef int check_sequence(
        self, int64_t producer_id, int16_t epoch, int32_t first, int32_t last, Sequenced* found
    )
    cdef int note_sequence(
        self, int64_t producer_id, int16_t epoch, const Sequenced* batch, int64_t now_ms
    ) except -1
