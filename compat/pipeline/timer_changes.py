"""Which timers were completed since the last commit. Layer 5.

The log is planned again by each run, which says of every timer whether it is pending. The job
remembers, in one byte for each timer of each segment (compressed on the disk), which of them it has
exported as completed. The difference is what a run exports: each completion once, whenever it came.

A timer that was carried has a byte for each of its places, so that it stays known when the segment
is freed that accepted it. Its row is at the first place that the log still has.

A timer is also completed when its topic is deleted. A run exports nothing that such a topic got
since the last run, but the completions of all timers that the tables have.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from _core.tables.timer_outcomes import IS_COPY
from appliance.errors import ConfigError
from compat.pipeline.layout import TIMER_COLUMNS
from compat.tables.batches import ScanTask
from compat.tables.plan import Plan, Zone
from compat.tables.selection import Selection
from compat.tables.table import Query, tasks

OUTCOME_SIZE: Final = 9
"""Bytes of a timer in `Plan.outcomes`; the first is its state, 0 while it is pending."""

ZONES_PER_TASK: Final = 64

_ONE_IF_COMPLETED: Final = bytes(int(state & ~IS_COPY != 0) for state in range(256))
_ONE_IF_ROW: Final = bytes(int(state & IS_COPY == 0) for state in range(256))
_SCHEMA: Final = pa.schema([pa.field("base", pa.int64()), pa.field("flags", pa.binary())])

Known = dict[int, bytes]
"""By base position of a segment: a byte for each of its timers, 1 if its completion is exported."""


def decode_known(data: bytes) -> Known:
    """Read what `encode_known` made."""
    rows = pq.read_table(pa.BufferReader(data), schema=_SCHEMA)
    return dict(zip(rows["base"].to_pylist(), rows["flags"].to_pylist(), strict=True))


def encode_known(known: Known) -> bytes:
    """Encode what a commit knows of the timers."""
    rows = pa.table([list(known), list(known.values())], schema=_SCHEMA)
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", use_dictionary=False)
    return bytes(sink.getvalue())


@dataclass(frozen=True, slots=True)
class Changes:
    """The result of `find_changes`.

    Attributes:
        tasks: yield the timers whose completion is not exported; others have no `completed_at`.
        known: what is known once they are exported.
    """

    tasks: list[ScanTask]
    known: Known


def find_changes(plan: Plan, query: Query, known: Known, *, position: int, end: int) -> Changes:
    """Compare a plan with what is known.

    Args:
        plan: the log.
        query: of the table `timers`, see `timer_query`.
        known: what the last commit knows.
        position: log position up to which it knows all timers.
        end: log position up to which timers are looked at, the end of a zone.

    Raises:
        ConfigError: the log has not the same timers below `position` as it had.
    """
    flags: dict[int, bytearray] = {}
    found: list[ScanTask] = []
    added: list[ScanTask] = []
    for base, size in plan.reader.segments:
        behind = min(base + size, position)
        count = len(plan.outcomes(base, behind)) // OUTCOME_SIZE if behind > base else 0
        if count != len(known.get(base, b"")):
            raise ConfigError(
                f"the log has {count} timers in its segment {base} below position {position}, the "
                f"tables {len(known.get(base, b''))}: a part was lost or replaced. Give an empty "
                "directory as --out"
            )
    with_deleted = replace(query, with_deleted=True)
    for base, zone in _zones(plan, end, position):
        # What has a place after `end` is exported with it: the places before may be freed by then.
        outcomes = plan.outcomes(zone.start, zone.end, held_from=end)
        states = outcomes[::OUTCOME_SIZE]
        so_far = flags.setdefault(base, bytearray())
        old = known.get(base, b"")[len(so_far) : len(so_far) + len(states)].ljust(
            len(states), b"\0"
        )
        completed = states.translate(_ONE_IF_COMPLETED)
        so_far += _combined(completed, old, add=True)
        new = _combined(completed, old, add=False)
        new = _both(new, states.translate(_ONE_IF_ROW))
        if 1 in new and zone.end <= position:
            found += _task(plan, with_deleted, zone, _only(outcomes, states, new))
        elif 1 in new:
            added += _task(plan, query, zone, _only(outcomes, states, new))
    return Changes(
        [*_joined(found), *_joined(added)], {base: bytes(each) for base, each in flags.items()}
    )


def pending_tasks(plan: Plan, query: Query) -> list[ScanTask]:
    """Return tasks that yield all pending timers of a plan, and others beside them."""
    found: list[ScanTask] = []
    for _, zone in _zones(plan, plan.end):
        outcomes = plan.outcomes(zone.start, zone.end)
        if 0 in outcomes[::OUTCOME_SIZE]:
            found += _task(plan, query, zone, outcomes)
    return list(_joined(found))


def timer_query(*, fails_on_loss: bool) -> Query:
    """Return the query for timers without their records."""
    return Query(
        table="timers", columns=TIMER_COLUMNS, selection=Selection(), fails_on_loss=fails_on_loss
    )


def _zones(plan: Plan, end: int, border: int = 0) -> Iterator[tuple[int, Zone]]:
    """Yield the zones that accepted timers, each with the base position of its segment.

    A zone that a border of frames divides is yielded as two.
    """
    bases = iter(sorted(base for base, _ in plan.reader.segments))
    base, following = 0, next(bases, None)
    for zone in plan.zones:
        while following is not None and following <= zone.start:
            base, following = following, next(bases, None)
        if zone.timers and zone.end <= end:
            if zone.start < border < zone.end:
                yield base, replace(zone, end=border)
                zone = replace(zone, start=border)  # noqa: PLW2901 (the rest of it)
            yield base, zone


def _combined(completed: bytes, old: bytes, *, add: bool) -> bytes:
    """Return which bytes are 1 in either, or else in `completed` alone."""
    # An integer of any size: bytes have no such operators, and a loop would take a second for each
    # ten million timers.
    a, b = (int.from_bytes(each, "little") for each in (completed, old))
    return (a | b if add else a & ~b).to_bytes(len(completed), "little")


def _both(a: bytes, b: bytes) -> bytes:
    """Return which bytes are 1 in both."""
    return (int.from_bytes(a, "little") & int.from_bytes(b, "little")).to_bytes(len(a), "little")


def _only(outcomes: bytes, states: bytes, new: bytes) -> bytes:
    """Return outcomes in which all timers but the new ones seem to be pending."""
    mask = int.from_bytes(new, "little") * 0xFF
    kept = (int.from_bytes(states, "little") & mask).to_bytes(len(states), "little")
    changed = bytearray(outcomes)
    changed[::OUTCOME_SIZE] = kept
    return bytes(changed)


def _task(plan: Plan, query: Query, zone: Zone, outcomes: bytes) -> Iterator[ScanTask]:
    for task in tasks(plan, query, start=zone.start, end=zone.end):
        assert isinstance(task, ScanTask)
        assert len(task.ranges) == 1
        yield replace(task, outcomes=(outcomes,))


def _joined(found: list[ScanTask]) -> Iterator[ScanTask]:
    """Join tasks of single zones, in the order of the log."""
    for at in range(0, len(found), ZONES_PER_TASK):
        group = found[at : at + ZONES_PER_TASK]
        yield replace(
            group[0],
            ranges=tuple(each for task in group for each in task.ranges),
            segments=tuple(sorted({each for task in group for each in task.segments})),
            topics={key: value for task in group for key, value in task.topics.items()},
            outcomes=tuple(each for task in group for each in task.outcomes),
        )
