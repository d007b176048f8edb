"""Syncs files on a thread that never waits for Python's interpreter.

A thread that waits for the interpreter begins to wait anew each time the event loop lets go of it
and takes it back, thousands of times a second while the loop is busy. `fdatasync` of Python needs
it three times: to begin, after the system call, and to report the end. `SyncLoop.run` needs it only
when the thread begins and ends (docs/decisions/0030-sync-thread.md).

Layer 0: it opens and closes no file, and reads and writes none but the descriptor of the notice.
"""

from libc.errno cimport EINTR, errno

from _core.bytes.eventfd cimport add_one


cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass
    int sem_init(sem_t* sem, int pshared, unsigned int value)
    int sem_post(sem_t* sem)
    int sem_wait(sem_t* sem)
    int sem_destroy(sem_t* sem)


cdef extern from "<unistd.h>" nogil:
    int fdatasync(int fd)


cdef enum:
    FILES_MAX = 16

SYNC_FILES_MAX = FILES_MAX


cdef class SyncLoop:
    """One request to sync at a time, handed from the caller's thread to the one in `run`.

    The semaphore orders what `begin` writes before what `run` reads. The system calls on `notice`
    order what `run` writes before what `end` reads.
    """

    cdef sem_t asked
    cdef int notice
    cdef int fds[FILES_MAX]
    cdef int count
    cdef int failed_at
    cdef int error
    cdef bint is_busy

    def __cinit__(self, int notice):
        """Prepare a loop without work.

        Args:
            notice: an eventfd, to which 1 is added after each request.
        """
        self.notice = notice
        sem_init(&self.asked, 0, 0)

    def __dealloc__(self):
        sem_destroy(&self.asked)

    def run(self):
        """Sync what is asked for until `stop`; the body of a thread."""
        with nogil:
            while True:
                while sem_wait(&self.asked) != 0:
                    pass  # a signal came
                if self.count == 0:
                    break
                self._sync()

    cdef void _sync(self) noexcept nogil:
        """Sync the files in order, the first that fails ends it; then say so."""
        cdef int i = 0
        self.error = 0
        while i < self.count:
            if fdatasync(self.fds[i]) == 0:
                i += 1
            elif errno != EINTR:
                self.error = errno
                self.failed_at = i
                break
        self.count = 0
        add_one(self.notice)

    def begin(self, fds):
        """Ask for a sync; `notice` becomes readable when it is done, and the caller calls `end`.

        Args:
            fds: 1 to SYNC_FILES_MAX descriptors, which stay open until then.
        """
        cdef int i
        cdef int count = len(fds)
        assert 0 < count <= FILES_MAX and not self.is_busy
        for i in range(count):
            self.fds[i] = fds[i]
        self.count = count
        self.is_busy = True
        sem_post(&self.asked)

    def end(self):
        """Return what became of the request, once `notice` was read.

        Returns:
            None if all files are durable; else the index of the first that could not be synced, and
            the error number.
        """
        assert self.is_busy
        self.is_busy = False
        return (self.failed_at, self.error) if self.error else None

    def stop(self):
        """End `run` after the request in progress; call nothing but `end` after that."""
        sem_post(&self.asked)
