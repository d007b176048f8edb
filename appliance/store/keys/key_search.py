"""Finds frames by the keys of records and the ids of timers, by index and by scan. Layer 2.

A search goes through a part of the log in order. What the index covers is looked up, all else is
scanned. What the index names is checked: a hash may be that of another key. Each call does a
bounded amount of work and says where the next one goes on. Any thread.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from _core.tables.key_scan import HASH_ID, HASH_KEY, HASH_ORIGIN, KeyMatch, hash_of
from appliance.errors import CorruptionError, StorageError
from appliance.store.keys.log_part import LogPart

Hit = tuple[int, int, int]
"""Position of a frame, PLACE_* in it, and the number there."""


class Piece(Protocol):
    """What is indexed of a part of the log.

    Attributes:
        from_pos, to_pos: the part; frames begin there.
        stored: lowest and highest store time in it, epoch ms; None if it has no frame.
        left_out: ids of topics that it has frames of, but no rows.
    """

    from_pos: int
    to_pos: int
    stored: tuple[int, int] | None
    left_out: frozenset[int]

    def positions(self, digest: int, start: int) -> Iterator[int]:
        """Yield the positions of the rows with a hash from a log position on, ascending.

        Raises:
            CorruptionError: the index is damaged there.
            StorageError: it cannot be read.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyQuery:
    """What to find; a bound that is None does not exclude anything.

    Attributes:
        key: of records, also of held ones.
        user_id: of timers, their cancels and their completions.
        topics: ids of topics.
        partition: of the frame.
        offset: of a visible record.
        origin: log position where carried records or timers were first held.
        stored: (from, to) store time of the frame, epoch ms.
    """

    key: bytes | None = None
    user_id: bytes | None = None
    topics: frozenset[int] = frozenset()
    partition: int | None = None
    offset: int | None = None
    origin: int | None = None
    stored: tuple[int | None, int | None] = (None, None)

    def overlaps(self, stored: tuple[int, int] | None) -> bool:
        """Return whether a part with these store times may have a hit."""
        if stored is None:
            return False
        low, high = self.stored
        return (low is None or low <= stored[1]) and (high is None or stored[0] < high)


@dataclass(slots=True)
class Found:
    """The outcome of one call.

    Attributes:
        hits: in the order of the log.
        next_pos: where the next call goes on; None if nothing is left.
        scanned_bytes: bytes of the log read because they are not indexed.
        damaged: pieces of the index that cannot be used.
    """

    hits: list[Hit] = field(default_factory=list)
    next_pos: int | None = None
    scanned_bytes: int = 0
    damaged: list[Piece] = field(default_factory=list)


class KeySearch:
    """Searches one part of the log.

    Args:
        part: the part.
        pieces: what is indexed, ascending by position; they do not overlap.
        secret: the 16 bytes that key the hashes.
        salt: of the frames.
        decompress: (codec, section) -> records.
    """

    def __init__(
        self,
        part: LogPart,
        pieces: Sequence[Piece],
        *,
        secret: bytes,
        salt: int,
        decompress: Callable[[int, memoryview], bytes],
    ) -> None:
        self._part = part
        self._pieces = pieces
        self._secret = secret
        self._salt = salt
        self._decompress = decompress

    def find(
        self, query: KeyQuery, start: int, *, hit_max: int, goes_on: Callable[[], bool]
    ) -> Found:
        """Find the next hits.

        Args:
            query: what to find.
            start: log position at which a frame begins, or the begin of the log.
            hit_max: ends with the first frame that reaches this number.
            goes_on: called often; the search ends soon after it returns False.

        Raises:
            StorageError: the log cannot be read.
        """
        found = Found()
        match = KeyMatch(
            self._decompress,
            self._salt,
            key=query.key,
            user_id=query.user_id,
            topics=query.topics,
            partition=-1 if query.partition is None else query.partition,
            offset=-1 if query.offset is None else query.offset,
            origin=-1 if query.origin is None else query.origin,
            stored=query.stored,
            hit_max=hit_max,
        )
        digest = self._digest_of(query)
        pos = max(start, self._part.start)

        def may_go_on() -> bool:
            return match.hit_count < hit_max and goes_on()

        for begin, end, piece in self._ranges(pos):
            pos = begin
            if not may_go_on():
                break
            if piece is not None and not query.overlaps(piece.stored):
                pos = end
                continue
            after = None
            if piece is not None and digest is not None and not piece.left_out & query.topics:
                after = self._try_index(match, piece, digest, (begin, end), may_go_on)
                if after is None:
                    found.damaged.append(piece)
                    # The scan finds again what the index named before its damage.
                    found.hits += [hit for hit in match.take() if hit[0] < begin]
            if after is None:
                before = self._part.read_bytes
                after = self._part.scan(match, begin, until=end, stop=end, goes_on=may_go_on)
                found.scanned_bytes += self._part.read_bytes - before
            pos = after
            if pos < end:
                break
        found.hits += match.take()
        found.next_pos = pos if pos < self._part.end else None
        return found

    def _digest_of(self, query: KeyQuery) -> int | None:
        if query.key is not None:
            return hash_of(self._secret, HASH_KEY, query.key)
        if query.user_id is not None:
            return hash_of(self._secret, HASH_ID, query.user_id)
        if query.origin is not None:
            return hash_of(self._secret, HASH_ORIGIN, query.origin.to_bytes(8, "big"))
        return None

    def _ranges(self, start: int) -> Iterator[tuple[int, int, Piece | None]]:
        """Yield the part from a position on as (from, to, what is indexed of it)."""
        pos, stop = start, self._part.end
        for piece in self._pieces:
            end = min(piece.to_pos, stop)
            if end <= pos:
                continue
            if piece.from_pos > pos:
                yield pos, min(piece.from_pos, stop), None
                pos = min(piece.from_pos, stop)
            if pos < end:
                yield pos, end, piece
                pos = end
        if pos < stop:
            yield pos, stop, None

    def _try_index(
        self,
        match: KeyMatch,
        piece: Piece,
        digest: int,
        bounds: tuple[int, int],
        may_go_on: Callable[[], bool],
    ) -> int | None:
        """Check the frames that a piece names.

        Returns:
            The position after the last one checked; None if the piece cannot be used.
        """
        begin, end = bounds
        try:
            for pos in piece.positions(digest, begin):
                if pos >= end:
                    break
                if not may_go_on():
                    return pos
                frame = self._part.read_frame(pos)
                if frame is None:
                    continue
                before = match.hit_count
                match.walk(frame, pos, pos + len(frame))
                if match.hit_count > before:
                    self._part.keep(pos, frame)
        except CorruptionError:
            return None
        except StorageError as error:
            if not error.is_unreadable:
                raise
            return None
        return end
