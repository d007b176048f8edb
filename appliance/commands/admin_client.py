"""The admin API from outside, with the standard library alone, which loads fast. Layer 6."""

import json
from typing import Any, Final

from appliance.commands.arguments import read_address
from appliance.errors import NotReadyError, RequestError, UnknownTopicError, UnreachableError

TIMEOUT_S: Final = 10.0
"""A cancel waits for one flush, which on a disk that is in trouble may take seconds."""

_KAFKA_STORAGE_ERROR: Final = 56


def get(address: str, *segments: str | bytes) -> Any:
    """Ask for what is at `/api/v1/` and those segments; see `_ask`."""
    return _ask(address, "GET", segments)


def delete(address: str, *segments: str | bytes) -> Any:
    """Delete what is at `/api/v1/` and those segments; see `_ask`."""
    return _ask(address, "DELETE", segments)


def _ask(address: str, method: str, segments: tuple[str | bytes, ...]) -> Any:
    """Ask the admin API of a broker.

    Returns:
        What it answered; also what it says of a timer that cannot be cancelled.

    Raises:
        ConfigError: the address has the wrong form.
        UnreachableError: nobody answers there, or somebody else.
        NotReadyError: the broker is starting or stopping.
        RequestError: it refuses; UnknownTopicError if what is asked for is not there.
    """
    # Here and not above: other commands do without.
    import http.client
    from urllib.parse import quote

    path = "/api/v1/" + "/".join(quote(segment, safe="") for segment in segments)
    host, port = read_address("--admin", address)
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        reason = (getattr(error, "strerror", None) or str(error) or repr(error)).lower()
        raise UnreachableError(
            f"no broker answers at the admin address {address} ({reason}): start it with "
            "`latermq serve`, or say where it is with --admin"
        ) from None
    finally:
        connection.close()
    try:
        answer = json.loads(body)
    except ValueError:
        raise UnreachableError(
            f"what answers at {address} is no latermq: say where its admin address is with --admin"
        ) from None
    return _checked(response.status, answer)


def _checked(status: int, answer: Any) -> Any:
    if status == 200 or (isinstance(answer, dict) and "state" in answer):
        return answer
    if status == 503:
        raise NotReadyError(
            f"the broker is not ready: {answer['phase']}, {answer['recovered_bytes']} of "
            f"{answer['total_bytes']} bytes; try again"
        )
    message = str(answer.get("error", f"status {status}"))
    if status == 404:
        raise UnknownTopicError(message)
    raise RequestError(message, code=_KAFKA_STORAGE_ERROR)
