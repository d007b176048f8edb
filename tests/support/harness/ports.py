"""Ports for brokers that start again at the same address.

For port 0 the kernel chooses one of the range that it also takes for outgoing connections. While a
broker is down, a client of another test may get its port. So these are chosen from below it.
"""

import random
import socket
from typing import Final

PORTS: Final = range(10_240, 32_768)
"""Linux takes 32,768 and above for outgoing connections."""

_choice = random.SystemRandom()


def free_port() -> int:
    """Return a port of this machine that nobody uses now, and probably nobody will."""
    while True:
        port = _choice.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def free_address() -> str:
    """Return a free port on loopback as HOST:PORT."""
    return f"127.0.0.1:{free_port()}"
