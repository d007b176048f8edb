"""The pending timers of a broker, for people: states by id, lists, counts and cancels.

A list or a count of many timers is made in steps, and the caller lets the event loop serve others
between two of them. Timers come and go meanwhile: each is shown as it is when its step is made.
Layer 4; on the event loop.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, cast

from _core.paths.cancel import CancelPath
from _core.paths.deliver import DeliverPath
from _core.paths.timer_move import TimerMovePath
from _core.queue.partition import Partition, Topic
from _core.state.id_rows import named_timer
from _core.timers.due_list import DueList
from _core.timers.id_index import delivered_mark
from appliance.errors import DiskFullError, FindError
from appliance.find import LIMIT_DEFAULT
from appliance.model import TimerState, TimerStateName
from appliance.store.message_store import MessageStore
from appliance.store.runs.saved_ids import SavedIds
from appliance.system.clock import Clock
from appliance.units import MS_PER_MINUTE, MS_PER_SECOND

NEXT_DUE_ENTRIES: Final = 65_536
"""Cancelled timers that are passed over to find the next that is due: a few ms."""

STEP_ENTRIES: Final = 65_536
"""Timers looked at in one step of a list or a count: up to a millisecond."""

KEPT_MAX: Final = 10_000
"""Timers in a list that are due and wait for the disk; more of them are counted only."""

INTERVALS_DEFAULT: Final = 60
LEVEL_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""RocketMQ's name of the topic that has a queue for each delay level."""

EVER_MS: Final = 1 << 62
TimerPlace = tuple[int, int, int]
"""Due time in epoch ms, accept position and index: what orders timers, and names each."""

ListedTimer = tuple[int, int, int, int]
"""The place of a timer, and the handle of its partition."""

CancelledTimer = tuple[int, int, bytes, int, int]
"""What a cancel frame says of a timer: accept position, index, user's id, due time and level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerSelection:
    """Some of the pending timers.

    Attributes:
        topic: name of a topic; None for all.
        partition: one partition of the topic; None for all.
        due: (from, to): due from one instant on, and before another, epoch ms; None for no bound.
    """

    topic: str | None = None
    partition: int | None = None
    due: tuple[int | None, int | None] = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerListRequest:
    """Which pending timers are listed.

    Attributes:
        selection: of these.
        limit: timers at most.
        after: only timers after this one; None for the first ones.
        has_values: with the values and headers of their records.
    """

    selection: TimerSelection
    limit: int = LIMIT_DEFAULT
    after: TimerPlace | None = None
    has_values: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerCountRequest:
    """Which pending timers are counted, by intervals of their due times.

    Attributes:
        selection: of these.
        from_at: where the first interval begins, epoch ms; None for now.
        step_ms: the length of each.
        interval_count: how many.
    """

    selection: TimerSelection
    from_at: int | None = None
    step_ms: int = MS_PER_MINUTE
    interval_count: int = INTERVALS_DEFAULT


@dataclass(frozen=True, slots=True)
class TimerCounts:
    """How many timers are due when.

    Attributes:
        from_at: where the first interval begins, epoch ms.
        step_ms: the length of each.
        counts: timers in each.
        before, after: timers due before the first, and after the last.
    """

    from_at: int
    step_ms: int
    counts: list[int]
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class MovedTimer:
    """A timer that has another due time.

    Attributes:
        place: names it from now on.
        due_at: the due time, epoch ms.
        topic, partition: where it is delivered.
    """

    place: str
    due_at: int
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class LevelQueue:
    """A delay level as the queue that RocketMQ has for it.

    Attributes:
        level: 1 for the first.
        delay_ms: its delay; None if `delay.levels` no longer has it.
        topic, queue_id: the queue.
        max_offset: how many timers it ever had.
        offset: how many of them are delivered or cancelled; None if that is not known.
        lag: how many are pending; None if that is not known.
    """

    level: int
    delay_ms: int | None
    topic: str
    queue_id: int
    max_offset: int
    offset: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class Backlog:
    """How far a stage is behind.

    Attributes:
        count: timers that it has to do.
        behind_ms: how long the first of them has waited.
    """

    count: int
    behind_ms: int


@dataclass(frozen=True, slots=True)
class PurgedTimers:
    """What became of timers that were to be cancelled.

    Attributes:
        cancelled: how many are.
        left: how many are not: they were delivered meanwhile, are being delivered, or their
            records cannot be read.
    """

    cancelled: int
    left: int


class PendingTimers:
    """Looks at the timers of a store, and cancels them by their ids.

    Args:
        store: has recovered.
        deliver: keeps the timers that wait for the disk.
        clock: says when a cancel is stored.
    """

    def __init__(self, store: MessageStore, deliver: DeliverPath, clock: Clock) -> None:
        self._store = store
        self._projections = store.state.projections
        self._deliver = deliver
        self._cancel = CancelPath(store.writer)
        self._mover = TimerMovePath(store.writer)
        self._clock = clock

    @property
    def saved_ids(self) -> SavedIds:
        """The ids that are on the disk; what asks for one reads a run, unless it was looked up."""
        return self._store.runs.ids

    @property
    def count(self) -> int:
        """The number of pending timers."""
        return self._projections.due.pending

    def count_of(self, partition: Partition) -> int:
        """The number of records of a partition that are not due yet."""
        return self._projections.due.pending_of(partition.handle)

    def held_of(self, topic: Topic) -> int:
        """The number of due records that a topic holds back, some cancelled ones included."""
        return self._projections.due.held_of(topic)

    @property
    def loaded_ms(self) -> int:
        """All timers due before this are in memory, epoch ms; lists and the like know no others."""
        return self._projections.due.loaded_ms

    def want_loaded(self, until_ms: int) -> bool:
        """Ask for all timers due up to a time, epoch ms; return whether they are in memory."""
        self._store.timer_memory.want(until_ms, self._clock.monotonic_ns())
        return self.loaded_ms > until_ms

    def next_due_ms(self) -> int | None:
        """When the first pending timer is due, epoch ms; None if none waits for its time.

        With more cancelled timers before it than are looked at, a time before which none is due.
        """
        due_ms = self._projections.due.first_due(NEXT_DUE_ENTRIES)
        return None if due_ms < 0 else due_ms

    @property
    def accepted_count(self) -> int:
        """The number of timers that were ever accepted."""
        return self._projections.timers_accepted

    @property
    def delivered_count(self) -> int:
        """The number of timers that were ever delivered."""
        return self._projections.timers_delivered

    def is_any_due(self, now_ms: int) -> bool:
        """Return whether a timer is due that is not delivered, though its record can be read."""
        return self._projections.due.has_due(now_ms) or self._deliver.waiting > 0

    def backlog(self, now_ms: int, first_ms: int | None) -> Backlog:
        """Return how far deliveries are behind, by the time now and `next_due_ms`.

        Counted are timers that were due before the current second, without those that their topics
        hold back. After a start those that wait for the disk alone, until all are counted.
        """
        due = self._projections.due
        second_ms = now_ms - now_ms % MS_PER_SECOND
        count = due.tally(array("q", [0]), second_ms, MS_PER_SECOND)
        waiting = self._deliver.waiting
        count = waiting if count < 0 else max(count - due.held_count, waiting)
        return Backlog(count, 0 if first_ms is None else max(0, now_ms - first_ms))

    def levels(self, delays_ms: Sequence[int]) -> list[LevelQueue]:
        """Return the queues of the delay levels, also of earlier ones that have had timers.

        Args:
            delays_ms: the delay of each level.
        """
        levels = self._projections.levels
        found = []
        for level in range(1, max(len(delays_ms), len(levels.all())) + 1):
            lag = levels.pending_of(level) if levels.is_exact else None
            end = levels.of(level)
            found.append(
                LevelQueue(
                    level=level,
                    delay_ms=delays_ms[level - 1] if level <= len(delays_ms) else None,
                    topic=LEVEL_TOPIC,
                    queue_id=level - 1,
                    max_offset=end,
                    offset=None if lag is None else max(0, end - lag),
                    lag=lag,
                )
            )
        return found

    # By their ids

    def state(self, topic: Topic, user_id: bytes) -> TimerState:
        """Return the state of the timer with that id in that topic."""
        found = named_timer(self._projections, topic, user_id)
        if found is None:
            return TimerState("unknown")
        state, due_at, partition, position, _ = found
        offset = position if state == "delivered" and position >= 0 else None
        return TimerState(cast(TimerStateName, state), due_at, partition, offset)

    def listed(self, topic: Topic, user_id: bytes) -> ListedTimer | None:
        """Return the pending timer with that id in that topic; None if none is pending."""
        found = named_timer(self._projections, topic, user_id)
        if found is None or found[0] != "pending":
            return None
        _, due_at, partition, accept_pos, index = found
        return due_at, accept_pos, index, topic.partitions[partition].handle

    def is_placed(self, timer: ListedTimer) -> bool:
        """Return whether it is known where a timer's record is.

        It is not if the record was carried, and the timer was not loaded since the start.
        """
        return self._projections.moved.place(timer[1]) >= 0

    def is_still(self, topic: Topic, user_id: bytes, timer: ListedTimer) -> bool:
        """Return whether a timer is still pending, and the one that an id of a topic names."""
        return not topic.deleted and self.listed(topic, user_id) == timer

    def find_partition(self, timer: ListedTimer) -> Partition | None:
        """Return the partition of a timer; None if it is deleted."""
        return self._projections.partitions[timer[3]]

    def state_of(self, name: str, user_id: bytes, accept_pos: int, index: int) -> str | None:
        """Return the state of a timer; None if its id names another one now.

        Args:
            name: its topic.
            user_id: its id.
            accept_pos, index: its timer id.
        """
        topic = self._store.state.topics.find(name)
        found = None if topic is None else named_timer(self._projections, topic, user_id)
        if found is None:
            return None
        state, _, _, position, known_index = found
        if state == "delivered":
            is_it = known_index == delivered_mark(accept_pos, index)
        else:
            is_it = (position, known_index) == (accept_pos, index)
        return state if is_it else None

    def cancel(self, topic: Topic, user_id: bytes) -> TimerState:
        """Cancel the pending timer with that id; do nothing if there is none.

        Args:
            topic: its topic.
            user_id: 1 to 255 bytes.

        Returns:
            The state of the timer: "cancelled" also if it was cancelled before. The cancellation
            is durable once the log is durable up to `Broker.wrote_pos`.

        Raises:
            DiskFullError: the disk is full.
        """
        self._cancel.cancel(topic, user_id, self._clock.wall_ms())
        if self._cancel.disk_full:
            raise DiskFullError(f"nothing was cancelled: {self._store.log.tail.full_text}")
        return self.state(topic, user_id)

    def purge(self, timers: Sequence[tuple[ListedTimer, bytes, int]]) -> int:
        """Cancel timers that were listed, as far as they are still pending.

        Args:
            timers: timers in their order; the id of each, b"" for a timer without one; and its
                delay level, 0 for none. REQUIRES: as `move`, for each.

        Returns:
            How many were cancelled: durably once the log is durable up to `Broker.wrote_pos`.

        Raises:
            DiskFullError: the disk is full; some may be cancelled.
        """
        queued = DueList(self._projections.due).holds([timer[:3] for timer, _, _ in timers])
        by_partition: dict[int, list[CancelledTimer]] = {}
        for (timer, user_id, level), is_queued in zip(timers, queued, strict=True):
            is_pending = is_queued or timer[0] >= self.loaded_ms
            if is_pending and self._names(timer, user_id):
                found = (timer[1], timer[2], user_id, timer[0], level)
                by_partition.setdefault(timer[3], []).append(found)
        for handle, cancelled in by_partition.items():
            partition = self._projections.partitions[handle]
            assert partition is not None
            if not self._cancel.cancel_all(partition, cancelled, self._clock.wall_ms()):
                raise DiskFullError(f"not all were cancelled: {self._store.log.tail.full_text}")
        return sum(map(len, by_partition.values()))

    def _names(self, timer: ListedTimer, user_id: bytes) -> bool:
        """Return whether an id is that of a pending timer; b"" is that of one without an id."""
        partition = self._projections.partitions[timer[3]]
        if partition is None:
            return False
        if not user_id:
            return True
        named = named_timer(self._projections, partition.topic, user_id)
        return named is not None and (named[0], *named[3:]) == ("pending", *timer[1:3])

    # By their places

    def _is_pending(self, timer: ListedTimer) -> bool:
        """Return whether a listed timer is in the due queue, or on the disk alone."""
        (is_queued,) = DueList(self._projections.due).holds([timer[:3]])
        return bool(is_queued) or timer[0] >= self.loaded_ms

    def move(
        self, timer: ListedTimer, user_id: bytes, frame: bytes, due_ms: int
    ) -> TimerPlace | None:
        """Give a timer another due time, if it is still at its place.

        Args:
            timer: its place and partition. REQUIRES: if it is not in memory, no `purge` and no
                `move` since it was listed. Only they complete such a timer if it has no id.
            user_id: its id; b"" if it has none. REQUIRES: what the id names is in memory.
            frame: the whole frame that holds its record, checked.
            due_ms: the new due time, epoch ms.

        Returns:
            Its place from now on: durably once the log is durable up to `Broker.wrote_pos`. None if
            it has left its place.

        Raises:
            DiskFullError: the disk is full.
            FindError: it cannot be moved; the error says why.
        """
        partition = self.find_partition(timer)
        if partition is None or not (self._is_pending(timer) and self._names(timer, user_id)):
            return None
        try:
            accept_pos = self._mover.move(
                partition, timer[:3], frame, due_ms, self._clock.wall_ms()
            )
        except ValueError as error:
            raise FindError("request", str(error)) from None
        if self._mover.disk_full:
            raise DiskFullError(f"nothing was changed: {self._store.log.tail.full_text}")
        return due_ms, accept_pos, 0

    # Lists and counts

    def partition_of(self, timer: ListedTimer) -> tuple[str, int] | None:
        """Return the topic and the partition of a timer; None if they are deleted."""
        partition = self._projections.partitions[timer[3]]
        return None if partition is None else (partition.topic.name, partition.index)

    def steps_of_list(
        self, selection: TimerSelection, limit: int, after: TimerPlace | None
    ) -> Iterator[list[ListedTimer]]:
        """Yield the next timers in order of due time, then of arrival; a step may have none.

        They are visible in the log: a power cut does not undo them.

        Args:
            selection: which timers.
            limit: timers at most.
            after: only timers after this one; None for the first ones.

        Raises:
            FindError: there is no such topic or partition.
        """
        end_pos = self._store.log.pointers.visible
        due_list = self._due_list(selection, selection.due, end_pos)
        kept = self._kept(selection, end_pos)
        while limit > 0:
            begin = after
            found, after, is_complete = due_list.page(begin, limit, STEP_ENTRIES)
            end = None if is_complete else after
            found += [
                each
                for each in kept
                if (begin is None or each[:3] > begin) and (end is None or each[:3] <= end)
            ]
            found = sorted(found)[:limit]
            limit -= len(found)
            yield found
            if is_complete:
                break

    def forecast(self, from_ms: int, step_ms: int, interval_count: int) -> TimerCounts | None:
        """Count the timers of all topics by intervals of their due times, at no scan cost.

        They are counted as they come and go: by seconds for 48 hours, and by minutes beyond.

        Args:
            from_ms, step_ms: where the first interval begins, epoch ms, and how long each is.
            interval_count: how many.

        Returns:
            None if these intervals are not of whole seconds or minutes, or nobody has counted them.
        """
        counts = array("q", bytes(8 * interval_count))
        before = self._projections.due.tally(counts, from_ms, step_ms)
        if before < 0:
            return None
        after = self.count - before - sum(counts)
        return TimerCounts(from_ms, step_ms, counts.tolist(), before, after)

    def steps_of_count(
        self,
        selection: TimerSelection,
        from_ms: int,
        step_ms: int,
        counts: "array[int]",
        until_ms: int = EVER_MS,
    ) -> Iterator[TimerCounts | None]:
        """Count timers by intervals of their due times; yield None until all are looked at.

        Args:
            selection: which timers; its due times are not looked at.
            from_ms, step_ms: where the first interval begins, epoch ms, and how long each is.
            counts: of the intervals and what is later: zeros, or those due from `until_ms` on.
            until_ms: all timers due before this time are in memory.

        Raises:
            FindError: there is no such topic or partition.
        """
        due_list, reached = self._due_list(selection, (from_ms, until_ms)), -1
        while (reached := due_list.count(counts, step_ms, reached, STEP_ENTRIES)) >= 0:
            yield None
        *scanned, after = counts
        # Also those that wait for the disk, which the queue does not have.
        before = max(0, self._count_of(selection) - sum(counts))
        yield TimerCounts(from_ms, step_ms, scanned, before, after)

    def _count_of(self, selection: TimerSelection) -> int:
        if selection.topic is None:
            return self.count
        return sum(map(self._projections.due.pending_of, self._handles(selection)))

    def _due_list(
        self,
        selection: TimerSelection,
        due: tuple[int | None, int | None],
        end_pos: int = EVER_MS,
    ) -> DueList:
        wanted = None
        if selection.topic is not None:
            handles = self._handles(selection)
            wanted = bytearray(max(handles) + 1)
            for handle in handles:
                wanted[handle] = 1
        return DueList(
            self._projections.due,
            0 if due[0] is None else due[0],
            EVER_MS if due[1] is None else due[1],
            end_pos,
            wanted,
        )

    def _kept(self, selection: TimerSelection, end_pos: int) -> list[ListedTimer]:
        """Return the due timers that wait for the disk, which the queue does not have."""
        low, high = selection.due
        handles = None if selection.topic is None else set(self._handles(selection))
        return [
            timer
            for timer in self._deliver.kept(KEPT_MAX)
            if (low is None or timer[0] >= low)
            and (high is None or timer[0] < high)
            and timer[1] < end_pos
            and (handles is None or timer[3] in handles)
        ]

    def _handles(self, selection: TimerSelection) -> list[int]:
        assert selection.topic is not None
        topic = self._store.state.topics.find(selection.topic)
        if topic is None:
            raise FindError("unknown", f"there is no topic {selection.topic!r}")
        partitions = topic.partitions
        if selection.partition is not None:
            if selection.partition >= len(partitions):
                raise FindError(
                    "unknown",
                    f"{selection.topic}/{selection.partition} does not exist: {len(partitions)} "
                    "partitions",
                )
            partitions = [partitions[selection.partition]]
        return [partition.handle for partition in partitions]
