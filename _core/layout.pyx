"""The on-disk numbers for Python: the enumerations of layout.pxd, and the relations between them.

Layer 0: no I/O.
"""

assert FRAME_HEADER_SIZE % FRAME_ALIGNMENT == 0
# The CRC ends the header, so that one pass covers what is before it.
assert AT_CRC + 4 == FRAME_HEADER_SIZE
assert TIMER_ENTRY_SIZE % FRAME_ALIGNMENT == 0
assert CANCEL_ENTRY_SIZE % FRAME_ALIGNMENT == 0
assert SETTLED_ENTRY_SIZE % FRAME_ALIGNMENT == 0
assert BATCH_CRC_START == BATCH_AT_ATTRIBUTES
# Both kinds of rows are read by the part in which they are alike.
assert RUN_SETTLED_SIZE <= RUN_TIMER_SIZE <= RUN_BLOCK_SIZE_MAX
assert RUN_SETTLED_AT_ACCEPT_POS == RUN_TIMER_AT_ACCEPT_POS
assert RUN_SETTLED_AT_INDEX == RUN_TIMER_AT_INDEX
assert RUN_SETTLED_AT_KIND == RUN_TIMER_AT_KIND
