"""The ids that frames name, and that must be read from a run before the frames are applied.

Layer 0: no I/O, no clock. Used by the event loop thread.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.borrowed cimport Borrowed
from _core.bytes.layout cimport *
from _core.log.frames cimport (
    FRAME_OK, FrameHeader, check_head, completed_names, completes, has_due, timer_entries,
    timers_held,
)
from _core.state.projections cimport Projections
from _core.timers.id_index cimport IdIndex


cdef list _keys_of_completed(IdIndex ids, const FrameHeader* h, const uint8_t* p, list keys):
    """As `keys_of`, of the timers that a frame of an older latermq completes, without due times."""
    cdef const uint8_t* entry = p + FRAME_HEADER_SIZE
    cdef const uint8_t* name = completed_names(h, p)
    cdef int32_t i
    cdef int size
    for i in range(h.timer_count):
        size = entry[COMPLETED_AT_ID_SIZE]
        if size and not has_due(entry) and not ids.is_certain(h.topic_id, name, size):
            keys = keys or []
            keys.append(ids.key_bytes(h.topic_id, name, size))
        name += size
        entry += COMPLETED_ENTRY_SIZE
    return keys


cdef list _keys_of_frame(IdIndex ids, const FrameHeader* h, const uint8_t* p, list keys):
    cdef const uint8_t* timers = timer_entries(h, p)
    cdef int32_t count = timers_held(h)
    keys = keys_of(
        ids, h.topic_id, p, timers, count,
        TIMER_ENTRY_SIZE, TIMER_AT_ID_SIZE, TIMER_AT_ID_POS, keys,
    )
    if completes(h):
        return _keys_of_completed(ids, h, p, keys)
    return keys_of(
        ids, h.topic_id, p, timers + <int64_t>count * TIMER_ENTRY_SIZE, h.cancel_count,
        CANCEL_ENTRY_SIZE, CANCEL_AT_ID_SIZE, CANCEL_AT_ID_POS, keys,
    )


def uncertain_ids(Projections projections not None, frames, int64_t pos):
    """Return the keys of the ids that must be read from a run before frames are applied.

    The search ends before a frame that is damaged, which is not applied either.

    Args:
        projections: have applied all frames before these.
        frames: whole frames.
        pos: log position of the first one.

    Returns:
        What a row of each id begins with, 16 bytes, some more than once; an empty list if all ids
        are certain.
    """
    cdef FrameHeader h
    cdef Borrowed octets
    cdef Py_ssize_t at = 0
    cdef list keys = None
    cdef int fault
    if projections.ids.is_whole:
        return []
    octets = Borrowed(frames)
    while at < octets.size:
        with nogil:
            fault = check_head(
                octets.p + at, octets.size - at, octets.size - at, pos + at, &h
            )
        if fault != FRAME_OK:
            break
        # Carried timers name nothing that is not known.
        if h.kind == KIND_ACCEPT or completes(&h):
            keys = _keys_of_frame(projections.ids, &h, octets.p + at, keys)
        at += h.size
    return keys or []
