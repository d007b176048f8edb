"""What takes long of one batch of a Produce request, so that a thread does it.

A batch of a few kilobytes may unpack to 64 MiB. To unpack it, to inspect its records and to split
off the delayed ones would keep the loop from everybody else for some tenths of a second. The
request waits meanwhile: what is left for the loop is to check the sequence and to append.

    the path finds that it is large --> the connection waits for the thread --> `make` copies the
    batch --> `run` on the thread --> the path takes the outcome

A batch also waits if it names timers whose ids are in runs alone (`look_up`). It is split anew when
they are known, unless a thread has split it.

Layer 0: no I/O.
"""

from libc.stdint cimport int64_t, uint8_t

from _core.bytes.batch cimport ATTRIBUTE_CODEC, Batch
from _core.paths.delay_fault_codes cimport SPLIT_OK
from _core.paths.delay_split cimport BatchSplitter
from _core.bytes.pages import free_all
from _core.queue.partition cimport Partition, Topic


cdef class BatchWork:
    """The work on one batch, from the moment it is found to be large.

    Attributes:
        is_packed: it unpacks the batch; else it only looks up ids.
        is_made: it has what it needs, and `run` may be called, once.
        is_done: `run` has ended without an exception.
        is_split: the thread has split the batch.
        refusal: why the batch is refused, so that the client sends it again; or None.
        lookup: of ids: what `run` does next, or has done; None if there is none.
    """

    def __cinit__(self, bint is_packed):
        self.is_packed = is_packed

    def refuse(self, str message not None):
        """Give up, because it waited too long. REQUIRES: `is_packed`, and not `is_made`."""
        assert self.is_packed and not self.is_made
        self.refusal = message
        self.is_made = self.is_done = self.is_split = True

    cdef int make(
        self, BatchSplitter splitter, object decompress, bytes packed, int64_t size_max,
        const Batch* b, Partition partition, int look, int64_t now_ms, int64_t base_ms
    ) except -1:
        """Take what the work needs; nobody else may use `splitter` until it is done."""
        assert not self.is_made
        self.splitter = splitter
        self.decompress = decompress
        self.packed = packed
        self.size_max = size_max
        self.batch = b[0]
        self.topic = partition.topic
        self.partition = partition.index
        self.look = look
        self.now_ms = now_ms
        self.base_ms = base_ms
        self.is_made = True
        return 0

    cdef int look_up(self, object lookup) except -1:
        """Let `run` be called, again if it was: it reads ids."""
        self.lookup = lookup
        self.is_made = True
        self.is_done = False
        return 0

    def run(self):
        """Unpack, inspect and split the batch, or look up ids; may be called on any thread.

        Raises:
            MemoryError: the outcome has no room.
        """
        cdef const uint8_t* records
        cdef int64_t size
        cdef BatchSplitter s = self.splitter
        assert self.is_made and not self.is_done
        if self.lookup is not None:
            self.lookup.run()
            self.is_done = True
            return
        try:
            self.plain = self.decompress(
                self.batch.attributes & ATTRIBUTE_CODEC, self.packed, self.size_max
            )
        except Exception as error:
            if getattr(error, "unpacked_size", None) is None:
                raise
            self.error = error
            self.is_done = self.is_split = True
            return
        records = <const uint8_t*><const char*>self.plain
        size = self.plain_size = len(self.plain)
        with nogil:
            self.fault = s.inspect(&self.batch, records, size, self.look)
            if self.fault == SPLIT_OK and s.has_delay_headers:
                self.fault = s.split(
                    &self.batch, records, size, self.topic, self.partition, self.now_ms,
                    self.base_ms
                )
        if self.fault == SPLIT_OK and s.passed_count == 0:
            # A message about a fault shows a part of it.
            parts = [self.plain]
            self.plain = None
            free_all(parts)
        self.is_done = self.is_split = True
