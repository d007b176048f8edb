"""One request to a real broker over a socket of its own: what no client shows, or shows wrongly."""

import socket
from typing import Any, Final

from tests.support.kafka_oracle import decode_response
from tests.support.wire_client import framed

CORRELATION_ID: Final = 1


def ask_broker(
    address: str, request: Any, version: int, response_class: Any, *, limit_s: float
) -> Any:
    """Connect, ask, and return kafka-python's view of the answer.

    Args:
        address: HOST:PORT.
        request, version, response_class: as of kafka-python.
        limit_s: for each step.

    Raises:
        OSError: the broker is away, or went away (ConnectionError), or is too slow (TimeoutError).
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), limit_s) as connection:
        connection.sendall(framed(request, version, CORRELATION_ID))
        size = int.from_bytes(_receive(connection, 4), "big")
        return decode_response(response_class, version, _receive(connection, size))


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the broker closed the connection")
        data += piece
    return data
