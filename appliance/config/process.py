"""The process: its event loop, priority and log: fields of `Config`. Layer 1; does no I/O."""

from dataclasses import dataclass
from typing import Literal

from appliance.config.setting import choice, number, switch


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """The process: its event loop, priority and log."""

    loop: Literal["auto", "uvloop", "asyncio"] = choice(
        "auto",
        "process.loop",
        ("auto", "uvloop", "asyncio"),
        "The event loop; auto takes uvloop if installed, which halves the cost of Fetch.",
    )
    process_priority: int = number(
        -5,
        "process.priority",
        (-20, 19),
        "Set if permitted: on a busy machine, lateness is time spent waiting for a processor. "
        "0 leaves it unchanged.",
        unit="nice",
    )
    process_realtime: bool = switch(
        True,
        "process.realtime",
        "The event loop and the thread that syncs are realtime threads while the loop leaves a "
        "fifth of its processor to others. Set if permitted, and with two processors or more.",
    )
    clock: Literal["system", "virtual"] = choice(
        "system",
        "process.clock",
        ("system", "virtual"),
        "virtual: the wall clock can be advanced (`latermq clock advance 3h`), to test delays in "
        "milliseconds; only on loopback, without a pair.",
        flag="--clock",
    )
    log_level: Literal["debug", "info", "warning", "error"] = choice(
        "info",
        "process.log_level",
        ("debug", "info", "warning", "error"),
        "The lowest level that is logged to standard error.",
    )
