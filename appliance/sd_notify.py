"""Tells systemd what the service is doing; does nothing when systemd did not start it.

The protocol (sd_notify(3)) is one datagram of `NAME=value` lines to the socket that `NOTIFY_SOCKET`
names. Layer 5: a socket, and the environment that systemd hands over; both are read nowhere else.
"""

import logging
import os
import socket
from collections.abc import Mapping

_log = logging.getLogger(__name__)


class Notifier:
    """Sends states to the service manager. Belongs to the event loop; no call blocks.

    Args:
        environment: where `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` are looked up; the
            process's own by default.
        pid: the process that `WATCHDOG_PID` has to name; this one by default.

    A state that cannot be sent is logged, once: the broker serves its clients all the same, and it
    is systemd's part to give up on it.
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, *, pid: int | None = None
    ) -> None:
        values = os.environ if environment is None else environment
        self._address = _socket_address(values.get("NOTIFY_SOCKET", ""))
        self._socket: socket.socket | None = None
        self._has_warned = False
        self.watchdog_interval_ms = _watchdog_interval_ms(
            values, os.getpid() if pid is None else pid
        )
        """How often to call `watchdog`, in ms, half of what systemd waits; None if it does not."""

    @property
    def is_active(self) -> bool:
        """A service manager wants to be told."""
        return self._address is not None

    def ready(self, status: str) -> None:
        """Say that clients are served now, and in one line what is going on."""
        self._send("READY=1", _status_line(status))

    def stopping(self, status: str) -> None:
        """Say that the service is on its way down."""
        self._send("STOPPING=1", _status_line(status))

    def status(self, status: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send(_status_line(status))

    def extend_start(self, duration_ms: int) -> None:
        """Ask for another `duration_ms` before the start counts as failed; repeat while it lasts.

        A long recovery needs it: systemd kills a service that is not ready within TimeoutStartSec.
        """
        self._send(f"EXTEND_TIMEOUT_USEC={duration_ms * 1000}")

    def watchdog(self) -> None:
        """Say that the loop still turns."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        """Close the socket; may be called twice, and states sent afterwards open it again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        try:
            if self._socket is None:
                self._socket = socket.socket(
                    socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
                )
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("cannot notify systemd at %s: %s", self._address, error)


def _socket_address(text: str) -> str | None:
    """Return the address for `sendto`; None if there is none, or of an unsupported kind."""
    if text.startswith("/"):
        return text
    if text.startswith("@"):  # an abstract socket, which the kernel writes with a leading NUL
        return "\0" + text[1:]
    if text:
        _log.warning("NOTIFY_SOCKET=%s is not a path nor an abstract socket: ignored", text)
    return None


def _status_line(status: str) -> str:
    # A line break would begin another assignment.
    return "STATUS=" + " ".join(status.splitlines())


def _watchdog_interval_ms(environment: Mapping[str, str], pid: int) -> int | None:
    usec = environment.get("WATCHDOG_USEC", "")
    if not usec.isdecimal() or environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return max(1, int(usec) // 2000) if int(usec) > 0 else None
