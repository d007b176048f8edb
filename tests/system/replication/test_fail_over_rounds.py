"""A sync pair with etcd under load: faults of nodes, network and etcd, round after round.

One pair lives through all rounds. After each fault everything is healed; then one node serves, the
other one is in sync, and the logs are equal byte by byte. At the end each acknowledged record is
there once, no offset ever had two records, and nothing came early. `make soak ROUNDS=n` does n
rounds. A failure prints the seed; `LATERMQ_SEED` repeats the faults, though not the moments, which
the machine chooses.
"""

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import pytest

from tests.support.harness.command_line import CommandLine
from tests.support.harness.etcd_server import ETCD, EtcdServer
from tests.system.kill9.workload import now_ms
from tests.system.replication.etcd_pair import ETCD_LEASE_MS, MakePair, Pair
from tests.system.replication.nodes import LIMIT_S, Node, await_equal, until
from tests.system.replication.test_promotion import (
    Sender,
    make_consumer,
    read_all,
    stop_and_check,
)
from tests.system.replication.test_sync_promotion import Load, Watch

pytestmark = pytest.mark.skipif(ETCD is None, reason="no etcd here: apt install etcd-server")

ROUNDS_MIN: Final = 30
CUT_MAX_BYTES: Final = 30_000
"""Several frames of the load."""


def view(node: Node) -> dict[str, Any] | None:
    """What a node says of the pair; None if it says nothing."""
    if node.is_running:
        node.find_admin()  # another one after each start in the same process
    with suppress(OSError):
        status, found = node.get_json("/api/v1/replication")
        if status == 200:
            result: dict[str, Any] = found
            return result
    return None


class Rounds:
    """The pair, and what happens to it.

    Attributes:
        counts: how often each fault was chosen.
        promotions: how often the master changed.
        pair: the nodes.
        master, slave: what they were when the pair was whole.
    """

    def __init__(self, pair: Pair, etcd: EtcdServer, rng: random.Random) -> None:
        self.pair, self._etcd, self._rng = pair, etcd, rng
        self.master, self.slave = pair.one, pair.two
        self._faults: list[Callable[[], None]] = [
            self._kill_master,
            self._kill_master,
            self._kill_slave,
            self._kill_both,
            self._stop_master,
            self._stop_slave,
            self._stop_both,
            self._part_nodes,
            self._part_one_way,
            self._part_master,
            self._part_from_etcd,
            self._cut,
            self._restart_etcd,
        ]
        self._left: list[Callable[[], None]] = []
        self.counts: Counter[str] = Counter()
        self.promotions = 0

    def next(self) -> None:
        """Do one of them, heal, and wait until the pair is whole."""
        # Each of them in turn, in any order.
        if not self._left:
            self._left = self._rng.sample(self._faults, len(self._faults))
        self.do(self._left.pop())

    def do(self, fault: Callable[[], None]) -> None:
        """Do this one, heal, and wait until the pair is whole."""
        self.counts[fault.__name__.strip("_")] += 1
        fault()
        self._heal()
        try:
            until(self._is_whole, f"the way back from {fault.__name__}")
        except AssertionError as error:
            states = [(node.data_dir.name, view(node)) for node in (self.master, self.slave)]
            raise AssertionError(f"{error}; {states}") from None
        await_equal(self.master, self.slave)

    def _heal(self) -> None:
        for node in (self.master, self.slave):
            self.pair.links[node].resume()
            self.pair.ways[node].resume()
            if node.is_running:
                node.send_signal(signal.SIGCONT)
            else:
                node.spawn()

    def _is_whole(self) -> bool:
        for master, slave in ((self.master, self.slave), (self.slave, self.master)):
            one, other = view(master), view(slave)
            if one is None or other is None or one["role"] != "master" or other["role"] != "slave":
                continue
            known = one["coordinator"]
            is_whole = one["state"] == other["state"] == "streaming" and not one["solo"]
            if is_whole and known["in_sync"] and known["key_left_ms"] and master.is_running:
                self.promotions += master is not self.master
                self.master, self.slave = master, slave
                return True
        return False

    def await_promotion(self) -> None:
        """Wait until the slave serves."""

        def serves() -> bool:
            found = view(self.slave)
            return found is not None and found["role"] == "master"

        until(serves, "the promotion")

    def _pause_s(self) -> float:
        """Less or more than any lease here."""
        return self._rng.uniform(0.1, 1.4) * ETCD_LEASE_MS / 1000

    def _kill_master(self) -> None:
        self.master.kill()
        if self._rng.random() < 0.5:
            self.await_promotion()

    def _kill_slave(self) -> None:
        self.slave.kill()
        time.sleep(self._rng.uniform(0, 0.5))

    def _kill_both(self) -> None:
        for node in self._rng.sample([self.master, self.slave], 2):
            node.kill()
            time.sleep(self._rng.choice((0.0, 0.3)))

    def _stop(self, *nodes: Node) -> None:
        for node in nodes:
            node.send_signal(signal.SIGSTOP)
        time.sleep(self._pause_s())

    def _stop_master(self) -> None:
        self._stop(self.master)

    def _stop_slave(self) -> None:
        self._stop(self.slave)

    def _stop_both(self) -> None:
        self._stop(*self._rng.sample([self.master, self.slave], 2))

    def _part_nodes(self) -> None:
        for node in (self.master, self.slave):
            self.pair.links[node].pause()
        time.sleep(self._pause_s())

    def _part_one_way(self) -> None:
        to_slave = self._rng.random() < 0.5
        self.pair.links[self.master].pause(to_slave=to_slave, to_master=not to_slave)
        time.sleep(self._pause_s())

    def _part_master(self) -> None:
        self.pair.ways[self.master].pause()
        time.sleep(self._rng.choice((0.0, 1.5 * ETCD_LEASE_MS / 1000)))
        for node in (self.master, self.slave):
            self.pair.links[node].pause()
        time.sleep(self._pause_s())

    def _part_from_etcd(self) -> None:
        self.pair.ways[self._rng.choice((self.master, self.slave))].pause()
        time.sleep(self._pause_s())

    def _cut(self) -> None:
        link = self.pair.links[self.master]
        cuts = tuple(self._rng.randrange(1, CUT_MAX_BYTES) for _ in range(3))
        link.lead_to(self.master.replication, cuts)
        link.cut()
        time.sleep(self._rng.uniform(0.2, 1.0))

    def _restart_etcd(self) -> None:
        self._etcd.stop()
        time.sleep(self._pause_s())
        self._etcd.start()


def test_a_pair_with_etcd_keeps_every_promise_whatever_fails(
    *,
    rounds: int,
    make_pair: MakePair,
    etcd: EtcdServer,
    shell: CommandLine,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = int(os.environ.get("LATERMQ_SEED") or random.SystemRandom().randrange(2**32))
    sys.stderr.write(f"seed {seed}\n")
    rng = random.Random(seed)
    faults = Rounds(make_pair("sync"), etcd, rng)
    steps = [faults.next] * max(ROUNDS_MIN, rounds)
    count = run_under_load(faults, steps, rng, shell)
    with capsys.disabled():
        sys.stdout.write(
            f"\na pair with etcd, seed {seed}: {sum(faults.counts.values())} rounds, "
            f"{faults.promotions} changes of the master, {count} records\n"
        )


def run_under_load(
    faults: Rounds,
    steps: Sequence[Callable[[], None]],
    rng: random.Random,
    shell: CommandLine,
) -> int:
    """Do the steps while clients send and read, then check all that they saw.

    Returns:
        How many records there are.
    """
    pair = faults.pair
    sender = Sender(pair.one, pair.two)
    watch = Watch(make_consumer(pair.one, pair.two))
    load = Load(sender, rng)
    load.start()
    watch.start()
    for step in steps:
        time.sleep(rng.uniform(0.05, 0.4))
        step()
    load.stop()
    sender.finish()
    master, slave = faults.master, faults.slave
    time.sleep(max(0, max(sender.due_ms.values()) - now_ms()) / 1000 + 0.1)
    until(lambda: master.get_json("/api/v1/status")[1]["pending_timers"] == 0, "the last timers")
    await_equal(master, slave)
    final = read_all(master)
    until(lambda: len(watch.seen) >= len(final), "what the reader reads", LIMIT_S)
    watch.stop()

    assert Counter(final) == Counter(sender.acknowledged)
    assert not watch.problems
    assert dict(enumerate(final)) == watch.seen
    early = {value for value, due in sender.due_ms.items() if watch.at_ms[value] < due}
    assert not early
    stop_and_check(shell, slave, master)
    return len(final)
