"""Passes bytes between a slave and its master until a message of one type comes, which is lost."""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

from appliance.replication.wire import MessageType

_HEAD: Final = struct.Struct(">IB")


class MessageGate:
    """A proxy that loses a message, and closes the connection after it.

    Attributes:
        address: HOST:PORT where the slave connects.
        is_reached: set once the message was lost.
    """

    def __init__(self, target: str, lost: MessageType, then: Callable[[], None]) -> None:
        """Begin to pass.

        Args:
            target: HOST:PORT of the master.
            lost: the first message of this type does not arrive.
            then: called before its connection is closed.
        """
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._lost, self._then = lost, then
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.is_reached = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                self._sockets.append(near)
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.close()
                    continue
                self._sockets.append(far)
                for one, other in ((near, far), (far, near)):
                    thread = threading.Thread(target=self._pass, args=(one, other))
                    self._threads.append(thread)
                    thread.start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        """Pass whole messages in one direction."""
        with suppress(OSError), one.makefile("rb") as reader:
            while len(head := reader.read(_HEAD.size)) == _HEAD.size:
                length, kind = _HEAD.unpack(head)
                body = reader.read(length - 1)
                if kind == self._lost and not self.is_reached.is_set():
                    self._then()
                    self.is_reached.set()
                    break
                other.sendall(head + body)
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
