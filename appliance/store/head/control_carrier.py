"""Moves the control values of the log's head to its end: the carrier of control values. Layer 2."""

import logging
from collections.abc import Callable, Iterator
from typing import Final

from _core.bytes.layout import FRAME_FLAG_CONTROL, FRAME_FLAG_OPTIONAL, KIND_CARRY, KIND_STAGES
from appliance.store.head.carrier import CarryJob
from appliance.store.head.control_values import control_values, frames_of
from appliance.store.state.control_frames import NONE_STOPPED, encode_stages
from appliance.store.state.payload import COUNT
from appliance.store.state.snapshot import VALUE_HEAD
from appliance.store.state.state import State
from appliance.units import counted

VALUE_OVERHEAD_BYTES: Final = COUNT.size + VALUE_HEAD.size
"""What a carry frame of one value has besides the payload that was a frame's."""

_log = logging.getLogger(__name__)


class ControlCarrier:
    """Carries all control values, wherever they are; see `Carrier`."""

    blocked_at: Final = None

    def __init__(
        self, state: State, *, append: Callable[[int, bytes, int], bool], payload_max: int
    ) -> None:
        """Start without a pass.

        Args:
            state: what is carried.
            append: (kind, payload, flags) appends a control frame; False if the disk is full.
            payload_max: bytes of the largest payload of a control frame.
        """
        self._state = state
        self._append = append
        self._payload_max = payload_max
        self._values: Iterator[list[bytes]] = iter(())
        self._has_stages = False
        self.carried_bytes = 0
        self.is_done = True
        self.has_failed = False

    def begin(self, cut: int) -> None:
        """Start a pass; a value may be in a freed segment wherever the cut is."""
        self._values = control_values(self._state)
        self._has_stages = self._state.stopped_stages != NONE_STOPPED
        self.is_done, self.has_failed = cut < 0, False

    def step(self) -> CarryJob | None:
        """Append the next slice."""
        if self._has_stages:
            # Not as a value: an older latermq skips such a frame, but no value.
            self._has_stages = False
            payload = encode_stages(self._state.stopped_stages)
            self.has_failed = not self._append_frame(payload, KIND_STAGES, FRAME_FLAG_OPTIONAL)
            return None
        values = next(self._values, None)
        if values is None:
            self.is_done = True
            return None
        for payload in frames_of(values, self._payload_max):
            if not self._append_frame(payload):
                self.has_failed = True
                break
        return None

    def _append_frame(
        self, payload: bytes, kind: int = KIND_CARRY, flags: int = FRAME_FLAG_CONTROL
    ) -> bool:
        if len(payload) > self._payload_max + VALUE_OVERHEAD_BYTES:
            _log.warning(
                "no segment is freed: a topic or group takes %s, which a frame of the log cannot "
                "hold: raise store.segment_size_bytes",
                counted(len(payload), "byte"),
            )
            return False
        if not self._append(kind, payload, flags):
            _log.warning("no segment is freed: the disk became full")
            return False
        self.carried_bytes += len(payload)
        return True

    def end(self, job: CarryJob) -> None:
        """There are no jobs."""
        raise AssertionError(job)

    def stop(self) -> None:
        """End the pass."""
        self._values = iter(())
        self._has_stages = False
        self.is_done = True
