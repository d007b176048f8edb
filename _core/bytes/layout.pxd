"""On-disk format constants: every width, offset and number. All integers are big-endian.

docs/FORMAT.md draws them; tests/unit/core/log/test_format.py checks that the two agree. Python sees
the enumerations that are `cpdef`.

How to change the format. Logs of released versions stay readable for ever, so:
 1. Add, never move. Put a new field into reserved bytes, which older versions wrote as zero, and
    let zero keep its old meaning.
 2. If that is not possible, raise FORMAT_VERSION and keep the reader of the old version next to
    the new one. Magic, version, size, epoch, position, flushed, the sizes of the parts and the CRC
    keep their place and meaning: an older latermq uses them to distinguish a newer frame from a
    damaged one.
 3. Change docs/FORMAT.md, its worked example and the golden bytes in tests/golden/ in the same
    commit.
 4. State in CHANGELOG.md whether an older latermq can still open the log. It refuses a version
    above its own.
"""

cpdef enum:
    FORMAT_VERSION = 1
    FRAME_MAGIC = 0x4C4D          # "LM"
    FRAME_HEADER_SIZE = 160
    FRAME_ALIGNMENT = 8

# Offsets in the frame header.
cpdef enum:
    AT_MAGIC = 0                  # u16
    AT_VERSION = 2                # u8
    AT_KIND = 3                   # u8
    AT_SIZE = 4                   # i32, whole frame with padding, a multiple of 8
    AT_EPOCH = 8                  # i32, never decreases along the log
    AT_TOPIC_ID = 12              # i32, 0 = none
    AT_PHYS_OFFSET = 16           # i64, position of this frame in the log
    AT_FLUSHED = 24               # i64, flushed position when this frame was appended
    AT_STORE_TIME = 32            # i64, epoch ms
    AT_BASE_OFFSET = 40           # i64, queue offset of the first visible record, -1 = none
    AT_PARTITION = 48             # i32, -1 = none
    AT_RECORD_COUNT = 52          # i32, visible records
    AT_TIMER_COUNT = 56           # i32, entries of the timer table
    AT_CANCEL_COUNT = 60          # i32, entries of the cancel table, or timers set anew
    AT_TABLES_SIZE = 64           # i32, bytes between header and batches, a multiple of 8
    AT_VISIBLE_SIZE = 68          # i32, bytes of the visible batch
    AT_HELD_SIZE = 72             # i32, bytes of the held batch
    AT_MIN_TIMESTAMP = 76         # i64, lowest of the visible records, INT64_MIN = unknown
    AT_MAX_TIMESTAMP = 84         # i64, highest of the visible records, -1 = none
    AT_RUNNING_MAX = 92           # i64, highest timestamp of the partition so far, -1 = none
    AT_MIN_DUE_TIME = 100     # i64, earliest resolved due time in the timer table, -1 = none
    AT_MAX_DUE_TIME = 108     # i64, latest
    AT_PRODUCER_ID = 116          # i64, -1 = none
    AT_FIRST_SEQUENCE = 124       # i32, as received
    AT_LAST_SEQUENCE = 128        # i32, as received
    AT_PRODUCER_EPOCH = 132       # i16
    AT_FLAGS = 134                # u16, FRAME_FLAG_*
    AT_LAST_DELTA = 136           # i32, last offset of the visible batch minus base, -1 = none
    AT_TAGS = 140                 # i64, tags code of the visible records, or a mask
    AT_SALT = 148                 # u32, salt of the log, see LogTail; four zero bytes follow
    AT_CRC = 156                  # u32, CRC32C of header[0:156], tables, 21 bytes of each batch

cpdef enum:
    KIND_ACCEPT = 1
    KIND_DELIVER = 2
    KIND_CANCEL = 3
    KIND_CARRY = 4                # of timers or, with FRAME_FLAG_CONTROL, of control values
    KIND_TOPIC = 5
    KIND_OFFSET = 6
    KIND_PRODUCER = 7
    KIND_GROUP = 8
    KIND_TXN = 9                  # specified, neither written nor read yet
    KIND_EPOCH = 10
    KIND_BLANK = 11
    # Assigned later than the kinds above.
    KIND_HEAD = 12                # first frame of each segment
    KIND_VERDICT = 13             # what recovery declared lost
    KIND_ACCESS_CONTROL = 14
    KIND_CREDENTIALS = 15
    KIND_QUOTAS = 16
    KIND_SHARED_GROUP = 17        # state of a shared group
    KIND_GROUP_DELTA = 18         # what changed of a group
    KIND_CARRIED_RECORDS = 19     # visible records that outlive their segment
    KIND_STAGES = 20              # which stages of timers an operator has stopped

# Kinds that this version reads, bit n for kind n. Frames of other kinds are a newer latermq's.
cpdef enum:
    KINDS_READ = (
        1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10
        | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 18 | 1 << 19 | 1 << 20
    )

# A reader must know every bit of the low byte and may ignore the bits of the high byte.
cpdef enum:
    FRAME_FLAG_TRANSACTIONAL = 1  # the accept belongs to an open transaction of its producer
    FRAME_FLAG_CONTROL = 2        # a carry frame of control values instead of timers
    FRAME_FLAG_MIXED_TAGS = 4     # the tags of the records differ; the tags field is a mask
    FRAME_FLAG_OPTIONAL = 0x8000  # a reader that does not know the kind skips the frame
    FLAGS_READ = 2 | 4            # of the low byte
    FLAGS_BINDING = 0xFF

# The tables of a frame of carried records: where the records come from.
cpdef enum:
    CARRIED_ORIGIN_SIZE = 16
cdef enum:
    ORIGIN_AT_ORIGINAL_POS = 0    # i64, position of the frame that first held the records
    ORIGIN_AT_CARRY_TIME = 8      # i64, epoch ms at which they were relocated

# One entry of the timer table of a frame.
cpdef enum:
    TIMER_ENTRY_SIZE = 64
cdef enum:
    TIMER_AT_ACCEPT_POS = 0       # i64, position of its accept frame: first half of the timer id
    TIMER_AT_INDEX = 8            # i32, index of the record as received: second half
    TIMER_AT_LEVEL = 12           # u8, 0 = arbitrary
    TIMER_AT_KIND = 13            # u8, DUE_*
    TIMER_AT_ID_SIZE = 14         # u8, 0 = unnamed; one zero byte follows
    TIMER_AT_DUE = 16             # i64, due time in epoch ms, or the unresolved value
    TIMER_AT_LEVEL_OFFSET = 24    # i64, earlier timers of the level, -1 = level 0
    TIMER_AT_RECORD_POS = 32      # u32, place of the held record, from the start of the frame
    TIMER_AT_RECORD_SIZE = 36     # u32, including its length prefix
    TIMER_AT_ID_POS = 40          # u32, from the start of the frame
    TIMER_AT_OCCURRENCE = 44      # u32, 0 = the first
    TIMER_AT_TARGET_TOPIC = 48    # i32, topic it is delivered to, 0 = its own
    TIMER_AT_TARGET_PARTITION = 52  # i32, -1 = its own
    TIMER_AT_RULE_POS = 56        # u32, from the start of the frame
    TIMER_AT_RULE_SIZE = 60       # u16, 0 = it does not recur; two zero bytes follow

cdef enum:
    DUE_RESOLVED = 0              # an instant
    DUE_AFTER_COMMIT = 1          # a delay in ms, counted from the commit of the transaction
    DUE_AT = 2                    # an instant, held until the commit
    DUE_LEVEL_AFTER_COMMIT = 3    # a level, counted from the commit
    DUE_RECURRING = 4             # an instant; the rule says which ones follow

# The rule of a recurring timer. The cron expression and the zone follow.
cpdef enum:
    RULE_HEAD_SIZE = 12
cdef enum:
    RULE_AT_MISSED = 0            # u8, MISSED_*
    RULE_AT_EXPRESSION_SIZE = 1   # u8
    RULE_AT_ZONE_SIZE = 2         # u8; one zero byte follows
    RULE_AT_AFTER = 4             # i64, epoch ms after which the due time is the first instant

# What becomes of the instants that a stop of the broker, or a pause, missed.
cpdef enum:
    MISSED_ONCE = 1
    MISSED_ALL = 2
    MISSED_NONE = 3

# One entry of the cancel table of an accept frame.
cpdef enum:
    CANCEL_ENTRY_SIZE = 24
cdef enum:
    CANCEL_AT_INDEX = 0           # i32, index of the record as received
    CANCEL_AT_KIND = 4            # u8, CANCEL_BY_*
    CANCEL_AT_ID_SIZE = 5         # u8; two zero bytes follow
    CANCEL_AT_DUE = 8             # i64, due time of a record delivered at once, else 0
    CANCEL_AT_ID_POS = 16         # u32, from the start of the frame; four zero bytes follow

cdef enum:
    CANCEL_BY_HEADER = 1           # x-deliver-cancel
    CANCEL_BY_DELIVERY = 2        # a record with an id, due at once, cancels the pending one

# One entry of the completed table of a deliver or cancel frame. The timers that these frames set
# anew follow, then the ids of the completed timers, in the order of the table.
cpdef enum:
    COMPLETED_ENTRY_SIZE = 32
cdef enum:
    COMPLETED_AT_ACCEPT_POS = 0     # i64
    COMPLETED_AT_INDEX = 8          # i32
    COMPLETED_AT_ID_SIZE = 12       # u8, 0 = unnamed
    COMPLETED_AT_OP = 13            # u8, COMPLETION_*
    COMPLETED_AT_LEVEL = 14         # u8, of the timer, if `due` is its own; a zero byte follows
    COMPLETED_AT_OCCURRENCE = 16    # u32, 0 = the first
    COMPLETED_AT_ORIGIN_TOPIC = 20  # i32, topic of the timer and its id, 0 = the frame's
    COMPLETED_AT_DUE = 24           # i64, of the timer; before, that of its next occurrence

cpdef enum:
    COMPLETION_FINAL = 0          # the timer is no longer pending; its due time is not there
    COMPLETION_SET_ANEW = 1       # its next occurrence is pending, and `due` is that one's
    COMPLETION_DUE_FINAL = 2      # the timer is no longer pending
    COMPLETION_DUE_SET_ANEW = 3   # its next occurrence is pending

# ConsumeQueue units, in RocketMQ's layout.
cpdef enum:
    UNIT_SIZE = 20
    UNITS_PER_FILE = 300000
    # No encoder packs more records into a byte of a batch, compressed or not. This bounds how many
    # offsets lost bytes can have held.
    RECORDS_PER_BYTE_MAX = 64
cdef enum:
    UNIT_AT_POSITION = 0          # i64, position of the frame
    UNIT_AT_SIZE = 8              # i32, size of the frame
    UNIT_AT_TAGS_CODE = 12        # i64, hash of the record's tag
    UNIT_LOST = -1                # size in a unit that refers to no frame
    # A frame that spans at least this many more offsets than it has records is stored as one run.
    RUN_OFFSETS_MIN = 1024

# Kafka's RecordBatch, version 2 (magic 2).
cpdef enum:
    BATCH_HEADER_SIZE = 61
    BATCH_CRC_START = 21          # where Kafka's CRC begins; the frame's CRC covers the start
    BATCH_AT_CRC = 17             # u32
cdef enum:
    BATCH_AT_BASE_OFFSET = 0      # i64
    BATCH_AT_LENGTH = 8           # i32, bytes after this field
    BATCH_AT_LEADER_EPOCH = 12    # i32
    BATCH_AT_MAGIC = 16           # i8; the CRC follows
    BATCH_AT_ATTRIBUTES = 21      # i16
    BATCH_AT_LAST_DELTA = 23      # i32
    BATCH_AT_BASE_TIMESTAMP = 27  # i64
    BATCH_AT_MAX_TIMESTAMP = 35   # i64
    BATCH_AT_PRODUCER_ID = 43     # i64
    BATCH_AT_PRODUCER_EPOCH = 51  # i16
    BATCH_AT_BASE_SEQUENCE = 53   # i32
    BATCH_AT_COUNT = 57           # i32

# Run files: the pending timers and the user ids as of a checkpoint.
cpdef enum:
    RUN_MAGIC = 0x4C4D5152        # "LMQR"
    RUN_VERSION = 1
    RUN_TIMERS = 1                # a file in timer/
    RUN_IDS = 2                   # a file in index/
    RUN_DUE = 3                   # a file in timerlog/: the rows of timers by due time
    RUN_BLOCK_SIZE_MAX = 262144   # bytes of rows in one block
    RUN_ID_VERSION = 2            # of a file in index/ that has a directory and a filter
    RUN_ID_BLOCK_SIZE = 4056      # bytes of rows in one block of such a file, but for the last

# Rows of pending and of completed timers share one sequence and their first three fields.
cpdef enum:
    RUN_ROW_PENDING = 1
    RUN_ROW_COMPLETED = 2
    RUN_ROW_COMPLETED_DUE = 3     # with its due time, in the order of due times
    RUN_TIMER_SIZE = 48
    RUN_COMPLETED_SIZE = 16
    RUN_COMPLETED_DUE_SIZE = 24
    RUN_TIMER_AT_KIND = 12        # u8, RUN_ROW_PENDING
    RUN_TIMER_AT_DUE = 16         # i64, epoch ms
cdef enum:
    RUN_TIMER_AT_ACCEPT_POS = 0   # i64
    RUN_TIMER_AT_INDEX = 8        # i32; the kind follows
    RUN_TIMER_AT_LEVEL = 13       # u8, as in the accept frame; two zero bytes follow
    RUN_TIMER_AT_LEVEL_OFFSET = 24  # i64
    RUN_TIMER_AT_TOPIC_ID = 32    # i32
    RUN_TIMER_AT_PARTITION = 36   # i32
    RUN_TIMER_AT_BODY_POS = 40    # i64, position of the frame that holds the record now
    RUN_COMPLETED_AT_ACCEPT_POS = 0  # i64
    RUN_COMPLETED_AT_INDEX = 8      # i32
    RUN_COMPLETED_AT_KIND = 12      # u8, RUN_ROW_COMPLETED; three zero bytes follow
    RUN_COMPLETED_DUE_AT_ACCEPT_POS = 0  # i64
    RUN_COMPLETED_DUE_AT_INDEX = 8      # i32
    RUN_COMPLETED_DUE_AT_KIND = 12      # u8, RUN_ROW_COMPLETED_DUE; three zero bytes follow
    RUN_COMPLETED_DUE_AT_DUE = 16       # i64, epoch ms

cpdef enum:
    RUN_ID_SIZE = 52
cdef enum:
    RUN_ID_AT_HASH_HIGH = 0       # u64
    RUN_ID_AT_HASH_LOW = 8        # u32
    RUN_ID_AT_TOPIC_ID = 12       # i32
    RUN_ID_AT_ACCEPT_POS = 16     # i64
    RUN_ID_AT_DUE = 24            # i64, epoch ms
    RUN_ID_AT_COMPLETED_POS = 32  # i64, after the frame that completed the timer; 0 = pending
    RUN_ID_AT_INDEX = 40          # i32
    RUN_ID_AT_PARTITION = 44      # i32
    RUN_ID_AT_STATE = 48          # u8, as in the id index
    RUN_ID_AT_HAS_OFFSET = 49     # u8, 1: the accept pos is the offset of the delivery
    RUN_ID_AT_LEVEL = 50          # u8, delay level of the timer; a zero byte follows
