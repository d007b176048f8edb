from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    BLOCK_WORDS = 8           # 512 bits: one cache line
    BIT_COUNT = 7             # bits of an id, all in one block
    BIT_SIZE = 9              # bits of the number of a bit in a block

cdef struct FilterView:
    const uint64_t* words
    uint64_t block_count      # below 2^32

# Whether an id may have been added; sometimes also of one that was not.
cdef inline bint has_key(
    const FilterView* view, uint64_t hash_high, uint32_t hash_low
) noexcept nogil:
    cdef const uint64_t* block
    cdef uint64_t bits
    cdef int i
    if view.block_count == 0:
        return False
    block = view.words + ((hash_high & 0xFFFFFFFFULL) * view.block_count >> 32) * BLOCK_WORDS
    # The shard of the index takes the highest bits of the hash: all ids of a run have some of them.
    bits = hash_low | hash_high >> 32 << 32
    for i in range(BIT_COUNT):
        if not block[bits >> 6 & (BLOCK_WORDS - 1)] >> (bits & 63) & 1:
            return False
        bits >>= BIT_SIZE
    return True

cdef class IdFilter:
    cdef uint64_t* words
    cdef FilterView view
    cdef readonly int64_t size
