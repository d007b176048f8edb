from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from _core.bytes.batch cimport Slice
from _core.paths.delay_ask cimport DelayAsk
from _core.paths.retry_rules cimport RetryRules
from _core.queue.partition cimport Partition

cdef enum:
    GROUPS_MAX = 16           # for which records of one batch may be retried

# Stands for the target in a timer entry until `point` writes that.
cdef inline uint32_t retry_mark(const DelayAsk* ask) noexcept nogil:
    return <uint32_t>(2 * ask.group + ask.is_dead + 1)

cdef class Retries:
    cdef readonly RetryRules rules    # None: nothing can be retried
    cdef list groups
    cdef list targets                 # the partition of each mark, less one; None: it is not used
    cdef list topics                  # other topics that the batch needs
    cdef int32_t count                # records that are retried or dead
    cdef int64_t used[2 * GROUPS_MAX] # of each mark, less one
    # Sets what `ask` says about the retry of a record that had `before` attempts. Returns SPLIT_OK
    # or a SplitFault.
    cdef int resolve(self, const Slice* name, int64_t before, DelayAsk* ask) except -1 nogil
    # Finds the targets, and makes the topics that do not exist. Returns why that failed, or None.
    cdef str find_targets(self, Partition home)
    # Adds the number of records to that of their target topics. REQUIRES: find_targets
    cdef int count_by_topic(self, dict counts) except -1
    # Writes the targets into timer entries with marks, and counts them.
    cdef int point(self, uint8_t* entries, int32_t count, Partition home) except -1
    cdef int _resolve(self, const Slice* name, int64_t before, DelayAsk* ask) except -1
    cdef int _find(self, const Slice* name) except -2
