"""The admin server on loopback, with a status made of plain values, and an HTTP client for it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from yarl import URL

from appliance.admin import AdminServer
from appliance.admin.status import (
    BrokerStatus,
    CleanupRequest,
    ClockStatus,
    FreeingStatus,
    KeyIndexStatus,
    LogPositions,
    ReplicationStatus,
    StatusSource,
)
from appliance.config.config import Address
from appliance.dead_letters import (
    DeadListRequest,
    DeletedRecords,
    Place,
    ReplayedRecords,
    ReplayRequest,
    dead_item,
)
from appliance.errors import FindError, NotReadyError, SnapshotError
from appliance.find import FindRequest, for_json
from appliance.model import (
    CleanupStatus,
    DiskStatus,
    ExpiredRecords,
    GroupStatus,
    GroupSummary,
    SnapshotStatus,
    TimerState,
    TopicStatus,
    TopicSummary,
)
from appliance.pending_timers import (
    LevelQueue,
    MovedTimer,
    PurgedTimers,
    TimerCountRequest,
    TimerCounts,
    TimerListRequest,
    TimerPlace,
    TimerSelection,
)
from appliance.store.recovery.report import Progress
from appliance.timer_stages import STAGES, Stage, StageStatus

BROKER: Final = BrokerStatus(
    version="1.2.3",
    cluster_id="7d5f1c9e-0000-4000-8000-000000000001",
    epoch=4,
    kafka="127.0.0.1:9092",
    advertised="broker.example:9092",
    admin="127.0.0.1:9192",
    insecure=False,
    flush="sync",
    clock_ahead_ms=None,
    started_at=1_767_225_600_000,
    uptime_ms=5,
    log=LogPositions(start=0, wrote=4, committed=3, flushed=2, visible=1),
    key_index=KeyIndexStatus(on=True, indexed=1, lag_bytes=1, rows=9, runs=2),
    disk=DiskStatus(
        state="ok",
        total_bytes=100,
        free_bytes=40,
        used_percent=60.0,
        log_bytes=30,
        seconds_until_full=None,
        refusal=None,
    ),
    freeing=FreeingStatus(
        reclaimable_bytes=0,
        dead_bytes=12,
        held_back=False,
        expires_early=False,
        early_expired_records=0,
    ),
    connections=7,
    topics=1,
    partitions=4,
    groups=0,
    pending_timers=0,
    pending_timers_max=100,
    unreadable_timers=0,
    unloaded_timers=0,
    stopped_stages=(),
    held_timers=0,
    next_due_at=None,
    damage_count=0,
    damage=(),
)


PAIR: Final = ReplicationStatus(
    role="master",
    mode="sync",
    solo=False,
    node=1,
    state="streaming",
    peer="127.0.0.1:1",
    end=9,
    received=8,
    durable=7,
    lag_bytes=2,
    heard_ms_ago=3,
    promise="nothing is lost",
)

KNOWN_PLACE: Final = (1, 8, 0)
"""Of the one timer that the status can reschedule by its place."""


@dataclass
class Status:
    """A broker's status, made of plain values.

    Attributes:
        timers: by topic and id; `topics` and `groups` are what is listed and shown.
        failure: what every call raises, None for nothing.
        refusal: why new records are refused, None if they are accepted.
        cancelled: the timers that requests cancelled.
        known_snapshots: by name.
        cleanups: those that requests asked for.
        finds: what requests looked for; `found` is the answer to each.
        replays: those that requests asked for.
    """

    ready: bool = True
    timers: dict[str, dict[bytes, TimerState]] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    known_topics: dict[str, tuple[TopicSummary, TopicStatus]] = field(default_factory=dict)
    known_groups: dict[str, tuple[GroupSummary, GroupStatus]] = field(default_factory=dict)
    failure: Exception | None = None
    refusal: str | None = None
    cancelled: list[tuple[str, bytes]] = field(default_factory=list)
    known_snapshots: dict[str, SnapshotStatus] = field(default_factory=dict)
    cleanups: list[CleanupRequest] = field(default_factory=list)
    finds: list[FindRequest] = field(default_factory=list)
    replays: list[ReplayRequest] = field(default_factory=list)
    found: dict[str, Any] = field(
        default_factory=lambda: {"found": [], "next": None, "scanned_bytes": 0, "unreadable": []}
    )

    def progress(self) -> Progress:
        return Progress(phase="scanning the log", recovered_bytes=3, total_bytes=7)

    def metrics(
        self, *, admin_connections: int, admin_held_bytes: int
    ) -> Iterator[tuple[str, int]]:
        yield "# TYPE latermq_up gauge\n", 1
        yield "latermq_up 1.0\n", 1

    def topic_metrics(self) -> Iterator[tuple[str, int]]:
        yield "# TYPE latermq_topic_up gauge\n", 1
        yield 'latermq_topic_up{topic="t"} 1\n', 1

    def status(self) -> BrokerStatus:
        return BROKER

    def replication(self) -> ReplicationStatus:
        if not self.ready:
            raise NotReadyError("the broker is starting")
        if self.failure is not None:
            raise self.failure
        return PAIR

    async def promote(self, *, is_forced: bool = False) -> ReplicationStatus:
        return self.replication()

    async def hand_over(self) -> ReplicationStatus:
        return self.replication()

    def go_alone(self) -> ReplicationStatus:
        return self.replication()

    def go_solo(self, *, is_slave_off: bool) -> ReplicationStatus:
        return self.replication()

    def topics(self) -> Iterator[TopicSummary]:
        return (summary for summary, _ in self.known_topics.values())

    def topic(self, name: str) -> TopicStatus | None:
        return self.known_topics[name][1] if name in self.known_topics else None

    def groups(self) -> Iterator[GroupSummary]:
        return (summary for summary, _ in self.known_groups.values())

    def group(self, name: str) -> GroupStatus | None:
        return self.known_groups[name][1] if name in self.known_groups else None

    async def timer_state(self, topic: str, user_id: bytes) -> TimerState | None:
        if self.failure is not None:
            raise self.failure
        if topic not in self.timers:
            return None
        return self.timers[topic].get(user_id, TimerState("unknown"))

    async def list_timers(self, request: TimerListRequest) -> str:
        self._check_topic(request.selection.topic)
        return json.dumps({"timers": [], "next": None})

    async def purge_timers(self, selection: TimerSelection) -> PurgedTimers:
        if self.failure is not None:
            raise self.failure
        self._check_topic(selection.topic)
        return PurgedTimers(2, 1)

    async def count_timers(self, request: TimerCountRequest) -> TimerCounts:
        self._check_topic(request.selection.topic)
        return TimerCounts(request.from_at or 0, request.step_ms, [1, 2], 3, 4)

    def levels(self) -> list[LevelQueue]:
        return [LevelQueue(1, 1_000, "SCHEDULE_TOPIC_XXXX", 0, 5, 3, 2)]

    def stages(self) -> list[StageStatus]:
        return [StageStatus(each, each in self.stopped, 1, 2) for each in STAGES]

    async def change_stage(self, stage: Stage, *, is_stopped: bool) -> list[StageStatus]:
        (self.stopped.add if is_stopped else self.stopped.discard)(stage)
        return self.stages()

    def _check_topic(self, name: str | None) -> None:
        if name is not None and name not in self.known_topics:
            raise FindError("unknown", f"there is no topic {name!r}")

    async def find(self, request: FindRequest) -> str:
        self.finds.append(request)
        self._check_topic(request.topic)
        return json.dumps(self.found)

    async def list_dead(self, request: DeadListRequest) -> str:
        self._check_dead(request.group)
        found = self._dead_item(Place(request.partition or 0, 3))
        return json.dumps({"records": [found], "next": found["place"]})

    async def show_dead(self, group: str, place: Place) -> str:
        self._check_dead(group)
        headers = [["x-origin", None], ["trace", {"base64": "/w=="}]]
        return json.dumps(self._dead_item(place) | {"headers": headers, "value": None})

    async def replay_dead(self, request: ReplayRequest) -> ReplayedRecords:
        self._check_dead(request.group)
        self.replays.append(request)
        return ReplayedRecords(len(request.places), 0)

    async def purge_dead(self, group: str, before: Place | None) -> DeletedRecords:
        self._check_dead(group)
        return DeletedRecords(5 if before is None else before.offset)

    def _check_dead(self, group: str) -> None:
        if self.failure is not None:
            raise self.failure
        if group not in self.known_groups:
            raise FindError("unknown", f"{group!r} has no dead letters")

    def _dead_item(self, place: Place) -> dict[str, Any]:
        headers = [(b"x-retry-attempt", b"16"), (b"x-retry-reason", b"no")]
        return {**for_json(dead_item(place, 1_767_225_600_000, b"\xff", headers))}

    async def move_placed(self, place: TimerPlace, due_at: int | None) -> MovedTimer:
        if self.failure is not None:
            raise self.failure
        if place != KNOWN_PLACE:
            raise FindError("gone", "no pending record is there")
        return MovedTimer("9.9.0", due_at or 9, "t", 0)

    async def cancel_timer(self, topic: str, user_id: bytes) -> TimerState | None:
        timer = await self.timer_state(topic, user_id)
        if timer is not None and timer.state == "pending":
            self.cancelled.append((topic, user_id))
            self.timers[topic][user_id] = TimerState("cancelled", timer.due_at, timer.partition)
            return self.timers[topic][user_id]
        return timer

    async def move_timer(
        self, topic: str, user_id: bytes, due_at: int | None
    ) -> tuple[TimerState, bool]:
        timer = await self.timer_state(topic, user_id)
        if timer is None:
            raise FindError("unknown", f"there is no topic {topic!r}")
        if timer.state != "pending":
            return timer, False
        state = TimerState("pending" if due_at else "delivered", due_at, timer.partition)
        self.timers[topic][user_id] = state
        return state, True

    def clock(self) -> ClockStatus:
        return ClockStatus("virtual", 1, 0)

    async def advance_clock(self, by_ms: int) -> ClockStatus:
        if self.failure is not None:
            raise self.failure
        return ClockStatus("virtual", 1 + by_ms, by_ms, 2)

    async def clean_up(self, wanted: CleanupRequest) -> CleanupStatus | None:
        if self.failure is not None:
            raise self.failure
        if wanted.topic is not None and wanted.topic not in self.known_topics:
            return None
        self.cleanups.append(wanted)
        return CleanupStatus([ExpiredRecords("t", 3)], 0, 5)

    async def snapshots(self) -> list[SnapshotStatus]:
        return list(self.known_snapshots.values())

    async def create_snapshot(self, name: str | None) -> SnapshotStatus:
        if self.failure is not None:
            raise self.failure
        name = name or "made-of-the-time"
        if name in self.known_snapshots:
            raise SnapshotError("exists", f"there is a snapshot {name!r} already")
        made = SnapshotStatus(
            name=name, path=f"/{name}", created_at=1, start=0, end=2, size_bytes=3, kept_bytes=0
        )
        self.known_snapshots[name] = made
        return made

    async def delete_snapshot(self, name: str) -> SnapshotStatus:
        if name not in self.known_snapshots:
            raise SnapshotError("unknown", f"there is no snapshot {name!r}")
        return self.known_snapshots.pop(name)


@dataclass
class Answer:
    """An answer of the admin server."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        assert self.headers["Content-Type"] == "application/json; charset=utf-8"
        return json.loads(self.body)


class Client:
    """An HTTP client that does not normalise paths."""

    def __init__(
        self, session: aiohttp.ClientSession, address: tuple[str, int], server: AdminServer
    ) -> None:
        self._session = session
        self.address = address
        self.server = server

    async def ask(
        self,
        path: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        """Send a request and read the answer."""
        url = URL(f"http://{self.address[0]}:{self.address[1]}{path}", encoded=True)
        async with self._session.request(method, url, headers=headers, data=body) as response:
            return Answer(response.status, dict(response.headers), await response.read())

    async def send_raw(self, request: bytes) -> bytes:
        """Send bytes on a connection of their own, and return all that comes until it closes."""
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(request)
        async with asyncio.timeout(60):
            answer = await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        return answer


@asynccontextmanager
async def serving(
    status: StatusSource, host: str = "127.0.0.1", host_names: tuple[str, ...] = ()
) -> AsyncIterator[Client]:
    """Serve a status on a free port."""
    server = AdminServer(status, Address(host, 0), host_names)
    _, port = await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Client(session, ("127.0.0.1", port), server)
    finally:
        await server.stop()
