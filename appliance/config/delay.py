"""Timers and their delivery: fields of `Config`. Layer 1; does no I/O."""

from dataclasses import dataclass
from typing import Final

from appliance.config.setting import LEVEL_COUNT_MAX, number, read_levels, value
from appliance.units import KIB, MIB, MS_PER_DAY, MS_PER_HOUR

_ROCKETMQ_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


@dataclass(frozen=True, kw_only=True)
class DelaySettings:
    """Timers and their delivery."""

    delay_max_ms: int = number(
        3_650 * MS_PER_DAY,
        "delay.max_ms",
        (1, 36_500 * MS_PER_DAY),
        "A record with a longer delay is refused; ten years.",
    )
    delay_levels: tuple[int, ...] = value(
        read_levels(_ROCKETMQ_LEVELS),
        "delay.levels",
        read_levels,
        f"1 to {LEVEL_COUNT_MAX} durations such as 30s, none above `delay.max_ms`",
        "The delays of `x-delay-level` 1, 2, ...; RocketMQ's 18 levels.",
    )
    delivery_chunk_records: int = number(
        4_096,
        "delay.delivery_chunk_records",
        (1, 100_000),
        "Due records delivered in one turn of the loop, before requests are served again.",
    )
    delivery_batch_max_bytes: int = number(
        MIB,
        "delay.delivery_batch_max_bytes",
        (KIB, 64 * MIB),
        "One delivered batch; a single larger record is delivered nevertheless.",
    )
    completed_id_memory_ms: int = number(
        24 * MS_PER_HOUR,
        "delay.completed_id_memory_ms",
        (0, 365 * MS_PER_DAY),
        "How long the id of a delivered or cancelled timer is remembered.",
    )
    producer_id_expiry_ms: int = number(
        24 * MS_PER_HOUR,
        "producers.id_expiry_ms",
        (1_000, 365 * MS_PER_DAY),
        "How long the sequence numbers of an idle idempotent producer are kept; Kafka's one day.",
    )
    producer_count_max: int = number(
        200_000,
        "producers.count_max",
        (1, 100_000_000),
        "Idempotent producers that are remembered, each counted on each partition it writes to; "
        "one takes 310 bytes. At the limit the one that is idle longest is forgotten for a new "
        "one. If none is idle for 10 minutes, new ones have to wait.",
        unit="producers",
    )
