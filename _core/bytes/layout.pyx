"""The on-disk constants of layout.pxd for Python, and the relations between them.

Layer 0: no I/O.
"""

assert FRAME_HEADER_SIZE % FRAME_ALIGNMENT == 0
# The CRC is the last field of the header, so that one pass covers everything before it.
assert AT_CRC + 4 == FRAME_HEADER_SIZE
assert TIMER_ENTRY_SIZE % FRAME_ALIGNMENT == 0
assert CANCEL_ENTRY_SIZE % FRAME_ALIGNMENT == 0
assert COMPLETED_ENTRY_SIZE % FRAME_ALIGNMENT == 0
# Cast to int, because the compiler warns about comparing two enumerations.
assert <int>BATCH_CRC_START == <int>BATCH_AT_ATTRIBUTES
# A reader uses the fields that both kinds of row share to find out which kind a row is.
assert <int>RUN_COMPLETED_SIZE <= <int>RUN_TIMER_SIZE <= <int>RUN_BLOCK_SIZE_MAX
assert RUN_COMPLETED_AT_ACCEPT_POS == RUN_TIMER_AT_ACCEPT_POS
assert RUN_COMPLETED_AT_INDEX == RUN_TIMER_AT_INDEX
assert RUN_COMPLETED_DUE_AT_ACCEPT_POS == RUN_TIMER_AT_ACCEPT_POS
assert RUN_COMPLETED_DUE_AT_INDEX == RUN_TIMER_AT_INDEX
assert <int>RUN_COMPLETED_DUE_AT_KIND == <int>RUN_TIMER_AT_KIND
assert <int>RUN_COMPLETED_DUE_AT_DUE == <int>RUN_TIMER_AT_DUE
assert <int>RUN_COMPLETED_AT_KIND == <int>RUN_TIMER_AT_KIND
