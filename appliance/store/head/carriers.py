"""Puts together what moves the content of the log's head to its end. Layer 2."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from _core.paths.timer_carry import TimerCarry
from _core.state.writer import LogWriter
from appliance.store.head.carrier import Carrier
from appliance.store.head.control_carrier import ControlCarrier
from appliance.store.head.id_carrier import IdCarrier
from appliance.store.head.record_carrier import RecordCarrier
from appliance.store.head.timer_carrier import TimerCarrier
from appliance.store.log.data_files import DataFiles
from appliance.store.queue.consume_queue import ConsumeQueues
from appliance.store.runs.run_set import Runs
from appliance.store.state.state import State
from appliance.units import KIB

CARRY_FRAME_BYTES: Final = 256 * KIB
"""Bytes of a carry frame of timers, or a quarter of a segment if that is less, so that little of a
full segment is lost. One accept frame's timers may take more."""


@dataclass(frozen=True, slots=True)
class Carriers:
    """The carriers of one store.

    Attributes:
        timers, records: move what lives only in the segments that go.
        values, ids: repeat the rest of the state.
    """

    timers: TimerCarrier
    records: RecordCarrier
    values: ControlCarrier
    ids: IdCarrier

    @property
    def movers(self) -> list[Carrier]:
        """In the order of a pass; nothing to do if nothing lives in the segments."""
        return [self.timers, self.records]

    @property
    def repeaters(self) -> list[Carrier]:
        """In the order of a pass, after the movers: ids refer to topics."""
        return [self.values, self.ids]


def make_carriers(
    files: DataFiles,
    state: State,
    runs: Runs,
    writer: LogWriter,
    queues: ConsumeQueues,
    *,
    append: Callable[[int, bytes, int], bool],
    payload_max: int,
) -> Carriers:
    """Return the carriers of a store.

    Args:
        files: the log.
        state, runs, writer, queues: those of the store.
        append: (kind, payload, flags) appends a control frame; False if the disk is full.
        payload_max: bytes of the largest payload of a control frame.
    """
    path = TimerCarry(writer, batch_size_max=min(CARRY_FRAME_BYTES, payload_max // 2))
    return Carriers(
        TimerCarrier(files.clock, files.log, runs, state.projections, path),
        RecordCarrier(files.clock, files.log, state, writer, queues),
        ControlCarrier(state, append=append, payload_max=payload_max),
        IdCarrier(runs, state.projections, append=append, payload_max=payload_max),
    )
