"""One request to a real broker over its own socket, for what no client shows correctly."""

import socket
from typing import Any, Final

from tests.support.clients.wire_client import framed
from tests.support.oracles.kafka_oracle import decode_response

CORRELATION_ID: Final = 1


def ask_broker(
    address: str, request: Any, version: int, response_class: Any, *, limit_s: float
) -> Any:
    """Connect, ask, and return kafka-python's view of the answer.

    Args:
        address: HOST:PORT.
        request, version, response_class: as of kafka-python.
        limit_s: seconds, for each step.

    Raises:
        OSError: no connection; also ConnectionError: the broker closed it, TimeoutError: too slow.
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
