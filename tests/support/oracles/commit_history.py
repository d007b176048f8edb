"""The history of a consumer group in a black-box run, and the rules that it must satisfy.

`check_group` is a pure function over recorded events. It knows nothing of the broker but its
promises to a group: the next reader begins at the acknowledged commit or after it, never before it,
with the metadata of that commit; what a reader gets has no gap; so at the end every record was read
at least once.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from tests.support.oracles.history_events import Place

Partition = tuple[str, int]
"""Topic and index."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """A member was assigned a partition and fetched its committed offset.

    Attributes:
        offset: the answer; -1 if nothing is committed.
        acknowledged: the highest commit of any member acknowledged before the fetch; -1: none.
    """

    member: str
    partition: Partition
    offset: int
    metadata: str
    acknowledged: int


@dataclass(frozen=True, slots=True)
class Read:
    """A member got a record."""

    member: str
    place: Place
    value: bytes


@dataclass(frozen=True, slots=True)
class Committed:
    """A member's commit was acknowledged."""

    member: str
    partition: Partition
    offset: int


GroupEvent = Resumed | Read | Committed


class GroupRule(Enum):
    BACKWARDS = "the committed offset is below an acknowledged one"
    METADATA = "the metadata does not belong to the committed offset"
    INVENTED = "the committed offset is after everything that was read"
    GAP = "a member did not get the next record"
    MISSED = "nobody in the group got the record"
    CHANGED = "the group got another record than other readers at this offset"


@dataclass(frozen=True, slots=True)
class GroupViolation:
    """One broken promise; `facts` is for people."""

    rule: GroupRule
    partition: Partition
    facts: str


def note(partition: Partition, offset: int) -> str:
    """The metadata that members commit with an offset."""
    return f"{partition[0]}/{partition[1]} up to {offset}"


def check_group(
    events: Sequence[GroupEvent], records: Mapping[Place, bytes]
) -> list[GroupViolation]:
    """Check a whole run, at the end of which the group has read everything.

    Args:
        events: those of one member in their order.
        records: the content of all partitions at the end.

    Returns:
        Every violation found. O(n).
    """
    found = [one for event in events if isinstance(event, Resumed) for one in _check_resumed(event)]
    found += _check_streams(events)
    found += _check_commits(events)
    got = {event.place: event.value for event in events if isinstance(event, Read)}
    for place, value in records.items():
        partition = place.topic, place.partition
        if place not in got:
            found.append(GroupViolation(GroupRule.MISSED, partition, f"offset {place.offset}"))
        elif got[place] != value:
            facts = f"offset {place.offset}: {got[place][:40]!r}, not {value[:40]!r}"
            found.append(GroupViolation(GroupRule.CHANGED, partition, facts))
    return found


def _check_resumed(event: Resumed) -> Iterator[GroupViolation]:
    if event.offset < event.acknowledged:
        facts = f"{event.member} fetched {event.offset}, {event.acknowledged} was acknowledged"
        yield GroupViolation(GroupRule.BACKWARDS, event.partition, facts)
    expected = "" if event.offset < 0 else note(event.partition, event.offset)
    if event.metadata != expected:
        facts = f"{event.metadata!r}, expected {expected!r}"
        yield GroupViolation(GroupRule.METADATA, event.partition, facts)


def _check_streams(events: Iterable[GroupEvent]) -> Iterator[GroupViolation]:
    """Check that a member gets every record from where it resumed, until it resumes again."""
    following: dict[tuple[str, Partition], int] = {}
    for event in events:
        if isinstance(event, Resumed):
            following[event.member, event.partition] = max(event.offset, 0)
        elif isinstance(event, Read):
            partition = event.place.topic, event.place.partition
            expected = following[event.member, partition]
            if event.place.offset != expected:
                facts = f"{event.member} expected {expected}, got {event.place.offset}"
                yield GroupViolation(GroupRule.GAP, partition, facts)
            following[event.member, partition] = event.place.offset + 1


def _check_commits(events: Iterable[GroupEvent]) -> Iterator[GroupViolation]:
    """Check that no commit and no committed offset is beyond what was read."""
    ends: dict[Partition, int] = defaultdict(int)
    for event in events:
        if isinstance(event, Read):
            partition = event.place.topic, event.place.partition
            ends[partition] = max(ends[partition], event.place.offset + 1)
    for event in events:
        if isinstance(event, Resumed | Committed) and event.offset > ends[event.partition]:
            facts = f"{event.offset}, read up to {ends[event.partition]}"
            yield GroupViolation(GroupRule.INVENTED, event.partition, facts)
