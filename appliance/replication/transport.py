"""Connections between master and slave: plain TCP.

Whatever encrypts them later is put in here, and nowhere else. Layer 5; on the event loop.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from appliance.config.setting import Address

BACKLOG: Final = 16

Factory: TypeAlias = Callable[[], asyncio.Protocol]


async def listen(sockets: Sequence[socket.socket], factory: Factory) -> list[asyncio.Server]:
    """Accept connections on what `listening.bind` returned.

    Raises:
        OSError: another process listens there.
    """
    loop = asyncio.get_running_loop()
    return [await loop.create_server(factory, sock=each, backlog=BACKLOG) for each in sockets]


async def connect(address: Address, factory: Factory) -> None:
    """Connect to a master; the protocol of `factory` has the connection then.

    Raises:
        OSError: nobody listens there.
        UnicodeError: the name cannot be a host's.
    """
    loop = asyncio.get_running_loop()
    await loop.create_connection(factory, address.host, address.port)


def prepare(transport: asyncio.Transport, *, buffer_max_bytes: int) -> str:
    """Set the options of a new connection, and return the address of its peer.

    Args:
        buffer_max_bytes: above that, `pause_writing` is called.
    """
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    transport.set_write_buffer_limits(high=buffer_max_bytes)
    peer = transport.get_extra_info("peername")
    return str(Address(*peer[:2])) if peer else "unknown"
