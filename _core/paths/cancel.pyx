"""The cancel path: cancels pending timers and appends a cancel frame.

A cancel by header is part of the accept frame of its batch. A cancel by the admin API has a cancel
frame of its own. Both give the same guarantee: once the frame is durable, the timer is never
delivered.

Layer 0: no I/O, no clock.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

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
    """Cancels timers by user id, or by what they are.

    Attributes:
        disk_full: the last call had no room for its frame; the timers are still pending.
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
        cdef Partition partition
        self.disk_full = False
        if not 1 <= size <= ID_SIZE_MAX:
            raise ValueError(f"the id has {size} bytes: use 1 to {ID_SIZE_MAX}")
        if not self.writer.projections.find_id(topic.topic_id, name, size, &known):
            return False
        if known.state != PENDING:
            return False
        partition = <Partition>self.writer.projections.partitions[known.partition]
        assert partition is not None and partition.topic is topic
        timer = (known.position, known.record_index, user_id, known.due_ms, known.level)
        return self.cancel_all(partition, [timer], now_ms)

    def cancel_all(self, Partition partition not None, list timers not None, int64_t now_ms):
        """Cancel timers in one frame.

        Args:
            partition: that of all of them.
            timers: (accept position, index, id, due in epoch ms, level) of each; b"" as the id of
                a timer without one. REQUIRES: they are pending, in the due queue, and no two are
                the same.
            now_ms: epoch ms.

        Returns:
            False if the disk is full (see `disk_full`); nothing has changed then.
        """
        cdef bytearray tables = bytearray(len(timers) * COMPLETED_ENTRY_SIZE)
        cdef uint8_t* entry = <uint8_t*>PyByteArray_AS_STRING(tables)
        cdef FrameHeader h
        cdef FrameBody body
        for position, index, user_id, due_ms, level in timers:
            store_u64(entry + COMPLETED_AT_ACCEPT_POS, position)
            store_u32(entry + COMPLETED_AT_INDEX, index)
            entry[COMPLETED_AT_ID_SIZE] = <uint8_t>len(user_id)
            entry[COMPLETED_AT_OP] = COMPLETION_DUE_FINAL
            entry[COMPLETED_AT_LEVEL] = level
            store_u64(entry + COMPLETED_AT_DUE, due_ms)
            entry += COMPLETED_ENTRY_SIZE
        for _, _, user_id, _, _ in timers:
            tables += user_id
        tables += bytes(-len(tables) & (FRAME_ALIGNMENT - 1))
        memset(&body, 0, sizeof(body))
        body.tables = <uint8_t*>PyByteArray_AS_STRING(tables)
        body.tables_size = <int32_t>len(tables)
        self.disk_full = not self.writer.prepare(
            partition.topic, frame_size(body.tables_size, 0, 0), ROOM_CONTROL, now_ms
        )
        if self.disk_full:
            return False
        blank_header(&h, KIND_CANCEL)
        h.store_time_ms = now_ms
        h.timer_count = <int32_t>len(timers)
        self.writer.append(partition, &h, &body)
        return True
