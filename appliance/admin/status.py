"""What the admin server asks, as an interface; and the answers that only it needs.

Times are epoch ms and end in `_at`, durations end in `_ms`. Layer 5.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from appliance.model import GroupStatus, GroupSummary, TimerState, TopicStatus, TopicSummary
from appliance.store.recovery import Progress


@dataclass(frozen=True, slots=True)
class LogPositions:
    """How far the log has come, in bytes; see `_core.pointers`."""

    wrote: int
    committed: int
    flushed: int
    visible: int


@dataclass(frozen=True, slots=True)
class DamagedPart:
    """Bytes of a file that are not as they were written."""

    file: str
    offset: int
    size: int
    fault: str


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A broker at a moment.

    Attributes:
        version: of latermq.
        cluster_id, epoch: of the log.
        kafka: where Kafka clients connect.
        advertised: where they are sent.
        admin: where this comes from.
        insecure: others than this machine may connect, without encryption and password.
        flush: "sync" or "async".
        started_at: since when clients are served.
        uptime_ms: for so long.
        log: positions.
        connections: of Kafka clients.
        topics, partitions, groups: how many there are.
        pending_timers: records that wait until they are due.
        unreadable_timers: those that are due, and that the disk cannot read.
        next_due_at: no record is due before that; None if none is pending.
        damage_count: how many parts were found damaged since the start began.
        damage: the first of them.
    """

    version: str
    cluster_id: str
    epoch: int
    kafka: str
    advertised: str
    admin: str
    insecure: bool
    flush: str
    started_at: int
    uptime_ms: int
    log: LogPositions
    connections: int
    topics: int
    partitions: int
    groups: int
    pending_timers: int
    unreadable_timers: int
    next_due_at: int | None
    damage_count: int
    damage: tuple[DamagedPart, ...]


class StatusSource(Protocol):
    """What the admin server shows. Each call is quick: it runs between two turns of the loop.

    Only the first three may be called before the broker is ready. All others may raise
    NotReadyError: it is about to stop.
    """

    @property
    def ready(self) -> bool:
        """Clients are served."""

    def progress(self) -> Progress:
        """Return how far the start is."""

    def metrics_text(self) -> bytes:
        """Return all metrics in Prometheus' text format 0.0.4."""

    def status(self) -> BrokerStatus:
        """Return the state of the broker."""

    def topics(self) -> Iterator[TopicSummary]:
        """Yield all topics; between two of them the broker may go on, and topics come and go."""

    def topic(self, name: str) -> TopicStatus | None:
        """Return a topic, None if there is none of that name."""

    def groups(self) -> Iterator[GroupSummary]:
        """Yield all consumer groups, like `topics`."""

    def group(self, name: str) -> GroupStatus | None:
        """Return a consumer group, None if there is none of that name."""

    async def timer_state(self, topic: str, user_id: bytes) -> TimerState | None:
        """Return what is known of a timer, durably; None if there is no such topic.

        Args:
            topic: any text.
            user_id: 1 to 255 bytes of any kind.
        """

    async def cancel_timer(self, topic: str, user_id: bytes) -> TimerState | None:
        """Cancel a pending timer, and return what became of it once that is durable.

        Args:
            topic: any text.
            user_id: 1 to 255 bytes of any kind.

        Returns:
            "cancelled", also if it was cancelled before; another state if there was nothing to
            cancel. None if there is no such topic.

        Raises:
            RequestError: the disk is full.
        """
