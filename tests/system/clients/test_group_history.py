"""The check of what groups do finds what it is for, and nothing else."""

import pytest

from tests.support.oracles.group_history import Event, parse, problems

SENT = {"a": 0, "b": 0, "c": 0}


def history(*lines: str) -> list[Event]:
    """Events of partition 0, in their order: MEMBER KIND OFFSET VALUE."""
    events = []
    for at_ns, line in enumerate(lines):
        member, kind, offset, value = line.split()
        events.append(Event(member, kind, at_ns, 0, int(offset), value))
    return events


HALF = ("x assigned -1 -", "x got 0 a", "x got 1 b", "x committed 2 -")


@pytest.mark.parametrize(
    "more",
    [
        ("x got 2 c",),
        ("x revoked -1 -", "y assigned -1 -", "y got 2 c"),
        ("x got 2 c", "y assigned -1 -", "y got 2 c", "y committed 3 -"),
        ("y assigned -1 -", "y got 2 c", "y assigned -1 -", "y got 2 c"),
        (
            "x got 2 c",
            "x revoked -1 -",
            "x committed 3 -",
            "y assigned -1 -",
            "y got 2 c",
            "x committed 1 -",
            "z assigned -1 -",
            "z got 1 b",
        ),
    ],
    ids=[
        "all by one",
        "handed over",
        "crashed before it committed",
        "assigned again",
        "committed by one who had lost it",
    ],
)
def test_right_histories_pass(more: tuple[str, ...]) -> None:
    assert problems(history(*HALF, *more), SENT) == []


@pytest.mark.parametrize(
    ("more", "fact"),
    [
        ((), "lost: c"),
        (("y assigned -1 -", "y got 1 b", "y got 2 c"), "y began at 1; committed was 2"),
        (("y assigned -1 -", "y got 3 c"), "y began at 3; committed was 2, and 1"),
        (("x got 3 c",), "x got 3 and not 2"),
        (("x got 2 c", "x got 2 c"), "x got 2 and not 3"),
        (("x got 2 c", "x committed 3 -", "x committed 1 -"), "x committed 1 after x"),
        (("x revoked -1 -", "x got 2 c"), "x got 2 of a partition that it does not have"),
    ],
    ids=["lost", "came again", "skipped", "hole", "twice", "commit went back", "not its own"],
)
def test_wrong_histories_are_found(more: tuple[str, ...], fact: str) -> None:
    (found,) = problems(history(*HALF, *more), SENT)
    assert fact in found


def test_half_a_line_is_no_event() -> None:
    """What a kill cut off."""
    (event,) = parse("x", "got 17 3 5 value\ngot 18 3")
    assert event == Event("x", "got", 17, 3, 5, "value")
