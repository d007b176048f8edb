from libc.stdint cimport int16_t, int64_t, uint8_t

from _core.bytes.batch cimport Batch
from _core.queue.partition cimport Topic

cdef str check_batch(
    Topic topic, int version, const uint8_t* data, int64_t size, int64_t record_count_max, Batch* b,
    int16_t* error
)
