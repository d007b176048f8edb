"""Withdraw a pending timer by its user's id: append the cancel frame that says so.

A cancel by header is part of the accept frame of its batch; one by the admin API has a frame of its
own, as strong: once it is durable the timer is never delivered, whatever happens.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from _core.frames cimport FrameHeader, blank_header, frame_size
from _core.id_index cimport PENDING, NamedTimer
from _core.layout cimport *
from _core.log_tail cimport FrameBody
from _core.log_writer cimport LogWriter
from _core.octets cimport store_u32, store_u64
from _core.partition cimport Partition, Topic

cdef enum:
    ID_SIZE_MAX = 255


cdef class CancelPath:
    """Cancels timers by name.

    Attributes:
        disk_full: the last `cancel` found no room for its frame; the timer is pending still.
    """

    cdef readonly LogWriter writer
    cdef readonly bint disk_full

    def __cinit__(self, LogWriter writer not None):
        """Use `writer` to append frames."""
        self.writer = writer

    def cancel(self, Topic topic not None, bytes user_id not None, int64_t now_ms):
        """Cancel the pending timer with that id.

        Args:
            topic: its topic.
            user_id: 1 to 255 bytes.
            now_ms: epoch ms.

        Returns:
            True if there was one and its cancel frame was appended; False if nothing is pending
            under that id, or the disk is full (see `disk_full`), and nothing has happened.

        Raises:
            ValueError: the id is empty or too long.
        """
        cdef const uint8_t* name = <const uint8_t*><const char*>user_id
        cdef Py_ssize_t size = len(user_id)
        cdef NamedTimer known
        self.disk_full = False
        if not 1 <= size <= ID_SIZE_MAX:
            raise ValueError(f"the id has {size} bytes; 1 to {ID_SIZE_MAX} are allowed")
        if not self.writer.projections.ids.find(topic.topic_id, name, size, now_ms, &known):
            return False
        if known.state != PENDING:
            return False
        return self._append(topic, &known, name, size, now_ms)

    cdef bint _append(
        self, Topic topic, const NamedTimer* timer, const uint8_t* name, Py_ssize_t size,
        int64_t now_ms
    ) except -1:
        """One cancel frame of one timer; False if the disk is full."""
        cdef uint8_t[SETTLED_ENTRY_SIZE + ID_SIZE_MAX + FRAME_ALIGNMENT] tables
        cdef Py_ssize_t used = SETTLED_ENTRY_SIZE + size
        cdef Partition partition = <Partition>self.writer.projections.partitions[timer.partition]
        cdef FrameHeader h
        cdef FrameBody body
        assert partition is not None and partition.topic is topic
        memset(tables, 0, sizeof(tables))
        store_u64(tables + SETTLED_AT_ACCEPT_POS, timer.phys_offset)
        store_u32(tables + SETTLED_AT_INDEX, timer.record_index)
        tables[SETTLED_AT_ID_SIZE] = <uint8_t>size
        memcpy(tables + SETTLED_ENTRY_SIZE, name, size)
        memset(&body, 0, sizeof(body))
        body.tables = tables
        body.tables_size = <int32_t>((used + FRAME_ALIGNMENT - 1) & ~(FRAME_ALIGNMENT - 1))
        # Not from the reserve: that is for what is due.
        if not self.writer.prepare(topic, frame_size(body.tables_size, 0, 0), False, now_ms):
            self.disk_full = True
            return False
        blank_header(&h, KIND_CANCEL)
        h.store_time_ms = now_ms
        h.timer_count = 1
        self.writer.append(partition, &h, &body)
        return True
