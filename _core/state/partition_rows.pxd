cdef enum:
    PENDING_ROW_SIZE = 20    # i32 topic id, i32 partition, i32 level, i64 count
