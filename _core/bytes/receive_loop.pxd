from _core.bytes.buffer cimport Buf

cdef enum:
    SLOTS = 64


cdef struct Slot:
    int state            # SLOT_...; atomic
    int is_cancelled     # atomic; set by the event loop alone
    int fd               # -1: there is nothing to receive
    char* data
    Py_ssize_t size      # bytes received; atomic
    Py_ssize_t wanted
    Py_ssize_t capacity  # of `data`


cdef class ReceiveLoop


cdef class LargeInput:
    cdef Buf buf                 # empty while a slot has the memory
    cdef Slot* slot              # NULL, or who receives
    cdef ReceiveLoop owner       # of the slot
    cdef readonly Py_ssize_t wanted_bytes
    cdef int move_to(self, Buf* b) except -1


cdef LargeInput lend(Buf* b, Py_ssize_t wanted_bytes)


cdef class ReceiveLoop:
    cdef Slot slots[SLOTS]
    cdef list inputs             # the LargeInput of each slot, or None
    cdef int wake
    cdef int notice
    cdef int is_stopped          # atomic
    cdef bint _ask(self, LargeInput given, int fd, bint is_cancelled) except -1
    cdef void _receive(self, Slot* slot) noexcept nogil
    cdef void _finish(self, Slot* slot) noexcept nogil
    cdef void _discard(self, Slot* slot) noexcept nogil
