"""HTTP on the admin address: health, readiness, metrics, and the API of `api` below /api/v1.

Everything but /metrics is JSON, errors too: `{"error": "a sentence"}`.

A web page of another origin must not use the API through the user's browser. Against DNS rebinding,
the Host header must name this server: a loopback name, the address it listens on, or one of its
configured names. Against blind requests, only those that need a CORS preflight, by their method or
their content type, change anything, preflights are refused, and an Origin header must name this
server. Layer 5; runs on the event loop.
"""

import asyncio
import ipaddress
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from aiohttp import web

from appliance.admin.answers import error_answer, not_ready
from appliance.admin.api import SLICE_WORK, Api
from appliance.admin.connections import (
    HEADER_COUNT_MAX,
    IDLE_S,
    AdminConnection,
    AdminConnections,
    send_parts,
)
from appliance.admin.status import StatusSource
from appliance.client_log import ClientLog
from appliance.config.config import Address, is_loopback, is_wildcard
from appliance.errors import NotReadyError
from appliance.log_text import quoted
from appliance.loop_turns import LoopTurns
from appliance.metrics import CONTENT_TYPE as METRICS_CONTENT_TYPE
from appliance.metrics import Metrics
from appliance.system import listening
from appliance.system.clock import SystemClock

# The longest valid request has a topic of 249 and an id of 255 bytes, all of them percent-encoded:
# 1.5 KB.
_LINE_SIZE_MAX_BYTES: Final = 4096
_FIELD_SIZE_MAX_BYTES: Final = 8190
# The only bodies are those of a snapshot, a name, and of a cleanup, mostly a topic.
_BODY_SIZE_MAX_BYTES: Final = 4096
_BACKLOG: Final = 128
_SWEEP_S: Final = 1.0
_SHUTDOWN_S: Final = 1.0  # a handler waits for one flush at most, so requests end soon

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_COMMON_HEADERS: Final = {
    "Server": "latermq",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_log = logging.getLogger(__name__)

# Replaces aiohttp's logger, which logs a traceback for each malformed request: anyone who can
# connect could fill the disk. _answer_errors_as_json logs the failures of handlers.
_silent_log = logging.Logger("aiohttp", logging.CRITICAL)


class AdminServer:
    """Serves the admin address from `start` until `stop`; start it once.

    Attributes:
        app: the application with its routes.
        connections: those that are open, with their limits.
        metrics: as passed.

    Args:
        status: where the answers come from.
        address: host and port to listen on; port 0 lets the kernel choose.
        host_names: further names and addresses that a Host header may have, without port.
        lines: writes the lines of the log that clients cause.
        metrics: counts refused and closed connections.
    """

    def __init__(
        self,
        status: StatusSource,
        address: Address,
        host_names: Iterable[str] = (),
        *,
        lines: ClientLog | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._lines = lines or ClientLog(SystemClock())
        self.metrics = metrics or Metrics()
        self.connections = AdminConnections(self._lines, self.metrics)
        self._servers: list[asyncio.Server] = []
        self._sweeping: asyncio.TimerHandle | None = None
        self._status = status
        self._address = address
        self._host_names = {_plain_host(name) for name in (address[0], *host_names)}
        app = web.Application(
            middlewares=[
                self._observe,
                self._answer_errors_as_json,
                self._check_host,
                self._check_origin,
            ],
            client_max_size=_BODY_SIZE_MAX_BYTES,
        )
        app.on_response_prepare.append(_add_common_headers)
        app.router.add_get("/healthz", self._get_health)
        app.router.add_get("/readyz", self._get_readiness)
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_routes(Api(status, self.connections.of).routes())
        self.app = app
        self._runner = web.AppRunner(
            app,
            handle_signals=False,
            access_log=None,
            logger=_silent_log,
            keepalive_timeout=IDLE_S,
            shutdown_timeout=_SHUTDOWN_S,
            lingering_time=0,  # do not wait for the rest of a body that nobody reads
            max_line_size=_LINE_SIZE_MAX_BYTES,
            max_field_size=_FIELD_SIZE_MAX_BYTES,
            max_headers=HEADER_COUNT_MAX,
        )

    async def start(self) -> Address:
        """Listen, and return the bound address.

        Raises:
            AddressError, ConfigError: the address cannot be used.
        """
        what = "the admin address"
        sockets = await listening.bind(self._address, "--admin", what=what)
        await self._runner.setup()
        bound = Address(*sockets[0].getsockname()[:2])
        loop = asyncio.get_running_loop()
        self.connections.turns = LoopTurns(loop)
        handlers = self._runner.server
        assert handlers is not None
        try:
            for each in sockets:
                server = await loop.create_server(
                    lambda: AdminConnection(self.connections, handlers()),
                    sock=each,
                    backlog=_BACKLOG,
                )
                self._servers.append(server)
        except OSError as error:
            listening.close_all(sockets)
            await self.stop()
            raise listening.explain(self._address, "--admin", what=what)(error) from error
        self._sweep()
        return bound

    def share(self, turns: LoopTurns) -> None:
        """Take turns of the loop with others from now on."""
        self.connections.turns = turns

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self.connections.sweep(loop.time())
        self._sweeping = loop.call_later(_SWEEP_S, self._sweep)

    async def stop(self) -> None:
        """Stop listening and close all connections; may be called twice, or without a start."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for server in self._servers:
            server.close()
        await self._runner.cleanup()

    async def _get_health(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _get_readiness(self, _request: web.Request) -> web.Response:
        if not self._status.ready:
            return not_ready(self._status)
        refusal = self._status.refusal
        if refusal is not None:
            return web.json_response({"ready": False, "error": refusal}, status=503)
        return web.json_response({"ready": True})

    async def _get_metrics(self, request: web.Request) -> web.StreamResponse:
        parts = self._status.metrics(
            admin_connections=len(self.connections),
            admin_held_bytes=self.connections.held_bytes,
        )
        return await send_parts(
            self.connections.of(request),
            request,
            parts,
            slice_work=SLICE_WORK,
            content_type=METRICS_CONTENT_TYPE,
        )

    @web.middleware
    async def _observe(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        connection = self.connections.of(request)
        connection.begin(request)
        answer = None
        try:
            # However many requests are there at once, a turn of the loop has one.
            await connection.take_turn()
            answer = await handler(request)
        finally:
            answer = connection.end(answer)
        assert answer is not None
        return answer

    @web.middleware
    async def _answer_errors_as_json(
        self, request: web.Request, handler: _Handler
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            response = error_answer(405, f"{request.method} is not allowed here: use {allowed}")
            response.headers["Allow"] = allowed
            return response
        except web.HTTPException as error:
            if error.status == 404:
                return error_answer(404, f"there is nothing at {request.path}")
            return error_answer(error.status, error.reason)
        except NotReadyError:
            _check_unanswered(request)
            return not_ready(self._status)
        except ConnectionError:
            raise  # the client is gone, or was too slow
        except Exception as error:  # noqa: BLE001 (the root of a request: the broker keeps serving)
            self._lines.write(
                _log,
                logging.ERROR,
                ("internal error", str(request.remote)),
                "%s %s failed",
                request.method,
                quoted(request.rel_url.raw_path),
                error=error,
            )
            _check_unanswered(request)
            return error_answer(500, "internal error: see the broker's log")

    @web.middleware
    async def _check_host(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if not self._is_own_name(request.headers.get("Host", "")):
            return error_answer(
                421,
                "the Host header names another server: use a name of this one, or add yours to "
                "network.admin_names",
            )
        return await handler(request)

    @web.middleware
    async def _check_origin(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        # A browser sends the origin of a page that wants to change something; other HTTP clients
        # send none. _check_host has already checked that the Host header names this server.
        origin = request.headers.get("Origin")
        is_foreign = origin is not None and origin.lower() != f"http://{request.host}".lower()
        if is_foreign and request.method not in _SAFE_METHODS:
            return error_answer(403, "web pages of another origin cannot change anything here")
        return await handler(request)

    def _is_own_name(self, host_header: str) -> bool:
        host = _plain_host(re.sub(r":[0-9]*$", "", host_header))
        if host in self._host_names or is_loopback(host):
            return True
        # DNS rebinding needs a host name that the attacker controls. If the server listens on every
        # address of the machine, any numeric address is therefore safe.
        return is_wildcard(self._address.host) and _is_in_figures(host)


def _check_unanswered(request: web.Request) -> None:
    """Raise ConnectionError if a part of the answer is sent: its rest can only be missing."""
    if request.writer.output_size:
        raise ConnectionAbortedError


def _is_in_figures(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _plain_host(name: str) -> str:
    """Return a host name normalised: lower case, IPv6 without brackets, no final dot."""
    return name.lower().removesuffix(".").removeprefix("[").removesuffix("]")


async def _add_common_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_COMMON_HEADERS)
