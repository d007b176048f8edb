"""The history of a consumer group's members, checked against what a group promises.

Each line is `KIND TIME PARTITION OFFSET VALUE`; the times are of one monotonic clock, in
nanoseconds. `assigned` and `revoked` name a partition, `got` a record that was handed to the
application, `committed` the offset of the next record, after the broker acknowledged it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """One line of one member."""

    member: str
    kind: str
    at_ns: int
    partition: int
    offset: int
    value: str


def parse(member: str, text: str) -> list[Event]:
    """Return the events of all whole lines; a kill may have cut the last."""
    events = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        kind, at_ns, partition, offset, value = line.split(" ")
        events.append(Event(member, kind, int(at_ns), int(partition), int(offset), value))
    return events


def problems(events: Iterable[Event], sent: Mapping[str, int]) -> list[str]:
    """Return the violations in a history, in words; empty if there are none.

    Args:
        events: of all members, in any order.
        sent: value -> partition of each record that the broker acknowledged.

    A record that nobody got is lost. A member that gets a partition must begin neither before the
    acknowledged commit (committed records must not come again) nor after the next unread record
    (none may be skipped). While it has the partition it must get each next offset. A commit must
    not go back.

    Some clients go through a rebalance inside a commit and then send it as members of the new
    generation, so that it counts although they have lost the partition: as in Kafka, which checks
    only the generation of a commit. Nobody can rely on such a commit.
    """
    in_order = sorted(events, key=lambda event: event.at_ns)
    got = {event.value for event in in_order if event.kind == "got"}
    found = [f"lost: {value} of partition {sent[value]}" for value in sent if value not in got]
    by_partition: dict[int, list[Event]] = defaultdict(list)
    for event in in_order:
        by_partition[event.partition].append(event)
    for partition, own in by_partition.items():
        found += [f"partition {partition}: {what}" for what in _problems_of_partition(own)]
    return found


def _problems_of_partition(events: Iterable[Event]) -> list[str]:
    found: list[str] = []
    committed, committed_by = 0, "nobody"
    highest = -1
    at_least: dict[str, int] = {}  # member -> what was committed when it got the partition
    following: dict[str, int] = {}  # member -> the offset that it has to get next
    for event in events:
        who = event.member
        if event.kind == "assigned":
            at_least[who] = committed
            following.pop(who, None)
        elif event.kind == "revoked":
            at_least.pop(who, None)
            following.pop(who, None)
        elif event.kind == "committed" and who not in at_least:
            committed, committed_by = min(committed, event.offset), who
        elif event.kind == "committed":
            if event.offset < committed:
                found.append(
                    f"{who} committed {event.offset} after {committed_by} committed {committed}"
                )
            committed, committed_by = max(committed, event.offset), who
        elif who not in at_least:
            found.append(f"{who} got {event.offset} of a partition that it does not have")
        else:
            expected = following.get(who)
            if expected is None and not at_least[who] <= event.offset <= highest + 1:
                found.append(
                    f"{who} began at {event.offset}; committed was {at_least[who]}, "
                    f"and {highest} was the highest that anybody got"
                )
            if expected is not None and event.offset != expected:
                found.append(f"{who} got {event.offset} and not {expected}")
            following[who] = event.offset + 1
            highest = max(highest, event.offset)
    return found
