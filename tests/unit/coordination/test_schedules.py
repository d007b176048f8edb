"""Two nodes and etcd in virtual time: faults of everything at random moments.

Each schedule ends with everything whole, and then one node serves and the other is in sync. A
failure names its seed.
"""

from collections import Counter

import pytest

from appliance.coordination import fail_over
from appliance.coordination.fail_over import FailOver
from appliance.coordination.standing import STANDINGS, Happening, Standing
from tests.support.harness.fail_over_pair import LEASE_MS, FailOverPair, Node

SETTLED_MS = 6 * LEASE_MS

RARE = {
    (Standing.FOLLOWS, Happening.ORDERED),
    (Standing.YIELDS, Happening.ORDERED),
    (Standing.HOLDS, Happening.SUPERSEDED),
    (Standing.COMPARES, Happening.TAKEN),
    (Standing.TAKES, Happening.REFUSED),
    (Standing.TAKES, Happening.HEARD),
    (Standing.SUCCEEDS, Happening.LAPSED),
    (Standing.YIELDS, Happening.HEARD),
}
"""Rows that the tests of test_fail_over.py walk: an operator's, and what needs several faults."""


def disturb(pair: FailOverPair) -> None:
    """Change one thing of the world."""
    rng = pair.rng
    number = rng.choice((1, 2))
    node = pair.nodes[number]
    match rng.randrange(16):
        case 0 | 1:
            if node.is_running:
                pair.kill(number)
            else:
                pair.begin(number)
        case 2:
            node.is_stopped = node.is_running and not node.is_stopped
        case 3 | 4:
            if pair.is_linked:
                pair.cut()
            else:
                pair.is_linked = True
        case 5 | 6:
            pair.reaches_etcd[number] = not pair.reaches_etcd[number]
        case 7:
            pair.is_etcd_up = not pair.is_etcd_up
        case 8:
            pair.loss = rng.choice((0.0, 0.3))
        case 9:
            pair.go_solo(number)
        case 10:
            # A master that only its slave permits to serve, and then not even that one.
            pair.is_linked, pair.reaches_etcd[number] = True, False
            pair.run(2 * LEASE_MS)
            pair.cut()
        case 11:
            # A process that is stopped with an answer on its way.
            pair.run(rng.randrange(1_500))
            node.is_stopped = node.is_running
            pair.run(rng.randrange(LEASE_MS))
            node.is_stopped = False
            pair.cut()
        case 12:
            pair.go_solo(number)
            pair.cut()
        case 13:
            pair.nodes[1].is_stopped = pair.nodes[2].is_stopped = False
        case 14 | 15:
            pair.hand_over(1)
            pair.hand_over(2)


def heal(pair: FailOverPair) -> None:
    pair.is_etcd_up = pair.is_linked = True
    pair.reaches_etcd = {1: True, 2: True}
    pair.loss = 0.0
    for number, node in pair.nodes.items():
        node.is_stopped = False
        if not node.is_running:
            pair.begin(number)


def serving(pair: FailOverPair) -> list[Node]:
    return [node for node in pair.nodes.values() if pair.licensed(node)]


def run_schedule(seed: int) -> FailOverPair:
    pair = FailOverPair(seed)
    pair.run(pair.rng.randrange(1_000, 6_000))
    for _ in range(pair.rng.randrange(3, 25)):
        disturb(pair)
        pair.run(pair.rng.choice((50, 300, 1_000, 3_000, 8_000)))
    heal(pair)
    pair.run(SETTLED_MS)
    (master,) = serving(pair)
    record = pair.etcd.value(pair.keys.pair)
    assert record["node"] == master.number
    assert record["in_sync"], "the slave is not in sync again"
    other = pair.nodes[3 - master.number]
    assert other.log == master.log
    assert pair.acknowledged <= set(master.log)
    return pair


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[Standing, Happening]]:
    """Counts the rows of the table that are walked."""
    rows: Counter[tuple[Standing, Happening]] = Counter()
    go = FailOver._go

    def note(node: FailOver, happening: Happening) -> None:
        rows[node.standing, happening] += 1
        go(node, happening)

    monkeypatch.setattr(fail_over.FailOver, "_go", note)
    return rows


def test_no_schedule_has_two_masters_or_loses_what_was_acknowledged(
    *, states: int, walked: Counter[tuple[Standing, Happening]]
) -> None:
    promotions = acknowledged = hand_overs = 0
    count = max(84, states // 360)
    for seed in range(count):
        try:
            pair = run_schedule(seed)
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error!r}")
        promotions += pair.promotions
        hand_overs += pair.hand_overs
        acknowledged += len(pair.acknowledged)
    assert promotions >= count // 10
    assert hand_overs >= count // 10
    assert acknowledged >= 100 * count
    assert set(STANDINGS) - RARE <= set(walked)
