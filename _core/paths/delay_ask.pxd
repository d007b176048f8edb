"""What one record asks for. Header only. Layer 0."""

from libc.stdint cimport int64_t

from _core.bytes.batch cimport Slice
from _core.paths.delay_names cimport HEADER_VALUES

# The delay parameters of one record: the value of the last header of each name.
cdef struct DelayAsk:
    bint present[HEADER_VALUES]
    Slice value[HEADER_VALUES]
    int level                 # 0 = none
    int64_t due_ms            # -1 = no delay requested
    bint asks_now             # by a negative delay
    int64_t kept_count        # headers that stay with the record
    int64_t kept_bytes
    int rule                  # if it recurs: its number in the batch
    # If it has `x-retry-group`:
    int group                 # its number in the batch
    bint is_dead              # it had all its attempts: it goes to the group's dead letters
    int64_t attempt           # that it comes for, or the last one it had
    int64_t retry_delay_ms    # before that attempt
