"""`Service` of `appliance.main` in a `SimLoop`: what it takes from its machine is simulated.

Everything else is the code that serves: the broker with its pump, the Kafka server and its
connections, both sides of replication, promotions and starts. Left out are the admin server, whose
verbs are called directly, systemd, and what prepares a process for speed.
"""

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final, cast

from appliance import codec_preparation, flush_thread, main, pump
from appliance.config.setting import Address
from appliance.store.log import segment
from appliance.system import listening
from tests.support.simulator.sim_loop import SimLoop
from tests.support.simulator.sim_network import SimSocket

ADMIN: Final = Address("127.0.0.1", 8080)


def running() -> SimLoop:
    """Return the process whose code runs now."""
    return cast(SimLoop, asyncio.get_running_loop())


class SimWakeTimer:
    """As `WakeTimer`, by the clock of the running process."""

    _last_fd = 1_000_000

    def __init__(self, _clock: object) -> None:
        SimWakeTimer._last_fd += 1
        self._fd = SimWakeTimer._last_fd
        self._loop = running()
        self._event: Any = None

    def fileno(self) -> int:
        return self._fd

    def arm(self, due_ms: int | None) -> None:
        if self._event is not None:
            self._event.cancel()
            self._event = None
        self.drain()  # setting a timer makes it unreadable
        if due_ms is not None:
            self._event = self._loop.at_wall_ms(due_ms, self._loop.wake_reader, self._fd)

    def drain(self) -> None:
        self._loop.drain_reader(self._fd)

    def close(self) -> None:
        self.arm(None)


class SimEvent:
    """As `threading.Event`, for a loop that waits for its thread."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self) -> None:
        if not self._is_set:
            running().work_until(self.is_set)


class NoThreads:
    """Stands for `ThreadPoolExecutor`: a `SimLoop` runs what is for its threads."""

    def __init__(self, *_arguments: object, **_settings: object) -> None:
        """Start none."""

    def shutdown(self, *, wait: bool = True) -> None:
        """Nothing: what runs is an event of the loop."""


class NoSyncThread:
    """Stands for `SyncThread`, which leaves the files of this disk to another thread."""

    is_busy = False

    def fileno(self) -> int:
        return -1  # it never becomes readable

    def try_begin(self, _files: object) -> bool:
        return False

    def shutdown(self) -> None:
        """Nothing."""

    close = shutdown


class NoRealtimeClaim:
    """Stands for `RealtimeClaim`: the threads of the tests stay ordinary."""

    is_granted = False

    def begin(self, _now_ns: int) -> bool:
        return True

    def end(self) -> None:
        """Nothing."""

    def look(self) -> None:
        """Nothing."""


class NoAdminServer:
    """Stands for the admin server."""

    def __init__(self, *_args: object, **_settings: object) -> None:
        """Listen nowhere."""

    async def start(self) -> Address:
        return ADMIN

    def share(self, _turns: object) -> None:
        """Nothing."""

    async def stop(self) -> None:
        """Nothing."""


class NoNotifier:
    """Stands for systemd, which is not there."""

    watchdog_interval_ms = None

    def ready(self, _text: str) -> None:
        """Nothing."""

    extend_start = status = stopping = ready

    def watchdog(self) -> None:
        """Nothing."""


async def _bind(address: Address, _flag: str, *, what: str = "") -> list[SimSocket]:
    return [SimSocket(*address)]


async def _prepare(*_args: object) -> None:
    """Compile no codec before it is needed."""


def _nothing(*_args: object) -> bool:
    return True


_STAND_INS: Final[tuple[tuple[Any, str, Any], ...]] = (
    (main, "SystemClock", lambda: running().clock),
    (main, "OsFileSystem", lambda: running().disk),
    (main, "AdminServer", NoAdminServer),
    (main, "Notifier", NoNotifier),
    (main, "sys", SimpleNamespace(stdout=SimpleNamespace(write=_nothing, flush=_nothing))),
    (main, "lock_code", _nothing),
    (main, "wake_sooner", _nothing),
    (main, "set_priority", _nothing),
    (main, "RealtimeClaim", NoRealtimeClaim),
    (main, "process_id", lambda: 1),
    (codec_preparation, "prepare_codecs", _prepare),
    (main, "anonymous_bytes", lambda: 0),
    (listening, "bind", _bind),
    (pump, "WakeTimer", SimWakeTimer),
    (flush_thread, "SyncThread", NoSyncThread),
    (segment, "threading", SimpleNamespace(Event=SimEvent, Lock=threading.Lock)),
)


def _threads() -> Iterator[tuple[Any, str, Any]]:
    """Stand-ins for the threads of every module that has some."""
    name = "ThreadPoolExecutor"
    for module in list(sys.modules.values()):
        if module.__name__.startswith("appliance.") and hasattr(module, name):
            yield module, name, NoThreads


@contextlib.contextmanager
def simulated_machines(show: Callable[[str, str], None] | None = None) -> Iterator[None]:
    """Let services run in `SimLoop`s.

    Args:
        show: gets the name of a process and a line of its log; None: nobody wants them.
    """
    stand_ins = [*_STAND_INS, *_threads()]
    kept = [(place, name, getattr(place, name)) for place, name, _ in stand_ins]
    for place, name, stand_in in stand_ins:
        setattr(place, name, stand_in)
    before = logging.root.manager.disable
    handler = None
    if show is None:
        logging.disable(logging.CRITICAL)
    else:
        handler = _LogLines(show)
        logging.root.addHandler(handler)
        level = logging.root.level
        logging.root.setLevel(logging.INFO)
    try:
        yield
    finally:
        for place, name, value in kept:
            setattr(place, name, value)
        logging.disable(before)
        if handler is not None:
            logging.root.removeHandler(handler)
            logging.root.setLevel(level)


class _LogLines(logging.Handler):
    def __init__(self, show: Callable[[str, str], None]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        loop = asyncio._get_running_loop()
        name = loop.name if isinstance(loop, SimLoop) else "?"
        self._show(name, f"{record.levelname} {record.getMessage()}")
