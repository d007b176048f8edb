"""The thread that receives large requests: it waits for no interpreter, and keeps nothing."""

import os
import select
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from _core.bytes.receive_loop import RECEIVED_AT_A_TIME, LargeInput
from _core.paths.session import Session
from appliance.system.receive_thread import ReceiveThread
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import with_topic
from tests.support.harness.configs import small_config
from tests.support.harness.kept_interpreter import becomes_readable

LIMIT_S = 60
REQUEST_BYTES = 3_000_000
FIRST_BYTES = 1_000
REQUEST = (
    (REQUEST_BYTES - 4).to_bytes(4, "big")
    + b"\x00\x12\x00\x00\x00\x00\x00\x07\xff\xff"  # ApiVersions 0, correlation id 7
    + os.urandom(REQUEST_BYTES - 14)
)


@pytest.fixture
def thread() -> Iterator[ReceiveThread]:
    thread = ReceiveThread()
    yield thread
    thread.shutdown()


@pytest.fixture
def client() -> WireClient:
    config = small_config(flush="async", request_size_max_bytes=2 * REQUEST_BYTES)
    return WireClient(with_topic(1, config=config))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


def lend(session: Session) -> LargeInput:
    session.get_buffer()[:FIRST_BYTES] = REQUEST[:FIRST_BYTES]
    session.received(FIRST_BYTES, now_ns=1)
    assert session.wanted_bytes == REQUEST_BYTES
    return session.lend_input()


def await_end(thread: ReceiveThread) -> list[LargeInput]:
    assert select.select([thread.fileno()], [], [], LIMIT_S)[0]
    return thread.take_ended()


def await_closed(end: socket.socket) -> None:
    """The broker's end has no descriptor any more."""
    end.settimeout(LIMIT_S)
    assert end.recv(1) == b""


def test_a_request_is_received_while_the_loop_keeps_the_interpreter(
    thread: ReceiveThread,
    client: WireClient,
    pair: tuple[socket.socket, socket.socket],
    tmp_path: Path,
) -> None:
    given = lend(client.session)
    sent = tmp_path / "sent"
    sent.write_bytes(REQUEST[FIRST_BYTES:] + b"the next request")
    with subprocess.Popen(("cat", sent), stdout=pair[0]):
        assert thread.try_begin(given, pair[1].fileno())
        assert becomes_readable(thread.fileno(), LIMIT_S * 1_000)
    assert thread.take_ended() == [given]
    assert given.received_bytes == REQUEST_BYTES
    assert pair[1].recv(100) == b"the next request"
    client.session.take_back()
    client.resume()
    assert int.from_bytes(client.take()[4:8], "big") == 7
    assert client.session.partial_bytes == 0


def test_what_has_arrived_counts_while_the_thread_receives(
    thread: ReceiveThread, client: WireClient, pair: tuple[socket.socket, socket.socket]
) -> None:
    session = client.session
    thread.try_begin(lend(session), pair[1].fileno())
    before = session.held_bytes
    pair[0].sendall(REQUEST[FIRST_BYTES : 2 * FIRST_BYTES])
    deadline_s = time.monotonic() + LIMIT_S
    while session.partial_bytes < 2 * FIRST_BYTES:
        assert time.monotonic() < deadline_s
    assert session.partial_bytes == 2 * FIRST_BYTES
    assert session.held_bytes == before + FIRST_BYTES
    assert session.wanted_bytes == REQUEST_BYTES


def test_a_request_whose_client_hangs_up_ends_incomplete(
    thread: ReceiveThread, client: WireClient, pair: tuple[socket.socket, socket.socket]
) -> None:
    given = lend(client.session)
    assert thread.try_begin(given, pair[1].fileno())
    pair[0].sendall(REQUEST[FIRST_BYTES:-1])
    pair[0].shutdown(socket.SHUT_WR)
    assert await_end(thread) == [given]
    assert given.received_bytes == REQUEST_BYTES - 1


@pytest.mark.parametrize("is_at_its_end", [False, True])
def test_a_request_that_is_given_up_leaves_no_descriptor(
    thread: ReceiveThread,
    client: WireClient,
    pair: tuple[socket.socket, socket.socket],
    *,
    is_at_its_end: bool,
) -> None:
    given = lend(client.session)
    assert thread.try_begin(given, pair[1].fileno())
    pair[1].close()
    if is_at_its_end:
        pair[0].sendall(REQUEST[FIRST_BYTES:])
        assert select.select([thread.fileno()], [], [], LIMIT_S)[0]
    thread.cancel(given)
    await_closed(pair[0])
    assert thread.take_ended() == []
    # Every place in the thread is free again.
    for _ in range(2 * RECEIVED_AT_A_TIME):
        ends = socket.socketpair()
        other = lend(WireClient(client.harness).session)
        assert thread.try_begin(other, ends[1].fileno())
        ends[0].sendall(REQUEST[FIRST_BYTES:])
        assert await_end(thread) == [other]
        thread.free(other)
        ends[0].close()
        ends[1].close()


def test_one_that_finds_no_place_has_its_bytes_back(
    thread: ReceiveThread, client: WireClient, pair: tuple[socket.socket, socket.socket]
) -> None:
    sessions = [WireClient(client.harness).session for _ in range(RECEIVED_AT_A_TIME)]
    inputs = [lend(session) for session in sessions]
    assert all(thread.try_begin(given, pair[1].fileno()) for given in inputs)
    descriptors = len(os.listdir("/proc/self/fd"))
    assert not thread.try_begin(lend(client.session), pair[1].fileno())
    assert len(os.listdir("/proc/self/fd")) == descriptors
    client.session.take_back()
    assert client.session.partial_bytes == FIRST_BYTES
    start = FIRST_BYTES
    while start < REQUEST_BYTES:
        room = client.session.get_buffer()
        piece = REQUEST[start : start + len(room)]
        room[: len(piece)] = piece
        client.session.received(len(piece), now_ns=1)
        start += len(piece)
    assert int.from_bytes(client.take()[4:8], "big") == 7


def test_the_end_of_the_thread_closes_the_sockets(
    client: WireClient, pair: tuple[socket.socket, socket.socket]
) -> None:
    thread = ReceiveThread()
    given = lend(client.session)
    assert thread.try_begin(given, pair[1].fileno())
    pair[1].close()
    thread.shutdown()
    await_closed(pair[0])
    client.session.close()
