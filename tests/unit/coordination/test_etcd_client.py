"""What the client of etcd does with answers that no etcd sends, over loopback."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from appliance.config.endpoint import Endpoint
from appliance.coordination import etcd_wire
from appliance.coordination.etcd import Etcd, EtcdFiles
from appliance.errors import CoordinatorError

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

CALL = etcd_wire.read([b"key"])
LIMIT_S = 20


def ask_one(answer: Answer, *, timeout_ms: int = 5_000) -> bytes:
    """Ask a server that answers so."""

    async def run() -> bytes:
        tasks: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                await reader.readuntil(b"\r\n\r\n")
                await answer(reader, writer)
                await writer.drain()
            except (OSError, asyncio.IncompleteReadError):
                pass  # the client has gone
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        etcd = Etcd(
            [Endpoint(host, port, is_secure=False)], files=EtcdFiles(), timeout_ms=timeout_ms
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                return await etcd.ask(CALL)
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(run())


def says(data: bytes) -> Answer:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return answer


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "data",
    [
        OK + b"Content-Length: 2\r\n\r\n{}",
        OK + b"Content-Length: 2\r\n\r\n{} and what follows",
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
        OK + b"Connection: close\r\n\r\n{}",
        OK + b"Content-Length: -5\r\n\r\n{}",  # as if it were not there
    ],
)
def test_an_answer_is_read_in_each_form_that_http_has(data: bytes) -> None:
    assert ask_one(says(data)) == b"{}"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "closed connection|RemoteDisconnected"),
        (b"\x00" * 500, "BadStatusLine|\\\\x00"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
        (OK + b"Content-Length: 20\r\n\r\n{}", "IncompleteRead"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nfffffffff\r\n{}", "IncompleteRead"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nnumber\r\n{}", "IncompleteRead"),
        (OK + b"X: " + b"x" * 70_000 + b"\r\n\r\n", "header line"),
        (OK + b"X: y\r\n" * 200 + b"\r\n", "more than 100 headers"),
        (OK + b"Content-Length: 70000\r\n\r\n" + b"x" * 70_000, "longer than 65536 bytes"),
        (OK + b"\r\n" + b"x" * 200_000, "longer than 81920 bytes"),
    ],
)
def test_an_answer_that_is_none_is_an_error_that_leaves_open_what_was_done(
    data: bytes, problem: str
) -> None:
    with pytest.raises(CoordinatorError, match=problem) as raised:
        ask_one(says(data))
    assert not raised.value.is_refused
    assert len(raised.value.message) < 500


def test_an_answer_without_an_end_is_not_kept() -> None:
    sent = 0

    async def flood(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(OK + b"\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()
            sent += 65_536

    with pytest.raises(CoordinatorError, match="longer than"):
        ask_one(flood)
    assert sent < 64 * 1024 * 1024


@pytest.mark.parametrize("pause_s", [0.01, 3_600])
def test_a_server_that_is_slow_is_given_up(pause_s: float) -> None:
    async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in OK * 10_000:
            await asyncio.sleep(pause_s)
            writer.write(bytes([byte]))

    with pytest.raises(CoordinatorError, match=r"took longer than 0\.1 s"):
        ask_one(drip, timeout_ms=100)


@pytest.mark.parametrize(("status", "is_refused"), [(404, True), (400, True), (503, False)])
def test_a_refusal_says_so(status: int, *, is_refused: bool) -> None:
    body = b'{"error":"etcdserver: requested lease not found"}'
    data = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)
    with pytest.raises(CoordinatorError, match="lease not found") as raised:
        ask_one(says(data))
    assert raised.value.is_refused == is_refused
