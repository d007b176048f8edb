"""The data directory and its log: fields of `Config`. Layer 1; does no I/O."""

from dataclasses import dataclass
from pathlib import Path

from appliance.config.setting import number, read_hours, read_path, switch, value
from appliance.units import GIB, KIB, MIB


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """The data directory and its log."""

    data_dir: Path = value(
        Path("latermq-data"),
        "data_dir",
        read_path,
        "a directory, created if missing",
        "Holds all data; one broker at a time.",
        flag="--data-dir",
    )
    segment_size_bytes: int = number(
        GIB,
        "store.segment_size_bytes",
        (64 * KIB, GIB),
        "Size of one file of the log, a multiple of 4096; RocketMQ's default. Frame sizes have 32 "
        "bits.",
    )
    prewrite_segments: bool = switch(
        False,
        "store.prewrite_segments",
        "With sync flush: writes the zeros of the next segment in the background. Flushes are "
        "faster on file systems with a journal, but each byte of the log is written twice. Measure "
        "before use.",
    )
    recycle_segments: bool = switch(
        True,
        "store.recycle_segments",
        "With sync flush: the file of a freed segment becomes the next one. Flushes are faster in "
        "blocks that were written before. A start after a crash searches up to 256 MiB of old "
        "bytes after the end of the log.",
    )
    must_exist: bool = switch(
        False,
        "store.must_exist",
        "Refuses to start in a directory without a log, so that a missing mount is not mistaken "
        "for a new broker. Set it after the first start.",
    )
    loss_max_bytes: int = number(
        64 * MIB,
        "store.loss_max_bytes",
        (0, 64 * GIB),
        "A start that would have to declare more of the log lost, or a whole segment, is refused.",
    )
    checkpoint_interval_bytes: int = number(
        GIB,
        "store.checkpoint_interval_bytes",
        (64 * KIB, 64 * GIB),
        "Growth of the log between two checkpoints; after a crash it is replayed, at 1 GB/s.",
    )
    cache_size_bytes: int = number(
        64 * MIB,
        "store.cache_size_bytes",
        (MIB, 64 * GIB),
        "Memory for frames that were read and checked, from which Fetch answers and deliveries are "
        "served. The kernel also caches the files.",
    )
    timer_memory_bytes: int = number(
        256 * MIB,
        "store.timer_memory_bytes",
        (MIB, 64 * GIB),
        "Memory for pending timers, 26 bytes each. With more, those that are due last are on the "
        "disk alone; they are loaded before they are due. Timers due within a minute, and those "
        "that a topic holds back, are in memory in any case. Half as much is for users' ids, 80 "
        "bytes each; with more, those that a checkpoint has saved are on the disk, but for two "
        "bytes each.",
    )
    delete_when: str = value(
        "",
        "store.delete_when",
        read_hours,
        'hours of the day, such as "04", "04;16" or "22-06"',
        "When records and timers that live on may be moved so that a segment can be freed, in "
        "the time zone of the machine. Empty: at any time. What costs no writes is freed at once, "
        "and a disk that fills up is freed at any time. RocketMQ's deleteWhen.",
    )
