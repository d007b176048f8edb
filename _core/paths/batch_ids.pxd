"""The ids of timers that a batch names: which of them a run must be read for, before its append.

Layer 0: no I/O, no clock. Header only.
"""

from libc.stdint cimport int32_t

from _core.bytes.layout cimport *
from _core.paths.batch_work cimport BatchWork
from _core.paths.delay_split cimport BatchSplitter
from _core.queue.partition cimport Partition
from _core.state.frame_ids cimport keys_of
from _core.state.projections cimport Projections
from _core.timers.id_index cimport IdIndex


cdef inline list uncertain_ids(IdIndex ids, int32_t topic_id, BatchSplitter s):
    cdef list keys = keys_of(
        ids, topic_id, s.ids.data, s.timers.data, s.timer_count,
        TIMER_ENTRY_SIZE, TIMER_AT_ID_SIZE, TIMER_AT_ID_POS, None,
    )
    return keys_of(
        ids, topic_id, s.ids.data, s.cancels.data, s.cancel_count,
        CANCEL_ENTRY_SIZE, CANCEL_AT_ID_SIZE, CANCEL_AT_ID_POS, keys,
    )


cdef inline bint await_ids(
    BatchSplitter s, Partition partition, Projections projections, BatchWork work
) except -1:
    """Whether a thread must read a run to know what the ids of a batch name.

    If so, `work` has that to do, unless it is None. What it has read is taken first.
    """
    if projections.ids.is_whole:
        return False
    if work is not None and work.lookup is not None:
        projections.id_source.take(work.lookup)
        work.lookup = None
    keys = uncertain_ids(projections.ids, partition.topic.topic_id, s)
    if not keys:
        return False
    if work is not None:
        work.look_up(projections.id_source.look_up(keys))
    return True
