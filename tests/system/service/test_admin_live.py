"""The admin API of a real broker: its reports are true, and a cancel is as durable as a record."""

import asyncio
import http.client
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from confluent_kafka import Consumer, TopicPartition

from appliance.admin import AdminServer, LiveStatus
from appliance.config.config import Address
from appliance.errors import NotReadyError, StorageError
from appliance.metrics import CONTENT_TYPE
from appliance.store.state.group_frames import OFFSET_COMMITTED, OffsetEntry
from compat.kafka.groups.status import GroupsStatus
from tests.support.clients.admin_client import Answer, Client
from tests.support.harness.appliance_process import ApplianceProcess, running_appliance
from tests.support.harness.live_broker import LiveBroker, until
from tests.support.values.kafka_records import Record, delay
from tests.system.service.test_admin_api import check_answer
from tests.system.service.test_serve import send

LIMIT_S: Final = 60.0
HOUR_MS: Final = 3_600_000
SEED: Final = 4


# A broker in this process, whose disk can be held


@dataclass
class Served:
    """A live broker and a client of its admin server."""

    live: LiveBroker
    status: LiveStatus
    client: Client

    async def ask(self, path: str, method: str = "GET") -> Answer:
        is_post = method == "POST"
        headers = {"Content-Type": "application/json"} if is_post else None
        answer = await self.client.ask(path, method, headers, b"{}" if is_post else None)
        check_answer(method, path, answer)
        return answer

    async def send(self, *records: Record) -> None:
        connection = await self.live.connect()
        assert (await connection.produce("t", 0, records)).error == 0


@asynccontextmanager
async def served(directory: Path, **settings: Any) -> AsyncIterator[Served]:
    async with LiveBroker(directory, **settings) as live:
        status = LiveStatus(live.broker)
        server = AdminServer(status, Address("127.0.0.1", 0))
        address = await server.start()
        status.serves(live.server, GroupsStatus(live.server.groups), address)
        async with aiohttp.ClientSession() as session:
            yield Served(live, status, Client(session, address, server))
        status.stops()
        await server.stop()


TIMER: Final = "/api/v1/topics/t/timers/id"


@pytest.mark.usefixtures("loop")
async def test_a_cancel_is_answered_when_it_is_on_the_disk(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        await s.send(Record(b"x", headers=delay(3_600_000, b"id")))
        s.live.disk.hold()
        syncs = s.live.disk.syncs
        cancelling = asyncio.create_task(s.ask(TIMER, "DELETE"))
        await until(lambda: s.live.disk.syncs > syncs)
        # A query meanwhile must not show it either.
        asking = asyncio.create_task(s.ask(TIMER))
        await until(lambda: s.live.server.pump.release.waiting_count == 2)
        assert not cancelling.done()
        assert not asking.done()
        s.live.disk.let_go()
        for task in (cancelling, asking):
            answer = await task
            assert (answer.status, answer.json()["state"]) == (200, "cancelled")


@pytest.mark.usefixtures("loop")
async def test_a_stop_of_a_stage_is_answered_when_it_is_on_the_disk(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        s.live.disk.hold()
        syncs = s.live.disk.syncs
        changing = asyncio.create_task(s.status.change_stage("dequeue", is_stopped=True))
        await until(lambda: s.live.disk.syncs > syncs)
        assert not changing.done()
        s.live.disk.let_go()
        assert [each.stopped for each in await changing] == [False, True]


@pytest.mark.usefixtures("loop")
async def test_with_async_flush_a_cancel_waits_for_no_disk(tmp_path: Path) -> None:
    async with served(tmp_path, flush="async", flush_bound_ms=60_000) as s:
        await s.send(Record(b"x", headers=delay(3_600_000, b"id")))
        s.live.disk.hold()
        assert (await s.ask(TIMER, "DELETE")).status == 200
        s.live.disk.let_go()


@pytest.mark.usefixtures("loop")
async def test_a_disk_that_fails_leaves_a_cancel_unanswered_for(tmp_path: Path) -> None:
    """Whether it survives a restart is unknown, so no answer may claim it."""
    async with served(tmp_path) as s:
        await s.send(Record(b"x", headers=delay(3_600_000, b"id")))
        s.live.disk.error = StorageError(Path("log"), "fdatasync", 5, "Input/output error")
        assert (await s.ask(TIMER, "DELETE")).status == 503
        assert s.live.server.pump.has_failed


@pytest.mark.usefixtures("loop")
async def test_a_stop_ends_the_wait_for_the_disk(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        await s.send(Record(b"x", headers=delay(3_600_000, b"id")))
        s.live.disk.hold()
        cancelling = asyncio.create_task(s.status.cancel_timer("t", b"id"))
        await until(lambda: s.live.server.pump.release.waiting_count == 1)
        stopping = asyncio.create_task(s.live.server.stop())
        with pytest.raises(NotReadyError):
            await cancelling
        with pytest.raises(NotReadyError):
            await s.status.cancel_timer("t", b"id")
        s.live.disk.let_go()
        await stopping


@pytest.mark.usefixtures("loop")
async def test_positions_and_counts_are_those_of_the_broker(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        due_ms = s.live.broker.clock.wall_ms() + 3_600_000
        now = Record(b"now")
        await s.send(now, now, Record(b"x", headers=[("x-deliver-at", b"%d" % due_ms)]))
        shown = (await s.ask("/api/v1/status")).json()
        broker = s.live.broker
        assert shown["log"]["flushed"] == broker.flushed_pos == shown["log"]["wrote"]
        assert shown["cluster_id"] == broker.cluster_id
        assert shown["kafka"] == shown["advertised"] == str(s.live.server.bound)
        assert (shown["topics"], shown["partitions"], shown["connections"]) == (1, 1, 1)
        assert (shown["pending_timers"], shown["next_due_at"]) == (1, due_ms)
        assert not shown["insecure"]
        assert shown["damage"] == []
        (topic,) = (await s.ask("/api/v1/topics")).json()["topics"]
        assert topic == {
            "name": "t",
            "id": str(broker.topics.all()[0].uuid),
            "partition_count": 1,
            "record_count": 2,
            "pending_timers": 1,
        }
        (part,) = (await s.ask("/api/v1/topics/t")).json()["partitions"]
        assert part == {
            "partition": 0,
            "start_offset": 0,
            "visible_offset": 2,
            "next_offset": 2,
            "pending_timers": 1,
        }
        assert (await s.ask("/api/v1/groups")).json() == {"groups": []}
        assert (await s.ask("/api/v1/groups/g")).status == 404


async def test_the_page_of_topics_is_in_the_format_of_prometheus(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        await s.send(Record(b"x", headers=delay(HOUR_MS)), Record(b"y", headers=delay(1)))
        await until(lambda: s.live.broker.pending_timers == 1)
        answer = await s.ask("/metrics/topics")
        assert answer.headers["Content-Type"] == CONTENT_TYPE
        lines = answer.body.decode().splitlines()
        assert 'latermq_topic_pending_timers{topic="t"} 1' in lines
        assert 'latermq_topic_timers_delivered_total{topic="t"} 1' in lines
        assert 'latermq_topic_delivery_lateness_seconds_bucket{topic="t",le="+Inf"} 1' in lines


async def test_offsets_whose_topic_was_lost_to_damage_are_left_out(tmp_path: Path) -> None:
    """A group frame and offsets may be whole where the frame of their topic is not."""
    async with served(tmp_path) as s:
        broker = s.live.broker
        known = broker.topics.all()[0].topic_id
        assert s.live.server.groups.check_commit("g", "", None, -1, 0) == 0
        broker.groups.commit_offsets(
            [
                OffsetEntry(op=OFFSET_COMMITTED, group="g", topic_id=topic, partition=index)
                for topic, index in ((known, 0), (known, 7), (known + 7, 0))
            ]
        )
        offsets = (await s.ask("/api/v1/groups/g")).json()["offsets"]
        assert [(each["topic"], each["partition"]) for each in offsets] == [("t", 0)]


async def test_what_wants_no_client_to_be_served_says_so(tmp_path: Path) -> None:
    async with served(tmp_path, allow_insecure=True) as s:
        assert (await s.ask("/api/v1/status")).json()["insecure"]
        s.status.stops()
        assert (await s.ask("/api/v1/status")).status == 503


# Snapshots

SNAPSHOTS: Final = "/api/v1/snapshots"
SLOW_FLUSH: Final = {"flush_interval_ms": 60_000, "flush_bound_ms": 60_000}
"""With async flush, nothing is flushed unless somebody asks for it."""


@pytest.mark.usefixtures("loop")
@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_a_snapshot_has_what_was_acknowledged_before_it(tmp_path: Path, flush: str) -> None:
    async with served(tmp_path, flush=flush, **SLOW_FLUSH) as s:
        await s.send(Record(b"x"))
        end = s.live.broker.wrote_pos
        made = await s.ask(SNAPSHOTS, "POST")
        assert made.status == 201
        assert made.json()["end"] == end
        assert (await s.ask(SNAPSHOTS)).json()["snapshots"] == [made.json()]
        path = f"{SNAPSHOTS}/{made.json()['name']}"
        assert (await s.ask(path)).json() == made.json()
        assert (await s.ask(path, "DELETE")).json() == made.json()
        assert (await s.ask(path, "DELETE")).status == 404
        assert (await s.ask(path)).status == 404


@pytest.mark.usefixtures("loop")
async def test_a_slow_disk_holds_up_a_snapshot_and_nobody_else(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        s.live.disk.hold()
        making = asyncio.create_task(s.ask(SNAPSHOTS, "POST"))
        snapshots = s.live.broker.config.data_dir / "snapshots"
        await until(snapshots.exists)
        assert (await s.ask("/api/v1/status")).status == 200
        assert not making.done()
        s.live.disk.let_go()
        assert (await making).status == 201


async def test_a_sync_of_a_snapshot_that_fails_ends_the_broker(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        snapshots = s.live.broker.snapshots
        error = StorageError(Path("snapshots"), "fsync", 5, "Input/output error")

        def fail() -> None:
            raise error

        with pytest.raises(StorageError):
            await s.live.server.pump.snapshot(fail)
        assert s.live.server.pump.has_failed
        assert snapshots.all() == []
        assert (await s.ask(SNAPSHOTS)).status == 503


# A broker in a process of its own


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[ApplianceProcess]:
    with running_appliance(tmp_path) as running:
        yield running


def send_timers(address: str, delays_ms: list[int]) -> None:
    """Timers with their number as value and as id, acknowledged."""
    texts = [(b"%d" % number, b"%d" % delay_ms) for number, delay_ms in enumerate(delays_ms)]
    send(address, "t", *((name, {"x-delay": each, "x-deliver-id": name}) for name, each in texts))


def read_values(address: str) -> list[int]:
    """All that is visible in partition 0 now."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "unused", "enable.auto.commit": False}
    )
    partition = TopicPartition("t", 0, 0)
    end = consumer.get_watermark_offsets(partition, timeout=LIMIT_S)[1]
    consumer.assign([partition])
    values: list[int] = []
    deadline_s = time.monotonic() + LIMIT_S
    while len(values) < end and time.monotonic() < deadline_s:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            values.append(int(message.value() or b""))
    consumer.close()
    return values


class Canceller:
    """One connection to the admin address."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=LIMIT_S)

    def cancel(self, user_id: object) -> int:
        """The status of the answer."""
        self._connection.request("DELETE", f"/api/v1/topics/t/timers/{user_id}")
        answer = self._connection.getresponse()
        answer.read()
        return answer.status

    def close(self) -> None:
        self._connection.close()


def wait_until_drained(appliance: ApplianceProcess) -> None:
    """No timer is pending, and consumers see all that was delivered: it is flushed as well."""
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        status = appliance.get_json("/api/v1/status")[1]
        if not status["pending_timers"] and status["log"]["visible"] == status["log"]["wrote"]:
            return
        assert time.monotonic() < deadline_s, "timers are pending still"
        time.sleep(0.01)


def test_cancels_that_race_with_delivery_have_one_winner_each(appliance: ApplianceProcess) -> None:
    """200: it never comes; 409: it came, once."""
    rng = random.Random(SEED)
    count = 600
    # Some are due so late that there is something to cancel on the slowest machine.
    delays_ms = [rng.randrange(50, 1_000) if number % 10 else HOUR_MS for number in range(count)]
    send_timers(appliance.kafka, delays_ms)
    canceller = Canceller(appliance.admin)
    outcomes = {number: canceller.cancel(number) for number in rng.sample(range(count), count)}
    canceller.close()
    wait_until_drained(appliance)
    values = read_values(appliance.kafka)
    assert len(values) == len(set(values))
    assert {number for number, status in outcomes.items() if status == 409} == set(values)
    cancelled = {number for number, status in outcomes.items() if status == 200}
    assert len(cancelled) + len(values) == count
    assert cancelled >= set(range(0, count, 10))


def test_an_acknowledged_cancel_outlives_the_process(appliance: ApplianceProcess) -> None:
    """Killed or stopped."""
    send_timers(appliance.kafka, [500, HOUR_MS, 500, HOUR_MS])
    for number, end in ((1, appliance.kill), (3, appliance.stop)):
        canceller = Canceller(appliance.admin)
        assert canceller.cancel(number) == 200
        end()
        canceller.close()
        appliance.start()
        state = appliance.get_json(f"/api/v1/topics/t/timers/{number}")[1]["state"]
        assert state == "cancelled"
    wait_until_drained(appliance)
    assert read_values(appliance.kafka) == [0, 2]


@pytest.mark.usefixtures("loop")
async def test_metrics_say_how_far_both_stages_of_timers_are_behind(tmp_path: Path) -> None:
    async with served(tmp_path) as s:

        async def backlog(stage: str) -> tuple[float, float]:
            lines = (await s.ask("/metrics")).body.decode().splitlines()
            values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
            name = f"latermq_{stage}_backlog"
            return float(values[name]), float(values[f"{name}_seconds"])

        await s.send(Record(b"x", headers=delay(1_500)))
        assert await backlog("enqueue") == (0, 0)
        s.live.disk.hold()
        held = [Record(b"y", headers=delay(HOUR_MS))] * 3
        sending = asyncio.create_task(s.send(*held))
        release = s.live.server.pump.release
        try:
            await until(lambda: release.unflushed_timers == 3 and release.unflushed_ms > 0)
            behind = await backlog("enqueue")
        finally:
            s.live.disk.let_go()
        await sending
        assert behind[0] == 3
        assert behind[1] > 0
        assert await backlog("enqueue") == (0, 0)
        assert await backlog("dequeue") == (0, 0)
