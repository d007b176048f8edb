"""An error between the append of a frame and its effect: nothing is written after it.

At each line of the store that a change of the control plane runs through, an error is raised, as a
mistake of ours or a lack of memory would. The root of the request catches it and serves on; then
either the next write ends the process, or memory is what the log says.
"""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import appliance
from appliance.errors import UnappliedChangeError
from appliance.store.group_frames import (
    GROUP_DELETED,
    GROUP_TOLD,
    OFFSET_COMMITTED,
    OFFSET_DELETED,
    GroupFrame,
    OffsetEntry,
)
from appliance.store.group_store import GATHERED_MAX_BYTES
from tests.support.broker_rig import BrokerRig, Digest
from tests.support.checkpoints import USER_IDS, change, commit, rebuild, take_checkpoint
from tests.support.configs import small_config
from tests.support.kafka_records import Record
from tests.support.small_files import repeatable_ids

PACKAGE: Final = str(Path(appliance.__file__).parent)
CHANGES_BEFORE: Final = 4
LINES_MIN: Final = 5
SEED: Final = 10
REST_MAX_BYTES: Final = 400
ROLLING: Final = ("create a topic", "commit offsets", "cancel a timer")
"""Also tried where their frame goes into another segment: one of each way to append."""

ATOMIC: Final = ("cancel a timer",)
"""What compiled code changes as a whole: no line is between."""


class InjectedError(Exception):
    """What a mistake would raise."""


class Lines:
    """Counts the lines of the product that run, and raises an error before one of them.

    Attributes:
        count: lines so far.
        where: file and line of the error, None as long as there was none.
    """

    def __init__(self, failing: int) -> None:
        self.count = 0
        self.where: str | None = None
        self._failing = failing

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Do that while the block runs."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._step if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _step(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self._failing:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise InjectedError(self.where)
        return self._step


def entry(group: str, partition: int, op: int = OFFSET_COMMITTED, size: int = 0) -> OffsetEntry:
    return OffsetEntry(
        op=op, group=group, topic_id=1, partition=partition, offset=9, metadata="m" * size
    )


def topic_of(rig: BrokerRig, name: str = "t") -> Any:
    found = rig.broker.find_topic(name)
    assert found is not None
    return found


def use_up_producer_ids(rig: BrokerRig) -> None:
    state = rig.broker._store._state
    state.next_producer_id = state.producer_id_limit


def cancel(rig: BrokerRig) -> None:
    rig.broker.cancel_timer(topic_of(rig), USER_IDS[(CHANGES_BEFORE - 1) % len(USER_IDS)])


def delete_with_commits(rig: BrokerRig) -> None:
    """What is gathered comes first."""
    commit(rig, "late", 3)
    rig.broker.delete_topic("t")


CHANGES: Final[dict[str, Callable[[BrokerRig], object]]] = {
    "create a topic": lambda rig: rig.broker.create_topic("fresh", 3, {"retention.ms": "1000"}),
    "delete a topic": lambda rig: rig.broker.delete_topic("t"),
    "delete a topic after commits": delete_with_commits,
    "add partitions": lambda rig: rig.broker.add_partitions(topic_of(rig), 5),
    "change settings": lambda rig: rig.broker.replace_topic_settings(
        topic_of(rig), {"retention.ms": "2000"}
    ),
    "delete records": lambda rig: rig.broker.delete_records(topic_of(rig), {0: 1}),
    "a producer id": lambda rig: rig.broker.allocate_producer_id(),
    "tell a group": lambda rig: rig.broker.tell_group(
        GroupFrame(op=GROUP_TOLD, group="g1", generation=77)
    ),
    "delete a group": lambda rig: rig.broker.tell_group(GroupFrame(op=GROUP_DELETED, group="g0")),
    "commit offsets": lambda rig: rig.broker.commit_offsets([entry("g0", 0), entry("new", 1)]),
    "delete offsets": lambda rig: rig.broker.commit_offsets([entry("g0", 0, OFFSET_DELETED)]),
    "commit many offsets": lambda rig: rig.broker.commit_offsets(
        [entry(f"g{number}", 0, size=GATHERED_MAX_BYTES // 3) for number in range(4)]
    ),
    "cancel a timer": cancel,
}


def fill_segment(rig: BrokerRig) -> None:
    """Leave so little of it that the next frame goes into another one."""
    tail = rig.broker._store.tail
    while (rest := tail.segment_end - tail.pointers.wrote) > REST_MAX_BYTES:
        rig.produce("t", 0, [Record(bytes(4_000 if rest > 8_000 else 1))])


def make_rig(*, is_full: bool) -> BrokerRig:
    rig = BrokerRig(config=small_config(segment_size_bytes=1 << 18))
    rig.create_topic("t", 2)
    for number in range(CHANGES_BEFORE):
        change(rig, number)
    use_up_producer_ids(rig)
    if is_full:
        fill_segment(rig)
    rig.flush()
    return rig


def facts(rig: BrokerRig) -> Digest:
    """Without the next producer id, which jumps at a start."""
    return replace(rig.digest(USER_IDS), next_producer_id=0)


def from_log(rig: BrokerRig) -> Digest:
    """What a start from the log alone finds."""
    return facts(rebuild(rig, rig.disk))


def facts_around(name: str, *, is_full: bool) -> list[Digest]:
    """Those before a change, and after it."""
    found = []
    for is_changed in (False, True):
        with repeatable_ids(SEED):
            rig = make_rig(is_full=is_full)
            if is_changed:
                CHANGES[name](rig)
                rig.flush()
            found.append(from_log(rig))
    return found


def check_ended(rig: BrokerRig, name: str, around: list[Digest]) -> None:
    """Nothing leads on, and the disk knows nothing of what took half effect."""
    for go_on in (lambda: rig.broker.create_topic("other", 1, {}), rig.broker.close):
        with pytest.raises(UnappliedChangeError) as raised:
            go_on()
        assert raised.value.unapplied_pos <= raised.value.wrote_pos
    assert from_log(rig) in around
    assert rig.crash("kept", random.Random(0)).report.damage == ()


def check_going_on(rig: BrokerRig) -> None:
    """What comes now comes at the right place; memory, a saved state and the log agree."""
    rig.create_topic("next", 1)
    rig.produce("next", 0, [Record(b"next")])
    commit(rig, "next", 1, topic="next")
    rig.broker.allocate_producer_id()
    rig.flush()
    expected = from_log(rig)
    assert take_checkpoint(rig).error is None
    assert facts(rig.crash("kept", random.Random(0))) == expected
    assert facts(rig) == expected


def fail_at(name: str, line: int, around: list[Digest], *, is_full: bool) -> tuple[str | None, str]:
    """Play a change with an error at a line; where that was, and what became of it."""
    with repeatable_ids(SEED):
        rig = make_rig(is_full=is_full)
        lines = Lines(line)
        # As the root of a request does.
        with lines.traced(), suppress(InjectedError):
            CHANGES[name](rig)
        try:
            try:
                rig.flush()
            except UnappliedChangeError:
                check_ended(rig, name, around)
                return lines.where, "ended"
            try:
                check_going_on(rig)
            except InjectedError:
                # Kept by what makes the next segment: raised where that is needed, outside of any
                # request, it ends the process.
                assert rig.crash("kept", random.Random(0)).report.damage == ()
                return lines.where, "ended"
        except Exception as error:
            raise AssertionError(f"{name}, error at line {line}, {lines.where}") from error
    return lines.where, "went on"


@pytest.mark.parametrize(
    ("name", "is_full"), [(name, False) for name in CHANGES] + [(name, True) for name in ROLLING]
)
def test_an_error_in_a_change_ends_the_process_or_changes_nothing_that_follows(
    name: str, is_full: bool
) -> None:
    around = facts_around(name, is_full=is_full)
    ends = set()
    line = 1
    while True:
        where, end = fail_at(name, line, around, is_full=is_full)
        if where is None:
            break
        ends.add(end)
        line += 1
    assert line > LINES_MIN
    is_atomic = name in ATOMIC and not is_full
    assert ends == {"went on"} if is_atomic else ends == {"ended", "went on"}
