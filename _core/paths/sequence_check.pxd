from _core.bytes.batch cimport Batch
from _core.paths.produce_answer cimport Outcome
from _core.queue.partition cimport Partition

cdef str check_producer(
    Partition partition, const Batch* b, Outcome* o, bint* duplicate, object admit_producer,
    bint is_again
)
