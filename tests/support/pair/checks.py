"""What must hold at the end of a run of a simulated pair."""

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from appliance.store.paths import segment_name
from appliance.units import NS_PER_MS
from tests.support.harness.configs import DATA_DIR
from tests.support.oracles.commit_history import check_group
from tests.support.oracles.history import check_history
from tests.support.oracles.history_events import Consumed, Rule, Violation
from tests.support.pair.node import PairNode

if TYPE_CHECKING:
    from tests.support.pair.run import PairRun

LATE_MS: Final = 200_000
"""Longer than any run: whatever is late is judged by the end of the run."""

LOSSES: Final = frozenset(
    {Rule.VANISHED, Rule.MOVED, Rule.GAP, Rule.DOUBLED, Rule.REORDERED, Rule.CANCELLED}
)
"""What async replication may do at a promotion that loses what clients had seen."""


def check(run: "PairRun") -> list[str]:
    """Return every broken promise, in words; the pair has healed."""
    return [
        *_check_clients(run),
        *_check_groups(run),
        *_check_epochs(run),
        *_check_logs(run),
    ]


def _lost_something(run: "PairRun") -> bool:
    """A pair with async replication may have lost what clients had been told or shown."""
    return run.may_lose and any(each.kept_pos < each.seen_pos for each in run.record.losses)


def _check_clients(run: "PairRun") -> list[str]:
    found = check_history(run.record.events, late_ms=LATE_MS)
    return [str(each) for each in found if not _is_excused(run, each)]


def _is_excused(run: "PairRun", violation: Violation) -> bool:
    """Whether replication allows it: what the slave had is there in any case."""
    rule, message = violation.rule, violation.message
    if rule in LOSSES and _lost_something(run):
        return True
    is_local = message is not None and message.producer in run.record.local_producers
    if message is None or not (run.may_lose or is_local):
        return False
    if rule is Rule.CANCELLED:
        return bool(run.record.losses)
    if rule is not Rule.LOST:
        return False
    epoch, pos = run.record.positions[message]
    return any(each.kept_pos < pos and epoch <= each.epoch for each in run.record.losses)


def _check_groups(run: "PairRun") -> list[str]:
    if _lost_something(run):
        return []
    records = {
        event.place: event.value
        for event in run.record.events
        if isinstance(event, Consumed) and event.reader == "final"
    }
    return [
        f"{group}: {violation}"
        for group, events in run.record.group_events.items()
        if group != "final"
        for violation in check_group(events, records)
    ]


def _check_epochs(run: "PairRun") -> list[str]:
    """No two masters acknowledged in one epoch, nor one in a sync pair after a later one had."""
    spans: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for each in run.record.acknowledgements:
        spans[each.epoch][each.node].append(each.at_ns)
    found = []
    last_ns = 0
    for epoch, nodes in sorted(spans.items()):
        times = [at_ns for each in nodes.values() for at_ns in each]
        if len(nodes) > 1:
            found.append(f"nodes {sorted(nodes)} acknowledged in epoch {epoch}")
        if not run.may_lose and min(times) < last_ns:
            late_ms = (last_ns - min(times)) / NS_PER_MS
            found.append(f"an earlier master acknowledged {late_ms} ms after epoch {epoch} began")
        last_ns = max(last_ns, *times)
    return found


def _check_logs(run: "PairRun") -> list[str]:
    """Both logs have the same bytes, from where both begin."""
    master = run.operator.node(run.operator.master)
    slave = run.operator.node(run.operator.slave)
    broker = master.broker
    assert broker is not None
    end = broker.log.pointers.committed
    found = []
    for base, size in broker.log.files.places:
        if base >= end:
            continue
        used = min(size, end - base)
        if _segment(master, base, used) != _segment(slave, base, used):
            found.append(f"the logs differ in the segment at {base}")
    return found


def _segment(node: PairNode, base: int, size: int) -> bytes:
    return node.disk.peek(DATA_DIR / "commitlog" / segment_name(base), size, 0)
