"""Ports for brokers that start again at the same address.

For port 0 the kernel chooses one of the range that it also takes for outgoing connections. While a
broker is down, a client of another test may get its port. So these are chosen from below it. No
port is given twice: one that a broker is to listen on later looks free until then.
"""

import os
import random
import socket
from typing import Final

PORTS: Final = range(10_240, 32_768)
"""Linux takes 32,768 and above for outgoing connections."""

_choice = random.SystemRandom()
_given: set[int] = set()


def free_port() -> int:
    """Return a port of this machine that nobody uses now, and probably nobody will.

    The processes of one test run share the ports: each takes every n-th.
    """
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = PORTS[number % count :: count]
    if len(_given) >= len(own) // 2:
        _given.clear()
    while True:
        port = _choice.choice(own)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given.add(port)
            return port


def free_address() -> str:
    """Return a free port on loopback as HOST:PORT."""
    return f"127.0.0.1:{free_port()}"
