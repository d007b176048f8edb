"""What a producer reads of a batch that is too large.

Layer 0: no I/O. Header only.
"""

from libc.stdint cimport int64_t

from _core.bytes.batch cimport ATTRIBUTE_CODEC, Batch


# Of a batch that was split, `size` bytes without the tables; None if it is not too large.
cdef inline str check_split_size(const Batch* b, int64_t size, int64_t size_max, int64_t topic_max):
    if size <= max(size_max, topic_max) or not b.attributes & ATTRIBUTE_CODEC:
        return None
    return (
        f"a batch with delay headers is stored uncompressed: {size} bytes; "
        f"limits.delayed_size_max_bytes is {size_max}: send smaller batches"
    )


cdef inline str unpacked_size_text(int64_t size_max):
    return (
        f"the batches of the request decompress to more than {size_max} bytes, the limit set by "
        "limits.request_decompressed_size_max_bytes"
    )


cdef inline str frame_size_text(int64_t size, int64_t size_max):
    return f"the batch takes {size} bytes uncompressed; the maximum frame size is {size_max}"
