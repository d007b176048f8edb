"""A client of etcd's JSON gateway: one request, one connection, several endpoints in turn.

A request carries `Connection: close`, so its answer ends with the connection, and is read whole,
within a size and a time, before anything of it is parsed. The standard library parses HTTP; the
client of aiohttp is loaded without TLS in this process. Layer 5; on the event loop.
"""

import asyncio
import contextlib
import http.client
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from appliance.config.endpoint import Endpoint
from appliance.coordination import etcd_wire
from appliance.coordination.etcd_wire import ANSWER_SIZE_MAX_BYTES, Call
from appliance.errors import ConfigError, CoordinatorError, RemoteProtocolError
from appliance.log_text import quoted
from appliance.units import MS_PER_SECOND

HEAD_SIZE_MAX_BYTES: Final = 16_384
"""Of the head of an answer."""

_OK: Final = 200
_CLIENT_ERRORS: Final = range(400, 500)


class _Received:
    """Received bytes, as the socket and as the file that `http.client` reads."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def makefile(self, _mode: str) -> "_Received":
        return self

    def read(self, size: int = -1) -> bytes:
        end = len(self._data) if size < 0 else self._at + size
        return self._take(end)

    def readline(self, size: int) -> bytes:
        found = self._data.find(b"\n", self._at, self._at + size)
        return self._take(self._at + size if found < 0 else found + 1)

    def flush(self) -> None:
        """Nothing is written."""

    def close(self) -> None:
        """Nothing is open."""

    def _take(self, end: int) -> bytes:
        taken = self._data[self._at : end]
        self._at += len(taken)
        return taken


@dataclass(frozen=True, slots=True)
class EtcdFiles:
    """Files for TLS; None: as the system has it.

    Attributes:
        ca: certificates of who may sign etcd's.
        certificate: this client's, with its private key, if etcd asks for one.
    """

    ca: Path | None = None
    certificate: Path | None = None


class Etcd:
    """Asks one of several members of an etcd cluster.

    The member that answered last is asked first. Nothing is kept between two requests.
    """

    def __init__(self, endpoints: Sequence[Endpoint], *, files: EtcdFiles, timeout_ms: int) -> None:
        """Make a client; nothing is connected yet.

        Args:
            endpoints: members of one cluster, at least one.
            files: for TLS, which the endpoints with `https` use.
            timeout_ms: for one request to one member, with its connection.

        Raises:
            ConfigError: one of the files cannot be used.
        """
        assert endpoints
        self._endpoints = list(endpoints)
        self._timeout_s = timeout_ms / MS_PER_SECOND
        has_tls = any(each.is_secure for each in endpoints)
        self._tls = _make_tls(files) if has_tls else None

    async def ask(self, call: Call) -> bytes:
        """Return the body of the answer to a request.

        A request whose member does not answer goes to the next one, so it may be done twice: each
        Put depends on a revision that the first one changes.

        Raises:
            CoordinatorError: no member answered it as asked. `is_refused` says whether one of them
                answered that it was not done; otherwise it may be done, or be done later.
        """
        problems = []
        for endpoint in tuple(self._endpoints):
            try:
                async with asyncio.timeout(self._timeout_s):
                    status, body = await self._exchange(endpoint, call)
            except TimeoutError:
                problems.append(f"{endpoint} took longer than {self._timeout_s:g} s")
            except (OSError, http.client.HTTPException, RemoteProtocolError) as error:
                problems.append(f"{endpoint}: {quoted(str(error) or type(error).__name__)}")
            else:
                self._prefer(endpoint)
                if status == _OK:
                    return body
                said = quoted(etcd_wire.decode_problem(body))
                problem = f"{endpoint} answers {call.path} with status {status}: {said}"
                if status in _CLIENT_ERRORS:
                    raise CoordinatorError(problem, is_refused=True)
                problems.append(problem)
        raise CoordinatorError(f"etcd does not answer: {'; '.join(problems)}", is_refused=False)

    def _prefer(self, endpoint: Endpoint) -> None:
        place = self._endpoints.index(endpoint)
        self._endpoints = self._endpoints[place:] + self._endpoints[:place]

    async def _exchange(self, endpoint: Endpoint, call: Call) -> tuple[int, bytes]:
        """Send a request and return status and body of its answer."""
        reader, writer = await asyncio.open_connection(
            endpoint.host,
            endpoint.port,
            ssl=self._tls if endpoint.is_secure else None,
            limit=ANSWER_SIZE_MAX_BYTES,
        )
        try:
            body = call.body
            head = (
                f"POST {call.path} HTTP/1.1\r\nHost: {endpoint.netloc}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
                "Connection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
            return parse_answer(await _read_all(reader))
        finally:
            transport = cast(asyncio.Transport, writer.transport)
            # The answer is complete, or of no use: there is nothing to wait for.
            transport.abort()


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    limit = HEAD_SIZE_MAX_BYTES + ANSWER_SIZE_MAX_BYTES
    data = bytearray()
    while piece := await reader.read(limit):
        data += piece
        if len(data) > limit:
            raise RemoteProtocolError(f"the answer is longer than {limit} bytes")
    return bytes(data)


def parse_answer(data: bytes) -> tuple[int, bytes]:
    """Return status and body of an answer in HTTP/1.1.

    Raises:
        HTTPException: it is none, or is cut off.
        RemoteProtocolError: its body is longer than ANSWER_SIZE_MAX_BYTES.
    """
    response = http.client.HTTPResponse(cast("ssl.SSLSocket", _Received(data)), method="POST")
    with contextlib.closing(response):
        try:
            response.begin()
            body = response.read(ANSWER_SIZE_MAX_BYTES + 1)
            rest = response.length
        except ValueError as error:
            raise http.client.HTTPException(str(error)) from error
    if len(body) > ANSWER_SIZE_MAX_BYTES:
        raise RemoteProtocolError(f"the answer is longer than {ANSWER_SIZE_MAX_BYTES} bytes")
    if rest:
        raise http.client.IncompleteRead(body, rest)
    return response.status, body


def _make_tls(files: EtcdFiles) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=None if files.ca is None else str(files.ca))
    except OSError as error:
        raise ConfigError(f"replication.etcd_ca_file = {files.ca}: {error}") from error
    if files.certificate is not None:
        try:
            context.load_cert_chain(files.certificate)
        except OSError as error:
            raise ConfigError(
                f"replication.etcd_certificate_file = {files.certificate}: {error}"
            ) from error
    return context
