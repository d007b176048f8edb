"""Objects that the garbage collector does not search, because they stay.

An untracked object is freed when nothing refers to it, like any other. Only a cycle of references
that leads through it is never found: whoever ends its stay tracks it again.

Layer 0: no I/O.
"""


cdef extern from "Python.h":
    int PyObject_GC_IsTracked(object)
    void PyObject_GC_Track(object)
    void PyObject_GC_UnTrack(object)


cdef inline int untrack(object each) except -1:
    """Exempt an object from the search."""
    PyObject_GC_UnTrack(each)
    return 0


cdef inline int track(object each) except -1:
    """Let an object be searched again; harmless if it is."""
    if not PyObject_GC_IsTracked(each):
        PyObject_GC_Track(each)
    return 0
