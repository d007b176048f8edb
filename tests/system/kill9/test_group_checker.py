"""The checker of a group's history finds each kind of broken promise, none in a clean run."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.oracles.commit_history import (
    Committed,
    GroupEvent,
    GroupRule,
    Read,
    Resumed,
    check_group,
    note,
)
from tests.support.oracles.history_events import Place

PARTITION = ("t", 0)
RECORDS = {Place("t", 0, offset): b"record %d" % offset for offset in range(6)}


def read(member: str, offset: int) -> Read:
    return Read(member, Place("t", 0, offset), b"record %d" % offset)


def resumed(member: str, offset: int, acknowledged: int) -> Resumed:
    metadata = "" if offset < 0 else note(PARTITION, offset)
    return Resumed(member, PARTITION, offset, metadata, acknowledged)


CLEAN_RUN: list[GroupEvent] = [
    resumed("a", -1, -1),
    read("a", 0),
    read("a", 1),
    Committed("a", PARTITION, 2),
    read("a", 2),
    # The broker is killed with a commit of 3 on its way: nobody knows whether it is stored.
    resumed("b", 3, 2),
    read("b", 3),
    read("b", 4),
    # The same once more, and this one was not: the record is read twice.
    resumed("a", 3, 2),
    read("a", 3),
    read("a", 4),
    read("a", 5),
    Committed("a", PARTITION, 6),
]


def test_a_clean_run_has_no_violation() -> None:
    assert check_group(CLEAN_RUN, RECORDS) == []
    assert check_group([], {}) == []


def go_back(events: list[GroupEvent]) -> None:
    events[5:6] = [resumed("b", 1, 2), read("b", 1), read("b", 2)]


def lose_all_commits(events: list[GroupEvent]) -> None:
    events[5:6] = [resumed("b", -1, 2), *(read("b", offset) for offset in range(3))]


def mix_metadata(events: list[GroupEvent]) -> None:
    events[5] = replace(resumed("b", 3, 2), metadata=note(PARTITION, 2))


def lose_metadata(events: list[GroupEvent]) -> None:
    events[5] = replace(resumed("b", 3, 2), metadata="")


def jump_over(events: list[GroupEvent]) -> None:
    del events[9]


def start_elsewhere(events: list[GroupEvent]) -> None:
    del events[1]


def miss_the_end(events: list[GroupEvent]) -> None:
    del events[11:]


def stand_behind_the_end(events: list[GroupEvent]) -> None:
    events.append(resumed("b", 7, 6))


def read_another(events: list[GroupEvent]) -> None:
    events[11] = replace(read("a", 5), value=b"something else")


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (go_back, GroupRule.BACKWARDS),
        (lose_all_commits, GroupRule.BACKWARDS),
        (mix_metadata, GroupRule.METADATA),
        (lose_metadata, GroupRule.METADATA),
        (jump_over, GroupRule.GAP),
        (start_elsewhere, GroupRule.GAP),
        (miss_the_end, GroupRule.MISSED),
        (stand_behind_the_end, GroupRule.INVENTED),
        (read_another, GroupRule.CHANGED),
    ],
)
def test_each_broken_promise_is_found(
    spoil: Callable[[list[GroupEvent]], None], rule: GroupRule
) -> None:
    events = list(CLEAN_RUN)
    spoil(events)
    assert rule in {violation.rule for violation in check_group(events, RECORDS)}
