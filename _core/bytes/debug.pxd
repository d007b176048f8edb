"""Whether this is a debug build, as a C constant: the compiler drops `if SELF_CHECKS:` otherwise.

Hot state machines compare their counters with what they count after each step of a debug or
sanitized build. That would cost more than the step itself.

Layer 0: no I/O. Header only.
"""

cdef extern from *:
    """
    #ifdef LATERMQ_DEBUG
    #define LATERMQ_SELF_CHECKS 1
    #else
    #define LATERMQ_SELF_CHECKS 0
    #endif
    """
    const bint SELF_CHECKS "LATERMQ_SELF_CHECKS"
