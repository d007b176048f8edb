"""What is answered below /api/v1; `openapi` describes it for clients.

In paths, topics and groups are percent-encoded UTF-8, ids of timers percent-encoded bytes of any
kind. Lists are gathered in slices, so that a hundred thousand partitions hold up no delivery.
Layer 5.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from aiohttp import web

from appliance.admin.openapi import DESCRIPTION
from appliance.admin.status import StatusSource
from appliance.errors import RequestError
from appliance.model import GroupSummary, TimerState, TopicSummary

USER_ID_SIZE_MAX_BYTES: Final = 255
"""As in the delay headers."""

SLICE_WORK: Final = 256
"""Items of a list, and partitions summed up for them, in one turn of the loop: a millisecond."""

_Handler = Callable[[web.Request], Awaitable[web.Response]]

_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


class Api:
    """The handlers; each is quick, or gives way to others."""

    def __init__(self, status: StatusSource) -> None:
        """Answer with what `status` says."""
        self._status = status

    def routes(self) -> list[web.RouteDef]:
        """Return every path below /api/v1 with its handler."""
        timer = "/api/v1/topics/{topic:[^/]*}/timers/{id:[^/]*}"
        return [
            web.get("/api/v1/openapi.json", self._get_description),
            web.get("/api/v1/status", self._when_ready(self._get_status)),
            web.get("/api/v1/topics", self._when_ready(self._get_topics)),
            web.get("/api/v1/topics/{topic:[^/]*}", self._when_ready(self._get_topic)),
            web.get("/api/v1/groups", self._when_ready(self._get_groups)),
            web.get("/api/v1/groups/{group:[^/]*}", self._when_ready(self._get_group)),
            web.get(timer, self._when_ready(self._get_timer)),
            web.delete(timer, self._when_ready(self._cancel_timer)),
        ]

    def _when_ready(self, handler: _Handler) -> _Handler:
        async def answer(request: web.Request) -> web.Response:
            return await handler(request) if self._status.ready else not_ready(self._status)

        return answer

    async def _get_description(self, _request: web.Request) -> web.Response:
        return web.json_response(DESCRIPTION)

    async def _get_status(self, _request: web.Request) -> web.Response:
        return _answer(self._status.status())

    async def _get_topics(self, _request: web.Request) -> web.Response:
        return await _list("topics", self._status.topics())

    async def _get_topic(self, request: web.Request) -> web.Response:
        name = _text(_raw_parts(request)[4])
        topic = self._status.topic(name)
        if topic is None:
            return error_answer(404, f"there is no topic {name!r}")
        return _answer(topic)

    async def _get_groups(self, _request: web.Request) -> web.Response:
        return await _list("groups", self._status.groups())

    async def _get_group(self, request: web.Request) -> web.Response:
        name = _text(_raw_parts(request)[4])
        group = self._status.group(name)
        if group is None:
            return error_answer(404, f"there is no group {name!r}")
        return _answer(group)

    # Timers

    async def _get_timer(self, request: web.Request) -> web.Response:
        topic, user_id = _timer_of(request)
        if user_id is None:
            return _bad_id(request)
        timer = await self._status.timer_state(topic, user_id)
        if timer is None:
            return error_answer(404, f"there is no topic {topic!r}")
        return _answer(timer)

    async def _cancel_timer(self, request: web.Request) -> web.Response:
        topic, user_id = _timer_of(request)
        if user_id is None:
            return _bad_id(request)
        try:
            timer = await self._status.cancel_timer(topic, user_id)
        except RequestError as error:
            return error_answer(507, error.message)
        if timer is None:
            return error_answer(404, f"there is no topic {topic!r}")
        return _cancelled(timer)


def _cancelled(timer: TimerState) -> web.Response:
    match timer.state:
        case "cancelled":
            return _answer(timer)
        case "delivered":
            sentence, status = "it is too late: the timer was delivered", 409
        case _:
            sentence, status = "no timer of that id is known in this topic", 404
    return web.json_response({"error": sentence, **_fields(timer)}, status=status)


def not_ready(status: StatusSource) -> web.Response:
    """Answer that the broker is starting, and how far it is; or that it is stopping."""
    progress = status.progress()
    body = {
        "ready": False,
        "phase": progress.phase,
        "recovered_bytes": progress.recovered_bytes,
        "total_bytes": progress.total_bytes,
    }
    return web.json_response(body, status=503)


def error_answer(status: int, sentence: str) -> web.Response:
    """Answer that something is wrong.

    Args:
        status: of HTTP, 400 or above.
        sentence: what, for people.
    """
    return web.json_response({"error": sentence}, status=status)


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass with slots; `asdict` would copy all that is below them first."""
    return {name: getattr(value, name) for name in value.__slots__}


def _encode(value: object) -> str:
    return json.dumps(value, default=_fields)


def _answer(value: object) -> web.Response:
    return web.json_response(value, dumps=_encode)


async def _list(name: str, items: Iterator[TopicSummary | GroupSummary]) -> web.Response:
    encoded = []
    work = 0
    for item in items:
        encoded.append(_encode(item))
        work += 1 + (item.partition_count if isinstance(item, TopicSummary) else 0)
        if work >= SLICE_WORK:
            work = 0
            await asyncio.sleep(0)
    text = f'{{"{name}": [{", ".join(encoded)}]}}'
    return web.json_response(text=text)


def _raw_parts(request: web.Request) -> list[str]:
    # The router's own values went through a decoder that knows nothing but UTF-8.
    return request.rel_url.raw_path.split("/")


def _timer_of(request: web.Request) -> tuple[str, bytes | None]:
    """The topic and the id that a path names; None for an id that cannot be one."""
    parts = _raw_parts(request)
    user_id = _unquote(parts[6])
    if user_id is not None and not 1 <= len(user_id) <= USER_ID_SIZE_MAX_BYTES:
        user_id = None
    return _text(parts[4]), user_id


def _bad_id(request: web.Request) -> web.Response:
    user_id = _unquote(_raw_parts(request)[6])
    size = "a broken percent-escape" if user_id is None else f"{len(user_id)} bytes"
    return error_answer(
        400, f"the id has {size}; percent-encode 1 to {USER_ID_SIZE_MAX_BYTES} bytes"
    )


def _text(escaped: str) -> str:
    """A name as it is known; one that cannot be known, for one that is no UTF-8."""
    return (_unquote(escaped) or b"").decode(errors="replace")


def _unquote(text: str) -> bytes | None:
    """Decode percent-escapes to bytes; None if one is broken."""
    return None if _BAD_ESCAPE.search(text) else unquote_to_bytes(text)
