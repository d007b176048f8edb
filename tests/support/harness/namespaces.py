"""Network namespaces on one bridge, as machines on one switch; nothing leaves them.

    hub: 10.77.0.254 for clients and 10.77.0.253 for a coordinator
    one: 10.77.0.1     two: 10.77.0.2

A thread that enters one has its sockets there, and so have its threads and processes.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

CLIENTS: Final = "10.77.0.254"
COORDINATOR: Final = "10.77.0.253"
HOSTS: Final = {"one": "10.77.0.1", "two": "10.77.0.2"}

_CLONE_NEWNET: Final = 0x40000000
_DIRECTORY: Final = Path("/run/netns")


class NamespacesRefusedError(Exception):
    """They cannot be made here."""


class Namespaces:
    """The hub and both hosts."""

    def __init__(self) -> None:
        """Make them.

        Raises:
            NamespacesRefusedError: that is not permitted, or `ip` is missing.
        """
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._names = {each: f"latermq-{os.getpid()}-{each}" for each in ("hub", *HOSTS)}
        try:
            for name in self._names.values():
                _ip("netns", "add", name)
            self._connect()
        except NamespacesRefusedError:
            self.close()
            raise

    def _connect(self) -> None:
        self._do("hub", "link", "add", "bridge", "type", "bridge")
        for address in (CLIENTS, COORDINATOR):
            self._do("hub", "address", "add", f"{address}/24", "dev", "bridge")
        for host, address in HOSTS.items():
            self._do("hub", "link", "add", host, "type", "veth", "peer", "name", "net")
            self._do("hub", "link", "set", "net", "netns", self._names[host])
            self._do("hub", "link", "set", host, "master", "bridge", "up")
            self._do(host, "address", "add", f"{address}/24", "dev", "net")
            self._do(host, "link", "set", "net", "up")
            self._do(host, "link", "set", "lo", "up")
        self._do("hub", "link", "set", "bridge", "up")
        self._do("hub", "link", "set", "lo", "up")

    def _do(self, name: str, *arguments: str) -> None:
        _ip("-netns", self._names[name], *arguments)

    def block(self, host: str, *addresses: str) -> None:
        """Let nothing leave a host for these addresses."""
        for address in addresses:
            self._do(host, "route", "add", "blackhole", f"{address}/32")

    def heal(self) -> None:
        """Let everything pass."""
        for host in HOSTS:
            self._do(host, "route", "flush", "type", "blackhole")

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Put this thread into one of them for a while."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        after = os.open(_DIRECTORY / self._names[name], os.O_RDONLY)
        try:
            self._enter(after)
            yield
        finally:
            self._enter(before)
            os.close(before)
            os.close(after)

    def _enter(self, fd: int) -> None:
        if self._libc.setns(fd, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    def close(self) -> None:
        """Remove them."""
        for name in self._names.values():
            with suppress(NamespacesRefusedError):
                _ip("netns", "del", name)


def _ip(*arguments: str) -> None:
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise NamespacesRefusedError(str(error)) from None
    if done.returncode != 0:
        raise NamespacesRefusedError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
