"""The rounds of the kill -9 test: load, crashes in the middle of it, and what is left at the end.

The caller says what a crash is, so that other ways to die get the same test.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.harness.appliance_process import ApplianceProcess
from tests.support.oracles.commit_history import (
    Committed,
    GroupEvent,
    Partition,
    Read,
    Resumed,
    check_group,
    note,
)
from tests.support.oracles.history import check_history
from tests.support.oracles.history_events import (
    Acknowledged,
    Attempted,
    Consumed,
    Event,
    Place,
    Restarted,
    Unknown,
)
from tests.system.kill9.group_load import GroupLoad, read_committed
from tests.system.kill9.recurring import RecurringLoad
from tests.system.kill9.replies import reply_problems
from tests.system.kill9.table_check import compare_states, compare_tables
from tests.system.kill9.workload import (
    FORGETFUL,
    IDEMPOTENT,
    ONE_BY_ONE,
    OUTCOMES,
    PARTITION_COUNTS,
    RECURS,
    AdminCancels,
    Load,
    LoadSpec,
    Reader,
    create_topics,
)

LOADS: Final = (
    LoadSpec("safe", IDEMPOTENT, messages_per_s=600),
    LoadSpec("forgetful", FORGETFUL, messages_per_s=600),
    LoadSpec("careless", ONE_BY_ONE, messages_per_s=50, malformed_share=0.3),
)

# Small segments, so that the log goes through many of them and is killed in between.
CONFIG: Final = """
[store]
segment_size_bytes = 2097152
prewrite_segments = true
[limits]
batch_size_max_bytes = 262144
decompressed_size_max_bytes = 262144
record_size_max_bytes = 65536
header_size_max_bytes = 16384
[groups]
session_timeout_min_ms = 1000
size_max_bytes = 262144
[topics]
partition_count_max_per_topic = 100
[delay]
delivery_batch_max_bytes = 262144
"""

PARTITIONS: Final = [
    (topic, index) for topic, count in PARTITION_COUNTS.items() for index in range(count)
]
FLUSH_LIMIT_S: Final = 150.0
DRAIN_LIMIT_S: Final = 150.0
LATE_MS: Final = 60_000

Crash = Callable[[ApplianceProcess, random.Random], Restarted]
"""Ends a broker that is under load, by whatever means, and starts it again."""


def check_through(
    crash: Crash, appliance: ApplianceProcess, rounds: int, seed: int, kept: Path
) -> str:
    """Load a broker, crash it so many times, and fail unless every promise was kept.

    Args:
        crash: how it ends each time.
        appliance: does not run yet, and not any more afterwards.
        rounds: how many crashes.
        seed: of the load.
        kept: an existing directory, for the histories of a run that failed.

    Returns:
        What happened, for people.
    """
    events: list[Event] = []
    group_events: list[GroupEvent] = []
    try:
        appliance.start()
        problems = run_load(
            appliance, rounds, random.Random(seed), events, group_events, crash=crash
        )
        history = [event for event in events if not _is_of_broker(event)]
        problems += map(str, check_history(history, late_ms=LATE_MS))
        problems += map(str, check_group(group_events, final_records(events)))
        assert sum(isinstance(event, Consumed) for event in events) > 100 * rounds
        acknowledged = [event.message for event in events if isinstance(event, Acknowledged)]
        assert any(message.producer == "admin" for message in acknowledged), "no cancel by name"
    except BaseException:
        sys.stderr.write(f"seed {seed}; kept {kept}; {appliance.said()}\n")
        raise
    finally:
        appliance.close()
    if problems:
        (kept / "history.txt").write_text("".join(f"{event}\n" for event in events))
        (kept / "group.txt").write_text("".join(f"{event}\n" for event in group_events))
        shown = "\n".join(problems[:20])
        pytest.fail(f"{len(problems)} problems, seed {seed}, kept {kept}:\n{shown}")
    return f"{summary(events, appliance.start_times_s)}; {group_summary(group_events)}"


def run_load(
    appliance: ApplianceProcess,
    rounds: int,
    rng: random.Random,
    events: list[Event],
    group_events: list[GroupEvent],
    *,
    crash: Crash,
) -> list[str]:
    """Run all rounds, record them in the lists; return what the clients complained about."""
    create_topics(appliance.kafka)
    cancels = AdminCancels(appliance.admin, events)
    cancels.start()
    loads = [Load(appliance.kafka, spec, rng.randrange(2**32), events, cancels) for spec in LOADS]
    live = Reader(appliance.kafka, "live", events)
    group = GroupLoad(appliance.kafka, rng, group_events)
    recurring = RecurringLoad(appliance.kafka)
    live.start()
    group.start()
    recurring.start()
    for load in loads:
        load.start()
    for _ in range(rounds):
        time.sleep(rng.uniform(0.2, 1.5))
        events.append(crash(appliance, rng))
    unanswered = sum(load.finish(FLUSH_LIMIT_S) for load in loads)
    cancels.finish()
    recurring.finish()
    wait_until_drained(appliance, events)
    live.finish()
    ends = ends_of(events)
    problems = group.await_commits(ends, DRAIN_LIMIT_S) + group.finish()

    # A clean stop has to keep everything as well.
    appliance.stop()
    appliance.start()
    final = Reader(appliance.kafka, "final", events)
    final.read_to_end(DRAIN_LIMIT_S)
    final.finish()
    committed = read_committed(appliance.kafka, PARTITIONS)
    for partition, reported in committed.items():
        end = ends.get(partition)
        if reported != ((-1, "") if end is None else (end, note(partition, end))):
            problems.append(f"the group stands at {reported} in {partition}, expected {end}")
    problems += recurring.problems(events) + reply_problems(events)
    problems += compare_states(appliance)
    appliance.stop()
    consumed = [each for each in events if isinstance(each, Consumed) and each.reader == "final"]
    problems += compare_tables(appliance.data_dir, consumed, committed)

    problems += [problem for load in loads for problem in load.fatal] + live.fatal + final.fatal
    problems += [f"{unanswered} messages have no outcome"] if unanswered else []
    problems += [
        f"the idempotent producer gave up on {event.message}: {event.error}"
        for event in events
        if isinstance(event, Unknown) and event.message.producer == "safe"
    ]
    return problems


def _is_of_broker(event: Event) -> bool:
    """Whether it is a record that no `Load` has sent: another checker judges it."""
    return isinstance(event, Consumed) and event.place.topic in (RECURS, OUTCOMES)


def ends_of(events: list[Event]) -> dict[Partition, int]:
    """Return the end of each partition when it was read last, without empty ones."""
    ends: dict[Partition, int] = {}
    for event in events:
        if isinstance(event, Consumed):
            partition = event.place.topic, event.place.partition
            ends[partition] = max(ends.get(partition, 0), event.place.offset + 1)
    return ends


def final_records(events: list[Event]) -> dict[Place, bytes]:
    """What is in the log at the end."""
    return {
        event.place: event.value
        for event in events
        if isinstance(event, Consumed) and event.reader == "final"
    }


def group_summary(events: list[GroupEvent]) -> str:
    reads = [event.place for event in events if isinstance(event, Read)]
    members = {event.member for event in events if isinstance(event, Resumed)}
    commits = sum(isinstance(event, Committed) for event in events)
    resumed = sum(isinstance(event, Resumed) for event in events)
    return (
        f"a group of {len(members)} members one after another read {len(reads)}, of which "
        f"{len(reads) - len(set(reads))} again, resumed {resumed} times after {commits} commits"
    )


def reported_ends(appliance: ApplianceProcess) -> dict[Partition, int]:
    """Return the end of each partition as the broker reports it, without empty ones."""
    return {
        (topic, each["partition"]): each["visible_offset"]
        for topic in PARTITION_COUNTS
        for each in appliance.get_json(f"/api/v1/topics/{topic}")[1]["partitions"]
        if each["visible_offset"]
    }


def wait_until_drained(appliance: ApplianceProcess, events: list[Event]) -> None:
    """Wait until no timer is pending and the reader has read all that there is."""
    deadline_s = time.monotonic() + DRAIN_LIMIT_S
    wrote: int | None = None
    while time.monotonic() < deadline_s:
        time.sleep(0.05)
        status = appliance.get_json("/api/v1/status")[1]
        if wrote is None:
            wrote = None if status["pending_timers"] else status["log"]["wrote"]
        elif status["log"]["visible"] >= wrote and reported_ends(appliance) == ends_of(events):
            return


def summary(events: list[Event], start_times_s: list[float]) -> str:
    kinds = Counter(type(event).__name__ for event in events)
    acknowledged = {event.message for event in events if isinstance(event, Acknowledged)}
    delivered = {
        event.place for event in events if isinstance(event, Consumed) and event.reader == "final"
    }
    cancels = sum(
        event.cancels is not None and event.message in acknowledged
        for event in events
        if isinstance(event, Attempted)
    )
    starts = sorted(start_times_s[1:])
    p50_s, p99_s = starts[len(starts) // 2], starts[int(len(starts) * 0.99)]
    return (
        f"{kinds['Restarted']} rounds, {kinds['Attempted']} sent, {len(acknowledged)} acknowledged "
        f"({cancels} cancels), {kinds['Refused']} refused, {kinds['Unknown']} unknown, "
        f"{len(delivered)} delivered; restart to ready p50 {p50_s:.2f} s, p99 {p99_s:.2f} s"
    )
