"""What follows from a log, made by the same code as in a broker, and nothing written. Layer 4."""

from collections.abc import Callable
from typing import Final, NoReturn
from uuid import UUID

from _core.layout import (
    FRAME_HEADER_SIZE,
    KIND_EPOCH,
    KIND_GROUP,
    KIND_OFFSET,
    KIND_PRODUCER,
    KIND_TOPIC,
)
from _core.log_check import CheckedProjections
from _core.partition import Topic
from appliance.errors import CorruptionError
from appliance.store.control_frames import (
    TOPIC_DECLARED,
    EpochFrame,
    decode_epoch,
    decode_producer,
    decode_topic,
)
from appliance.store.group_frames import decode_group, decode_offsets
from appliance.store.group_store import GroupStore
from appliance.store.topic_store import TopicStore

_ID_KEY: Final = bytes(16)
"""Ids of one log, looked at for a moment: nobody has time to make them collide."""

ControlFault = Callable[[int, str, str], None]
"""Told of a payload that is wrong: offset from the start of its frame, expected, found."""


class LogState:
    """Topics, groups, epochs, timers and ids, as they follow from the frames applied so far.

    Attributes:
        projections: what `apply_control` does not take.
        groups: groups and committed offsets.
        epochs: every epoch frame, in order.
        cluster: the id of the cluster; None without an epoch frame.
        next_producer_id: ids below it may be in use.
        topic_names: of every topic that ever was, by topic id.
    """

    def __init__(
        self,
        *,
        level_count: int,
        fired_id_memory_ms: int,
        fault: ControlFault,
        removed: Callable[[Topic], None] | None = None,
        id_key: bytes = _ID_KEY,
    ) -> None:
        """Begin empty.

        Args:
            level_count: number of delay levels.
            fired_id_memory_ms: how long a fired or cancelled id is remembered, ms.
            fault: told of control frames that cannot be read.
            removed: told of topics that are deleted.
            id_key: 16 bytes that key the hash of the id index.
        """
        self._fault = fault
        self._removed = removed
        self.projections = CheckedProjections(
            level_count=level_count, id_key=id_key, fired_id_memory_ms=fired_id_memory_ms
        )
        self._topics = TopicStore(
            self.projections,
            append=_refuse_to_append,
            has_room=lambda _: False,
            configure=lambda _: None,
            removed=self._forget_topic,
        )
        self.groups = GroupStore(
            append=_refuse_to_append,
            has_room=lambda _: False,
            payload_size_max=0,
            reserve_bytes=0,
            offsets_size_max=0,
        )
        self.epochs: list[EpochFrame] = []
        self.cluster: UUID | None = None
        self.next_producer_id = 0
        self.topic_names: dict[int, str] = {}

    def apply_control(self, kind: int, topic_id: int, payload: bytes, epoch: int) -> None:
        """Take up a frame of control state, as a start does."""
        del epoch
        try:
            self._apply_control(kind, topic_id, payload)
        except CorruptionError as error:
            self._fault(FRAME_HEADER_SIZE + error.offset, str(error.expected), str(error.found))

    def _apply_control(self, kind: int, topic_id: int, payload: bytes) -> None:
        if kind == KIND_TOPIC:
            frame = decode_topic(payload)
            if frame.op == TOPIC_DECLARED:
                self.topic_names[topic_id] = frame.name
            self._topics.replay(topic_id, payload)
        elif kind == KIND_PRODUCER:
            self._take_producer_id(decode_producer(payload))
        elif kind == KIND_EPOCH:
            epoch_frame = decode_epoch(payload)
            self.epochs.append(epoch_frame)
            self.cluster = epoch_frame.cluster
        elif kind == KIND_OFFSET:
            self.groups.apply_offsets(decode_offsets(payload))
        elif kind == KIND_GROUP:
            self.groups.apply_group(decode_group(payload))
        else:
            self._fault(
                0,
                "a frame of a kind that this version of latermq writes",
                f"kind {kind}: use the latermq that wrote it, or a newer one",
            )

    def _take_producer_id(self, next_producer_id: int) -> None:
        if next_producer_id < self.next_producer_id:
            known = f"a next producer id of {self.next_producer_id} or more, as before"
            self._fault(FRAME_HEADER_SIZE, known, str(next_producer_id))
        self.next_producer_id = max(self.next_producer_id, next_producer_id)

    def _forget_topic(self, topic: Topic) -> None:
        self.groups.forget_topic(topic.topic_id, len(topic.partitions))
        if self._removed is not None:
            self._removed(topic)

    def release_units(self) -> None:
        """Let go of ConsumeQueue units: whoever wanted them has seen them."""
        for partition in self.projections.partitions:
            if partition is not None and partition.units_dirty:
                partition.units_are_saved(partition.next_offset)


def _refuse_to_append(*_: object) -> NoReturn:
    raise AssertionError("nothing is written to a log that is only looked at")
