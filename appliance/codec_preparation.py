"""Compiles the codecs of all requests after the start, one at a time, while the broker serves.

A thread compiles them. Each codec is a module on the disk, and to read it takes as long as the
writes of producers before it; the event loop must not wait for that. Layer 6.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Iterable
from typing import Final

PAUSE_S: Final = 0.01
"""After each codec. There are 296, of 2 ms each: all are ready some seconds after the start, and a
minute after it if clients send a lot all the time."""

TAKES_MS: Final = 15
"""More than any codec takes."""

PAUSES_MAX: Final = 20
"""The most pauses that a codec waits for a moment without due timers and without traffic: under
load they take 1 % of the loop, where one pause each takes 20 %."""

QUIET_BYTES: Final = 65_536
"""Less than this received and sent in a pause is no traffic that a codec has to wait for."""

_END: Final = object()

_log = logging.getLogger(__name__)


async def prepare_codecs(
    codecs: Iterable[object], is_busy: Callable[[], bool], *, pause_s: float = PAUSE_S
) -> None:
    """Compile the codecs of all requests one at a time, so that no request waits for it later.

    Args:
        codecs: compiles one for each step of an iteration.
        is_busy: whether a timer is due soon, or clients send or read much, and need the processor
            more. Each codec waits for a better moment, but not for long.
        pause_s: how long the loop serves others after each of them.
    """
    steps = iter(codecs)
    try:
        gc.disable()
        while await asyncio.to_thread(next, steps, _END) is not _END:
            # Otherwise each collection until the last codec is ready would search all before it.
            gc.freeze()
            gc.enable()
            await asyncio.sleep(pause_s)
            for _ in range(PAUSES_MAX):
                if not is_busy():
                    break
                await asyncio.sleep(pause_s)
            # What is made here stays: searching it for garbage takes longer than to make it.
            gc.disable()
    finally:
        gc.enable()
    gc.freeze()
    _log.debug("prepared the codecs of all requests")
