"""The two stages of timers: to accept them, and to deliver them. Each can be stopped and started.

A stop is for an operator in trouble: consumers that must have nothing for a while, or producers
that schedule nonsense. It is saved in the log: it lasts through a start of the broker, and a slave
that is promoted knows it. Layer 4; on the event loop.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, get_args

from _core.paths.timer_quota import TimerQuota
from appliance.pending_timers import Backlog
from appliance.schedule.scheduler import Scheduler
from appliance.store.state.control_frames import StoppedStages

Stage: TypeAlias = Literal["enqueue", "dequeue"]

STAGES: Final[tuple[Stage, ...]] = get_args(Stage)

REFUSAL: Final = (
    "an operator has stopped the enqueue stage: delayed records are refused until latermq timers "
    "start enqueue"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageStatus:
    """A stage, and how far it is behind.

    Attributes:
        stage: enqueue or dequeue.
        stopped: whether it is.
        backlog: records that it has to do.
        behind_ms: how long the first of them has waited.
    """

    stage: Stage
    stopped: bool
    backlog: int
    behind_ms: int


class TimerStages:
    """Stops and starts the stages of one broker.

    Args:
        quota: admits delayed records.
        scheduler: delivers them.
        stopped: which ones are stopped when the broker starts.
        save: saves which ones are.
    """

    def __init__(
        self,
        quota: TimerQuota,
        scheduler: Scheduler,
        stopped: StoppedStages,
        save: Callable[[StoppedStages], None],
    ) -> None:
        self._quota = quota
        self._scheduler = scheduler
        self._save = save
        self._stopped = stopped
        self._apply()
        for stage in STAGES:
            if self.is_stopped(stage):
                _log.warning(
                    "the %s stage was stopped before this start, and still is; to start it: "
                    "latermq timers start %s",
                    stage,
                    stage,
                )

    def is_stopped(self, stage: Stage) -> bool:
        """Return whether a stage is stopped."""
        return self._stopped.enqueue if stage == "enqueue" else self._stopped.dequeue

    def change(self, stage: Stage, *, is_stopped: bool) -> None:
        """Stop or start a stage.

        Batches with delayed records are refused with a retriable error while enqueue is stopped;
        cancels are not. Due records wait while dequeue is stopped, and come in order after it.

        Raises:
            DiskFullError: it could not be saved; nothing has changed.
        """
        if self.is_stopped(stage) == is_stopped:
            return
        stopped = replace(self._stopped, **{stage: is_stopped})
        self._save(stopped)
        self._stopped = stopped
        self._apply()
        _log.warning("the %s stage is %s", stage, "stopped" if is_stopped else "started")

    def _apply(self) -> None:
        self._quota.refusal = REFUSAL if self._stopped.enqueue else None
        self._scheduler.is_stopped = self._stopped.dequeue

    def status(self, stage: Stage, backlog: Backlog) -> StageStatus:
        """Return the status of a stage with that backlog."""
        return StageStatus(stage, self.is_stopped(stage), backlog.count, backlog.behind_ms)
