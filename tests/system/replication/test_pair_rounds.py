"""A master under load and its slave: faults of either and of the network, again and again.

Two real processes and a proxy between them. The clients' history is checked as after `kill -9` of
one broker, and after each round the logs are equal, byte by byte. `make soak ROUNDS=n` does the
same for longer. A failure prints the seed; `LATERMQ_SEED` repeats the faults, though not the
moments, which the machine chooses.
"""

import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.harness.appliance_process import ApplianceProcess
from tests.support.harness.command_line import CommandLine
from tests.support.harness.ports import free_address
from tests.support.oracles.history_events import Restarted
from tests.system.kill9.rounds import check_through
from tests.system.kill9.workload import now_ms
from tests.system.replication.nodes import (
    SILENCE_MS,
    Node,
    ProxyThread,
    await_equal,
    compare,
)

# Not among pytest's temporary directories, which the next runs delete.
KEPT_DIR: Final = Path(__file__).resolve().parents[3] / "build" / "replication"

CUT_MAX_BYTES: Final = 30_000
"""Several frames of the load."""


class Faults:
    """What happens to a pair whose master is under load.

    Attributes:
        counts: how often each fault was chosen.
    """

    def __init__(self, master: Node, slave: Node, proxy: ProxyThread, shell: CommandLine) -> None:
        self._master, self._slave, self._proxy, self._shell = master, slave, proxy, shell
        self._faults: list[Callable[[random.Random], None]] = [
            self._kill_master,
            self._kill_slave,
            self._cut,
            self._kill_both,
            self._stop_one,
            self._pause,
            self._begin_anew,
            self._delay,
            self._restart_slave,
        ]
        self._left: list[Callable[[random.Random], None]] = []
        self.counts: Counter[str] = Counter()

    def next(self, appliance: ApplianceProcess, rng: random.Random) -> Restarted:
        """Do one of them, wait until the pair is whole, and compare the logs."""
        assert appliance is self._master
        begin_ms = now_ms()
        # Each of them in turn, in any order.
        if not self._left:
            self._left = rng.sample(self._faults, len(self._faults))
        fault = self._left.pop()
        self.counts[fault.__name__.strip("_")] += 1
        fault(rng)
        whole_ms = now_ms()
        await_equal(self._master, self._slave)
        return Restarted(begin_ms, whole_ms)

    def _kill_master(self, _: random.Random) -> None:
        self._master.kill()
        self._master.start()

    def _kill_slave(self, rng: random.Random) -> None:
        self._slave.kill()
        if rng.random() < 0.5:
            self._slave.check(self._shell)
        self._slave.start()

    def _kill_both(self, rng: random.Random) -> None:
        nodes = rng.sample([self._master, self._slave], 2)
        for node in nodes:
            node.kill()
        self._slave.spawn()  # a sync master is ready once its slave is there
        self._master.start()
        self._slave.await_caught_up()

    def _restart_slave(self, _: random.Random) -> None:
        self._slave.stop()
        self._slave.start()

    def _begin_anew(self, _: random.Random) -> None:
        self._slave.kill()
        self._slave.forget()
        self._slave.start()

    def _stop_one(self, rng: random.Random) -> None:
        node = rng.choice([self._master, self._slave])
        node.send_signal(signal.SIGSTOP)
        time.sleep(SILENCE_MS * rng.uniform(0.5, 2.5) / 1000)
        node.send_signal(signal.SIGCONT)

    def _cut(self, rng: random.Random) -> None:
        cuts = tuple(rng.randrange(1, CUT_MAX_BYTES) for _ in range(3))
        before = self._proxy.connection_count
        self._proxy.lead_to(self._master.replication, cuts)
        self._proxy.cut()
        deadline_s = time.monotonic() + 10
        while self._proxy.connection_count <= before + len(cuts):
            assert time.monotonic() < deadline_s, "the connections are not cut"
            time.sleep(0.02)

    def _pause(self, rng: random.Random) -> None:
        self._proxy.pause(to_slave=rng.random() < 0.7, to_master=rng.random() < 0.7)
        time.sleep(SILENCE_MS * rng.uniform(0.5, 2.5) / 1000)
        self._proxy.resume()

    def _delay(self, rng: random.Random) -> None:
        self._proxy.delay(rng.uniform(0.01, 0.1))
        time.sleep(rng.uniform(0.2, 1.0))
        self._proxy.delay(0)


@pytest.mark.parametrize(("mode", "share"), [("async", 0.67), ("sync", 0.34)])
def test_a_pair_keeps_its_logs_equal_and_every_promise_whatever_fails(
    *,
    mode: str,
    share: float,
    rounds: int,
    shell: CommandLine,
    make_proxy: Callable[[str], ProxyThread],
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = int(os.environ.get("LATERMQ_SEED") or random.SystemRandom().randrange(2**32))
    root = KEPT_DIR / f"{mode}-{seed}"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    master, slave = Node(root, "master"), Node(root, "slave")
    try:
        master.replication = free_address()
        master.mode = slave.mode = mode
        master.is_alone = False  # each start compares
        proxy = make_proxy(master.replication)
        slave.follows(proxy.address).spawn()
        master.start()
        slave.await_caught_up()
        master.stop()  # the load starts it
        faults = Faults(master, slave, proxy, shell)
        reported = check_through(faults.next, master, max(1, int(rounds * share)), seed, root)
        # Its start has more to say than the slave heard when it stopped.
        master.start()
        end = await_equal(master, slave)
        slave.stop()
        master.stop()
        assert compare(master, slave, end) == end
        master.check(shell)
        slave.check(shell)
    except BaseException:
        sys.stderr.write(f"seed {seed}; kept {root}; {slave.said()}\n")
        raise
    finally:
        master.close()
        slave.close()
    assert "Traceback" not in slave.stderr_path.read_text() + master.stderr_path.read_text()
    shutil.rmtree(root)
    with capsys.disabled():
        sys.stdout.write(f"\na pair, {mode}, seed {seed}: {dict(faults.counts)}; {reported}\n")
