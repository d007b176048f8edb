"""A client of the admin API; it uses the standard library only, which loads fast. Layer 6."""

import json
from collections.abc import Mapping
from typing import Any, Final

from appliance.commands.arguments import read_address
from appliance.errors import NotReadyError, RequestError, UnknownTopicError, UnreachableError

TIMEOUT_S: Final = 10.0
"""A cancel waits for one flush, which may take seconds on a failing disk."""

SNAPSHOT_TIMEOUT_S: Final = 120.0
"""A snapshot waits for a flush, for other snapshots and for some syncs of directories."""


def get(
    address: str,
    *segments: str | bytes,
    query: Mapping[str, str | bytes | int | None] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Any:
    """Get the resource at `/api/v1/` and these path segments; see `_ask`."""
    return _ask(address, "GET", segments, query=query or {}, timeout_s=timeout_s)


def delete(address: str, *segments: str | bytes, timeout_s: float = TIMEOUT_S) -> Any:
    """Delete the resource at `/api/v1/` and these path segments; see `_ask`."""
    return _ask(address, "DELETE", segments, timeout_s=timeout_s)


def post(address: str, *segments: str | bytes, body: object, timeout_s: float = TIMEOUT_S) -> Any:
    """Post a value to `/api/v1/` and these path segments; see `_ask`."""
    return _ask(address, "POST", segments, body=json.dumps(body).encode(), timeout_s=timeout_s)


def _ask(
    address: str,
    method: str,
    segments: tuple[str | bytes, ...],
    *,
    query: Mapping[str, str | bytes | int | None] | None = None,
    body: bytes | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Any:
    """Send a request to the admin API of a broker.

    Returns:
        The decoded answer, also the one for a timer that cannot be cancelled.

    Raises:
        ConfigError: the address is not HOST:PORT.
        UnreachableError: nothing answers at the address, or it is not latermq.
        NotReadyError: the broker is starting or stopping.
        RequestError: the broker refuses; UnknownTopicError if the resource does not exist.
    """
    # Imported here because other commands do not need it.
    import http.client
    from urllib.parse import quote, urlencode

    path = "/api/v1/" + "/".join(quote(segment, safe="") for segment in segments)
    given = {name: value for name, value in (query or {}).items() if value is not None}
    if given:
        path += "?" + urlencode(given, quote_via=quote)
    host, port = read_address("--admin", address)
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    headers = {} if body is None else {"Content-Type": "application/json"}
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        received = response.read()
    except (OSError, http.client.HTTPException) as error:
        reason = (getattr(error, "strerror", None) or str(error) or repr(error)).lower()
        if isinstance(error, http.client.HTTPException):
            reason += ", which is no HTTP: it may be the address for Kafka clients"
        raise UnreachableError(
            f"no broker answers at the admin address {address} ({reason}): start it with "
            "`latermq serve`, or give its address with --admin"
        ) from None
    finally:
        connection.close()
    try:
        answer = json.loads(received)
    except ValueError:
        raise UnreachableError(
            f"the server at {address} is not latermq: give the broker's admin address with --admin"
        ) from None
    return _checked(response.status, answer)


def _checked(status: int, answer: Any) -> Any:
    if status in (200, 201) or (isinstance(answer, dict) and "state" in answer):
        return answer
    if status == 503 and "phase" in answer:
        raise NotReadyError(
            f"the broker is not ready: {answer['phase']}, {answer['recovered_bytes']} of "
            f"{answer['total_bytes']} bytes; try again later"
        )
    message = str(answer.get("error", f"status {status}"))
    if status == 404:
        raise UnknownTopicError(message)
    raise RequestError(message)
