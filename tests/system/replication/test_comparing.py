"""A master that was stopped serves nobody before it knows that the other node is no master."""

from collections import Counter
from collections.abc import Callable

from tests.support.harness.command_line import CommandLine
from tests.support.harness.ports import free_address
from tests.system.replication.nodes import (
    COMPARING_LINE,
    Node,
    ProxyThread,
    await_equal,
    until,
)
from tests.system.replication.test_promotion import (
    Sender,
    create_topic,
    epoch_of,
    read_all,
    stop_and_check,
)

MakeNode = Callable[..., Node]


def make_pair(make_node: MakeNode) -> tuple[Node, Node]:
    """A pair that knows the addresses of both, streaming, with some records."""
    one, two = make_node("one"), make_node("two")
    for node in (one, two):
        node.replication, node.is_alone = free_address(), False
    one.sets(f'peer = "{two.replication}"')
    two.follows(one.replication).spawn()
    one.start()
    two.await_caught_up()
    create_topic(one)
    sender = Sender(one)
    sender.send(100)
    sender.finish()
    await_equal(one, two)
    return one, two


def comparing(node: Node) -> None:
    """Start a master that must not serve."""
    node.spawn()
    node.admin = node.await_line(COMPARING_LINE)[1]
    until(lambda: node.pair()["state"] == "comparing", "the comparison")
    assert node.get_json("/readyz")[0] == 503


def test_master_that_is_restarted_after_the_promotion_follows_by_itself(
    make_node: MakeNode, shell: CommandLine
) -> None:
    """As a service manager does it, with the settings of a master."""
    one, two = make_pair(make_node)
    one.kill()
    end = two.end()
    two.promote(shell)
    term = two.pair()["term"]
    sender = Sender(two)
    sender.send(50)
    sender.finish()
    one.spawn()
    one.await_caught_up()
    await_equal(two, one)
    assert one.pair()["role"] == "slave"
    assert one.pair()["term"] == term == 2
    assert not list(one.data_dir.glob("diverged/*")), "it wrote nothing before it compared"
    assert one.log(end, two.end()) == two.log(end, two.end())
    # And back: whatever the configuration says, the role files decide.
    two.kill()
    one.promote(shell)
    assert one.pair()["term"] == 3
    two.spawn()
    two.await_caught_up()
    await_equal(one, two)
    stop_and_check(shell, one, two)


def test_pair_that_lost_its_power_serves_again_without_an_operator(
    make_node: MakeNode, shell: CommandLine
) -> None:
    one, two = make_pair(make_node)
    for node in (one, two):
        node.kill()
    comparing(one)
    two.spawn()
    one.await_serving()
    two.await_caught_up()
    await_equal(one, two)
    assert len(read_all(one)) == 100
    stop_and_check(shell, one, two)


def test_master_waits_for_its_slave_until_an_operator_says_that_it_is_off(
    make_node: MakeNode, shell: CommandLine
) -> None:
    one, two = make_pair(make_node)
    epoch, end = epoch_of(one), one.end()
    two.kill()
    one.kill()
    comparing(one)
    assert one.end() <= end, "it writes nothing"
    assert shell.run(f"promote --admin {one.admin}").status != 0
    shown = shell.run(f"replication --admin {one.admin}").stdout
    assert "comparing" in shown
    assert "latermq alone" in shown
    one.stop()
    assert one.end_of_files() <= end
    comparing(one)
    done = shell.run(f"alone --admin {one.admin}")
    assert done.status == 0, done.stderr
    one.await_serving()
    assert epoch_of(one) > epoch
    assert shell.run(f"alone --admin {one.admin}").status != 0
    sender = Sender(one)
    sender.send(10)
    sender.finish()
    two.start()
    await_equal(one, two)
    stop_and_check(shell, one, two)


def test_master_that_hears_of_a_higher_term_stops_serving_and_follows(
    make_node: MakeNode, make_proxy: Callable[[str], ProxyThread], shell: CommandLine
) -> None:
    """The network was cut between the nodes, and the slave was promoted meanwhile."""
    one, two = make_node("one"), make_node("two")
    for node in (one, two):
        node.replication, node.is_alone = free_address(), False
    to_one, to_two = make_proxy(one.replication), make_proxy(two.replication)
    one.sets(f'peer = "{to_two.address}"')
    two.follows(to_one.address).spawn()
    one.start()
    two.await_caught_up()
    create_topic(one)
    await_equal(one, two)
    to_one.pause()
    to_two.pause()
    for node, count in ((one, 30), (two, 40)):
        if node is two:  # later: a client of node 1 also asks node 2, which would name itself
            two.promote(shell)
        sender = Sender(node)
        sender.send(count)
        sender.finish()
    assert one.pair()["role"] == two.pair()["role"] == "master"
    to_one.resume()
    to_two.resume()
    one.await_caught_up()
    assert one.pair()["role"] == "slave"
    await_equal(two, one)
    assert len(read_all(two)) == 40
    assert len(list(one.data_dir.glob("diverged/*"))) == 1
    one.await_logged("is the master of term 1 no longer")
    stop_and_check(shell, one, two)


def test_master_that_lost_its_unflushed_tail_takes_it_from_its_slave_before_it_serves(
    make_node: MakeNode, shell: CommandLine
) -> None:
    """As a power cut leaves it: what was not flushed is zeros."""
    one, two = make_node("one"), make_node("two")
    for node in (one, two):
        node.replication, node.is_alone, node.mode = free_address(), False, "sync"
        node.sets('[flush]\nmode = "async"\ninterval_ms = 60_000\nbound_ms = 60_000')
    two.follows(one.replication).spawn()
    one.start()
    two.await_caught_up()
    create_topic(one)
    sender = Sender(one)
    sent = sender.send(500)
    sender.finish()
    flushed = int(one.get_json("/api/v1/status")[1]["log"]["flushed"])
    end = one.end()
    assert flushed < end
    one.kill()
    one.lose(flushed + (end - flushed) // 3)
    one.start()
    one.await_logged("replication comparing")
    await_equal(one, two)
    assert Counter(read_all(one)) == Counter(sent)
    assert not list(two.data_dir.glob("diverged/*"))
    assert not list(one.data_dir.glob("lost/*"))
    stop_and_check(shell, one, two)


def test_damage_of_a_master_is_repaired_from_its_slave_before_it_serves(
    make_node: MakeNode, shell: CommandLine
) -> None:
    one, two = make_pair(make_node)
    sender = Sender(one)
    sent = sender.send(300)
    sender.finish()
    end = await_equal(one, two)
    one.kill()
    one.damage(end - 1_000)
    assert shell.run(f"check {one.data_dir}").status != 0
    one.start()
    one.await_logged("repaired 1 damaged part")
    await_equal(one, two)
    assert Counter(read_all(one)) >= Counter(sent)
    assert len(read_all(one)) == 400
    assert one.get_json("/api/v1/status")[1]["damage_count"] == 0
    stop_and_check(shell, one, two)


def test_empty_master_begins_no_cluster_while_its_slave_has_a_log(
    make_node: MakeNode, shell: CommandLine
) -> None:
    one, two = make_pair(make_node)
    end = two.end()
    one.kill()
    one.forget()
    comparing(one)
    until(lambda: "other cluster" in one.said(), "the refusal")
    assert one.pair()["end"] == 0
    two.promote(shell)
    one.await_caught_up()
    await_equal(two, one)
    assert two.end() > end
    stop_and_check(shell, one, two)
