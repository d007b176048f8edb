from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.log.frames cimport FrameHeader
from _core.state.check cimport CheckedProjections
from _core.state.scan cimport LogScan
from _core.tables.copies cimport Copies
from _core.tables.timer_outcomes cimport TimerOutcomes


cdef class HistoryProjections(CheckedProjections):
    cdef readonly TimerOutcomes outcomes
    cdef readonly Copies records      # carried ones; their numbers mean nothing
    cdef readonly dict deleted        # by topic id: name and start offsets of each deleted topic
    cdef dict starts                  # by partition handle: the start offset that was declared
    cdef int64_t now_ms               # the store time of the frame that is applied
    cdef int cancel_state             # what a cancellation makes of the timer that it cancels


# What the frames of a contiguous part of one segment hold.
cdef struct Zone:
    int64_t start
    int64_t end
    int64_t min_stored
    int64_t max_stored
    int64_t min_timestamp             # of visible records
    int64_t max_timestamp
    int64_t min_due
    int64_t max_due
    int64_t records
    int64_t timers
    int64_t delivered
    int64_t frames


cdef class PlanScan(LogScan):
    cdef public int64_t zone_size
    cdef Zone zone
    cdef set zone_topics
    cdef int32_t last_topic           # the topic added last, so that most frames add nothing
    cdef list zones
    cdef int _close_zone(self) except -1
