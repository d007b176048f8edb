"""A planned hand-over where a real etcd decides who is the master: the key follows."""

import threading
import time
from collections import Counter

import pytest

from appliance.replication.wire import MessageType
from tests.support.harness.command_line import CommandLine
from tests.support.harness.etcd_server import ETCD, EtcdServer
from tests.support.harness.message_gate import MessageGate
from tests.system.replication.etcd_pair import ETCD_LEASE_MS, MakePair
from tests.system.replication.nodes import LIMIT_S, Node, await_equal, until
from tests.system.replication.test_hand_over import Ticker, hand_over, role_of
from tests.system.replication.test_promotion import Sender, read_all, stop_and_check

pytestmark = pytest.mark.skipif(ETCD is None, reason="no etcd here: apt install etcd-server")


def holder(node: Node) -> int | None:
    """Who has the key, as one node knows it."""
    found: int | None = node.pair()["coordinator"]["holder"]
    return found


def await_in_sync(master: Node) -> None:
    """Wait until a master has the key, and etcd says that its slave may have it next."""
    number = master.pair()["node"]

    def is_so() -> bool:
        found = master.pair()["coordinator"]
        return found["holder"] == number and found["in_sync"] is True

    until(is_so, "the pair in etcd")


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_the_key_follows_two_hand_overs_and_fail_over_goes_on(
    mode: str, make_pair: MakePair, shell: CommandLine
) -> None:
    pair = make_pair(mode)
    one, two = pair.one, pair.two
    sender, timers = Sender(one, two), Sender(one, two)
    timers.send(200, delay_ms=1_500)
    timers.finish()
    ticker = Ticker(sender)
    ticker.start()
    for old, new in ((one, two), (two, one)):
        await_in_sync(old)
        hand_over(old, new, shell)
        assert new.pair()["role"] == "master"
    ticker.stop()
    until(lambda: one.get_json("/api/v1/status")[1]["pending_timers"] == 0, "the last timers")
    await_equal(one, two)
    await_in_sync(one)
    one.kill()
    two.forget_stdout()
    two.await_serving(limit_s=LIMIT_S)
    sender.send(10)
    sender.finish()
    assert holder(two) == 2
    assert Counter(read_all(two)) == Counter(sender.acknowledged + timers.acknowledged)
    one.follows(pair.links[two].address).start()
    await_equal(two, one)
    stop_and_check(shell, one, two)


def test_an_operator_who_is_wrong_about_the_other_node_leaves_one_master(
    make_pair: MakePair, shell: CommandLine
) -> None:
    """Two serves, and one is started with --alone: it takes the key from it."""
    pair = make_pair("async")
    one, two = pair.one, pair.two
    await_in_sync(one)
    one.kill()
    two.await_serving(limit_s=LIMIT_S)
    sender = Sender(two)
    sender.send(20)
    sender.finish()
    two.forget_stdout()
    one.start()
    until(lambda: role_of(two) == "slave", "the node that lost the key as a slave")
    await_equal(one, two)
    await_in_sync(one)
    assert role_of(one) == "master"
    assert list(two.data_dir.glob("diverged/*")), "what only it accepted is kept"
    stop_and_check(shell, two, one)


def test_a_hand_over_is_refused_while_etcd_is_gone_and_done_once_it_is_back(
    make_pair: MakePair, etcd: EtcdServer, shell: CommandLine
) -> None:
    pair = make_pair("sync")
    one, two = pair.one, pair.two
    etcd.stop()
    until(lambda: one.pair()["coordinator"]["key_left_ms"] == 0, "the end of the key")
    done = shell.run(f"handover --admin {one.admin}")
    assert done.status != 0
    assert "etcd does not say" in done.stderr
    sender = Sender(one, two)
    sender.send(10)
    sender.finish()
    etcd.start()
    until(lambda: one.pair()["coordinator"]["key_left_ms"] > 0, "the key of the master")
    hand_over(one, two, shell)
    sender.send(10)
    sender.finish()
    assert len(read_all(two)) == 20
    stop_and_check(shell, one, two)


def test_a_new_master_that_does_not_reach_etcd_serves_while_the_old_one_follows(
    make_pair: MakePair, shell: CommandLine
) -> None:
    pair = make_pair("sync")
    one, two = pair.one, pair.two
    pair.ways[two].pause()
    hand_over(one, two, shell)
    assert two.pair()["coordinator"]["standing"] == "master, has no key, hears its slave"
    sender = Sender(one, two)
    sender.send(10)
    sender.finish()
    time.sleep(1.5 * ETCD_LEASE_MS / 1000)
    sender.send(10)
    sender.finish()
    pair.ways[two].resume()
    until(lambda: holder(two) == 2, "the key of the new master")
    await_equal(two, one)
    assert len(read_all(two)) == 20
    stop_and_check(shell, one, two)


@pytest.mark.parametrize("lost", [MessageType.YIELD, MessageType.TAKEN], ids=str)
def test_the_key_is_with_the_one_master_that_a_failed_hand_over_leaves(
    lost: MessageType, make_pair: MakePair, shell: CommandLine
) -> None:
    pair = make_pair("async")
    one, two = pair.one, pair.two
    link = pair.links[one]
    with MessageGate(one.replication, lost, lambda: None) as gate:
        link.lead_to(gate.address)
        link.cut()
        sender = Sender(one, two)
        sender.send(50)
        sender.finish()
        await_equal(one, two)
        until(lambda: one.pair()["state"] == "streaming", "the slave")
        await_in_sync(one)
        done = shell.run(f"handover --admin {one.admin}")
        assert done.status != 0, "the message was lost"
        assert gate.is_reached.wait(LIMIT_S)
        master, slave = (one, two) if lost is MessageType.YIELD else (two, one)

        def is_whole() -> bool:
            for node in (one, two):
                node.find_admin()
            try:
                return holder(master) == master.pair()["node"] and (
                    master.pair()["state"],
                    slave.pair()["state"],
                ) == ("streaming", "streaming")
            except OSError:
                return False

        until(is_whole, "one master with the key, and its slave")
        assert (master.pair()["role"], slave.pair()["role"]) == ("master", "slave")
        sender.send(20)
        sender.finish()
        await_equal(master, slave)
        assert len(read_all(master)) == 70
        stop_and_check(shell, slave, master)


def test_a_node_that_yielded_serves_nobody_however_long_the_other_one_is_away(
    make_pair: MakePair, shell: CommandLine
) -> None:
    """Async, where a master that compares goes on alone after a while, with the key."""
    pair = make_pair("async")
    one, two = pair.one, pair.two
    link = pair.links[one]
    gone = threading.Event()

    def part() -> None:
        for way in (link, pair.links[two], pair.ways[two]):
            way.pause()
        gone.set()

    with MessageGate(one.replication, MessageType.TAKEN, part) as gate:
        link.lead_to(gate.address)
        link.cut()
        sender = Sender(one)
        sender.send(50)
        sender.finish()
        await_equal(one, two)
        until(lambda: one.pair()["state"] == "streaming", "the slave")
        await_in_sync(one)
        assert shell.run(f"handover --admin {one.admin}").status != 0
        assert gone.wait(LIMIT_S)
        time.sleep(2.5 * ETCD_LEASE_MS / 1000)
        one.find_admin()
        assert one.pair()["state"] == "comparing", "both may be the master"
        for way in (link, pair.links[two], pair.ways[two]):
            way.resume()
        two.forget_stdout()
        until(lambda: role_of(one) == "slave", "the old master as a slave")
        two.find_admin()
        sender = Sender(two)
        sender.send(20)
        sender.finish()
        await_equal(two, one)
        assert len(read_all(two)) == 70
        stop_and_check(shell, one, two)
