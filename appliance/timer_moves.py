"""Gives pending timers another due time. Layer 4; on the event loop.

A timer with an id is moved by sending its record again with its id: that replaces it, in one frame,
exactly as if its producer had done so. One that is named by its place is set anew in one frame.
Whoever asks reads the record first, which may wait for the disk, and then moves the timer if it is
still the one that was read. So a timer is moved or delivered, never both and never neither.
"""

from collections.abc import Mapping
from typing import Any, Final

from _core.paths.own_batch import accept_own, encode_own
from _core.paths.produce import ProducePath
from _core.queue.partition import Topic
from appliance.config.config import Config
from appliance.errors import DiskFullError, FindError
from appliance.pending_timers import ListedTimer, PendingTimers, TimerPlace
from appliance.system.clock import Clock

ERROR_DISK_FULL: Final = 56
"""KAFKA_STORAGE_ERROR"""

ERROR_TOO_LARGE: Final = 10
"""MESSAGE_TOO_LARGE"""


class TimerMoves:
    """Moves timers by their ids, or by their places.

    Args:
        produce: the way of all produced records.
        timers: the pending ones.
        config, clock: of the broker.
    """

    def __init__(
        self, produce: ProducePath, timers: PendingTimers, config: Config, clock: Clock
    ) -> None:
        self._produce = produce
        self._timers = timers
        self._config = config
        self._clock = clock

    def check(self, topic: Topic, due_ms: int | None) -> None:
        """Check that timers of a topic can have a due time, epoch ms; None for now.

        Raises:
            FindError: they cannot; the error says what to change.
        """
        if topic.settings.get("delay.headers") == "off":
            raise FindError(
                "request", f"{topic.name} has delay.headers=off, so no record of it can be delayed"
            )
        delay_max_ms = min(
            int(topic.settings.get("delay.max.ms", self._config.delay_max_ms)),
            self._config.delay_max_ms,
        )
        if due_ms is not None and due_ms - self._clock.wall_ms() > delay_max_ms:
            raise FindError(
                "request", f"the due time is more than delay.max.ms = {delay_max_ms} ms ahead"
            )

    def move_placed(
        self,
        topic: Topic,
        timer: ListedTimer,
        user_id: bytes,
        frame: bytes,
        due_ms: int | None,
    ) -> TimerPlace | None:
        """Move a timer that may have no id, in one frame of the log that keeps its record.

        Args:
            topic: its topic.
            timer, user_id, frame: as `PendingTimers.move` requires them.
            due_ms: the new due time, epoch ms; None to deliver it now.

        Returns:
            Its place from now on. None if it was delivered, cancelled or moved meanwhile.

        Raises:
            DiskFullError, FindError: as `move`.
        """
        self.check(topic, due_ms)
        at_ms = self._clock.wall_ms() if due_ms is None else due_ms
        return self._timers.move(timer, user_id, frame, at_ms)

    def move(
        self,
        topic: Topic,
        user_id: bytes,
        timer: ListedTimer,
        record: Mapping[str, Any],
        due_ms: int | None,
    ) -> bool:
        """Move a timer if it is still pending; it is durable once the log is, up to its end.

        Args:
            topic: its topic.
            user_id: its id.
            timer: its place when its record was read.
            record: key, value, headers and timestamp, as `TimerReader` returns them.
            due_ms: the new due time, epoch ms; None to deliver it now.

        Returns:
            Whether it was moved. False if it was delivered, cancelled or replaced meanwhile.

        Raises:
            DiskFullError: the disk is full.
            FindError: it cannot have this due time, or recurs; the error says what to change.
        """
        self.check(topic, due_ms)
        if "cron" in record:
            raise FindError(
                "request",
                "it recurs, so it keeps its instants: send it again with its id to change them",
            )
        if not self._timers.is_still(topic, user_id, timer):
            return False
        now_ns = self._clock.wall_ns()
        at_ms = now_ns // 1_000_000 if due_ms is None else due_ms
        headers = [
            *record.get("headers", ()),
            (b"x-deliver-at", b"%d" % at_ms),
            (b"x-deliver-id", user_id),
        ]
        batch = encode_own(record["key"], record["value"], headers, record["timestamp"])
        partition = self._timers.find_partition(timer)
        assert partition is not None
        error, message = accept_own(self._produce, partition, batch, now_ns)
        if error == ERROR_DISK_FULL:
            raise DiskFullError(f"nothing was changed: {message or 'the disk is full'}")
        if error:
            raise FindError("request", message or _reason(error))
        return True


def _reason(error: int) -> str:
    if error == ERROR_TOO_LARGE:
        return "the record is larger than max.message.bytes of its topic now allows: raise it"
    return f"the record is refused with Kafka's error {error}"
