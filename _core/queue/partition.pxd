from libc.stdint cimport int16_t, int32_t, int64_t

from _core.bytes.buffer cimport Buf
from _core.queue.carried_parts cimport CarriedParts
from _core.queue.lateness cimport Lateness
from _core.queue.moved_units cimport MovedUnits
from _core.queue.producer_state cimport ProducerTable, Sequenced
from _core.queue.unit_blocks cimport UnitBlocks
from _core.queue.unit_runs cimport UnitRuns

cdef enum SequenceVerdict:
    SEQUENCE_NEXT = 0
    SEQUENCE_DUPLICATE
    SEQUENCE_OUT_OF_ORDER
    SEQUENCE_OLD_EPOCH
    SEQUENCE_NEW              # of a producer that the partition does not know

cdef struct Unit:
    int64_t pos
    int32_t size              # negative: the record was lost, and this is the next frame
    int64_t tags_code
    int64_t first             # first offset of its run, or its own
    int64_t end               # offset after the last of its run, or after its own

cdef enum UnitPlace:
    UNIT_NONE = 0             # no such record
    UNIT_COLD                 # a thread must read it first
    UNIT_IN_MEMORY
    UNIT_FROM_FILE            # may be corrupt: check that its frame holds the record

cdef class Topic:
    cdef readonly str name
    cdef bytes name_bytes
    cdef readonly object uuid
    cdef readonly int32_t topic_id
    cdef readonly list partitions
    cdef readonly dict settings
    cdef readonly bint deleted
    cdef bint reads_delay_headers
    cdef bint passes_invalid_delays
    cdef bint requires_delay
    cdef int64_t delay_default_ms     # of records without a request; -1 = none
    cdef bint log_append_time
    cdef bint due_timestamp
    cdef int64_t deliveries_per_s     # delayed records at most; 0 = it is paused, -1 = any number
    cdef int64_t delivery_spread_ms   # over which delayed records due at once are spread
    cdef bint bounds_deliveries       # it has one of the two
    cdef object held_timers           # a HeldTimers once it held some back
    cdef readonly int64_t timers_accepted     # since the start of the replay, as the next three
    cdef readonly int64_t timers_delivered
    cdef readonly int64_t timers_cancelled
    cdef readonly int64_t timers_replaced
    cdef Lateness late                # of deliveries that the topic did not hold back
    cdef readonly tuple retry_delays_ms       # of GROUP.retry: before each attempt; () = the levels
    cdef readonly int64_t retry_max   # attempts before a record goes to GROUP.dlq
    cdef int64_t pending_max          # delayed records that may be pending; -1 = any number
    cdef int64_t batch_size_max
    cdef int64_t delay_max_ms
    cdef public int64_t declared_in   # end of the segment that holds its last topic frame
    cdef readonly dict waiters        # parked wide fetches, and a bitmap of partitions of each

cdef class Partition:
    cdef readonly Topic topic
    cdef readonly int32_t index
    cdef readonly int32_t handle
    cdef readonly int64_t start_offset
    cdef readonly int64_t next_offset
    cdef readonly int64_t visible_offset
    cdef readonly int64_t running_max
    cdef readonly int64_t log_bytes   # size of its frames in the log
    cdef readonly int64_t confirmed_pos     # position of the last frame with its next offset
    cdef readonly int64_t offset_floor      # a topic frame says that lower offsets are assigned
    cdef public dict waiters
    cdef readonly dict producers
    cdef ProducerTable table      # has them, too
    cdef readonly bint units_dirty
    cdef readonly UnitRuns runs   # offsets without a unit of their own
    cdef MovedUnits moved         # units that differ from those in the files
    cdef readonly CarriedParts carried     # offsets of carried records
    cdef readonly int64_t carried_pos       # after the last frame of carried records
    cdef readonly int64_t moves_saved       # changes each time that moved units are saved
    cdef readonly int64_t kept_bytes        # about the size of its records that can be fetched
    cdef Buf units
    cdef int64_t units_base       # number of the first unit in memory, not counting runs
    cdef readonly int64_t units_saved       # queue offset up to which units are in the file
    cdef public UnitBlocks blocks
    cdef int64_t mentioned_in     # serial of the last request checked for duplicates that names it
    cdef bint mentioned_again     # that request names it more than once
    cdef int64_t fetched_in       # serial of the last Fetch request that names it
    cdef int64_t captured_in      # serial of the last capture that includes its producers
    cdef void confirm(self, int64_t pos, int64_t next_offset, int64_t running_max) noexcept
    cdef void mention(self, int64_t serial) noexcept
    cdef bint is_mentioned_again(self, int64_t serial) noexcept
    cdef int add_units(
        self, int64_t count, int64_t pos, int32_t size, int64_t tags_code
    ) except -1
    cdef int add_run(self, int64_t end, int64_t pos, int32_t size, int64_t tags_code) except -1
    cdef int add_lost(self, int64_t end) except -1
    cdef bint carry_units(
        self, int64_t first, int64_t end, int64_t pos, int32_t size, int64_t tags_code, bint is_one
    ) except -1
    cdef int _find_again(self, int64_t first, int64_t end) except -1
    cdef void _replace_in_memory(
        self, int64_t first, int64_t end, int64_t pos, int32_t size, int64_t tags_code
    ) noexcept
    cdef int find_unit(self, int64_t offset, Unit* unit) except -1
    cdef int check_sequence(
        self, int64_t producer_id, int16_t epoch, int32_t first, int32_t last, Sequenced* found
    )
    cdef int note_sequence(
        self, int64_t producer_id, int16_t epoch, const Sequenced* batch
    ) except -1
