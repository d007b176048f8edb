"""Lists and counts of pending timers: their queries, and how a running broker answers. Layer 5."""

import asyncio
import json
import re
from array import array
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from _core.queue.partition import Topic
from appliance.admin.queries import Fields
from appliance.broker import Broker
from appliance.cron_rules import CronError
from appliance.errors import CorruptionError, FindError, NotReadyError, StorageError
from appliance.find import LIMIT_DEFAULT, LIMIT_MAX, octets_for_json, until
from appliance.model import TimerState
from appliance.offline.frame_items import Frame, Item
from appliance.pending_timers import (
    EVER_MS,
    INTERVALS_DEFAULT,
    ListedTimer,
    MovedTimer,
    PurgedTimers,
    TimerCountRequest,
    TimerCounts,
    TimerListRequest,
    TimerPlace,
    TimerSelection,
)
from appliance.pump import Pump
from appliance.saved_timers import TALLIED_TOGETHER
from appliance.timer_reader import UNREADABLE, TimerReader
from appliance.units import MS_PER_HOUR, MS_PER_MINUTE, MS_PER_SECOND, NS_PER_MS

LOADED_PAUSE_S: Final = 0.005
"""Between two looks whether more timers are loaded."""

TOPIC_PAGE: Final = 1 << 18
"""Timers of all topics that are read first for a list of one."""

READ_NS: Final = MS_PER_SECOND * NS_PER_MS
"""How long one list reads records; its answer says where the next one goes on."""

INSTANTS_SHOWN: Final = 5
"""Instants of a recurring timer that a list has."""

PURGED_TOGETHER: Final = 1_000
"""Timers that are cancelled in one turn of the loop, in a frame for each partition."""

PURGE_PAGE: Final = 4 * PURGED_TOGETHER
"""Timers that a purge lists together, in up to 5 ms. More would be better for many of one ms: each
list passes over those that went before."""

INTERVALS_MAX: Final = 10_000

STEP_MAX_MS: Final = 1 << 40

INDEX_MAX: Final = (1 << 31) - 1

SECONDS_SPAN_MS: Final = 47 * MS_PER_HOUR
"""How far ahead timers are counted by seconds, about: 48 hours, less what passes meanwhile."""

LEFT: Final = "no pending record is there: it was delivered, cancelled or rescheduled, or is due"

_PLACE: Final = re.compile(r"[0-9]{1,18}\.[0-9]{1,18}\.[0-9]{1,9}")

_Step = TypeVar("_Step")

_LIST_FIELDS: Final = ("topic", "partition", "from", "to", "limit", "after", "values")
_COUNT_FIELDS: Final = ("topic", "partition", "from", "step_ms", "count")


def parse_list(query: str) -> TimerListRequest:
    """Return the request in the query of a URL.

    Raises:
        FindError: it is something else.
    """
    fields = Fields(query, _LIST_FIELDS)
    values = fields.text("values")
    if values not in (None, "true", "false"):
        raise FindError("request", "values is neither true nor false")
    due = fields.instant("from"), fields.instant("to")
    return TimerListRequest(
        selection=_selection(fields, due),
        limit=fields.number("limit", 1, LIMIT_MAX) or LIMIT_DEFAULT,
        after=None if (after := fields.text("after")) is None else parse_place(after),
        has_values=values == "true",
    )


def parse_count(query: str) -> TimerCountRequest:
    """Return the request in the query of a URL.

    Raises:
        FindError: it is something else.
    """
    fields = Fields(query, _COUNT_FIELDS)
    return TimerCountRequest(
        selection=_selection(fields, (None, None)),
        from_at=fields.instant("from"),
        step_ms=fields.number("step_ms", 1, STEP_MAX_MS) or MS_PER_MINUTE,
        interval_count=fields.number("count", 1, INTERVALS_MAX) or INTERVALS_DEFAULT,
    )


def _selection(fields: Fields, due: tuple[int | None, int | None]) -> TimerSelection:
    topic, partition = fields.text("topic"), fields.number("partition", 0, 1 << 31)
    if partition is not None and topic is None:
        raise FindError("request", "a partition needs its topic: add topic")
    return TimerSelection(topic=topic, partition=partition, due=due)


def parse_place(text: str) -> TimerPlace:
    """Return the place of a timer, as lists have it.

    Raises:
        FindError: it is something else.
    """
    if not _PLACE.fullmatch(text):
        raise FindError("request", f"{text[:60]!r} is not a place: use that of a list")
    due_ms, accept_pos, index = map(int, text.split("."))
    return due_ms, accept_pos, index


def forecast_from(now_ms: int, step_ms: int, span_ms: int, loaded_ms: int = EVER_MS) -> int:
    """Return where a forecast from now on begins.

    It is the second or, if it reaches beyond the seconds that are counted, the minute: so that no
    timer needs to be looked at.

    Args:
        now_ms: epoch ms.
        step_ms: the length of its intervals.
        span_ms: that of all of them.
        loaded_ms: up to where timers are in memory; others are not counted by seconds.
    """
    is_far = span_ms > SECONDS_SPAN_MS or now_ms + span_ms >= loaded_ms
    if step_ms % MS_PER_MINUTE == 0 and is_far:
        return now_ms - now_ms % MS_PER_MINUTE
    return now_ms - now_ms % MS_PER_SECOND if step_ms % MS_PER_SECOND == 0 else now_ms


def _just_before(place: TimerPlace) -> TimerPlace | None:
    """Return a place that no timer has, after all that come before `place`; None if none do."""
    due_ms, accept_pos, index = place
    if index:
        return due_ms, accept_pos, index - 1
    return (due_ms, accept_pos - 1, INDEX_MAX) if accept_pos else None


def _token(timer: ListedTimer | TimerPlace) -> str:
    return ".".join(map(str, timer[:3]))


class TimerListing:
    """Lists and counts the pending timers of a broker, for one request at a time."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._turn = asyncio.Lock()
        self._change = asyncio.Lock()
        """A purge or a move is under way: no other one completes what it has listed."""

    async def list_timers(self, pump: Pump, request: TimerListRequest) -> str:
        """Answer a request as JSON. Records are read on a thread.

        Raises:
            FindError: it cannot be answered; the error says why.
            NotReadyError: the broker is stopping.
        """
        bodies: dict[int, int] = {}
        timers = await self._next(
            pump, request.selection, request.limit + 1, request.after, bodies=bodies
        )
        items = await self._read(
            pump,
            timers[: request.limit],
            has_values=request.has_values,
            is_checked=request.has_values,
            bodies=bodies,
        )
        return await pump.find(partial(_encode, items, timers))

    async def _next(
        self,
        pump: Pump,
        selection: TimerSelection,
        limit: int,
        after: TimerPlace | None,
        *,
        bodies: dict[int, int] | None = None,
    ) -> list[ListedTimer]:
        """Return the next timers of a selection.

        With `bodies`, those that are not in memory stay on the disk. It gets the log positions of
        the frames that hold their records, by the positions of those that accepted them.
        """
        until_ms = EVER_MS if selection.due[1] is None else selection.due[1]
        while True:
            loaded_ms = self._broker.timers.loaded_ms
            async with self._turn:
                steps = self._broker.timers.steps_of_list(selection, limit, after)
                found = [timer async for step in _taking_turns(steps, pump) for timer in step]
            # Timers that are not in memory may be due before the last ones found.
            if loaded_ms > until_ms or (len(found) == limit and found[-1][0] < loaded_ms):
                return found
            if self._broker.timers.loaded_ms < loaded_ms:
                continue  # some have left memory meanwhile
            if bodies is not None:
                found = [timer for timer in found if timer[0] < loaded_ms]
                if await self._add_saved(
                    pump, found, selection, limit, after, loaded_ms=loaded_ms, bodies=bodies
                ):
                    return found
            await self._loaded(pump, until_ms)

    async def _add_saved(
        self,
        pump: Pump,
        found: list[ListedTimer],
        selection: TimerSelection,
        limit: int,
        after: TimerPlace | None,
        *,
        loaded_ms: int,
        bodies: dict[int, int],
    ) -> bool:
        """Add timers that are due from a time on, without taking them into memory.

        Returns:
            False if they must be taken into memory, because the TimerLog is damaged or the like.
        """
        low, high = selection.due
        until_ms = EVER_MS if high is None else high
        from_ms = max(loaded_ms, low or 0, 0 if after is None else after[0])
        saved = self._broker.saved_timers
        count = limit if selection.topic is None else TOPIC_PAGE
        while len(found) < limit and from_ms < until_ms:
            if pump.is_stopped:
                raise NotReadyError("the broker is stopping")
            if not saved.can_list:
                return False
            page = saved.page(selection, limit - len(found), after, from_ms, until_ms, count=count)
            if page is None:
                await asyncio.sleep(LOADED_PAUSE_S)
                continue
            await pump.find(partial(page.run, lambda: not pump.is_stopped))
            if page.fault is not None:
                return False
            found += saved.timers_of(page, bodies)
            if page.is_full:  # its topic may have been deleted meanwhile: then some are missing
                after = page.last
                from_ms = after[0]
            else:
                from_ms = page.load.until_ms
            count = min(2 * count, TALLIED_TOGETHER)  # few are of this topic, or pending still
        return True

    async def _at(
        self, pump: Pump, place: TimerPlace, bodies: dict[int, int]
    ) -> ListedTimer | None:
        """Return the timer at a place, None if it has left it; `bodies`: see `_next`."""
        there = TimerSelection(due=(place[0], place[0] + 1))
        found = await self._next(pump, there, 1, _just_before(place), bodies=bodies)
        return found[0] if found and found[0][:3] == place else None

    async def _loaded(self, pump: Pump, due_ms: int) -> None:
        """Wait until all timers due up to a time are in memory.

        Raises:
            NotReadyError: the broker is stopping.
        """
        while not self._broker.timers.want_loaded(due_ms):
            await asyncio.sleep(LOADED_PAUSE_S)
            if pump.is_stopped:
                raise NotReadyError("the broker is stopping")

    async def know(self, pump: Pump, names: Sequence[tuple[Topic, bytes]]) -> None:
        """Wait until it is in memory what some ids name, for the rest of this turn of the loop.

        Args:
            pump: of the broker.
            names: topics and ids in them.

        Raises:
            NotReadyError: the broker is stopping.
        """
        saved_ids = self._broker.timers.saved_ids
        while (lookup := saved_ids.look_up_names(names)) is not None:
            await pump.find(lookup.run)
            try:
                saved_ids.take(lookup)
            except (StorageError, CorruptionError) as error:
                pump.fail(error)
                raise NotReadyError("the broker is stopping") from error

    def _named(self, timers: Sequence[tuple[ListedTimer, bytes, int]]) -> list[tuple[Topic, bytes]]:
        """Return the topics and ids of those timers that have ids."""
        found = []
        for timer, user_id, _ in timers:
            partition = self._broker.timers.find_partition(timer)
            if user_id and partition is not None:
                found.append((partition.topic, user_id))
        return found

    async def _read(
        self,
        pump: Pump,
        timers: list[ListedTimer],
        *,
        has_values: bool,
        is_checked: bool = True,
        bodies: Mapping[int, int] | None = None,
    ) -> list[Item]:
        """Read the records of the first of some timers, on a thread; `bodies`: see `_next`."""
        places = {timer[3]: self._broker.timers.partition_of(timer) for timer in timers}
        finder, part = self._broker.begin_find()
        in_time = until(READ_NS, self._broker.clock.monotonic_ns)
        saved = bodies or {}

        def place_of(accept_pos: int) -> int:
            place = finder.timer_place(accept_pos)
            return saved.get(accept_pos, place) if place < 0 else place

        reader = TimerReader(part, place_of, places, has_values=has_values, is_checked=is_checked)

        def read() -> list[Item]:
            try:
                items = reader.read(timers, lambda: in_time() and not pump.is_stopped)
                for item in items:
                    if "cron" in item:
                        item["instants"] = self._instants(item)
                return items
            finally:
                part.close()

        try:
            return await pump.find(read)
        finally:
            self._broker.key_index.end_search()

    def _instants(self, item: Item) -> list[int]:
        """Return the instants of a recurring timer from its due time on. Any thread."""
        expression, zone = item["cron"].encode(), item["zone"].encode()
        try:
            return self._broker.instants.next_instants(
                expression, zone, item["due"] - 1, INSTANTS_SHOWN
            )
        except CronError:
            return []  # the data of its zone is gone

    async def purge_timers(self, pump: Pump, selection: TimerSelection) -> PurgedTimers:
        """Cancel all timers of a selection.

        Raises:
            DiskFullError: the disk is full; some may be cancelled.
            FindError, NotReadyError: as `list_timers`.
        """
        cancelled = count = 0
        after: TimerPlace | None = None
        while True:
            bodies: dict[int, int] = {}
            async with self._change:
                page = await self._next(pump, selection, PURGE_PAGE, after, bodies=bodies)
                rest = page
                while rest:
                    looked_at, done = await self._purge_first(pump, rest, bodies)
                    cancelled += done
                    rest = rest[looked_at:]
            if not page:
                return PurgedTimers(cancelled, count - cancelled)
            count += len(page)
            after = page[-1][:3]

    async def _purge_first(
        self, pump: Pump, timers: list[ListedTimer], bodies: Mapping[int, int]
    ) -> tuple[int, int]:
        """Cancel the first of some timers; return how many it looked at and how many it cancelled.

        `bodies`: see `_next`.
        """
        pump.release.check()
        first = timers[:PURGED_TOGETHER]
        items = await self._read(pump, first, has_values=False, bodies=bodies)
        whole = [
            (timer, item.get("id", b""), item.get("level", 0))
            for timer, item in zip(first, items, strict=False)
            if "problem" not in item
        ]
        await self.know(pump, self._named(whole))
        pump.release.check()
        done = self._broker.timers.purge(whole)
        await pump.durable(self._broker.wrote_pos)
        return len(items), done

    async def move_timer(
        self, pump: Pump, topic: Topic, user_id: bytes, due_ms: int | None
    ) -> tuple[TimerState, bool]:
        """Give a pending timer another due time, and return its state once that is durable.

        Args:
            pump: of the broker.
            topic: its topic.
            user_id: 1 to 255 bytes.
            due_ms: epoch ms; None to deliver it now.

        Returns:
            Its state, and whether it was moved; False if no timer with that id is pending.

        Raises:
            DiskFullError, FindError: as `TimerMoves.move`.
            NotReadyError: the broker is stopping.
        """
        timers, moves = self._broker.timers, self._broker.timer_moves
        pump.release.check()
        moves.check(topic, due_ms)
        is_moved = False
        await self.know(pump, [(topic, user_id)])
        # It is read again only if its producer replaced it meanwhile.
        while not is_moved and (timer := timers.listed(topic, user_id)) is not None:
            await pump.durable(self._broker.wrote_pos)
            bodies: dict[int, int] = {}
            if not timers.is_placed(timer):
                await self._at(pump, timer[:3], bodies)
            (item,) = await self._read(pump, [timer], has_values=True, bodies=bodies)
            if "problem" in item:
                raise FindError("gone", item["problem"])
            pump.release.check()
            is_moved = moves.move(topic, user_id, timer, item, due_ms)
        state = timers.state(topic, user_id)
        await pump.durable(self._broker.wrote_pos)
        return state, is_moved

    async def move_at(self, pump: Pump, place: TimerPlace, due_ms: int | None) -> MovedTimer:
        """Give the pending timer at a place another due time, and return once that is durable.

        Args:
            pump: of the broker.
            place: as a list has it.
            due_ms: epoch ms; None to deliver it now.

        Raises:
            DiskFullError, FindError: as `TimerMoves.move_placed`.
            NotReadyError: the broker is stopping.
        """
        timers, moves = self._broker.timers, self._broker.timer_moves
        pump.release.check()
        bodies: dict[int, int] = {}
        async with self._change:
            timer = await self._at(pump, place, bodies)
            partition = None if timer is None else timers.find_partition(timer)
            if timer is None or partition is None:
                raise FindError("gone", LEFT)
            moves.check(partition.topic, due_ms)
            frame, user_id = await self._frame_of(pump, timer, bodies)
            if frame is None:
                raise FindError("gone", UNREADABLE)
            await self.know(pump, self._named([(timer, user_id, 0)]))
            pump.release.check()
            moved = moves.move_placed(partition.topic, timer, user_id, frame, due_ms)
        if moved is None:
            raise FindError("gone", LEFT)
        await pump.durable(self._broker.wrote_pos)
        return MovedTimer(_token(moved), moved[0], partition.topic.name, partition.index)

    async def _frame_of(
        self, pump: Pump, timer: ListedTimer, bodies: Mapping[int, int]
    ) -> tuple[bytes | None, bytes]:
        """Read the frame that holds a timer, on a thread; `bodies`: see `_next`.

        Returns:
            The frame and the id of the timer, b"" if it has none. None and b"" if the frame cannot
            be read, or does not hold it.
        """
        finder, part = self._broker.begin_find()
        place = finder.timer_place(timer[1])
        place = bodies.get(timer[1], place) if place < 0 else place

        def read() -> tuple[bytes | None, bytes]:
            try:
                frame = part.frame_at(place)
                held = None if frame is None else Frame(place, memoryview(frame)).timer(*timer[1:3])
                return (None, b"") if held is None else (frame, held.get("id", b""))
            finally:
                part.close()

        try:
            return await pump.find(read)
        finally:
            self._broker.key_index.end_search()

    async def count_timers(self, pump: Pump, request: TimerCountRequest) -> TimerCounts:
        """Answer a request.

        Raises:
            FindError, NotReadyError: as `list_timers`.
        """
        from_ms = request.from_at
        if from_ms is None:
            span_ms = request.step_ms * request.interval_count
            from_ms = forecast_from(
                self._broker.clock.wall_ms(),
                request.step_ms,
                span_ms,
                self._broker.timers.loaded_ms,
            )
        if request.selection.topic is None:
            known = self._broker.timers.forecast(from_ms, request.step_ms, request.interval_count)
            if known is not None:
                return known
        while True:
            counts = array("q", bytes(8 * (request.interval_count + 1)))
            until_ms = await self._count_saved(pump, request, from_ms, counts)
            if until_ms == EVER_MS:
                await self._loaded(pump, EVER_MS)
            async with self._turn:
                steps = self._broker.timers.steps_of_count(
                    request.selection, from_ms, request.step_ms, counts, until_ms
                )
                found = [each async for each in _taking_turns(steps, pump) if each is not None]
            if self._broker.timers.loaded_ms >= until_ms:
                return found[0]  # else some have left memory meanwhile

    async def _count_saved(
        self, pump: Pump, request: TimerCountRequest, from_ms: int, counts: "array[int]"
    ) -> int:
        """Count the timers that are not in memory; they stay on the disk.

        Returns:
            From when on they are due, epoch ms. EVER_MS if nothing was counted: all timers are in
            memory, or must be taken there.
        """
        saved, loaded_ms = self._broker.saved_timers, self._broker.timers.loaded_ms
        due_ms = max(loaded_ms, from_ms)
        while due_ms < EVER_MS:
            if pump.is_stopped:
                raise NotReadyError("the broker is stopping")
            if not saved.can_list:
                break
            tally = saved.tally(request, due_ms, from_ms, counts)
            if tally is None:
                await asyncio.sleep(LOADED_PAUSE_S)
                continue
            await pump.find(partial(tally.run, lambda: not pump.is_stopped))
            if tally.fault is not None:
                break
            due_ms = tally.load.until_ms
        else:
            return min(loaded_ms, EVER_MS)
        counts[:] = array("q", bytes(8 * len(counts)))
        return EVER_MS


async def _taking_turns(steps: Iterator[_Step], pump: Pump) -> AsyncIterator[_Step]:
    """Yield the steps, and let the event loop serve others after each.

    Raises:
        NotReadyError: the broker is stopping.
    """
    for step in steps:
        yield step
        await asyncio.sleep(0)
        if pump.is_stopped:
            raise NotReadyError("the broker is stopping")


def _encode(items: Sequence[Item], timers: Sequence[ListedTimer]) -> str:
    is_all = len(items) == len(timers)
    for item, timer in zip(items, timers, strict=False):
        item["place"] = _token(timer)
    following = None if is_all else _token(timers[len(items) - 1])
    return json.dumps({"timers": items, "next": following}, default=octets_for_json)
