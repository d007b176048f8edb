"""Reports the state of the service to systemd; does nothing if systemd did not start it.

The protocol (sd_notify(3)) is one datagram of `NAME=value` lines to the socket that `NOTIFY_SOCKET`
names. Layer 5: this module uses a socket and the environment from systemd; no other one reads them.
"""

import logging
import os
import socket
from collections.abc import Mapping

_log = logging.getLogger(__name__)


class Notifier:
    """Sends states to the service manager. Belongs to the event loop; no call blocks.

    Args:
        environment: holds `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`; the process's own
            by default.
        pid: the process that `WATCHDOG_PID` must name; this one by default.

    The first state that cannot be sent is logged. The broker continues to serve clients; systemd
    decides whether to end it.
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
        """How often to call `watchdog`, in ms, half of systemd's timeout; None without one."""

    def ready(self, status: str) -> None:
        """Report that clients are served, with a one-line status."""
        self._send("READY=1", _status_line(status))

    def stopping(self, status: str) -> None:
        """Report that the service is stopping, with a one-line status."""
        self._send("STOPPING=1", _status_line(status))

    def status(self, status: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send(_status_line(status))

    def extend_start(self, duration_ms: int) -> None:
        """Request another `duration_ms` before the start counts as failed; repeat during the start.

        A long recovery needs this: systemd kills a service that is not ready within
        TimeoutStartSec.
        """
        self._send(f"EXTEND_TIMEOUT_USEC={duration_ms * 1000}")

    def watchdog(self) -> None:
        """Report that the loop is running."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        """Close the socket; may be called twice. A later report opens it again."""
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
        _log.warning("NOTIFY_SOCKET=%s is neither a path nor an abstract socket: ignored", text)
    return None


def _status_line(status: str) -> str:
    # A line break would start another assignment.
    return "STATUS=" + " ".join(status.splitlines())


def _watchdog_interval_ms(environment: Mapping[str, str], pid: int) -> int | None:
    usec = environment.get("WATCHDOG_USEC", "")
    if not usec.isdecimal() or environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return max(1, int(usec) // 2000) if int(usec) > 0 else None
