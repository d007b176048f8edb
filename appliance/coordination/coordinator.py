"""Asks etcd what `FailOver` wants to know, for as long as the process lives.

One request is on its way at a time. Before each decision the owner says what it knows of the peer;
after each answer it looks at what follows. Layer 5; on the event loop.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from appliance.coordination.etcd import Etcd
from appliance.coordination.fail_over import FailOver
from appliance.coordination.standing import Standing
from appliance.errors import CoordinatorError
from appliance.log_text import quoted
from appliance.system.clock import Clock
from appliance.units import MS_PER_SECOND, NS_PER_MS

TICK_MS: Final = 50
"""Between two looks at the peer and the time."""

_log = logging.getLogger(__name__)


class Coordinator:
    """Runs one `FailOver`.

    Attributes:
        decides: the decisions.
        failure: completes with an error that is a bug; the owner ends the process.
    """

    def __init__(
        self,
        etcd: Etcd,
        decides: FailOver,
        clock: Clock,
        *,
        look: Callable[[], None],
        act: Callable[[], None],
    ) -> None:
        """Prepare; `start` begins.

        Args:
            etcd: who is asked.
            decides: what is run.
            clock: its boottime counts.
            look: tells `decides` what is known of the peer, and what the node wants.
            act: does what follows from the standing; called after each look and each answer.
        """
        self.decides = decides
        self._etcd, self._clock = etcd, clock
        self._look, self._act = look, act
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._shown: tuple[Standing, str] = (decides.standing, "")
        self.failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    def now_ms(self) -> int:
        """Return the time that `decides` counts in."""
        return self._clock.boottime_ns() // NS_PER_MS

    def start(self) -> None:
        """Begin."""
        assert self._task is None
        self._task = asyncio.ensure_future(self._run())

    def wake(self) -> None:
        """Look again now."""
        self._wake.set()

    async def stop(self) -> None:
        """End; a request on its way is given up. The key stays until its lease ends."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        try:
            while True:
                await self._step()
        except Exception as error:  # noqa: BLE001 (the root of a task: it ends the owner)
            self.failure.set_result(error)

    async def _step(self) -> None:
        decides = self.decides
        self._look()
        step = decides.next_step(self.now_ms())
        self._act()
        self._show()
        if step is None:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), TICK_MS / MS_PER_SECOND)
            return
        try:
            body = await self._etcd.ask(step.call)
        except CoordinatorError as error:
            self._look()  # the peer may have been heard meanwhile
            decides.failed(error, self.now_ms())
        else:
            self._look()
            decides.answered(body, self.now_ms())
        self._act()
        self._show()

    def _show(self) -> None:
        """Write a line for what is new."""
        decides = self.decides
        standing, problem = self._shown
        self._shown = (decides.standing, decides.problem)
        if decides.standing is not standing:
            _log.warning("fail-over: %s (term %d)", decides.standing.value, decides.term)
        if bool(decides.problem) != bool(problem):
            if decides.problem:
                _log.warning("etcd does not do what it is asked: %s", quoted(decides.problem))
            else:
                _log.warning("etcd answers again")
