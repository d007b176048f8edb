"""A planned hand-over under load: nothing is lost, nothing comes twice, and the pause is short."""

import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from appliance.replication.wire import MessageType
from tests.support.harness.command_line import CommandLine
from tests.support.harness.message_gate import MessageGate
from tests.support.harness.ports import free_address
from tests.system.replication.nodes import LIMIT_S, Node, await_equal, until
from tests.system.replication.test_promotion import (
    TOPIC,
    Sender,
    create_topic,
    epoch_of,
    read_all,
    stop_and_check,
)

MakeNode = Callable[..., Node]

# Key 3, version 1, correlation id 7, client id null, an empty array of topics.
_METADATA = bytes.fromhex("0000000e 0003 0001 00000007 ffff 00000000")


class Ticker(threading.Thread):
    """Sends one record at a time, and waits for each.

    Attributes:
        pause_s: the longest time that one took.
    """

    def __init__(self, sender: Sender) -> None:
        super().__init__(daemon=True)
        self._sender = sender
        self._stopping = threading.Event()
        self.pause_s = 0.0

    def run(self) -> None:
        while not self._stopping.is_set():
            begin_s = time.monotonic()
            self._sender.send(1)
            self._sender.finish()
            self.pause_s = max(self.pause_s, time.monotonic() - begin_s)

    def stop(self) -> None:
        self._stopping.set()
        self.join()


def make_pair(make_node: MakeNode, mode: str) -> tuple[Node, Node]:
    one, two = make_node("one"), make_node("two")
    for node in (one, two):
        node.mode, node.is_alone = mode, False
        node.kafka, node.replication = free_address(), free_address()
    two.follows(one.replication).spawn()
    one.start()
    two.await_caught_up()
    create_topic(one)
    return one, two


def hand_over(old: Node, new: Node, shell: CommandLine) -> None:
    for node in (old, new):
        node.forget_stdout()
    done = shell.run(f"handover --admin {old.admin}")
    assert done.status == 0, done.stderr
    new.await_serving()
    old.await_caught_up()


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_roles_change_twice_under_load_and_nothing_is_lost(
    mode: str, make_node: MakeNode, shell: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = make_pair(make_node, mode)
    sender, timers = Sender(one, two), Sender(one, two)
    timers.send(200, delay_ms=1_500)
    timers.finish()
    ticker = Ticker(sender)
    ticker.start()
    epochs, terms = [epoch_of(one)], [one.pair()["term"]]
    for old, new in ((one, two), (two, one)):
        time.sleep(0.5)
        hand_over(old, new, shell)
        epochs.append(epoch_of(new))
        terms.append(new.pair()["term"])
        assert old.pair()["role"] == "slave"
    ticker.stop()
    until(lambda: one.get_json("/api/v1/status")[1]["pending_timers"] == 0, "the last timers")
    await_equal(one, two)
    assert not list(one.data_dir.glob("diverged/*")) + list(two.data_dir.glob("diverged/*"))
    assert Counter(read_all(one)) == Counter(sender.acknowledged + timers.acknowledged)
    assert terms == [1, 2, 3]
    assert epochs == sorted(set(epochs))
    stop_and_check(shell, two, one)
    with capsys.disabled():
        sys.stdout.write(
            f"\nhand-over, {mode}: {TOPIC} had {len(sender.acknowledged)} records, the longest "
            f"pause of a record was {ticker.pause_s * 1000:.0f} ms\n"
        )


def test_idle_connections_outlive_the_promotion_of_their_slave(
    make_node: MakeNode, shell: CommandLine
) -> None:
    """A client that loses all its brokers at once takes seconds to come back."""
    one, two = make_pair(make_node, "sync")
    with RawClient(two.kafka) as idle, RawClient(two.kafka) as busy:
        assert [idle.controller(), busy.controller()] == [1, 1]
        busy.send_part()
        hand_over(one, two, shell)
        assert idle.controller() == 2
        assert busy.is_closed()
        with RawClient(one.kafka) as other:
            assert other.controller() == 2
        hand_over(two, one, shell)
        assert idle.is_closed()
    stop_and_check(shell, two, one)


class RawClient:
    """A connection that asks for Metadata version 1 of no topic."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=LIMIT_S)

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def controller(self) -> int:
        """Ask, and return the broker that is the controller."""
        self._socket.sendall(_METADATA)
        size = int.from_bytes(self._read(4), "big")
        answer = self._read(size)
        # Correlation id, brokers, and the controller before an empty list of topics.
        return int.from_bytes(answer[-8:-4], "big", signed=True)

    def send_part(self) -> None:
        """Send the begin of a request."""
        self._socket.sendall(_METADATA[:9])

    def is_closed(self) -> bool:
        """Wait for what comes; return whether the connection is closed."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self._socket.recv(size - len(found))
            assert part, "closed"
            found += part
        return found


def test_hand_over_without_a_slave_is_refused_and_the_master_goes_on(
    make_node: MakeNode, shell: CommandLine
) -> None:
    one, two = make_pair(make_node, "async")
    two.kill()
    until(lambda: one.pair()["state"] == "waiting", "the loss of the slave")
    done = shell.run(f"handover --admin {one.admin}")
    assert done.status != 0
    assert "not up to date" in done.stderr
    sender = Sender(one)
    sender.send(10)
    sender.finish()
    two.start()
    assert shell.run(f"handover --admin {two.admin}").status != 0
    await_equal(one, two)
    stop_and_check(shell, one, two)


@pytest.mark.parametrize(
    ("lost", "killed"),
    [
        (MessageType.PREPARE, None),
        (MessageType.READY, "two"),
        (MessageType.YIELD, None),
        (MessageType.YIELD, "one"),
        (MessageType.YIELD, "two"),
        (MessageType.TAKEN, None),
        (MessageType.TAKEN, "one"),
        (MessageType.TAKEN, "two"),
    ],
    ids=str,
)
def test_hand_over_that_fails_anywhere_ends_with_one_master_that_has_all(
    lost: MessageType, killed: str | None, make_node: MakeNode, shell: CommandLine
) -> None:
    one, two = make_node("one"), make_node("two")
    nodes = {"one": one, "two": two}
    for node in nodes.values():
        node.is_alone = False
        node.kafka, node.replication = free_address(), free_address()
    one.sets(f'peer = "{two.replication}"')

    def kill() -> None:
        if killed is not None:
            nodes[killed].kill()

    with MessageGate(one.replication, lost, kill) as gate:
        two.follows(gate.address).spawn()
        one.start()
        two.await_caught_up()
        create_topic(one)
        sender = Sender(one, two)
        sender.send(50)
        sender.finish()
        await_equal(one, two)
        done = shell.run(f"handover --admin {one.admin}")
        assert done.status != 0, "the message was lost"
        assert gate.is_reached.wait(LIMIT_S)
        if killed is not None:
            nodes[killed].spawn()
        roles: list[str] = []

        def is_whole() -> bool:
            roles.clear()
            for node in nodes.values():
                said = role_of(node)
                roles.append(said)
            return sorted(roles) == ["master", "slave"]

        until(is_whole, f"one master and one slave, not {roles}")
        master, slave = (one, two) if roles[0] == "master" else (two, one)
        assert (master is two) == (lost is MessageType.TAKEN)
        sender.send(20)
        sender.finish()
        await_equal(master, slave)
        assert len(read_all(master)) == 70
        assert not list(slave.data_dir.glob("diverged/*"))
        stop_and_check(shell, slave, master)


def role_of(node: Node) -> str:
    """ "master" if it serves, "slave" if it streams, else something else."""
    node.find_admin()
    try:
        pair = node.pair()
    except OSError:
        return "no answer"
    if pair["role"] == "slave":
        return "slave" if pair["state"] == "streaming" else "slave that waits"
    return "master" if pair["state"] == "streaming" else str(pair["state"])
