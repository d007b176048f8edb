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

from _core.bytes.layout import KIND_DELIVER
from _core.queue.partition import Topic
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

Topics = Mapping[int, Topic]
"""The topics that exist, by id."""

Decompress = Callable[[int, memoryview, int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindRequest:
    """What somebody looks for: one of key, user_id, position and offset; or only a time.

    Attributes:
        key: of records, delivered or held.
        user_id: of timers: what was accepted, cancelled and delivered under that id.
        position: log position of a frame.
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
    """

    found: list[Item] = field(default_factory=list)
    next: str | None = None
    unreadable: list[tuple[int, int]] = field(default_factory=list)
    scanned_bytes: int = 0
    damaged: list[Piece] = field(default_factory=list)


class Finder:
    """Finds in one part of the log.

    Args:
        part: the part; the caller closes it.
        search: a search of it.
        topics: the topics that exist.
        decompress: unpacks batches.
        unpacked_max: bytes of one unpacked batch.
    """

    def __init__(
        self,
        part: LogPart,
        search: KeySearch,
        topics: Topics,
        decompress: Decompress,
        *,
        unpacked_max: int,
    ) -> None:
        self._part = part
        self._search = search
        self._topics = topics
        self._decompress = decompress
        self._unpacked_max = unpacked_max

    def find(self, request: FindRequest, *, goes_on: Callable[[], bool]) -> FindAnswer:
        """Find the next items.

        Args:
            request: what to find.
            goes_on: called often; the call ends soon after it returns False.

        Raises:
            FindError: the request cannot be answered; the error says why.
            StorageError: the log cannot be read.
        """
        if request.position is not None:
            return self._at(request)
        topics = self._ids_of(request.topic)
        query = KeyQuery(
            key=request.key,
            user_id=request.user_id,
            topics=topics,
            partition=request.partition,
            offset=request.offset,
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
        return answer

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
        size = 0
        for pos, some in groupby(hits, key=lambda hit: hit[0]):
            places = [hit[1:] for hit in some]
            frame = self._frame(pos)
            before = skipped if pos == start else 0
            for done, item in enumerate(self._items(frame, places)):
                if done < before or item is None:
                    continue
                if len(answer.found) >= limit or size >= FOUND_MAX_BYTES:
                    answer.next = f"{pos}.{done}"
                    return
                answer.found.append(item)
                size += sum(len(item[name] or b"") for name in ("key", "value") if name in item)

    def _frame(self, pos: int) -> Frame:
        data = self._part.frame_at(pos)
        if data is None:
            raise FindError("gone", f"the frame at position {pos} is gone: ask again")
        return Frame(pos, memoryview(data))

    def _at(self, request: FindRequest) -> FindAnswer:
        """Return what the frame at a position holds."""
        pos = request.position
        assert pos is not None
        if pos < self._part.start:
            raise FindError(
                "unknown", f"position {pos} is below {self._part.start}, where the log begins"
            )
        if pos >= self._part.end:
            raise FindError("unknown", f"position {pos} is not below {self._part.end}, the end")
        data = self._part.frame_at(pos)
        if data is None:
            raise FindError(
                "position", f"no frame begins at position {pos}: use one that a command printed"
            )
        frame = Frame(pos, memoryview(data))
        header = frame.header
        answer = FindAnswer()
        first = _read_token(request.after)[1]
        places = [
            *((PLACE_RECORD, n) for n in range(header["record_count"])),
            *((PLACE_TIMER, n) for n in range(len(frame.timers()))),
        ]
        if request.offset is None:
            places += [(PLACE_CANCEL, n) for n in range(len(frame.cancels()))]
            places += [(PLACE_COMPLETED, n) for n in range(len(frame.completed()))]
        for done, item in enumerate(self._items(frame, places)):
            if done < first or item is None:
                continue
            if request.offset is not None and item.get("offset") != request.offset:
                continue
            if len(answer.found) >= request.limit:
                answer.next = f"{pos}.{done}"
                break
            answer.found.append(item)
        return answer

    # Items

    def _items(self, frame: Frame, places: list[tuple[int, int]]) -> Iterator[Item | None]:
        """Yield an item for each place of a frame; None for a record that was deleted."""
        header = frame.header
        topic = self._topics.get(frame.topic_id)
        partition = header["partition"]
        start = 0
        if topic is not None and 0 <= partition < len(topic.partitions):
            start = topic.partitions[partition].start_offset
        wants_records = header["visible_size"] and any(
            place in (PLACE_RECORD, PLACE_COMPLETED) for place, _ in places
        )
        records = frame.records(self._decompress, self._unpacked_max) if wants_records else []
        is_delivery = frame.kind == KIND_DELIVER
        of_place: dict[int, tuple[str, list[Item]]] = {
            PLACE_RECORD: ("delivered" if is_delivery else "record", records),
            PLACE_TIMER: ("timer", frame.timers()),
            PLACE_CANCEL: ("cancel", frame.cancels()),
            PLACE_COMPLETED: ("delivered" if is_delivery else "cancelled", frame.completed()),
        }
        for place, number in places:
            what, some = of_place[place]
            if number >= len(some):
                continue
            item = some[number]
            if place == PLACE_COMPLETED and is_delivery and number < len(records):
                item |= records[number]
            if item.get("offset", start) < start:
                yield None
                continue
            yield {
                "what": what,
                "topic": None if topic is None else topic.name,
                "partition": partition,
                **item,
                "stored_at": header["store_time_ms"],
                "position": frame.pos,
            }


def _read_token(text: str | None) -> tuple[int, int]:
    """Return the position in a token, and how many of its hits were returned before."""
    if text is None:
        return 0, 0
    pos, _, done = text.partition(".")
    numbers = [each for each in (pos, done or "0") if each.isascii() and each.isdigit()]
    if len(numbers) != 2 or len(text) > 40:
        raise FindError("request", f"{text[:40]!r} is not a place to go on: use that of an answer")
    return int(numbers[0]), int(numbers[1])


def add_state(item: Item, state_of: Callable[[str, bytes], tuple[str, int, int] | None]) -> None:
    """Add what became of a timer, as far as its id says it.

    Args:
        item: an item; unchanged if it is no timer with an id.
        state_of: function of topic and id that returns (state, accept position, index) of the
            timer that the id names now, or None.
    """
    if item["what"] != "timer" or "id" not in item or item["topic"] is None:
        return
    named = state_of(item["topic"], item["id"])
    is_it = named is not None and named[1:] == (item["accept_position"], item["index"])
    # An id always names its pending timer; any other timer of that id is completed.
    item["state"] = named[0] if named is not None and is_it else "completed"


def for_json(value: Any) -> Any:
    """Return an item as JSON has it: bytes as text if they are UTF-8, else `{"base64": ...}`."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, dict):
        return {name: for_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(each) for each in value]
    return value


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
