"""Which branches of the sanitized core a case takes; branch_trace.c must be preloaded."""

import ctypes


class BranchTrace:
    """What all cases so far have reached. There is one in a process."""

    def __init__(self) -> None:
        """Raises AttributeError if the receiver is not preloaded."""
        self._library = ctypes.CDLL(None)
        self._library.branch_trace_total.restype = ctypes.c_int

    def begin(self) -> None:
        """A case begins."""
        self._library.branch_trace_begin()

    def end(self) -> int:
        """The case is over; how much of what it reached is new."""
        found: int = self._library.branch_trace_end()
        return found

    @property
    def total(self) -> int:
        """Pairs of places in the code that were reached one after the other."""
        total: int = self._library.branch_trace_total()
        return total
