"""The power of one node of a pair fails, or of both, under load: with sync flush nothing is lost.

Each node has a real file system of its own, which is cut off from its disk while the process is
frozen, as when a whole machine stops. etcd decides who serves next. `make soak` has more rounds.
"""

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from appliance.units import MIB
from tests.support.disks.loop_disk import DiskRefusedError, LoopDisk
from tests.support.harness.command_line import CommandLine
from tests.support.harness.etcd_server import ETCD, EtcdServer
from tests.system.replication.etcd_pair import Pair
from tests.system.replication.nodes import Node, ProxyThread
from tests.system.replication.test_fail_over_rounds import Rounds, run_under_load

pytestmark = pytest.mark.skipif(ETCD is None, reason="no etcd here: apt install etcd-server")


class Machines:
    """A disk for each node, and what happens to them."""

    def __init__(self, root: Path, stack: ExitStack, *, size_bytes: int) -> None:
        self._root, self._stack, self._size_bytes = root, stack, size_bytes
        self._disks: dict[Node, LoopDisk] = {}

    def make_node(self, name: str) -> Node:
        directory = self._root / f"machine-{name}"
        directory.mkdir()
        try:
            disk = LoopDisk(directory, size_bytes=self._size_bytes)
        except DiskRefusedError as error:
            pytest.skip(f"no loop device with ext4 here: {error}")
        self._stack.callback(disk.close)
        node = Node(self._root, name, disk.path / "data")
        self._stack.callback(node.close)
        self._disks[node] = disk
        return node

    def make_proxy(self, target: str) -> ProxyThread:
        proxy = ProxyThread(target)
        self._stack.callback(proxy.close)
        return proxy

    def lose_power(self, *nodes: Node) -> None:
        """End nodes with all that their disks do not have yet."""
        for node in nodes:
            node.send_signal(signal.SIGSTOP)
        for node in nodes:
            try:
                self._disks[node].cut_power()
            except DiskRefusedError as error:
                pytest.skip(str(error))
            node.kill()
            self._disks[node].restore_power()


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Runs `latermq` commands."""
    return CommandLine(monkeypatch, "127.0.0.1:1", "127.0.0.1:1")


@pytest.fixture
def machines(tmp_path: Path, power_cuts: int) -> Iterator[Machines]:
    with ExitStack() as stack:
        yield Machines(tmp_path, stack, size_bytes=(256 + 8 * power_cuts) * MIB)


def test_a_pair_loses_nothing_by_power_cuts_of_either_and_of_both(
    *,
    machines: Machines,
    tmp_path: Path,
    power_cuts: int,
    shell: CommandLine,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = int(os.environ.get("LATERMQ_SEED") or random.SystemRandom().randrange(2**32))
    sys.stderr.write(f"seed {seed}\n")
    rng = random.Random(seed)
    etcd = EtcdServer(tmp_path)
    etcd.start()
    try:
        pair = Pair(machines.make_node, machines.make_proxy, etcd, "sync", "--flush", "sync")
        faults = Rounds(pair, etcd, rng)

        def both() -> None:
            machines.lose_power(faults.master, faults.slave)

        def master() -> None:
            machines.lose_power(faults.master)
            if rng.random() < 0.5:
                faults.await_promotion()

        def slave() -> None:
            machines.lose_power(faults.slave)

        cuts: list[Callable[[], None]] = [both, master, slave]
        steps = [lambda cut=cut: faults.do(cut) for cut in cuts * max(1, power_cuts // 3)]
        rng.shuffle(steps)
        count = run_under_load(faults, steps, rng, shell)
    finally:
        etcd.stop()
    with capsys.disabled():
        sys.stdout.write(
            f"\npower cuts of a pair, seed {seed}: {dict(faults.counts)}, "
            f"{faults.promotions} changes of the master, {count} records\n"
        )
