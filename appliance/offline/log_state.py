"""The state after replay of a log, by the broker's own code; it writes nothing. Layer 4."""

from collections.abc import Callable
from typing import Final, NoReturn

from _core.bytes.layout import (
    FRAME_HEADER_SIZE,
    KIND_EPOCH,
    KIND_PRODUCER,
    KIND_TOPIC,
)
from _core.queue.partition import Topic
from _core.state.check import CheckedProjections
from appliance.config.config import Config
from appliance.errors import CorruptionError
from appliance.store.state.control_frames import (
    TOPIC_DECLARED,
    EpochFrame,
    decode_epoch,
    decode_producer,
    decode_topic,
)
from appliance.store.state.log_calls import LogCalls
from appliance.store.state.state import State

DEFAULTS: Final = Config()

ControlFault = Callable[[int, str, str], None]
"""Receives the fault of a payload: offset from the start of its frame, expected, found."""


class LogState(State):
    """Topics, groups, epochs, timers and ids after the frames applied so far.

    Attributes:
        epoch_frames: every epoch frame, in order.
        topic_names: the names of all topics by topic id, also of deleted ones.
    """

    def __init__(
        self,
        *,
        fault: ControlFault,
        removed: Callable[[Topic], None] | None = None,
        new_projections: type[CheckedProjections] = CheckedProjections,
    ) -> None:
        """Begin empty.

        Args:
            fault: called for control frames that cannot be decoded.
            removed: called for topics that are deleted.
            new_projections: makes the projections that frames are applied to.
        """
        super().__init__(
            DEFAULTS,
            LogCalls(
                _refuse_to_append,
                _refuse_to_append,
                _refuse_to_append,
                _refuse_to_append,
                _refuse_to_append,
                begin=_refuse_to_append,
                end=_refuse_to_append,
            ),
            configure=lambda _: None,
            removed=removed or (lambda _: None),
            new_projections=new_projections,
        )
        self._fault = fault
        self.epoch_frames: list[EpochFrame] = []
        self.topic_names: dict[int, str] = {}

    def apply_control(self, kind: int, topic_id: int, payload: bytes, epoch: int) -> None:
        """Apply a frame of control state; one that cannot be decoded is a fault."""
        try:
            self._note(kind, topic_id, payload)
            super().apply_control(kind, topic_id, payload, epoch)
        except CorruptionError as error:
            at = FRAME_HEADER_SIZE + error.offset
            self._fault(at, str(error.expected), str(error.found))

    def _note(self, kind: int, topic_id: int, payload: bytes) -> None:
        """Record facts that a broker does not need, and check ones that it takes for granted."""
        if kind == KIND_TOPIC:
            frame = decode_topic(payload)
            if frame.op == TOPIC_DECLARED:
                self.topic_names[topic_id] = frame.name
        elif kind == KIND_PRODUCER:
            following = decode_producer(payload)
            if following < self.next_producer_id:
                known = f"a next producer id of {self.next_producer_id} or more, as before"
                self._fault(FRAME_HEADER_SIZE, known, str(following))
        elif kind == KIND_EPOCH:
            self.epoch_frames.append(decode_epoch(payload))

    def release_units(self) -> None:
        """Release the ConsumeQueue units, after they were used."""
        for partition in self.projections.partitions:
            if partition is not None and partition.units_dirty:
                partition.units_are_saved(partition.next_offset)
                partition.moved_are_saved(partition.next_offset)


def _refuse_to_append(*_: object) -> NoReturn:
    raise AssertionError("a log that is opened for reading is never written")
