"""A Produce request that takes several turns: how far it is, and its response so far.

Layer 0: no I/O.
"""

from libc.string cimport memset

from _core.bytes.buffer cimport Buf, append, release
from _core.paths.answer cimport Mark
from _core.paths.produce cimport Progress

cdef struct Begun:
    bint exists
    Progress progress
    Buf answer
    Buf marks          # their places count from the begin of `answer`


cdef inline void discard(Begun* b) noexcept:
    """Free the memory."""
    release(&b.answer)
    release(&b.marks)


cdef inline int set_aside(
    Begun* b, Buf* out, Py_ssize_t start, Buf* marks, Py_ssize_t marked
) except -1:
    """Take the response that begins at `start` of `out`, and its marks from `marked` on."""
    cdef Mark* mark
    cdef Py_ssize_t i
    b.exists = True
    append(&b.answer, out.data + start, out.size - start)
    out.size = start
    if marks.size == marked:
        return 0
    mark = <Mark*>(marks.data + marked)
    for i in range((marks.size - marked) // <Py_ssize_t>sizeof(Mark)):
        mark[i].at -= start
    append(&b.marks, mark, marks.size - marked)
    marks.size = marked
    return 0


cdef inline bint take_up(Begun* b, Buf* out, Buf* marks) except -1:
    """Put the response so far at the end of `out`, and its marks at the end of `marks`.

    Returns False, with nothing done yet of the next request, if none was begun.
    """
    cdef Mark* mark = <Mark*>b.marks.data
    cdef Py_ssize_t i
    if not b.exists:
        memset(&b.progress, 0, sizeof(Progress))
        return False
    if b.marks.size:
        for i in range(b.marks.size // <Py_ssize_t>sizeof(Mark)):
            mark[i].at += out.size
        append(marks, mark, b.marks.size)
    append(out, b.answer.data, b.answer.size)
    discard(b)
    b.exists = False
    return True
