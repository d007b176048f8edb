"""The event loop of one simulated process: asyncio's tasks and futures in virtual time.

Code that is written for asyncio runs on it unchanged: its callbacks, timers, tasks, "threads" and
connections are events of a `World`. A thread's work is done in one piece, some time after it was
asked for, and its result comes some time after that. The process can be frozen, and killed between
any two of its callbacks.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final

from appliance.units import MS_PER_SECOND, NS_PER_MS
from tests.support.simulator.node_clock import NodeClock
from tests.support.simulator.sim_fs import SimCrash, SimFileSystem
from tests.support.simulator.sim_network import Host, SimServer, SimSocket
from tests.support.simulator.world import Event, World

GHOST_TURNS_MAX: Final = 200
"""Turns in which the tasks of a killed process end; none needs more than some."""


class SimLoop(asyncio.AbstractEventLoop):
    """One process of a host.

    Attributes:
        is_dead: it was killed.
        stepped: called after each step of the process.
    """

    def __init__(
        self, world: World, host: Host, clock: NodeClock, disk: SimFileSystem, rng: random.Random
    ) -> None:
        """Begin without work.

        Args:
            world, host: where it runs.
            clock, disk: what its code finds there.
            rng: decides how long threads take.
        """
        self.clock, self.disk = clock, disk
        self.name = host.name
        self._world, self._host, self._clock, self._rng = world, host, clock, rng
        self._ready: deque[asyncio.Handle] = deque()
        self._wake: Event | None = None
        self._works: list[Callable[[], None]] = []
        self._is_running = False
        self._frozen_until_ns = 0
        self._readers: dict[int, asyncio.Handle] = {}
        self._readable: set[int] = set()
        self._signals: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self.thread_ms: Callable[[], float] = lambda: self._rng.expovariate(2.0)
        self.is_dead = False
        self.stepped: Callable[[], None] = lambda: None

    # What asyncio asks of a loop

    def time(self) -> float:
        return self._clock.monotonic_ns() / NS_PER_MS / MS_PER_SECOND

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self.is_dead

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._is_running:
            self._wake_at(self._world.now_ns)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        time_ns = self._clock.world_ns(int(when * MS_PER_SECOND * NS_PER_MS))
        self.post_ns(time_ns, self._run_handle, handle)
        return handle

    def _timer_handle_cancelled(self, _handle: asyncio.TimerHandle) -> None:
        """Nothing: a cancelled handle does not run."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self.is_dead or isinstance(error, SimCrash):
            return
        if error is None:
            error = AssertionError(context.get("message"))
        self._world.errors.append(error)

    def run_in_executor(  # type: ignore[override]
        self, _executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        delay_ns = int(self.thread_ms() * NS_PER_MS)
        work = partial(self._work, future, func, args)
        self._works.append(work)
        self.post_ns(self._world.now_ns + delay_ns, self._do, work)
        return future

    def work_until(self, is_so: Callable[[], bool]) -> None:
        """Let the threads go on while the loop waits for what one of them does."""
        while not is_so():
            assert self._works, "the loop waits for a thread that has nothing to do"
            self._do(self._works[0])

    def _do(self, work: Callable[[], None]) -> None:
        if work in self._works:  # else it was done while the loop waited
            self._works.remove(work)
            work()

    def _work(
        self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        asyncio._set_running_loop(None)  # as on a thread
        finish: Callable[[], None]
        try:
            finish = partial(future.set_result, func(*args))
        except SimCrash:
            return
        except Exception as error:  # noqa: BLE001 (passed on, as an executor does)
            finish = partial(future.set_exception, error)
        finally:
            asyncio._set_running_loop(self)
        delay_ns = int(self._rng.expovariate(20.0) * NS_PER_MS)
        self.post_ns(self._world.now_ns + delay_ns, lambda: None if future.done() else finish())

    def add_reader(  # type: ignore[override]
        self, fd: int, callback: Callable[..., object], *args: Any
    ) -> None:
        handle = self._readers[fd] = asyncio.Handle(callback, args, self)
        if fd in self._readable:
            self.post_ns(self._world.now_ns, self._run_handle, handle)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Callable[..., object], *args: Any
    ) -> None:
        self._signals[sig] = callback, args

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        *,
        sock: SimSocket,
        start_serving: bool = True,
        **_options: object,
    ) -> SimServer:
        server = SimServer(self, self._host, sock, protocol_factory)
        if start_serving:
            await server.start_serving()
        return server

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        **_options: object,
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        future: asyncio.Future[asyncio.BaseTransport] = self.create_future()
        self._host.network.connect(self, self._host, (host, port), protocol_factory, future)
        transport = await future
        return transport, transport.get_protocol()

    # What the simulation asks of a process

    def post_ns(self, time_ns: int, callback: Callable[..., object], *args: Any) -> Event:
        """Call a function in this process at an instant; later if it is frozen, never if killed."""
        return self._world.at_ns(time_ns, self._fire, callback, args)

    def at_wall_ms(self, due_ms: int, callback: Callable[..., object], *args: Any) -> Event:
        """Call a function in this process when its wall clock shows `due_ms`."""
        return self.post_ns(self._clock.world_of_wall_ns(due_ms * NS_PER_MS), callback, *args)

    def wake_reader(self, fd: int) -> None:
        """Let a descriptor be readable until it is drained, also by a later reader."""
        self._readable.add(fd)
        handle = self._readers.get(fd)
        if handle is not None:
            self._run_handle(handle)

    def drain_reader(self, fd: int) -> None:
        """Let a descriptor be readable no more."""
        self._readable.discard(fd)

    def signal(self, number: int) -> None:
        """Send a signal that the process handles."""
        callback, args = self._signals[number]
        self.post_ns(self._world.now_ns, callback, *args)

    def freeze_ms(self, duration_ms: float) -> None:
        """Stop for a while, as with SIGSTOP: nothing runs, and what arrives waits."""
        until_ns = self._world.now_ns + int(duration_ms * NS_PER_MS)
        self._frozen_until_ns = max(self._frozen_until_ns, until_ns)

    @property
    def now_ns(self) -> int:
        """The world's time."""
        return self._world.now_ns

    @property
    def is_frozen(self) -> bool:
        return self._world.now_ns < self._frozen_until_ns

    def kill(self) -> None:
        """End the process at once.

        Its coroutines end by a cancellation that nobody sees: its disk must be dead before.
        """
        self.is_dead = True
        for _ in range(GHOST_TURNS_MAX):
            tasks = asyncio.all_tasks(self)
            if not tasks:
                break
            for task in sorted(tasks, key=lambda each: each.get_name()):
                task.cancel()
            self._drain()
        self._ready.clear()
        self._readers.clear()

    def _wake_at(self, time_ns: int) -> None:
        if self._wake is None:
            self._wake = self._world.at_ns(time_ns, self._on_wake)

    def _on_wake(self) -> None:
        self._wake = None
        self._fire(_nothing, ())

    def _fire(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        if self.is_dead:
            return
        if self._world.now_ns < self._frozen_until_ns:
            self._world.at_ns(self._frozen_until_ns, self._fire, callback, args)
            return
        self._is_running = True
        asyncio._set_running_loop(self)
        try:
            callback(*args)
            self._drain()
        except SimCrash:
            pass
        except Exception as error:  # noqa: BLE001 (shown as the error of the run)
            self._world.errors.append(error)
        finally:
            asyncio._set_running_loop(None)
            self._is_running = False
        if not self.is_dead:
            self.stepped()

    def _drain(self) -> None:
        """Run what is ready, and what becomes ready by that."""
        before = asyncio._get_running_loop()  # another process may be killing this one
        asyncio._set_running_loop(self)
        try:
            while self._ready:
                self._run_handle(self._ready.popleft())
        finally:
            asyncio._set_running_loop(before)

    def _run_handle(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            handle._run()


def _nothing(*_args: Sequence[object]) -> None:
    """Only wakes the loop."""
