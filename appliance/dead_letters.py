"""Dead letters: the records of `GROUP.dlq`, and what their headers say. Layer 1; does no I/O.

A consumer of GROUP sends a record back that it cannot handle. The broker gives it to the group
again, in the topic `GROUP.retry`, and after the last attempt puts it into the topic `GROUP.dlq`.
Anybody may produce into that topic as well, so any of the headers may be missing or be nonsense.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from appliance.units import MS_PER_DAY

REMEMBERED_MS: Final = 3_650 * MS_PER_DAY
"""How long it is known up to where records were replayed: longer than dead letters lie there."""

Header = tuple[bytes, bytes | None]
"""Its name and its value."""

_RESTART: Final = frozenset({b"x-retry-attempt", b"x-retry-reason"})
"""A record that is replayed has none of them, so that its attempts are counted from the start."""

_REQUESTS: Final = frozenset(
    {
        *(b"x-delay", b"x-deliver-at", b"x-delay-level", b"x-deliver-id", b"x-deliver-cancel"),
        b"x-retry-group",
    }
)
"""What a broker would act on. It removes them when it delivers a record; others may send them."""

_GROUP: Final = re.compile(r"[A-Za-z0-9._-]{1,243}")
"""Groups whose topics can exist: a topic has 249 of these characters at most."""

_NUMBER: Final = re.compile(rb"[0-9]{1,15}")
_PLACE: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,18})")


class Place(NamedTuple):
    """Where a record is in its topic. Places are in order of partition, then of offset."""

    partition: int
    offset: int

    def __str__(self) -> str:
        """Return the place as people write it."""
        return f"{self.partition}:{self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadListRequest:
    """Which dead records are listed.

    Attributes:
        group: whose they are.
        partition: one partition; None for all.
        after: only records after this place; None for the first ones.
        limit: records at most.
    """

    group: str
    partition: int | None = None
    after: Place | None = None
    limit: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """Which dead records a group gets again.

    Attributes:
        group: whose they are.
        places: of the records; empty for all that were not replayed by such a request before.
        partition: of all, those of one partition; None for all.
    """

    group: str
    places: tuple[Place, ...] = ()
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class ReplayedRecords:
    """What a replay did.

    Attributes:
        replayed: how many records the group gets again.
        left: offsets that the next request goes on with.
    """

    replayed: int
    left: int


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """How many dead records were deleted."""

    deleted: int


def can_have_dead_letters(group: str) -> bool:
    """Return whether the topics of a group can have their names."""
    return _GROUP.fullmatch(group) is not None


def dlq_topic(group: str) -> str:
    """Return the topic in which the dead records of a group are."""
    return f"{group}.dlq"


def retry_topic(group: str) -> str:
    """Return the topic in which a group gets records again."""
    return f"{group}.retry"


def replay_group(group: str) -> str:
    """Return the group whose committed offsets say up to where all records were replayed."""
    return dlq_topic(group)


def parse_place(text: str) -> Place:
    """Parse a place.

    Raises:
        ValueError: the text has another form.
    """
    match = _PLACE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a place: use PARTITION:OFFSET, such as 0:17")
    return Place(int(match[1]), int(match[2]))


def dead_item(
    place: Place, timestamp: int, key: bytes | None, headers: Iterable[Header]
) -> dict[str, Any]:
    """Return what a list has of a dead record.

    Args:
        place: where it is.
        timestamp: of the record, epoch ms.
        key: of the record.
        headers: of the record. Of several with one name the last counts.

    Returns:
        Its names and values. `attempts`, `origin` and `reason` are None if no header has them.
        `came_at` is when the broker accepted it for the last time, or else its timestamp.
    """
    last = {name.lower(): value for name, value in headers}
    accepted_at = _number(last.get(b"x-accepted-at"))
    return {
        "place": str(place),
        "partition": place.partition,
        "offset": place.offset,
        "came_at": timestamp if accepted_at is None else accepted_at,
        "timestamp": timestamp,
        "key": key,
        "attempts": _number(last.get(b"x-retry-attempt")),
        "origin": last.get(b"x-origin"),
        "reason": last.get(b"x-retry-reason"),
    }


def _number(value: bytes | None) -> int | None:
    return int(value) if value is not None and _NUMBER.fullmatch(value) else None


def replayed_headers(headers: Sequence[Header]) -> list[Header]:
    """Return the headers of a dead record that it keeps when its group gets it again."""
    return [each for each in headers if each[0].lower() not in _RESTART | _REQUESTS]
