"""What handlers of the admin API share: bodies of requests, parts of paths, answers. Layer 5."""

import json
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

from aiohttp import web

from appliance.admin.status import StatusSource

FIND_STATUS: Final = {"request": 400, "position": 400, "unknown": 404, "gone": 404}
"""HTTP status by the reason of a FindError."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")

_Body = TypeVar("_Body")


def with_body(
    parse: Callable[[bytes], _Body], handler: Callable[[_Body], Awaitable[web.Response]]
) -> Handler:
    """Return a handler of requests with a JSON body; `parse` raises ValueError for a wrong one."""

    async def answer(request: web.Request) -> web.StreamResponse:
        # A web page of another origin cannot send this type without a preflight.
        if request.content_type != "application/json":
            return error_answer(415, "send JSON, with Content-Type: application/json")
        try:
            body = parse(await request.read())
        except ValueError as error:
            return error_answer(400, str(error))
        return await handler(body)

    return answer


def json_fields(body: bytes, known: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a JSON object; raise ValueError for anything else."""
    try:
        fields = json.loads(body or b"{}")
    except (ValueError, RecursionError):  # the latter for thousands of brackets
        fields = None
    if not isinstance(fields, dict) or not fields.keys() <= set(known):
        raise ValueError(f"the body is not a JSON object with some of: {', '.join(known)}")
    return fields


def not_ready(status: StatusSource) -> web.Response:
    """Answer that the broker is starting, with its progress, or stopping."""
    return web.json_response({"ready": False, **fields_of(status.progress())}, status=503)


def error_answer(status: int, sentence: str) -> web.Response:
    """Return an error response.

    Args:
        status: the HTTP status, 400 or above.
        sentence: the error message.
    """
    return web.json_response({"error": sentence}, status=status)


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass with slots; `asdict` would copy nested values first."""
    return {name: getattr(value, name) for name in value.__slots__}


def encode(value: object) -> str:
    """Return a value as JSON; dataclasses with slots are objects."""
    return json.dumps(value, default=fields_of)


def answer_with(value: object, *, status: int = 200) -> web.Response:
    """Return an answer in JSON."""
    return web.json_response(value, dumps=encode, status=status)


def raw_parts(request: web.Request) -> list[str]:
    """Return the parts of the path, percent-encoded."""
    # The router decodes its own values as UTF-8, which timer ids need not be.
    return request.rel_url.raw_path.split("/")


def text_of(escaped: str) -> str:
    """Decode a name; one that is not UTF-8 becomes a name that nothing has."""
    return (unquote(escaped) or b"").decode(errors="replace")


def unquote(text: str) -> bytes | None:
    """Decode percent-escapes to bytes; None if one is broken."""
    return None if _BAD_ESCAPE.search(text) else unquote_to_bytes(text)
