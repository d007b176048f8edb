from typing import Any, Self

from _core.queue.partition import Partition, Topic
from _core.queue.producer_state import ProducerTable
from _core.queue.unit_blocks import UnitBlocks
from _core.state.level_queues import LevelQueues
from _core.state.producer_capture import ProducerCapture
from _core.timers.due_queue import DueQueue
from _core.timers.id_index import IdIndex
from _core.timers.memtable import TimerMemtable
from _core.timers.moved_frames import MovedFrames

class Projections:
    blocks: UnitBlocks
    due: DueQueue
    ids: IdIndex
    levels: LevelQueues
    moved: MovedFrames
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
    partitions_removed: int
    held_bytes: int
    applied_pos: int
    first_known_pos: int
    completed_twice: int
    dropped: set[tuple[int, int]]
    producers: ProducerTable
    captured: ProducerCapture
    producer_id_seen: int
    memtable: TimerMemtable | None
    id_key: bytes
    def __new__(cls, *, id_key: bytes) -> Self: ...
    def add_topic(self, topic: Topic, offsets: list[tuple[int, int, int]]) -> None: ...
    def remove_topic(self, topic: Topic) -> None: ...
    def note_carried(self, pos: int) -> None: ...
    @property
    def totals(self) -> tuple[int, ...]: ...
    def restore_totals(self, totals: tuple[int, ...]) -> None: ...
    def set_id_key(self, key: bytes) -> None: ...
    def advance_visible(self, pos: int) -> list[Partition]: ...
    def begin_settled(self) -> None: ...
    def end_settled(self) -> None: ...
    def set_lost_ranges(self, ranges: list[tuple[int, int]]) -> None: ...
    id_source: Any
