from collections.abc import Iterable
from typing import Self
from uuid import UUID

from _core.paths.parked_fetch import ParkedFetch
from _core.queue.carried_parts import CarriedParts
from _core.queue.producer_state import ProducerState
from _core.queue.unit_blocks import UnitBlocks
from _core.queue.unit_runs import UnitRuns

class Topic:
    name: str
    uuid: UUID
    topic_id: int
    partitions: list[Partition]
    settings: dict[str, str]
    deleted: bool
    retry_delays_ms: tuple[int, ...]
    retry_max: int
    declared_in: int
    waiters: dict[ParkedFetch, bytearray]
    timers_accepted: int
    timers_delivered: int
    timers_cancelled: int
    timers_replaced: int
    def __init__(self, name: str, uuid: UUID, topic_id: int, settings: dict[str, str]) -> None: ...
    def configure(
        self,
        *,
        reads_delay_headers: bool,
        passes_invalid_delays: bool,
        log_append_time: bool,
        due_timestamp: bool,
        batch_size_max: int,
        delay_max_ms: int,
        requires_delay: bool = False,
        delay_default_ms: int = -1,
        deliveries_per_s: int = -1,
        delivery_spread_ms: int = 0,
        pending_max: int = -1,
        retry_delays_ms: tuple[int, ...] = (),
        retry_max: int = 0,
    ) -> None: ...
    @property
    def lateness(self) -> list[int]: ...
    @property
    def lateness_sum_ms(self) -> int: ...
    def mark_deleted(self) -> None: ...

class Partition:
    topic: Topic
    index: int
    handle: int
    start_offset: int
    next_offset: int
    visible_offset: int
    running_max: int
    log_bytes: int
    confirmed_pos: int
    offset_floor: int
    waiters: dict[ParkedFetch, bool]
    producers: dict[int, ProducerState]
    units_dirty: bool
    units_saved: int
    runs: UnitRuns
    blocks: UnitBlocks | None
    carried: CarriedParts
    carried_pos: int
    moves_saved: int
    kept_bytes: int
    def __new__(
        cls, topic: Topic, index: int, handle: int, start_offset: int, next_offset: int
    ) -> Self: ...
    def restore(
        self,
        *,
        start_offset: int,
        next_offset: int,
        running_max: int,
        log_bytes: int,
        applied: int,
        runs: Iterable[tuple[int, int, int, int, int]] = (),
        carried: Iterable[tuple[int, int, int]] = (),
        kept_bytes: int = -1,
    ) -> None: ...
    def unit(self, offset: int) -> tuple[int, int, int] | None: ...
    def unit_in_memory(self, offset: int) -> tuple[int, int, int] | None: ...
    def unsaved_units(self) -> tuple[int, memoryview, int]: ...
    def units_are_saved(self, up_to: int) -> None: ...
    @property
    def moved_count(self) -> int: ...
    def moved_units(self) -> tuple[int, bytes]: ...
    def moved_are_saved(self, up_to: int) -> None: ...
    @property
    def carried_end(self) -> int: ...
    def carried_parts(self) -> list[tuple[int, int, int]]: ...
    def waiting(self) -> list[ParkedFetch]: ...
    def cut_units(self, offset: int) -> None: ...
    @property
    def unsaved_count(self) -> int: ...
    def raise_start(self, offset: int) -> None: ...
    def encode_producers(self) -> bytes: ...
    def restore_producers(self, payload: bytes, end_pos: int) -> None: ...
