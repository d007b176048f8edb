"""Receives large requests on a thread that never waits for Python's interpreter.

The event loop would read 100 MiB in pieces of a fraction of a millisecond each. Most of that is the
first touch of memory, and everybody else waits meanwhile. To free the memory takes the loop some
milliseconds. So `ReceiveLoop.run` fills such buffers, and frees them
(docs/decisions/0042-large-requests.md).

Layer 0: it opens no file, and reads from the sockets that it is given.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from _core.bytes.buffer cimport Buf, grow_to, release
from _core.bytes.eventfd cimport add_one


cdef extern from *:
    """
    #define LMQ_LOAD(place) __atomic_load_n((place), __ATOMIC_ACQUIRE)
    #define LMQ_STORE(place, value) __atomic_store_n((place), (value), __ATOMIC_RELEASE)
    """
    int load "LMQ_LOAD"(int* place) noexcept nogil
    void store "LMQ_STORE"(int* place, int value) noexcept nogil
    Py_ssize_t load_size "LMQ_LOAD"(Py_ssize_t* place) noexcept nogil
    void store_size "LMQ_STORE"(Py_ssize_t* place, Py_ssize_t value) noexcept nogil


cdef extern from "<poll.h>" nogil:
    enum:
        POLLIN
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd* fds, unsigned long count, int timeout_ms)


cdef extern from "<sys/socket.h>" nogil:
    enum:
        MSG_DONTWAIT
    ssize_t recv(int fd, void* data, size_t size, int flags)


cdef extern from "<unistd.h>" nogil:
    int close(int fd)
    ssize_t read(int fd, void* data, size_t size)


cdef extern from "<sys/mman.h>" nogil:
    enum:
        MADV_DONTNEED
    int madvise(void* place, size_t size, int advice)


cdef enum:
    # Of one connection at a time: about 0.1 ms. As much is freed at a time.
    PIECE_BYTES = 256 << 10
    PAGE_BYTES = 4 << 10  # where pages are larger, a buffer is freed at once
    # The event loop has a free slot, gives it to the thread, and gets it back.
    SLOT_FREE = 0
    SLOT_ASKED = 1
    SLOT_ENDED = 2

RECEIVED_AT_A_TIME = SLOTS


cdef class LargeInput:
    """The buffer of one request: what has arrived, and room for the rest.

    Attributes:
        wanted_bytes: size of the request with its prefix.
    """

    cdef int move_to(self, Buf* b) except -1:
        """Give the memory, with what has arrived, to an empty buffer."""
        assert self.slot == NULL
        release(b)
        b[0] = self.buf
        memset(&self.buf, 0, sizeof(Buf))
        return 0

    def __dealloc__(self):
        release(&self.buf)

    @property
    def received_bytes(self):
        """Bytes of the request that have arrived."""
        return self.buf.size if self.slot == NULL else load_size(&self.slot.size)


cdef LargeInput lend(Buf* b, Py_ssize_t wanted_bytes):
    """Take the memory of a buffer, and make room for so many bytes."""
    cdef LargeInput lent = LargeInput()
    if b.capacity < wanted_bytes:
        grow_to(b, wanted_bytes)
    lent.wanted_bytes = wanted_bytes
    lent.buf = b[0]
    memset(b, 0, sizeof(Buf))
    return lent


cdef void _free_in_pieces(char* data, Py_ssize_t capacity) noexcept nogil:
    """Free a buffer; give the pages of a large one back first, a piece at a time.

    `free` returns a large one to the kernel in one call, which takes some milliseconds. Whoever
    maps memory meanwhile waits, and that may be the event loop.
    """
    cdef Py_ssize_t at = PAGE_BYTES - <Py_ssize_t>(<size_t>data % PAGE_BYTES)
    while at + PIECE_BYTES <= capacity:
        madvise(data + at, PIECE_BYTES, MADV_DONTNEED)
        at += PIECE_BYTES
    free(data)


cdef class ReceiveLoop:
    """Places for SLOTS requests, which the thread in `run` receives.

    The event loop calls everything but `run`. A slot belongs to the thread from SLOT_ASKED
    to SLOT_ENDED. One that is cancelled ends without a notice, and its memory is freed.
    """

    def __cinit__(self, int wake, int notice):
        """Prepare a loop without work.

        Args:
            wake: an eventfd; `run` reads it.
            notice: an eventfd, to which 1 is added when a request has ended.
        """
        self.wake = wake
        self.notice = notice
        self.inputs = [None] * SLOTS

    def __dealloc__(self):
        cdef int i
        for i in range(SLOTS):
            if self.slots[i].state != SLOT_FREE:
                free(self.slots[i].data)

    def run(self):
        """Receive and free until `stop`; the body of a thread."""
        cdef pollfd polled[SLOTS + 1]
        cdef int places[SLOTS + 1]
        cdef int i, count
        cdef uint64_t asked
        cdef Slot* slot
        with nogil:
            while not load(&self.is_stopped):
                polled[0].fd = self.wake
                polled[0].events = POLLIN
                count = 1
                for i in range(SLOTS):
                    slot = &self.slots[i]
                    if load(&slot.state) != SLOT_ASKED:
                        continue
                    if load(&slot.is_cancelled):
                        self._discard(slot)
                        continue
                    polled[count].fd = slot.fd
                    polled[count].events = POLLIN
                    places[count] = i
                    count += 1
                if poll(polled, count, -1) <= 0:
                    continue  # a signal came
                if polled[0].revents and read(self.wake, &asked, sizeof(asked)) < 0:
                    pass  # it is read at the next turn
                for i in range(1, count):
                    if polled[i].revents:
                        self._receive(&self.slots[places[i]])
            for i in range(SLOTS):
                if load(&self.slots[i].state) == SLOT_ASKED:
                    self._discard(&self.slots[i])

    cdef void _receive(self, Slot* slot) noexcept nogil:
        """Receive a piece. All of the request, the end of the stream and an error end it."""
        cdef Py_ssize_t room = min(slot.wanted - slot.size, PIECE_BYTES)
        cdef Py_ssize_t got = recv(slot.fd, slot.data + slot.size, room, MSG_DONTWAIT)
        if got > 0:
            store_size(&slot.size, slot.size + got)
            if slot.size < slot.wanted:
                return
        elif got < 0 and (errno == EAGAIN or errno == EINTR):
            return
        self._finish(slot)

    cdef void _finish(self, Slot* slot) noexcept nogil:
        close(slot.fd)
        store(&slot.state, SLOT_ENDED)
        add_one(self.notice)

    cdef void _discard(self, Slot* slot) noexcept nogil:
        if slot.fd >= 0:
            close(slot.fd)
        _free_in_pieces(slot.data, slot.capacity)
        store(&slot.state, SLOT_FREE)

    def begin(self, LargeInput given not None, int fd):
        """Receive the rest of a request.

        Args:
            given: its buffer.
            fd: a socket, which is closed once the receipt ends.

        Returns:
            False, with nothing done, if no slot is free.
        """
        return self._ask(given, fd, False)

    def cancel(self, LargeInput given not None):
        """End the receipt of a request, and free its memory."""
        cdef Slot* slot = given.slot
        cdef int i
        if slot == NULL:
            self.free(given)
            return
        i = slot - self.slots
        given.slot = NULL
        given.owner = None
        self.inputs[i] = None
        store(&slot.is_cancelled, True)
        add_one(self.wake)

    def free(self, LargeInput given not None):
        """Free the memory of a buffer that nobody receives into."""
        if not self._ask(given, -1, True):
            release(&given.buf)

    cdef bint _ask(self, LargeInput given, int fd, bint is_cancelled) except -1:
        cdef Slot* slot
        cdef int i
        assert given.slot == NULL
        if load(&self.is_stopped):
            return False
        for i in range(SLOTS):
            slot = &self.slots[i]
            if load(&slot.state) == SLOT_FREE:
                break
        else:
            return False
        slot.fd = fd
        slot.data = <char*>given.buf.data
        slot.size = given.buf.size
        slot.wanted = given.wanted_bytes
        slot.capacity = given.buf.capacity
        slot.is_cancelled = is_cancelled
        memset(&given.buf, 0, sizeof(Buf))
        if not is_cancelled:
            given.slot = slot
            given.owner = self
            self.inputs[i] = given
        store(&slot.state, SLOT_ASKED)
        add_one(self.wake)
        return True

    def take_ended(self):
        """Return the buffers of requests that have ended, whole or not, once `notice` was read."""
        cdef LargeInput given
        cdef Slot* slot
        cdef int i
        ended = []
        for i in range(SLOTS):
            slot = &self.slots[i]
            if load(&slot.state) != SLOT_ENDED:
                continue
            given = self.inputs[i]
            if given is None:    # it was cancelled in its last moment
                free(slot.data)
            else:
                given.buf.data = <uint8_t*>slot.data
                given.buf.size = slot.size
                given.buf.capacity = slot.capacity
                given.slot = NULL
                given.owner = None
                self.inputs[i] = None
                ended.append(given)
            store(&slot.state, SLOT_FREE)
        return ended

    def stop(self):
        """End `run`; it gives up what it has not received, and closes the sockets."""
        store(&self.is_stopped, True)
        add_one(self.wake)
