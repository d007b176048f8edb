"""The last batches of idempotent producers on a partition, and their encoding.

Layer 0: no I/O.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.buffer cimport Buf, release, reserve
from _core.bytes.octets cimport store_u16, store_u32, store_u64


cdef class ProducerState:
    """The last batches of one producer on one partition, which Kafka's idempotence requires.

    Attributes:
        epoch: producer epoch.
        last_ms: store time of its last batch, epoch ms.
        last_pos: log position after the frame of that batch.
    """

    @property
    def last_sequence(self):
        """The last sequence number of its last batch."""
        return self.batches[self.newest].last


cdef bytes encode_producers(dict producers, int32_t index):
    """Encode the sequences of a partition's producers as in a carry frame (docs/FORMAT.md)."""
    cdef Buf out
    cdef uint8_t* p
    cdef ProducerState state
    cdef Sequenced* batch
    cdef int i
    out.data = NULL
    out.size = out.capacity = 0
    try:
        p = reserve(&out, SEQUENCES_HEAD_SIZE)
        store_u32(p, index)
        store_u32(p + 4, len(producers))
        out.size = SEQUENCES_HEAD_SIZE
        for producer_id, known in producers.items():
            state = <ProducerState>known
            p = reserve(&out, PRODUCER_SIZE + state.count * SEQUENCE_SIZE)
            store_u64(p, <int64_t>producer_id)
            store_u16(p + 8, state.epoch)
            p[10] = state.count
            p[11] = 0
            store_u64(p + 12, state.last_pos)
            p += PRODUCER_SIZE
            for i in range(state.count):
                # Oldest first. In a full ring, the oldest follows the newest.
                batch = &state.batches[
                    (state.newest + 1 + REMEMBERED_BATCHES - state.count + i)
                    % REMEMBERED_BATCHES
                ]
                store_u32(p, batch.first)
                store_u32(p + 4, batch.last)
                store_u64(p + 8, batch.answer)
                store_u64(p + 16, batch.store_time_ms)
                p += SEQUENCE_SIZE
            out.size += PRODUCER_SIZE + state.count * SEQUENCE_SIZE
        return PyBytes_FromStringAndSize(<const char*>out.data, out.size)
    finally:
        release(&out)
