from collections.abc import Sequence
from typing import Literal, Self

from _core.due_queue import DueQueue
from _core.id_index import IdIndex
from _core.partition import Partition, Topic
from _core.timer_deltas import TimerDeltas
from _core.unit_blocks import UnitBlocks

STATES: dict[int, str]
UNIT_BLOCKS_MAX_BYTES: int

class Projections:
    blocks: UnitBlocks
    due: DueQueue
    ids: IdIndex
    topics_by_name: dict[bytes, Topic]
    topics_by_id: dict[int, Topic]
    topics_by_uuid: dict[bytes, Topic]
    partitions: list[Partition | None]
    accepted_records: int
    accepted_frames: int
    timers_accepted: int
    timers_cancelled: int
    timers_replaced: int
    timers_delivered: int
    deltas: TimerDeltas | None
    id_key: bytes
    def __new__(cls, *, level_count: int, id_key: bytes, fired_id_memory_ms: int) -> Self: ...
    def add_topic(self, topic: Topic, offsets: list[tuple[int, int, int]]) -> None: ...
    def remove_topic(self, topic: Topic) -> None: ...
    def set_id_key(self, key: bytes) -> None: ...
    def level_states(self) -> tuple[tuple[int, int, int, int], ...]: ...
    def restore_level_states(self, states: Sequence[tuple[int, int, int, int]]) -> None: ...
    def advance_visible(self, pos: int) -> list[Partition]: ...
    def set_lost_ranges(self, ranges: list[tuple[int, int]]) -> None: ...
    def timer_state(
        self, topic: Topic, user_id: bytes, now_ms: int
    ) -> tuple[Literal["pending", "cancelled", "delivered"], int, int] | None: ...
