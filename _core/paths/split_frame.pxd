"""Fills the frame of a batch from its split. Header only. Layer 0."""

from libc.stdint cimport int32_t
from libc.string cimport memset

from _core.bytes.layout cimport BATCH_HEADER_SIZE, KIND_ACCEPT
from _core.log.frames cimport FrameHeader, blank_header
from _core.log.tail cimport FrameBody
from _core.paths.delay_split cimport BatchSplitter


# Refers to the buffers of a splitter. REQUIRES: assemble
cdef inline int fill_frame(BatchSplitter s, FrameHeader* h, FrameBody* body) except -1:
    blank_header(h, KIND_ACCEPT)
    memset(body, 0, sizeof(FrameBody))
    h.record_count = s.visible_count
    h.timer_count = s.timer_count
    h.cancel_count = s.cancel_count
    h.min_due_ms = s.min_due
    h.max_due_ms = s.max_due
    body.tables = s.tables.data
    body.tables_size = <int32_t>s.tables.size
    body.visible = s.visible.data
    body.visible_size = <int32_t>s.visible.size
    body.visible_patch = s.visible.data
    body.visible_patch_size = BATCH_HEADER_SIZE if s.visible_count else 0
    body.held = s.held.data
    body.held_size = <int32_t>s.held.size
    return 0
