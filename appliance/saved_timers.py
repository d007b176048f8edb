"""The pending timers that are on the disk alone, for lists. Layer 4; on the event loop."""

from array import array
from collections.abc import MutableMapping
from typing import Final

from appliance.pending_timers import (
    EVER_MS,
    ListedTimer,
    TimerCountRequest,
    TimerPlace,
    TimerSelection,
)
from appliance.store.message_store import MessageStore
from appliance.store.runs.run_files import TIMER_ROW
from appliance.store.runs.timer_page import TimerPage, TimerTally

TALLIED_TOGETHER: Final = 1 << 20
"""Timers that are counted without a pause, in about half a second."""


class SavedTimers:
    """Reads timers of a store without taking them into memory.

    Args:
        store: has recovered.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    @property
    def can_list(self) -> bool:
        """They can be read in their order; else they must be loaded to be listed."""
        return self._store.timer_memory.has_pages

    def page(
        self,
        selection: TimerSelection,
        limit: int,
        after: TimerPlace | None,
        from_ms: int,
        until_ms: int,
        *,
        count: int,
    ) -> TimerPage | None:
        """Return what reads the next timers, on a thread; None: ask again soon.

        It may end before `until_ms`: `load.until_ms` says where the next one goes on.

        Args:
            selection: which timers, but for their due times.
            limit: timers at most.
            after: only timers after this one; None for all.
            from_ms: from when on they are due, epoch ms; not before the time up to which timers
                are in memory.
            until_ms: up to when.
            count: about how many timers of all topics are read at most.
        """
        load = self._store.timer_memory.read_from(from_ms, until_ms, count)
        if load is None:
            return None
        page = TimerPage(
            load=load, limit=limit, end_pos=self._store.log.pointers.visible, after=after
        )
        page.topic_id, page.partition = self._target(selection)
        return page

    def _target(self, selection: TimerSelection) -> tuple[int, int]:
        """Return the topic id and the partition of a selection; -1: all."""
        if selection.topic is None:
            return -1, -1
        topic = self._store.state.topics.find(selection.topic)
        # Nothing has a topic that was deleted meanwhile.
        topic_id = 0 if topic is None else topic.topic_id
        return topic_id, -1 if selection.partition is None else selection.partition

    def tally(
        self, request: TimerCountRequest, due_ms: int, from_ms: int, counts: "array[int]"
    ) -> TimerTally | None:
        """Return what counts timers, on a thread; None: ask again soon.

        It may end before the last timer: `load.until_ms` says where the next one goes on.

        Args:
            request: says which.
            due_ms: from when on the timers are due, epoch ms; not before the time up to which
                timers are in memory.
            from_ms: where the first interval begins.
            counts: of the intervals, and one more for all later timers.
        """
        load = self._store.timer_memory.read_from(due_ms, EVER_MS, TALLIED_TOGETHER)
        if load is None:
            return None
        topic_id, partition = self._target(request.selection)
        return TimerTally(
            load=load,
            topic_id=topic_id,
            partition=partition,
            from_ms=from_ms,
            step_ms=request.step_ms,
            counts=counts,
        )

    def timers_of(self, page: TimerPage, bodies: MutableMapping[int, int]) -> list[ListedTimer]:
        """Return the timers of a page that was read.

        Args:
            page: the page.
            bodies: gets the log positions of the frames that hold the records, by the positions of
                those that accepted them.
        """
        found: list[ListedTimer] = []
        topics = self._store.state.projections.topics_by_id
        for (
            accept_pos,
            index,
            _,
            _,
            due_ms,
            _,
            topic_id,
            partition,
            body_pos,
        ) in TIMER_ROW.iter_unpack(page.rows):
            topic = topics.get(topic_id)
            if topic is not None and partition < len(topic.partitions):
                bodies[accept_pos] = body_pos
                found.append((due_ms, accept_pos, index, topic.partitions[partition].handle))
        return found
