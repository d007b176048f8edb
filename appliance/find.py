"""Finds records and timers for people: by key, id, position, offset and time.

The answer is a list of items, dictionaries as JSON has them. One call does a bounded amount of work
and says where the next one goes on: a token, the position of a frame and how many of its hits were
returned before. Any thread. Layer 4.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from _core.bytes.layout import (
    KIND_ACCEPT,
    KIND_CANCEL,
    KIND_CARRIED_RECORDS,
    KIND_CARRY,
    KIND_DELIVER,
)
from _core.queue.partition import Topic
from _core.tables import key_scan
from _core.tables.key_scan import PLACE_CANCEL, PLACE_COMPLETED, PLACE_RECORD, PLACE_TIMER
from appliance.errors import FindError
from appliance.offline.frame_items import Frame, Item
from appliance.store.keys.key_search import Hit, KeyQuery, KeySearch, Piece
from appliance.store.keys.log_part import LogPart
from appliance.units import MIB

LIMIT_DEFAULT: Final = 20
LIMIT_MAX: Final = 1_000

FOUND_MAX_BYTES: Final = 4 * MIB
"""Bytes of records in one answer; the last item may exceed it."""

SCANNED_MAX_BYTES: Final = 256 * MIB
"""Bytes of the log that one call reads: a quarter of a second."""

_WHAT: Final = {
    PLACE_RECORD: "record",
    PLACE_TIMER: "timer",
    PLACE_CANCEL: "cancel",
    PLACE_COMPLETED: "cancelled",
}
"""What an item is, unless its frame is a delivery."""

Topics = Mapping[int, Topic]
"""The topics that exist, by id."""

Decompress = Callable[[int, memoryview, int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindRequest:
    """What somebody looks for: one of key, user_id, position and offset; or only a time.

    Attributes:
        key: of records, delivered or held.
        user_id: of timers: what was accepted, cancelled and delivered under that id.
        position: log position of a frame; of one that is freed, what was carried out of it.
        offset: of a visible record; `topic` and `partition` are given as well.
        topic: name of a topic; None for all.
        partition: one partition of each topic; None for all.
        stored: (from, to): received or delivered between these instants, epoch ms.
        limit: items at most.
        after: token of the call before.
    """

    key: bytes | None = None
    user_id: bytes | None = None
    position: int | None = None
    offset: int | None = None
    topic: str | None = None
    partition: int | None = None
    stored: tuple[int | None, int | None] = (None, None)
    limit: int = LIMIT_DEFAULT
    after: str | None = None


@dataclass(slots=True)
class FindAnswer:
    """The outcome of one call.

    Attributes:
        found: items, in the order of the log.
        next: token for the next call; None if nothing is left.
        unreadable: (from, to) of parts of the log that hold no whole frame.
        scanned_bytes: bytes of the log read because they are not indexed.
        damaged: pieces of the index that cannot be used.
        size_bytes: bytes of the keys and values in it.
    """

    found: list[Item] = field(default_factory=list)
    next: str | None = None
    unreadable: list[tuple[int, int]] = field(default_factory=list)
    scanned_bytes: int = 0
    damaged: list[Piece] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, item: Item) -> None:
        """Add an item."""
        self.found.append(item)
        self.size_bytes += sum(len(item[name] or b"") for name in ("key", "value") if name in item)


class Finder:
    """Finds in one part of the log.

    Args:
        part: the part; the caller closes it.
        search: a search of it.
        topics: the topics that exist.
        timer_place: the function `MovedFrames.place` of the log.
        decompress: unpacks batches.
        unpacked_max: bytes of one unpacked batch.
    """

    def __init__(
        self,
        part: LogPart,
        search: KeySearch,
        topics: Topics,
        timer_place: Callable[[int], int],
        decompress: Decompress,
        *,
        unpacked_max: int,
    ) -> None:
        self._part = part
        self._search = search
        self._topics = topics
        self.timer_place = timer_place
        self._decompress = decompress
        self._unpacked_max = unpacked_max
        self._is_whole: dict[int, bool] = {}
        """Positions of frames that this call has looked at."""
        self._entries: tuple[int, frozenset[tuple[int, int]]] = -1, frozenset()
        """Position of a carry frame, and the timers in it."""

    def find(self, request: FindRequest, *, goes_on: Callable[[], bool]) -> FindAnswer:
        """Find the next items.

        Args:
            request: what to find.
            goes_on: called often; the call ends soon after it returns False.

        Raises:
            FindError: the request cannot be answered; the error says why.
            StorageError: the log cannot be read.
        """
        self._is_whole.clear()
        if request.position is not None and request.position >= self._part.start:
            return self._at(request)
        topics = self._ids_of(request.topic)
        query = KeyQuery(
            key=request.key,
            user_id=request.user_id,
            topics=topics,
            partition=request.partition,
            offset=request.offset,
            origin=request.position,
            stored=request.stored,
        )
        start, skipped = _read_token(request.after)
        read_before = self._part.read_bytes

        def is_within_bounds() -> bool:
            return self._part.read_bytes - read_before < SCANNED_MAX_BYTES and goes_on()

        found = self._search.find(
            query, start, hit_max=request.limit + skipped, goes_on=is_within_bounds
        )
        answer = FindAnswer(
            unreadable=list(self._part.faults),
            scanned_bytes=found.scanned_bytes,
            damaged=found.damaged,
            next=None if found.next_pos is None else str(found.next_pos),
        )
        self._add_items(answer, found.hits, start, skipped, request.limit)
        if request.position is not None and not answer.found and answer.next is None:
            raise FindError(
                "unknown",
                f"position {request.position} is below {self._part.start}, where the log begins, "
                "and nothing was carried out of it",
            )
        return answer

    def records_at(self, pos: int, start: int, stop: int) -> list[Item] | None:
        """Return the visible records of the frame at a position, of a range of offsets.

        Args:
            pos: log position of a frame.
            start, stop: of the offsets; those below `start` and from `stop` on are left out.

        Returns:
            Their items, as `Frame.records` returns them; one with `problem` if the batch cannot be
            unpacked. None if there is no whole frame at that position, or no longer.

        Raises:
            StorageError: the log cannot be read.
        """
        data = self._part.frame_at(pos)
        if data is None:
            return None
        frame = Frame(pos, memoryview(data))
        count, base = frame.header["record_count"], frame.header["base_offset"]
        wanted = None
        if count == frame.header["last_delta"] + 1:
            wanted = range(max(0, start - base), min(count, stop - base))
        found = frame.records(self._decompress, self._unpacked_max, wanted)
        return [item for item in found if start <= item.get("offset", start) < stop]

    def _ids_of(self, name: str | None) -> frozenset[int]:
        if name is None:
            return frozenset(self._topics)
        ids = frozenset(key for key, topic in self._topics.items() if topic.name == name)
        if not ids:
            raise FindError("unknown", f"there is no topic {name!r}")
        return ids

    def _add_items(
        self, answer: FindAnswer, hits: Iterable[Hit], start: int, skipped: int, limit: int
    ) -> None:
        """Read the frames of hits, and add an item for each until a limit is reached."""
        for pos, some in groupby(hits, key=lambda hit: hit[0]):
            places = [hit[1:] for hit in some]
            frame = self._frame(pos)
            before = skipped if pos == start else 0
            for done, item in enumerate(self._items(frame, places)):
                if done < before or item is None:
                    continue
                if len(answer.found) >= limit or answer.size_bytes >= FOUND_MAX_BYTES:
                    answer.next = f"{pos}.{done}"
                    return
                if not self._is_elsewhere(frame, item):
                    answer.add(item)

    def _frame(self, pos: int) -> Frame:
        data = self._part.frame_at(pos)
        if data is None:
            raise FindError("gone", f"the frame at position {pos} is gone: ask again")
        return Frame(pos, memoryview(data))

    def _at(self, request: FindRequest) -> FindAnswer:
        """Return what the frame at a position holds."""
        pos = request.position
        assert pos is not None
        if pos >= self._part.end:
            raise FindError("unknown", f"position {pos} is not below {self._part.end}, the end")
        data = self._part.frame_at(pos)
        if data is None:
            raise FindError(
                "position", f"no frame begins at position {pos}: use one that a command printed"
            )
        frame = Frame(pos, memoryview(data))
        answer = FindAnswer()
        first = _read_token(request.after)[1]
        places = _places_in(frame, request.offset)[first:]
        for item in self._items(frame, places[: request.limit]):
            if item is not None and request.offset in (None, item.get("offset")):
                answer.add(item)
        if len(places) > request.limit:
            answer.next = f"{pos}.{first + request.limit}"
        return answer

    def _is_elsewhere(self, frame: Frame, item: Item) -> bool:
        """Return whether a carried record or timer is an item of another frame.

        It is one of the frame that held it first, as long as that is whole, and of the last frame
        to which it was carried otherwise. What is carried while somebody pages may come twice.
        """
        if frame.kind == KIND_CARRIED_RECORDS:
            if self._has_whole(item["original_position"]):
                return True
            place = self._record_place(frame, item.get("offset", -1))
            return frame.pos < place < self._part.end
        if frame.kind == KIND_CARRY and "accept_position" in item:
            accept_pos = item["accept_position"]
            if self._has_whole(accept_pos):
                return True
            place = self.timer_place(accept_pos)
            if not frame.pos < place < self._part.end:
                return False
            return (accept_pos, item["index"]) in self._timers_at(place)
        return False

    def _has_whole(self, pos: int) -> bool:
        known = self._is_whole.get(pos)
        if known is None:
            known = pos >= self._part.start and self._part.frame_at(pos) is not None
            self._is_whole[pos] = known
        return known

    def _record_place(self, frame: Frame, offset: int) -> int:
        """Return a log position below which no place of a record is the last one; -1 for any."""
        topic, index = self._topics.get(frame.topic_id), frame.header["partition"]
        if topic is None or not 0 <= index < len(topic.partitions):
            return -1
        parts = topic.partitions[index].carried_parts()
        return next((place for first, end, place in parts if first <= offset < end), -1)

    def _timers_at(self, pos: int) -> frozenset[tuple[int, int]]:
        """Return (accept position, index) of the timers in a carry frame."""
        if self._entries[0] != pos:
            data = self._part.frame_at(pos)
            timers = [] if data is None else Frame(pos, memoryview(data)).timers()
            named = frozenset((each["accept_position"], each["index"]) for each in timers)
            self._entries = pos, named
        return self._entries[1]

    # Items

    def _items(self, frame: Frame, places: list[tuple[int, int]]) -> Iterator[Item | None]:
        """Yield an item for each place of a frame; None for a record that was deleted."""
        header = frame.header
        topic = self._topics.get(frame.topic_id)
        partition = header["partition"]
        start = 0
        if topic is not None and 0 <= partition < len(topic.partitions):
            start = topic.partitions[partition].start_offset
        numbers: dict[int, set[int]] = {}
        for place, number in places:
            numbers.setdefault(place, set()).add(number)
        parts = {place: self._part_of(frame, place, some) for place, some in numbers.items()}
        for place, number in places:
            item = parts[place].get(number)
            if item is None or item.get("offset", start) < start:
                yield None
                continue
            yield {
                "what": _what(frame, place),
                "topic": None if topic is None else topic.name,
                "partition": partition,
                **item,
                "stored_at": frame.stored_at(item),
                "position": frame.pos,
            } | frame.carried_origin()

    def _part_of(self, frame: Frame, place: int, numbers: set[int]) -> dict[int, Item]:
        """Decode those of the records or entries of a frame that are wanted, and no other."""
        wanted = sorted(numbers)
        match place:
            case key_scan.PLACE_TIMER:
                found = frame.timers(numbers)
            case key_scan.PLACE_CANCEL:
                found = [item for n, item in enumerate(frame.cancels()) if n in numbers]
            case key_scan.PLACE_COMPLETED:
                found = [item for n, item in enumerate(frame.completed()) if n in numbers]
                if frame.kind == KIND_DELIVER:
                    records = self._records(frame, numbers)
                    found = [a | b for a, b in zip(found, records, strict=True)]
            case _:
                found = self._records(frame, numbers)
        return dict(zip(wanted, found, strict=True))

    def _records(self, frame: Frame, numbers: set[int]) -> list[Item]:
        """Return records of the visible batch; each says so if the batch cannot be unpacked."""
        found = frame.records(self._decompress, self._unpacked_max, numbers)
        return found if len(found) == len(numbers) else found[:1] * len(numbers)


def _what(frame: Frame, place: int) -> str:
    if frame.kind == KIND_DELIVER and place != PLACE_TIMER:
        return "delivered"
    return _WHAT[place]


def _places_in(frame: Frame, offset: int | None) -> list[tuple[int, int]]:
    """Return all places of a frame, or those that may have an offset."""
    header = frame.header
    count, timers = header["record_count"], header["timer_count"]
    if offset is not None:
        if count == header["last_delta"] + 1:
            return [(PLACE_RECORD, offset - header["base_offset"])]
        return [(PLACE_RECORD, n) for n in range(count)]
    held = [(PLACE_TIMER, n) for n in range(frame.timers_held)]
    if frame.kind in (KIND_CANCEL, KIND_DELIVER):
        return held + [(PLACE_COMPLETED, n) for n in range(timers)]
    places = [(PLACE_RECORD, n) for n in range(count)] + held
    if frame.kind == KIND_ACCEPT:
        places += [(PLACE_CANCEL, n) for n in range(header["cancel_count"])]
    return places


def _read_token(text: str | None) -> tuple[int, int]:
    """Return the position in a token, and how many of its hits were returned before."""
    if text is None:
        return 0, 0
    pos, _, done = text.partition(".")
    numbers = [each for each in (pos, done or "0") if each.isascii() and each.isdigit()]
    if len(numbers) != 2 or len(text) > 40:
        raise FindError("request", f"{text[:40]!r} is not a place to go on: use that of an answer")
    return int(numbers[0]), int(numbers[1])


def add_state(item: Item, state_of: Callable[[str, bytes, int, int], str | None]) -> None:
    """Add what became of a timer, as far as its id says it.

    Args:
        item: an item; unchanged if it is no timer with an id.
        state_of: function of topic, id, accept position and index that returns the state of that
            timer, or None if the id names another one now.
    """
    if item["what"] != "timer" or "id" not in item or item["topic"] is None:
        return
    # An id always names its pending timer; any other timer of that id is completed.
    item["state"] = (
        state_of(item["topic"], item["id"], item["accept_position"], item["index"]) or "completed"
    )


def for_json(value: Any) -> Any:
    """Return an item as JSON has it: bytes as text if they are UTF-8, else `{"base64": ...}`."""
    if isinstance(value, bytes):
        return octets_for_json(value)
    if isinstance(value, dict):
        return {name: for_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(each) for each in value]
    return value


def octets_for_json(value: bytes) -> Any:
    """Return bytes as JSON has them, see `for_json`."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode("ascii")}


def answer_in_json(answer: FindAnswer) -> dict[str, Any]:
    """Return an answer as JSON has it."""
    return {
        "found": for_json(answer.found),
        "next": answer.next,
        "scanned_bytes": answer.scanned_bytes,
        "unreadable": [{"from": begin, "to": end} for begin, end in answer.unreadable],
    }


def until(budget_ns: int, now_ns: Callable[[], int]) -> Callable[[], bool]:
    """Return a function that is true until a time has passed."""
    end_ns = now_ns() + budget_ns
    return lambda: now_ns() < end_ns


def place_of(text: str) -> tuple[str, int, int]:
    """Parse TOPIC/PARTITION@OFFSET.

    Raises:
        FindError: the text has another form.
    """
    rest, _, offset = text.rpartition("@")
    topic, _, partition = rest.rpartition("/")
    if not topic or not _is_number(partition) or not _is_number(offset):
        raise FindError("request", f"{text!r} is not an offset: use TOPIC/PARTITION@OFFSET")
    return topic, int(partition), int(offset)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18
