"""Replies to cancels: one for each cancel that the broker accepted, and what it says is true."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from tests.support.oracles.history import ACCEPTED_AT, DUE_ID
from tests.support.oracles.history_events import Acknowledged, Attempted, Consumed, Event, Refused
from tests.system.kill9.workload import MIXED, OUTCOMES


def reply_problems(events: list[Event]) -> list[str]:
    """Return what is wrong with the replies that the last reader found."""
    asked = [each for each in events if isinstance(each, Attempted) and each.asks_reply]
    ends = {each.message: each for each in events if isinstance(each, Acknowledged | Refused)}
    replies: dict[bytes, list[dict[str, Any]]] = defaultdict(list)
    delivered: dict[bytes, list[Consumed]] = defaultdict(list)
    for each in events:
        if isinstance(each, Consumed) and each.reader == "final":
            if each.place.topic == OUTCOMES and each.key is not None:
                replies[each.key].append(json.loads(each.value) | {"at": _accepted_ms(each)})
            elif each.place.topic == MIXED and DUE_ID in dict(each.headers):
                delivered[dict(each.headers)[DUE_ID]].append(each)
    problems = [f"a reply that nobody asked for: {key!r}" for key in replies.keys() - _ids(asked)]
    for attempt in asked:
        assert attempt.cancels is not None
        found, end = replies[attempt.cancels], ends.get(attempt.message)
        least = int(isinstance(end, Acknowledged))
        most = 0 if isinstance(end, Refused) else 1
        if not least <= len(found) <= most:
            problems.append(f"{attempt.message} cancels {attempt.cancels!r}: {end}, {found}")
        for each in found:
            problems += _untrue(attempt, each, delivered[attempt.cancels])
    outcomes = Counter(each["outcome"] for found in replies.values() for each in found)
    if not outcomes["cancelled"]:
        problems.append(f"no cancel came in time: {outcomes}")
    return problems


def _ids(asked: Iterable[Attempted]) -> set[bytes]:
    return {each.cancels for each in asked if each.cancels is not None}


def _untrue(attempt: Attempted, reply: dict[str, Any], delivered: list[Consumed]) -> Iterator[str]:
    outcome, places = reply["outcome"], [each.place for each in delivered]
    said = f"{attempt.message} cancels {attempt.cancels!r}: {reply}, delivered at {places}"
    if reply["topic"] != MIXED or outcome not in ("cancelled", "too-late", "unknown"):
        yield said
    elif outcome == "too-late":
        if (reply["partition"], reply["offset"]) not in {each[1:] for each in places}:
            yield said
    elif outcome == "unknown":
        # The cancel overtook its timer, as one can that is sent before that is acknowledged.
        if any(_accepted_ms(each) < reply["at"] for each in delivered):
            yield said
    elif places:
        yield said


def _accepted_ms(reading: Consumed) -> int:
    return int(dict(reading.headers)[ACCEPTED_AT])
