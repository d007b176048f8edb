"""The cancel path: cancels a pending timer by user id and appends a cancel frame.

A cancel by header is part of the accept frame of its batch. A cancel by the admin API has a cancel
frame of its own. Both give the same guarantee: once the frame is durable, the timer is never
delivered.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from _core.log.frames cimport FrameHeader, blank_header, frame_size
from _core.timers.id_index cimport PENDING, NamedTimer
from _core.bytes.layout cimport *
from _core.log.tail cimport ROOM_CONTROL, FrameBody
from _core.state.writer cimport LogWriter
from _core.bytes.octets cimport store_u32, store_u64
from _core.queue.partition cimport Partition, Topic

cdef enum:
    ID_SIZE_MAX = 255


cdef class CancelPath:
    """Cancels timers by user id.

    Attributes:
        disk_full: the last `cancel` had no room for its frame; the timer is still pending.
    """

    cdef readonly LogWriter writer
    cdef readonly bint disk_full

    def __cinit__(self, LogWriter writer not None):
        """Append frames with `writer`."""
        self.writer = writer

    def cancel(self, Topic topic not None, bytes user_id not None, int64_t now_ms):
        """Cancel the pending timer with that id.

        Args:
            topic: topic of the id.
            user_id: 1 to 255 bytes.
            now_ms: epoch ms.

        Returns:
            True if a timer was pending and its cancel frame was appended. False if no timer with
            that id is pending, or if the disk is full (see `disk_full`); nothing has changed then.

        Raises:
            ValueError: the id is empty or too long.
        """
        cdef const uint8_t* name = <const uint8_t*><const char*>user_id
        cdef Py_ssize_t size = len(user_id)
        cdef NamedTimer known
        self.disk_full = False
        if not 1 <= size <= ID_SIZE_MAX:
            raise ValueError(f"the id has {size} bytes: use 1 to {ID_SIZE_MAX}")
        if not self.writer.projections.ids.find(topic.topic_id, name, size, &known):
            return False
        if known.state != PENDING:
            return False
        return self._append(topic, &known, name, size, now_ms)

    cdef bint _append(
        self, Topic topic, const NamedTimer* timer, const uint8_t* name, Py_ssize_t size,
        int64_t now_ms
    ) except -1:
        """Append a cancel frame for one timer; False if the disk is full."""
        cdef uint8_t[COMPLETED_ENTRY_SIZE + ID_SIZE_MAX + FRAME_ALIGNMENT] tables
        cdef Py_ssize_t used = COMPLETED_ENTRY_SIZE + size
        cdef Partition partition = <Partition>self.writer.projections.partitions[timer.partition]
        cdef FrameHeader h
        cdef FrameBody body
        assert partition is not None and partition.topic is topic
        memset(tables, 0, sizeof(tables))
        store_u64(tables + COMPLETED_AT_ACCEPT_POS, timer.position)
        store_u32(tables + COMPLETED_AT_INDEX, timer.record_index)
        tables[COMPLETED_AT_ID_SIZE] = <uint8_t>size
        memcpy(tables + COMPLETED_ENTRY_SIZE, name, size)
        memset(&body, 0, sizeof(body))
        body.tables = tables
        body.tables_size = <int32_t>((used + FRAME_ALIGNMENT - 1) & ~(FRAME_ALIGNMENT - 1))
        if not self.writer.prepare(
            topic, frame_size(body.tables_size, 0, 0), ROOM_CONTROL, now_ms
        ):
            self.disk_full = True
            return False
        blank_header(&h, KIND_CANCEL)
        h.store_time_ms = now_ms
        h.timer_count = 1
        self.writer.append(partition, &h, &body)
        return True
