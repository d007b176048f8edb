"""Gives a pending timer another due time, in one cancel frame.

The frame completes the timer and sets it anew, with its record and the new time in `x-due-at`: as
for an occurrence of a recurring timer that is not delivered. So after a crash the timer has one of
both times. Layer 0: no I/O, no clock.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

from _core.bytes.layout cimport *
from _core.bytes.octets cimport store_u32, store_u64
from _core.log.frames cimport FrameHeader, blank_header, frame_size
from _core.log.tail cimport ROOM_RECORDS, FrameBody
from _core.paths.due_records cimport Due, find_entry, read_held
from _core.paths.set_anew cimport SetAnew
from _core.queue.partition cimport Partition
from _core.state.writer cimport LogWriter


cdef class TimerMovePath:
    """Moves timers by what they are.

    Attributes:
        disk_full: the last call had no room for its frame, which needs as much as a new record;
            nothing has changed.
    """

    cdef readonly LogWriter writer
    cdef readonly bint disk_full
    cdef SetAnew anew

    def __cinit__(self, LogWriter writer not None):
        """Append frames with `writer`."""
        self.writer = writer
        self.anew = SetAnew()

    def move(
        self, Partition partition not None, timer not None, bytes frame not None, int64_t due_ms,
        int64_t now_ms
    ):
        """Give a timer another due time.

        Args:
            partition: that of the timer.
            timer: (due in epoch ms, accept position, index). REQUIRES: it is in the due queue.
            frame: the whole frame that holds its record, checked.
            due_ms: the new due time, epoch ms, 0 or later.
            now_ms: epoch ms.

        Returns:
            The accept position of the timer from now on, whose index is 0; -1 if the disk is full.

        Raises:
            ValueError: the frame does not hold the timer, or the timer recurs.
        """
        cdef const uint8_t* p = <const uint8_t*><const char*>frame
        cdef int64_t old_due_ms = timer[0], accept_pos = timer[1], pos
        cdef int32_t index = timer[2]
        cdef const uint8_t* entry = find_entry(p, accept_pos, index)
        cdef FrameHeader h
        cdef FrameBody body
        cdef Due due
        cdef bytearray tables
        self.disk_full = False
        if entry == NULL or not read_held(p, entry, &due):
            raise ValueError("its record is not where it should be")
        if due.rule_size:
            raise ValueError(
                "it recurs, so it keeps its instants: send it again with its id to change them"
            )
        memset(&due.following, 0, sizeof(due.following))
        due.following.due_ms = due_ms
        self.anew.begin()
        self.anew.add(&due, 0)
        self.anew.finish(self.writer.tail.epoch)
        tables = self._tables(accept_pos, index, old_due_ms, &due)
        memset(&body, 0, sizeof(body))
        body.tables = <uint8_t*>PyByteArray_AS_STRING(tables)
        body.tables_size = <int32_t>len(tables)
        body.held = self.anew.held.data
        body.held_size = <int32_t>self.anew.held.size
        self.disk_full = not self.writer.prepare(
            partition.topic, frame_size(body.tables_size, 0, body.held_size), ROOM_RECORDS, now_ms
        )
        if self.disk_full:
            return -1
        pos = self.writer.tail.pointers.wrote
        self.anew.place(
            <uint8_t*>PyByteArray_AS_STRING(tables) + COMPLETED_ENTRY_SIZE, pos,
            FRAME_HEADER_SIZE + COMPLETED_ENTRY_SIZE + TIMER_ENTRY_SIZE + due.name_size,
            FRAME_HEADER_SIZE + body.tables_size,
        )
        blank_header(&h, KIND_CANCEL)
        h.store_time_ms = now_ms
        h.timer_count = h.cancel_count = 1
        h.min_due_ms = h.max_due_ms = due_ms
        self.writer.append(partition, &h, &body)
        return pos

    cdef bytearray _tables(
        self, int64_t accept_pos, int32_t index, int64_t due_ms, const Due* due
    ):
        """The completed entry, the timer entry and the ids, padded; the places are not set yet."""
        cdef bytearray tables = bytearray(COMPLETED_ENTRY_SIZE)
        cdef uint8_t* entry = <uint8_t*>PyByteArray_AS_STRING(tables)
        store_u64(entry + COMPLETED_AT_ACCEPT_POS, accept_pos)
        store_u32(entry + COMPLETED_AT_INDEX, index)
        entry[COMPLETED_AT_ID_SIZE] = <uint8_t>due.name_size
        entry[COMPLETED_AT_OP] = COMPLETION_DUE_SET_ANEW
        entry[COMPLETED_AT_LEVEL] = <uint8_t>due.level
        store_u32(entry + COMPLETED_AT_OCCURRENCE, due.occurrence)
        store_u64(entry + COMPLETED_AT_DUE, due_ms)
        tables += PyByteArray_FromStringAndSize(
            <const char*>self.anew.entries.data, self.anew.entries.size
        )
        tables += PyByteArray_FromStringAndSize(<const char*>due.name, due.name_size)
        tables += PyByteArray_FromStringAndSize(
            <const char*>self.anew.names.data, self.anew.names.size
        )
        tables += bytes(-len(tables) & (FRAME_ALIGNMENT - 1))
        return tables
