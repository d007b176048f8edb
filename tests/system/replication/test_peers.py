"""Peers that are wrong, full or slow to end: neither the master nor the log takes harm."""

import os
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from appliance.units import MIB
from tests.support.disks.loop_disk import DiskRefusedError, Tmpfs
from tests.support.harness.command_line import CommandLine
from tests.system.replication.nodes import Node, await_equal, compare, until
from tests.system.replication.test_promotion import Sender, create_topic, read_all

DISK_BYTES = 24 * MIB
GARBAGE_COUNT = 40

MakeNode = Callable[..., Node]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Tmpfs]:
    """A file system of DISK_BYTES."""
    with ExitStack() as stack:
        try:
            disk = Tmpfs(tmp_path / "small", DISK_BYTES)
        except DiskRefusedError as error:
            pytest.skip(f"no tmpfs here: {error}")
        stack.callback(disk.close)
        yield disk


def test_a_slave_begins_from_nothing_under_load_and_stops_and_goes_on(
    make_node: MakeNode, shell: CommandLine
) -> None:
    one, two = make_node("one"), make_node("two")
    one.start()
    create_topic(one)
    sender = Sender(one)
    sender.send(2_000)
    two.follows(one.replication).spawn()
    sender.send(2_000)
    two.await_caught_up()
    sender.finish()
    await_equal(one, two)
    for _ in range(2):
        sender.send(500)
        two.stop()
        sender.send(500)
        two.start()
        sender.finish()
        await_equal(one, two)
    assert two.pair()["role"] == "slave"
    assert one.pair()["state"] == "streaming"
    end = one.end()
    two.stop()
    until(lambda: one.pair()["state"] == "waiting", "the end of the slave, for the master")
    one.stop()
    assert compare(one, two, end) == end
    two.check(shell)


def test_garbage_and_a_wrong_secret_at_the_port_of_the_slave_harm_nobody(
    make_node: MakeNode, tmp_path: Path
) -> None:
    one, two, stranger = make_node("one"), make_node("two"), make_node("stranger")
    secret, other = tmp_path / "secret", tmp_path / "other"
    secret.write_text("a secret of the two nodes")
    other.write_text("a secret of somebody else")
    one.sets(f'secret_file = "{secret}"')
    two.sets(f'secret_file = "{secret}"')
    stranger.sets(f'secret_file = "{other}"')
    one.start()
    create_topic(one)
    two.follows(one.replication).start()
    stranger.follows(one.replication).spawn()
    sender = Sender(one)
    rng = random.Random(1)
    host, _, port = one.replication.rpartition(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(20)]
    try:
        for _ in range(GARBAGE_COUNT):
            sender.send(50)
            with socket.create_connection((host, int(port))) as peer, suppress(OSError):
                peer.sendall(garbage(rng))
        sender.finish()
        until(lambda: "secret" in stranger.stderr_path.read_text(), "the refusal")
        await_equal(one, two)
    finally:
        for each in idle:
            each.close()
    assert one.pair()["peer"] is not None
    assert not list((stranger.data_dir / "commitlog").glob("[0-9]*"))
    for node in (stranger, two, one):
        node.stop()
        assert "Traceback" not in node.stderr_path.read_text()


def garbage(rng: random.Random) -> bytes:
    """Bytes of a peer that is none: of any kind, or a message of a wrong or an enormous length."""
    noise = rng.randbytes(rng.choice([0, 1, 5, 100, 100_000]))
    return rng.choice(
        [
            noise,
            b"GET / HTTP/1.1\r\n\r\n",
            b"\xff\xff\xff\xff\x02" + noise,
            (1 + len(noise)).to_bytes(4, "big") + bytes([rng.randrange(9)]) + noise,
        ]
    )


def test_a_slave_whose_disk_is_full_ends_and_says_so_while_the_master_serves(
    make_node: MakeNode, small_disk: Tmpfs, shell: CommandLine
) -> None:
    one, two = make_node("one"), make_node("two", small_disk.path / "data")
    one.start()
    create_topic(one)
    two.follows(one.replication).start()
    ballast = small_disk.path / "ballast"
    room = os.statvfs(small_disk.path)
    ballast.write_bytes(bytes(max(0, room.f_bavail * room.f_bsize - MIB)))
    sender = Sender(one)
    for _ in range(4):
        sender.send(50, size_bytes=20_000)
        sender.finish()
    status = two.wait()
    said = two.stderr_path.read_text()
    assert status not in (0, 1), said
    assert "No space left" in said
    assert "Traceback" not in said
    assert sorted(read_all(one)) == sorted(sender.acknowledged)

    # With room again it goes on where it was.
    ballast.unlink()
    two.start()
    await_equal(one, two)
    two.stop()
    two.check(shell)
    one.stop()
