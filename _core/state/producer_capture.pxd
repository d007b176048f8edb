from libc.stdint cimport int64_t

from _core.queue.partition cimport Partition

cdef class ProducerCapture:
    cdef int64_t serial
    cdef list captured           # (topic id, sequences of one partition)
    cdef list uncaptured         # partitions whose producers are not collected yet; None when done
    # Captures the producers of a partition before they change, unless that is done already.
    cpdef int note(self, Partition partition) except -1
