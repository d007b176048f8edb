from _core.paths.batch_work cimport BatchWork
from _core.paths.delay_split cimport BatchSplitter
from _core.queue.partition cimport Partition
from _core.state.projections cimport Projections

# Whether a thread must read a run to know what the ids of a batch name. If so, `work` has that to
# do, unless it is None. What it has read is taken first.
cdef bint await_ids(
    BatchSplitter s, Partition partition, Projections projections, BatchWork work
) except -1
