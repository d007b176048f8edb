from libc.stdint cimport int32_t, int64_t, uint8_t

cpdef enum:
    # Bytes of one read, for sequential frames and for a single frame.
    WINDOW_BYTES = 256 << 10
    LONE_BYTES = 16 << 10
    # A frame this close after a cached one counts as sequential.
    NEAR_BYTES = 64 << 10

cdef enum:
    SIZE_CLASSES = 17         # LONE_BYTES, and multiples of WINDOW_BYTES
    SPARES_MAX = 64           # per class

cdef class BlockMemory:
    cdef void* spares[SIZE_CLASSES][SPARES_MAX]    # memory of freed blocks, for the next ones
    cdef Py_ssize_t spare_count[SIZE_CLASSES]
    cdef readonly int64_t size
    cdef readonly int64_t locked_size
    cdef uint8_t* take(self, Py_ssize_t capacity) except NULL
    cdef void give_back(self, uint8_t* data, Py_ssize_t capacity) noexcept

cdef class Block:
    cdef BlockMemory memory
    cdef uint8_t* data
    cdef Py_ssize_t capacity
    cdef Py_ssize_t room_size
    cdef int32_t* starts      # where in `data` each frame begins, ascending
    cdef Py_ssize_t start_capacity
    cdef Py_ssize_t count     # whole frames
    cdef Py_ssize_t last      # index of the frame looked up last
    cdef readonly int64_t pos
    cdef readonly Py_ssize_t size     # total bytes of the whole frames
    cdef readonly str fault   # of the first frame that is not whole; None if it is cut off
    cdef readonly int64_t wanted      # size of that frame by its header, 0 if unknown
    cdef int64_t user         # last user, see `LogView.user`, and its index in that user's list
    cdef Py_ssize_t user_index
    cdef int64_t held_from    # position of its slot
    cdef int kind
    cdef Py_buffer window     # of a locked window
    cdef void* newer          # neighbours in the order of use; the view holds the references
    cdef void* older
    cdef int _note_start(self) except -1 nogil
    cdef int _trust(self, Py_ssize_t end) except -1 nogil
    cdef int _take(self, Py_ssize_t size) except -1 nogil
    cdef void _cut(self, int64_t end) noexcept nogil
    cdef const uint8_t* frame_at(self, int64_t pos, int32_t* size) noexcept nogil
    cdef bint note_user(self, int64_t user, list blocks) except -1
    cdef object slice(self, const uint8_t* data, Py_ssize_t size)

cdef struct Slot:
    int64_t pos
    int64_t end
    void* block               # a reference that the view holds

cdef class LogView:
    cdef Slot* slots          # ascending, without overlap
    cdef Py_ssize_t count
    cdef Py_ssize_t slot_capacity
    cdef Py_ssize_t last_slot # index of the slot looked up last
    cdef void* newest[3]      # by kind
    cdef void* oldest[3]
    cdef int64_t bytes_of[3]
    cdef readonly BlockMemory memory
    cdef readonly int64_t size_max
    cdef readonly int64_t cached_bytes
    cdef readonly int64_t reads
    cdef readonly int64_t read_bytes
    cdef public object fill
    cdef set damaged          # positions of frames that failed their check
    cdef int64_t user         # a number for each user that keeps a list of blocks
    cdef Block growing        # the block that `hold` filled last
    cdef Block block          # the block of the frame that `frame_at` found last
    cdef const uint8_t* frame_at(self, int64_t pos, int32_t* size) except? NULL
    cdef const uint8_t* _find(self, int64_t pos, int32_t* size) noexcept
    cdef Py_ssize_t _slot_behind(self, int64_t pos) noexcept nogil
    cdef int _evict(self, void* kept) except -1
    cdef int _kind_to_drop(self, void* kept) noexcept
    cdef void _use(self, void* block) noexcept
    cdef void _link(self, void* block) noexcept
    cdef void _unlink(self, void* block) noexcept
    cdef int _remove(self, Py_ssize_t i) except -1
    cdef int _insert(self, Py_ssize_t i, int64_t pos, int64_t end, Block block) except -1
    cdef bint is_damaged(self, int64_t pos) except -1
