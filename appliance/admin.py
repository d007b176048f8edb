"""The admin address: health, readiness, metrics and the state of a timer, over HTTP.

    GET /healthz                          200 while the event loop turns
    GET /readyz                           200 when clients are served, 503 with progress before
    GET /metrics                          Prometheus text
    GET /api/v1/topics/TOPIC/timers/ID    what became of the timer with that user id

Everything but /metrics is JSON, errors too: `{"error": "a sentence"}`. ID is percent-encoded bytes
of any kind, TOPIC percent-encoded UTF-8. Nothing here changes the broker.

A web page of another origin must not reach it through the user's browser (DNS rebinding), so a
request has to name this server in its Host header: as loopback, as the address it listens on, or as
one of the names it was given. Layer 5; runs on the event loop.
"""

import ipaddress
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol
from urllib.parse import unquote_to_bytes

from aiohttp import web

from appliance.config import Address, is_loopback, is_wildcard
from appliance.errors import ConfigError, NotReadyError
from appliance.metrics import CONTENT_TYPE as METRICS_CONTENT_TYPE
from appliance.model import TimerState
from appliance.store.recovery import Progress

USER_ID_SIZE_MAX_BYTES: Final = 255
"""As in the delay headers."""

# The longest request that means something: a topic of 249 and an id of 255 bytes, all of them
# percent-encoded, are 1.5 KB.
_LINE_SIZE_MAX_BYTES: Final = 4096
_HEADERS_SIZE_MAX_BYTES: Final = 8192
_KEEPALIVE_S: Final = 30.0
_SHUTDOWN_S: Final = 1.0  # no handler waits for anything, so what is in flight ends at once

_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")

_COMMON_HEADERS: Final = {
    "Server": "latermq",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}

_log = logging.getLogger(__name__)

# aiohttp's own, which reports each malformed request with a traceback. Whoever can reach the port
# could fill the disk with those; failures of handlers are logged by _answer_errors_as_json.
_silent_log = logging.Logger("aiohttp", logging.CRITICAL)


class StatusSource(Protocol):
    """What the admin server shows. Each call is quick: it runs between two turns of the loop."""

    @property
    def ready(self) -> bool:
        """Clients are served."""

    def progress(self) -> Progress:
        """Return how far the start is."""

    def timer_state(self, topic: str, user_id: bytes) -> TimerState | None:
        """Return what is known of a timer, None if there is no such topic; only called when ready.

        Args:
            topic: any text.
            user_id: 1 to 255 bytes of any kind.
        """

    def metrics_text(self) -> bytes:
        """Return all metrics in Prometheus' text format 0.0.4."""


class AdminServer:
    """Serves the admin address from `start` until `stop`; start it once.

    Args:
        status: where the answers come from.
        address: host and port to listen on; port 0 lets the kernel choose.
        host_names: further names and addresses that a Host header may give, without port.
    """

    def __init__(
        self, status: StatusSource, address: Address, host_names: Iterable[str] = ()
    ) -> None:
        self._status = status
        self._address = address
        self._host_names = {_plain_host(name) for name in (address[0], *host_names)}
        app = web.Application(middlewares=[self._answer_errors_as_json, self._check_host])
        app.on_response_prepare.append(_add_common_headers)
        app.router.add_get("/healthz", self._get_health)
        app.router.add_get("/readyz", self._get_readiness)
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get("/api/v1/topics/{topic:[^/]*}/timers/{id:[^/]*}", self._get_timer)
        self._runner = web.AppRunner(
            app,
            handle_signals=False,
            access_log=None,
            logger=_silent_log,
            keepalive_timeout=_KEEPALIVE_S,
            shutdown_timeout=_SHUTDOWN_S,
            lingering_time=0,  # no request here has a body: do not wait for the rest of one
            max_line_size=_LINE_SIZE_MAX_BYTES,
            max_field_size=_LINE_SIZE_MAX_BYTES,
            max_headers=_HEADERS_SIZE_MAX_BYTES,
        )

    async def start(self) -> Address:
        """Listen, and return the bound address.

        Raises:
            ConfigError: the address cannot be listened on.
        """
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, *self._address).start()
        except OSError as error:
            await self._runner.cleanup()
            reason = error.strerror or str(error)
            raise ConfigError(
                f"cannot listen on the admin address {self._address}: {reason}; use another --admin"
            ) from error
        return Address(*self._runner.addresses[0][:2])

    async def stop(self) -> None:
        """Stop listening and close all connections; may be called twice, or without a start."""
        await self._runner.cleanup()

    async def _get_health(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _get_readiness(self, _request: web.Request) -> web.Response:
        return web.json_response({"ready": True}) if self._status.ready else self._not_ready()

    async def _get_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(
            body=self._status.metrics_text(), headers={"Content-Type": METRICS_CONTENT_TYPE}
        )

    async def _get_timer(self, request: web.Request) -> web.Response:
        # The router's own values went through a decoder that knows nothing but UTF-8.
        _, _, _, _, raw_topic, _, raw_id = request.rel_url.raw_path.split("/")
        user_id = _unquote(raw_id)
        if user_id is None or not 1 <= len(user_id) <= USER_ID_SIZE_MAX_BYTES:
            size = "a broken percent-escape" if user_id is None else f"{len(user_id)} bytes"
            return _error(
                400,
                f"the id has {size}; percent-encode 1 to {USER_ID_SIZE_MAX_BYTES} bytes",
            )
        if not self._status.ready:
            return self._not_ready()
        topic = (_unquote(raw_topic) or b"").decode(errors="replace")
        timer = self._status.timer_state(topic, user_id)
        if timer is None:
            return _error(404, f"there is no topic {topic!r}")
        return web.json_response(
            {"state": timer.state, "due_at": timer.due_at, "partition": timer.partition}
        )

    def _not_ready(self) -> web.Response:
        progress = self._status.progress()
        body = {
            "ready": False,
            "phase": progress.phase,
            "recovered_bytes": progress.recovered_bytes,
            "total_bytes": progress.total_bytes,
        }
        return web.json_response(body, status=503)

    @web.middleware
    async def _answer_errors_as_json(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            response = _error(405, f"{request.method} is not possible here, only {allowed}")
            response.headers["Allow"] = allowed
            return response
        except web.HTTPException as error:
            if error.status == 404:
                return _error(404, f"there is nothing at {request.path}")
            return _error(error.status, error.reason)
        except NotReadyError:
            return self._not_ready()
        except Exception:  # noqa: BLE001 (the root of a request: the broker serves on)
            _log.exception("%s %s failed", request.method, request.rel_url.raw_path)
            return _error(500, "an internal error; the broker's log has more")

    @web.middleware
    async def _check_host(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if not self._is_own_name(request.headers.get("Host", "")):
            return _error(421, "the Host header names another server")
        return await handler(request)

    def _is_own_name(self, host_header: str) -> bool:
        host = _plain_host(re.sub(r":[0-9]*$", "", host_header))
        if host in self._host_names or is_loopback(host):
            return True
        # Rebinding needs a name of the attacker's, so where every address of the machine is
        # listened on, any address in figures will do.
        return is_wildcard(self._address.host) and _is_in_figures(host)


def _is_in_figures(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _plain_host(name: str) -> str:
    """Return a host as compared: lower case, IPv6 without brackets, no dot at the end."""
    return name.lower().removesuffix(".").removeprefix("[").removesuffix("]")


def _unquote(text: str) -> bytes | None:
    """Decode percent-escapes to bytes; None if one is broken."""
    return None if _BAD_ESCAPE.search(text) else unquote_to_bytes(text)


def _error(status: int, sentence: str) -> web.Response:
    return web.json_response({"error": sentence}, status=status)


async def _add_common_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_COMMON_HEADERS)
