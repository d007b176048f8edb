"""Sizes of batches and records: fields of `Config`. Layer 1; does no I/O."""

from dataclasses import dataclass

from appliance.config.setting import number
from appliance.units import GIB, KIB, MIB


@dataclass(frozen=True, kw_only=True)
class LimitSettings:
    """Sizes of batches and records."""

    batch_size_max_bytes: int = number(
        1_048_588,
        "limits.batch_size_max_bytes",
        (KIB, 100 * MIB),
        "One record batch as sent; Kafka's message.max.bytes.",
    )
    raised_batch_size_max_bytes: int = number(
        16 * MIB,
        "limits.raised_batch_size_max_bytes",
        (KIB, 100 * MIB),
        "The most to which a topic may raise `max.message.bytes`. A batch is written in one turn "
        "of the loop: each MB keeps everybody else waiting for up to 5 ms.",
    )
    decompressed_size_max_bytes: int = number(
        64 * MIB,
        "limits.decompressed_size_max_bytes",
        (KIB, 256 * MIB),
        "One record batch, decompressed to read its delay headers.",
    )
    request_decompressed_size_max_bytes: int = number(
        GIB,
        "limits.request_decompressed_size_max_bytes",
        (KIB, GIB),
        "All record batches of one Produce request, decompressed; clients send those beyond it "
        "again. Other requests do not wait for it.",
    )
    record_size_max_bytes: int = number(
        64 * MIB,
        "limits.record_size_max_bytes",
        (256, 256 * MIB),
        "One record, decompressed, including its headers.",
    )
    header_count_max: int = number(
        1_000_000,
        "limits.header_count_max",
        (1, 100_000_000),
        "Headers of one record; Kafka has no such limit.",
        unit="headers",
    )
    delayed_count_max: int = number(
        30_000,
        "limits.delayed_count_max",
        (1, 100_000_000),
        "Records of one batch that are delayed, cancel or have an id. All are accepted in one turn "
        "of the loop, within 20 ms.",
        unit="records",
    )
    delayed_size_max_bytes: int = number(
        4 * MIB,
        "limits.delayed_size_max_bytes",
        (KIB, 256 * MIB),
        "One compressed batch with delay headers as it is stored, decompressed; as much as "
        "`max.message.bytes` of the topic in any case. It is written in one turn of the loop, "
        "within 20 ms.",
    )
    record_count_max: int = number(
        1_000_000,
        "limits.record_count_max",
        (1, 100_000_000),
        "Records of one batch. Each takes 20 bytes of memory until the next checkpoint; a million "
        "are accepted in 10 ms.",
        unit="records",
    )
    pending_timers_max: int = number(
        50_000_000,
        "limits.pending_timers_max",
        (1, 1_000_000_000),
        "Records that are held until they are due, of all topics: 27 bytes each, 114 with an id. "
        "One address may have half of what others leave. Beyond it, clients send batches with "
        "further ones again.",
        unit="records",
    )
    due_per_second_max: int = number(
        20_000_000,
        "limits.due_per_second_max",
        (1, 1_000_000_000),
        "Records of all topics that are due in one second of the next 48 hours; beyond, sixty "
        "times as many in a minute. The last quarter fills ever more slowly: clients send more and "
        "more of their batches again.",
        unit="records",
    )
    header_size_max_bytes: int = number(
        64 * MIB,
        "limits.header_size_max_bytes",
        (64, 100 * MIB),
        "All headers of one record; Kafka has no such limit.",
    )
