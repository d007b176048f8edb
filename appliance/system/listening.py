"""Binds the addresses on which the broker listens, before it does anything else.

What is bound refuses connections until somebody listens on it. So a start that cannot have its
addresses ends before it has touched a file. Layer 5; on the event loop.
"""

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from typing import Final

from appliance.config.setting import Address
from appliance.errors import AddressError, ConfigError

_NEVER: Final = (errno.EACCES, errno.EPERM)
"""Errors that a later start has as well."""

_ABSENT: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors of one of the addresses of a name, without which the others do."""


async def bind(address: Address, flag: str, *, what: str = "") -> list[socket.socket]:
    """Bind an address, or all those that a host name stands for.

    Args:
        address: host and port; port 0 lets the kernel choose.
        flag: the command line flag that sets it, for the message.
        what: what the address is, if it is not the one for Kafka clients.

    Raises:
        AddressError: it cannot be used now.
        ConfigError: it cannot be used.
    """
    refused = explain(address, flag, what=what)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise refused(error) from error
    except UnicodeError as error:
        raise ConfigError(f"{flag} {address}: this is not the name of a host") from error
    bound: list[socket.socket] = []
    absent: OSError | None = None
    for family, kind, protocol, _, place in dict.fromkeys(found):
        try:
            bound.append(_bind_one(family, kind, protocol, place))
        except OSError as error:
            if error.errno not in _ABSENT:
                close_all(bound)
                raise refused(error) from error
            absent = error
    if not bound:
        raise refused(absent or OSError(errno.EADDRNOTAVAIL, "it stands for no address"))
    return bound


def explain(
    address: Address, flag: str, *, what: str = ""
) -> Callable[[OSError], AddressError | ConfigError]:
    """Return what makes the error that says that an address cannot be used; see `bind`."""

    def make(error: OSError) -> AddressError | ConfigError:
        reason = error.strerror or str(error)
        sentence = f"cannot listen on {what}{' ' if what else ''}{address}: {reason}"
        if error.errno in _NEVER:
            return ConfigError(f"{sentence}; change {flag}")
        advice = f"stop what uses it, or change {flag}"
        if error.errno != errno.EADDRINUSE:
            advice = f"wait until this machine has it, or change {flag}"
        return AddressError(f"{sentence}; {advice}")

    return make


def close_all(sockets: Sequence[socket.socket]) -> None:
    """Close what `bind` returned; those on which a server listens may be among them."""
    for each in sockets:
        each.close()


def _bind_one(family: int, kind: int, protocol: int, place: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        # Connections of a broker that ended may linger; one that listens keeps the address.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Its IPv4 addresses are bound on their own.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setblocking(False)
        listener.bind(place)
    except OSError:
        listener.close()
        raise
    return listener
