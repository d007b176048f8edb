"""When records become durable: fields of `Config`. Layer 1; does no I/O."""

from dataclasses import dataclass
from typing import Literal

from appliance.config.setting import choice, number
from appliance.units import GIB, KIB, MIB, MS_PER_MINUTE


@dataclass(frozen=True, kw_only=True)
class FlushSettings:
    """When records become durable."""

    flush: Literal["sync", "async"] = choice(
        "sync",
        "flush.mode",
        ("sync", "async"),
        "Acknowledged messages survive a power cut (sync) or the end of the process (async).",
        flag="--flush",
    )
    flush_interval_ms: int = number(
        200,
        "flush.interval_ms",
        (1, MS_PER_MINUTE),
        "async: interval between syncs of the log; well below `flush.bound_ms`, to leave time to "
        "sync.",
    )
    flush_bound_ms: int = number(
        500,
        "flush.bound_ms",
        (1, 10 * MS_PER_MINUTE),
        "async: maximum age of acknowledged messages that a power cut can lose. "
        "Beyond it, Produce waits for the disk.",
    )
    flush_backlog_max_bytes: int = number(
        8 * MIB,
        "flush.backlog_max_bytes",
        (64 * KIB, GIB),
        "sync: while more bytes wait for the disk, producers are not read, and requests of many "
        "batches not continued, because due messages would wait for these bytes too.",
    )
    flush_timeout_ms: int = number(
        5_000,
        "flush.timeout_ms",
        (100, 10 * MS_PER_MINUTE),
        "A request that waits longer for the disk is answered with an error after which clients "
        "try again: Produce with REQUEST_TIMED_OUT; RocketMQ's 5 s.",
    )
