from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from _core.timers.due_queue cimport Timer
from _core.log.view cimport LogView
from _core.timers.moved_frames cimport MovedFrames

# What becomes of a recurring timer that is due.
cdef enum Occurrence:
    OCCURRENCE_LAST = 0       # it is delivered, and never again
    OCCURRENCE_FOLLOWED       # it is delivered, and set anew
    OCCURRENCE_MOVED          # it is set anew, and not delivered

# The occurrence that follows it.
cdef struct Following:
    int occurrence            # an Occurrence: what becomes of the one before
    int64_t due_ms
    int64_t after_ms          # instant that it follows

# The location of a due timer's record.
cdef struct Due:
    const uint8_t* tail       # key, value, headers
    int64_t tail_size
    const uint8_t* name       # user id
    int name_size
    const uint8_t* rule       # of a recurring timer
    int rule_size             # 0: it does not recur
    uint32_t occurrence       # how often it was delivered before
    int level                 # delay level, 0: none
    Following following       # once that is decided
    int attributes
    int32_t topic_id          # of the frame that holds it: the topic of the timer
    int64_t timestamp
    bint is_held              # its topic held it back: whoever releases it says so
    int32_t next              # index of the next timer of its partition in this chunk, -1 = last

cdef enum LocateResult:
    LOCATED = 0
    LOCATE_COLD = 1
    LOCATE_DAMAGED = 2        # the frame cannot be read at present
    LOCATE_CONTRADICTED = 3   # the frame can be read, but does not contain the timer
    LOCATE_LATER = 4          # it recurs, and its instants are computed in another round

# The entry of a timer in the timer table of a frame; NULL: none.
cdef const uint8_t* find_entry(
    const uint8_t* frame, int64_t accept_pos, int32_t record_index
) noexcept nogil
# Reads the record of an entry: all of `due` except `next`. False if the record is malformed.
cdef bint read_held(const uint8_t* frame, const uint8_t* entry, Due* due) noexcept nogil

cdef class HeldRecords:
    cdef LogView view
    cdef MovedFrames moved
    cdef list blocks          # the blocks of the records found
    cdef int64_t user         # see `LogView.user`
    cdef int64_t reads_left
    cdef int64_t pinned_bytes
    cdef int begin(self) except -1
    cdef int end(self) except -1
    cdef bint is_spent(self) noexcept nogil
    # Locates the record of a timer. Returns a LocateResult.
    cdef int locate(self, const Timer* timer, Due* due) except -1
