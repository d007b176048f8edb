"""The log of a slave that fell behind the master's first segment, or that is damaged."""

import shutil
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.harness.command_line import CommandLine
from tests.system.replication.nodes import SEGMENT_BYTES, Node, await_equal, until
from tests.system.replication.test_promotion import (
    TOPIC,
    Sender,
    create_topic,
    read_all,
    stop_and_check,
)

MakeNode = Callable[..., Node]


def test_a_slave_whose_place_was_freed_by_the_master_copies_the_log_anew_by_itself(
    make_node: MakeNode, shell: CommandLine
) -> None:
    one, two = make_node("one"), make_node("two")
    one.start()
    create_topic(one)
    two.follows(one.replication).start()
    sender = Sender(one)
    sender.send(100)
    sender.finish()
    await_equal(one, two)
    two.stop()
    while one.end() < 3 * SEGMENT_BYTES:
        sender.send(50, size_bytes=20_000)
        sender.finish()
    admin = AdminClient({"bootstrap.servers": one.kafka, "log_level": 0})
    for future in admin.delete_records([TopicPartition(TOPIC, 0, OFFSET_END)]).values():
        future.result(timeout=30)
    until(lambda: one.first() > 0, "the end of the first segment")
    two.start()
    await_equal(one, two)
    assert two.first() == one.first()
    stop_and_check(shell, two, one)


def test_a_slave_begins_with_a_backup_of_its_master_and_copies_the_rest(
    make_node: MakeNode, shell: CommandLine, tmp_path: Path
) -> None:
    one, two = make_node("one"), make_node("two")
    one.sets("catch_up_max_bytes_per_s = 400_000")
    one.start()
    create_topic(one)
    sender = Sender(one)
    sender.send(100, size_bytes=20_000)
    sender.finish()
    shell.ok(f"backup {tmp_path / 'backup'} --admin {one.admin}")
    end_of_backup = one.end()
    sender.send(40, size_bytes=20_000)
    sender.finish()
    shell.ok(f"restore {tmp_path / 'backup'} --data-dir {two.data_dir}")
    two.follows(one.replication).start()
    await_equal(one, two)
    two.await_logged(f"from={end_of_backup} ")
    assert not list(two.data_dir.glob("diverged/*"))
    stop_and_check(shell, one, two)


def test_a_slave_frees_what_its_master_frees_and_stops_as_cleanly(
    make_node: MakeNode, shell: CommandLine
) -> None:
    one, two = make_node("one"), make_node("two")
    one.start()
    create_topic(one)
    two.follows(one.replication).start()
    assert two.pair()["caught_up"] is True
    sender = Sender(one)
    while one.end() < 3 * SEGMENT_BYTES:
        sender.send(50, size_bytes=20_000)
        sender.finish()
    admin = AdminClient({"bootstrap.servers": one.kafka, "log_level": 0})
    for future in admin.delete_records([TopicPartition(TOPIC, 0, OFFSET_END)]).values():
        future.result(timeout=30)
    until(lambda: one.first() > 0, "the end of the first segment")
    until(lambda: two.first() == one.first(), "the end of the first segment on the slave")
    await_equal(one, two)
    two.stop()
    assert not (two.data_dir / "abort").exists()
    two.check(shell)
    two.start()
    await_equal(one, two)
    assert two.first() == one.first()
    stop_and_check(shell, two, one)


def damage(node: Node, pos: int) -> None:
    """Change a byte of a log, and lose the checkpoints: the next start reads all of it."""
    node.damage(pos)
    shutil.rmtree(node.data_dir / "control")


def test_a_slave_with_a_damaged_log_waits_for_its_master_and_is_repaired(
    make_node: MakeNode, shell: CommandLine
) -> None:
    one, two = make_node("one"), make_node("two")
    one.start()
    create_topic(one)
    two.follows(one.replication).start()
    sender = Sender(one)
    sender.send(200)
    sender.finish()
    end = await_equal(one, two)
    one.stop()
    two.stop()
    damage(two, end // 2)
    two.spawn()
    until(lambda: "latermq repairing" in two.printed(), "a slave that waits for its master")
    two.find_admin()
    assert two.pair()["state"] == "repairing"
    assert "its log is damaged" in two.pair()["promise"]
    done = shell.run(f"promote --admin {two.admin} --force")
    assert done.status != 0
    assert "its log is damaged" in done.stderr
    one.start()
    two.await_caught_up()
    two.await_logged("repaired 1 damaged part of the log from the master")
    sender = Sender(one)
    sender.send(50)
    sender.finish()
    await_equal(one, two)
    two.promote(shell)
    assert len(read_all(two)) == 250
    assert two.get_json("/api/v1/status")[1]["damage_count"] == 0
    assert "Traceback" not in two.said()
    one.stop()
    stop_and_check(shell, two)


def test_a_slave_whose_master_has_lost_the_same_part_says_so_and_ends(make_node: MakeNode) -> None:
    one, two = make_node("one"), make_node("two")
    one.start()
    create_topic(one)
    two.follows(one.replication).start()
    sender = Sender(one)
    sender.send(200)
    sender.finish()
    end = await_equal(one, two)
    for node in (one, two):
        node.stop()
        damage(node, end // 2)
    one.start()
    two.spawn()
    assert two.wait() == 74
    said = two.said()
    assert "repaired 1 damaged part" in said, "it tries once"
    assert "the slave's log is damaged" in said
    assert "move this data directory away" in said
    assert "Traceback" not in said
    one.stop()
