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
from appliance.store.state.group_frames import (
    GROUP_DELETED,
    GROUP_SAVED,
    OFFSET_COMMITTED,
    OFFSET_DELETED,
    GroupFrame,
    OffsetEntry,
)
from appliance.store.state.group_store import GATHERED_MAX_BYTES
from tests.support.harness.broker_harness import BrokerHarness, Digest, with_topic
from tests.support.harness.checkpoints import USER_IDS, change, commit, rebuild, take_checkpoint
from tests.support.harness.configs import small_config
from tests.support.harness.small_files import repeatable_ids
from tests.support.values.kafka_records import Record

PACKAGE: Final = str(Path(appliance.__file__).parent)
CHANGES_BEFORE: Final = 4
LINES_MIN: Final = 5
SEED: Final = 10
REST_BYTES: Final = 184
"""Room for a header, and for no frame."""
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


def use_up_producer_ids(harness: BrokerHarness) -> None:
    state = harness.broker._store.state
    state.next_producer_id = state.producer_id_limit


def cancel(harness: BrokerHarness) -> None:
    harness.broker.timers.cancel(harness.topic(), USER_IDS[(CHANGES_BEFORE - 1) % len(USER_IDS)])


def delete_with_commits(harness: BrokerHarness) -> None:
    """What is gathered comes first."""
    commit(harness, "late", 3)
    harness.broker.topics.delete("t")


CHANGES: Final[dict[str, Callable[[BrokerHarness], object]]] = {
    "create a topic": lambda harness: harness.broker.topics.create(
        "fresh", 3, {"retention.ms": "1000"}
    ),
    "delete a topic": lambda harness: harness.broker.topics.delete("t"),
    "delete a topic after commits": delete_with_commits,
    "add partitions": lambda harness: harness.broker.topics.add_partitions(harness.topic(), 5),
    "change settings": lambda harness: harness.broker.topics.replace_settings(
        harness.topic(), {"retention.ms": "2000"}
    ),
    "delete records": lambda harness: harness.broker.topics.delete_records(harness.topic(), {0: 1}),
    "a producer id": lambda harness: harness.broker.allocate_producer_id(),
    "save a group": lambda harness: harness.broker.groups.save_group(
        GroupFrame(op=GROUP_SAVED, group="g1", generation=77)
    ),
    "delete a group": lambda harness: harness.broker.groups.save_group(
        GroupFrame(op=GROUP_DELETED, group="g0")
    ),
    "commit offsets": lambda harness: harness.broker.groups.commit_offsets(
        [entry("g0", 0), entry("new", 1)]
    ),
    "delete offsets": lambda harness: harness.broker.groups.commit_offsets(
        [entry("g0", 0, OFFSET_DELETED)]
    ),
    "commit many offsets": lambda harness: harness.broker.groups.commit_offsets(
        [entry(f"g{number}", 0, size=GATHERED_MAX_BYTES // 3) for number in range(4)]
    ),
    "cancel a timer": cancel,
}


def fill_segment(harness: BrokerHarness) -> None:
    """Leave so little of it that the next frame goes into another one."""
    tail = harness.broker._store.log.tail

    def spare() -> int:
        return tail.segment_end - tail.pointers.wrote - REST_BYTES

    before = spare()
    harness.produce("t", 0, [Record(bytes(1_000))])
    overhead = before - spare() - 1_000
    while spare():
        size = 4_000 if spare() > 8_000 else spare() // 16 * 8 if spare() > 4_000 else spare()
        harness.produce("t", 0, [Record(bytes(size - overhead))])


def make_harness(*, is_full: bool) -> BrokerHarness:
    harness = with_topic(2, config=small_config(segment_size_bytes=1 << 18))
    for number in range(CHANGES_BEFORE):
        change(harness, number)
    use_up_producer_ids(harness)
    if is_full:
        fill_segment(harness)
    harness.flush()
    return harness


def facts(harness: BrokerHarness) -> Digest:
    """Without the next producer id, which jumps at a start."""
    return replace(harness.digest(USER_IDS), next_producer_id=0)


def from_log(harness: BrokerHarness) -> Digest:
    """What a start from the log alone finds."""
    return facts(rebuild(harness, harness.disk))


def facts_around(name: str, *, is_full: bool) -> list[Digest]:
    """Those before a change, and after it."""
    found = []
    for is_changed in (False, True):
        with repeatable_ids(SEED):
            harness = make_harness(is_full=is_full)
            if is_changed:
                CHANGES[name](harness)
                harness.flush()
            found.append(from_log(harness))
    return found


def check_ended(harness: BrokerHarness, name: str, around: list[Digest]) -> None:
    """Nothing leads on, and the disk knows nothing of what took half effect."""
    for go_on in (lambda: harness.broker.topics.create("other", 1, {}), harness.broker.close):
        with pytest.raises(UnappliedChangeError) as raised:
            go_on()
        assert raised.value.unapplied_pos <= raised.value.wrote_pos
    assert from_log(harness) in around
    assert harness.crash("kept", random.Random(0)).report.damage == ()


def check_going_on(harness: BrokerHarness) -> None:
    """What comes now comes at the right place; memory, a saved state and the log agree."""
    harness.create_topic("next", 1)
    harness.produce("next", 0, [Record(b"next")])
    commit(harness, "next", 1, topic="next")
    harness.broker.allocate_producer_id()
    harness.flush()
    expected = from_log(harness)
    assert take_checkpoint(harness).error is None
    assert facts(harness.crash("kept", random.Random(0))) == expected
    assert facts(harness) == expected


def fail_at(name: str, line: int, around: list[Digest], *, is_full: bool) -> tuple[str | None, str]:
    """Play a change with an error at a line; where that was, and what became of it."""
    with repeatable_ids(SEED):
        harness = make_harness(is_full=is_full)
        lines = Lines(line)
        # As the root of a request does.
        with lines.traced(), suppress(InjectedError):
            CHANGES[name](harness)
        try:
            try:
                harness.flush()
            except UnappliedChangeError:
                check_ended(harness, name, around)
                return lines.where, "ended"
            try:
                check_going_on(harness)
            except InjectedError:
                # Kept by what makes the next segment: raised where that is needed, outside of any
                # request, it ends the process.
                assert harness.crash("kept", random.Random(0)).report.damage == ()
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
