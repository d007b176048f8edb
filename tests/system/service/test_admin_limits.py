"""The admin address has limits on connections, bytes and time, and serves others meanwhile."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar, cast

import pytest

from _core.queue.partition import Partition
from appliance.admin import LiveStatus
from appliance.admin.api import SLICE_WORK
from appliance.admin.connections import (
    ADDRESS_COUNT_MAX,
    ANSWERS_MAX_BYTES,
    ARRIVED_MAX_BYTES,
    CONNECTION_BYTES,
    COUNT_MAX,
    CROWDED_S,
    HEAD_MAX_BYTES,
    IDLE_S,
    PIECE_BYTES,
    READ_S,
    REQUEST_S,
    AdminConnections,
)
from appliance.config.config import Address
from appliance.loop_turns import TURN_NS
from appliance.model import GroupStatus, MemberStatus, TopicSummary
from appliance.store.state.group_frames import OFFSET_COMMITTED, OffsetEntry
from appliance.units import MIB
from compat.kafka.groups.status import GroupsStatus
from tests.support.clients.admin_client import Client, Status, serving
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import small_config
from tests.support.harness.live_broker import until
from tests.unit.groups.harness import DELAY_MS, GroupHarness

HEAD: Final = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
TOPIC: Final = TopicSummary("t" * 249, "0" * 36, 1, 2, 3)
LONG_LIST: Final = 40_000
"""Topics: 15 MB of JSON, more than sockets hold."""

pytestmark = pytest.mark.usefixtures("loop")


@dataclass
class ManyTopics(Status):
    """A status with topics that are made as they are asked for.

    Attributes:
        made: how many were made for each request.
    """

    made: list[int] = field(default_factory=list)

    def topics(self) -> Iterator[TopicSummary]:
        request = len(self.made)
        self.made.append(0)
        for _ in range(LONG_LIST):
            self.made[request] += 1
            yield TOPIC


Step = TypeVar("Step")

PARTITION_COUNT: Final = 40_000
"""Partitions of a member: 11 MB of JSON."""

EMPTY_COUNT: Final = 10_000
"""Topics without partitions that another one has."""


def assigned(names: int, name: bytes, partitions: int) -> bytes:
    """An assignment with topics of one name, each with so many partitions."""
    indexes = struct.pack(f">i{partitions}i", partitions, *range(partitions))
    topic = struct.pack(">h", len(name)) + name + indexes
    return struct.pack(">hi", 0, names) + names * topic + struct.pack(">i", -1)


@dataclass
class LargeGroup(Status):
    """A status with one group, whose members have long assignments or names.

    Attributes:
        made: how many steps through its members and assignments were made for each request.
    """

    made: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        harness = GroupHarness(segment_size_bytes=MIB, group_size_max_bytes=MIB // 4)
        joins = [harness.join() for _ in range(3)]
        harness.advance(2 * DELAY_MS)
        ids = [each.answer.member_id for each in joins]
        assignments = (
            assigned(1, TOPIC.name.encode(), PARTITION_COUNT),
            assigned(EMPTY_COUNT, b"e", 0),
            assigned(1, b"t" * 250, 5),
        )
        leader = joins[0].answer.leader_id
        harness.sync(leader, 1, dict(zip(ids, assignments, strict=True)))
        self._groups = GroupsStatus(harness.groups)
        self.assigned: dict[str, object] = {
            ids[0]: [{"topic": TOPIC.name, "partition": i} for i in range(PARTITION_COUNT)],
            ids[1]: [],
            ids[2]: None,
        }

    def group(self, name: str) -> GroupStatus | None:
        found = self._groups.find(name)
        assert found is not None
        self.made.append(0)
        return replace(found, members=map(self._counted_member, self._counted(found.members)))

    def _counted_member(self, member: MemberStatus | None) -> MemberStatus | None:
        if member is None or member.assignment is None:
            return member
        return replace(member, assignment=self._counted(member.assignment))

    def _counted(self, steps: Iterable[Step]) -> Iterator[Step]:
        request = len(self.made) - 1
        for each in steps:
            self.made[request] += 1
            yield each


class Attacker:
    """Connections that hold on to what they get."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sockets: list[socket.socket] = []

    async def open(self, data: bytes = b"", *, address: str = "127.0.0.1") -> socket.socket:
        """Connect from an address and send some bytes."""
        each = socket.socket()
        each.setblocking(False)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        each.bind((address, 0))
        self._sockets.append(each)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(each, self._client.address)
        await loop.sock_sendall(each, data)
        return each

    async def read(self, each: socket.socket) -> bytes:
        """Return all that comes on a connection until it is closed."""
        received = b""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionResetError):
                while data := await loop.sock_recv(each, 65_536):
                    received += data
        return received

    def close(self) -> None:
        for each in self._sockets:
            each.close()


@asynccontextmanager
async def attacked(status: Status) -> AsyncIterator[tuple[Client, Attacker, AdminConnections]]:
    async with serving(status) as client:
        attacker = Attacker(client)
        try:
            yield client, attacker, client.server.connections
        finally:
            attacker.close()


@asynccontextmanager
async def watched(count: Callable[[], int]) -> AsyncIterator[list[int]]:
    """Note by how much a number grows in each turn of the loop."""
    turns: list[int] = []

    async def watch() -> None:
        before = count()
        while True:
            await asyncio.sleep(0)
            now = count()
            turns.append(now - before)
            before = now

    watching = asyncio.create_task(watch())
    try:
        yield turns
    finally:
        watching.cancel()


def sweep(connections: AdminConnections, after_s: float) -> None:
    """Look at the connections as if so much time had passed."""
    connections.sweep(connections.now_s() + after_s)


def refused(client: Client) -> dict[str, int]:
    return client.server.metrics.admin_connections_refused


def closed(client: Client) -> dict[str, int]:
    return client.server.metrics.admin_connections_closed


async def test_a_head_has_a_limit_in_all() -> None:
    """Not only each of its lines: 128 headers of 8 KB would be a megabyte."""
    async with attacked(Status()) as (client, attacker, connections):
        half = HEAD + b"X: " + b"a" * 8_000 + b"\r\n"
        each = await attacker.open(half)
        await until(lambda: connections.held_bytes == len(half) + CONNECTION_BYTES)
        await asyncio.get_running_loop().sock_sendall(each, b"Y: " + b"a" * HEAD_MAX_BYTES)
        assert (await attacker.read(each)).startswith(b"HTTP/1.1 431 ")
        assert closed(client) == {"request": 1}
        await until(lambda: len(connections) == 0)
        answer = await client.ask("/healthz", headers={"X": "a" * 8_000, "Y": "a" * 6_000})
        assert answer.status == 200


async def test_blank_lines_before_a_request_do_not_end_its_head() -> None:
    async with attacked(Status()) as (_, attacker, _connections):
        each = await attacker.open(b"\r\n\r\n" + HEAD + b"X: " + b"a" * HEAD_MAX_BYTES)
        assert (await attacker.read(each)).startswith(b"HTTP/1.1 431 ")


async def test_half_heads_hold_little_and_not_for_long() -> None:
    """A good client of the same address is served when it would be one connection too many."""
    half = HEAD + b"X: " + b"a" * 8_000 + b"\r\n" + b"Y: " + b"a" * 7_000
    async with attacked(Status()) as (client, attacker, connections):
        held_bytes = len(half) + CONNECTION_BYTES
        sockets = [await attacker.open(half) for _ in range(ADDRESS_COUNT_MAX)]
        await until(lambda: connections.held_bytes == ADDRESS_COUNT_MAX * held_bytes)
        assert (await client.ask("/healthz")).status == 503
        assert refused(client) == {"address": 1}
        now_s = connections.now_s
        connections.now_s = lambda: now_s() + 2 * CROWDED_S
        assert (await client.ask("/healthz")).status == 200
        assert closed(client) == {"crowded": 1}
        assert await attacker.read(sockets[0]) == b""
        connections.now_s = now_s
        sweep(connections, REQUEST_S - 5)
        assert len(connections) == ADDRESS_COUNT_MAX
        sweep(connections, REQUEST_S + 5)
        assert closed(client)["slow_request"] == ADDRESS_COUNT_MAX - 1
        await until(lambda: len(connections) == 1)


async def test_all_addresses_together_have_a_limit() -> None:
    async with attacked(Status()) as (client, attacker, connections):
        for number in range(COUNT_MAX):
            await attacker.open(HEAD, address=f"127.0.1.{number // (ADDRESS_COUNT_MAX - 1) + 1}")
        await until(lambda: len(connections) == COUNT_MAX)
        assert (await client.ask("/healthz")).status == 503
        assert refused(client) == {"count": 1}


async def test_a_slow_body_is_not_waited_for() -> None:
    async with attacked(Status()) as (client, attacker, connections):
        head = (
            b"POST /api/v1/cleanup HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        each = await attacker.open(head)
        await until(lambda: connections.held_bytes == len(head) + CONNECTION_BYTES)
        sweep(connections, REQUEST_S + 5)
        assert await attacker.read(each) == b""
        assert closed(client) == {"slow_request": 1}


async def test_a_connection_that_asks_for_nothing_is_closed() -> None:
    """One that was answered, too."""
    async with attacked(Status()) as (client, attacker, connections):
        assert (await client.ask("/healthz")).status == 200
        each = await attacker.open()
        await until(lambda: len(connections) == 2)
        sweep(connections, IDLE_S - 5)
        assert len(connections) == 2
        sweep(connections, IDLE_S + 5)
        assert await attacker.read(each) == b""
        assert closed(client) == {"idle": 2}
        assert (await client.ask("/healthz")).status == 200


async def test_an_unread_list_holds_a_piece_and_not_for_long() -> None:
    """What is not read is not made either. The whole list is there for those who read it."""
    status = ManyTopics()
    async with attacked(status) as (client, attacker, connections):
        asked = b"GET /api/v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(3):
            await attacker.open(asked)
        await until(lambda: len(status.made) == 3)
        made = [0]

        def stops() -> bool:
            made.append(sum(status.made))
            return made[-1] == made[-2] and connections.held_bytes > 3 * (CONNECTION_BYTES + 1_000)

        await until(stops)
        assert max(status.made) < LONG_LIST
        assert connections.held_bytes <= 3 * (2 * PIECE_BYTES + CONNECTION_BYTES + 4_096)
        answer = await client.ask("/api/v1/topics")
        assert len(answer.json()["topics"]) == LONG_LIST
        sweep(connections, 0)
        sweep(connections, READ_S - 5)
        assert len(connections) == 4
        sweep(connections, READ_S + 5)
        assert closed(client)["slow_reader"] == 3
        await until(lambda: len(connections) <= 1)


async def test_who_reads_nothing_makes_room_for_others_after_a_second() -> None:
    """Not only a second after a look at all connections has found that it reads nothing."""
    async with attacked(ManyTopics()) as (client, attacker, connections):
        asked = b"GET /api/v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(ADDRESS_COUNT_MAX):
            await attacker.open(asked)
        await until(lambda: all(each._is_full for each in connections._all.values()))
        assert (await client.ask("/healthz")).status == 503
        now_s = connections.now_s
        connections.now_s = lambda: now_s() + CROWDED_S
        assert (await client.ask("/healthz")).status == 200
        assert closed(client) == {"crowded": 1}


async def test_a_turn_of_the_loop_makes_one_slice_of_all_lists() -> None:
    """However many connections ask at once, others come between two slices."""
    status = ManyTopics()
    async with attacked(status) as (_client, attacker, _connections):
        asked = b"GET /api/v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        async with watched(lambda: sum(status.made)) as turns:
            for _ in range(12):
                await attacker.open(asked)
            await until(lambda: len(status.made) == 12 and min(status.made) > 100)
        assert 0 < max(turns) <= 2 * (PIECE_BYTES // len(TOPIC.name))


async def test_a_turn_of_the_loop_has_one_request_of_all_connections() -> None:
    """However many are sent at once: twelve connections with twenty each."""
    asked_count = 0

    class Counted(Status):
        @property
        def ready(self) -> bool:
            nonlocal asked_count
            asked_count += 1
            return True

        @ready.setter
        def ready(self, _: bool) -> None:
            pass

    async with attacked(Counted()) as (_client, attacker, _connections):
        asked = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        async with watched(lambda: asked_count) as turns:
            for _ in range(12):
                await attacker.open(20 * asked)
            await until(lambda: asked_count == 12 * 20)
        assert max(turns) == 1


async def test_what_arrives_in_a_turn_that_has_work_is_parsed_in_a_later_one() -> None:
    async with attacked(Status()) as (_client, attacker, connections):
        turns = connections.turns
        each = await attacker.open()
        await until(lambda: len(connections) == 1)
        (connection,) = connections._all.values()
        asked = HEAD + b"Connection: close\r\n\r\n"
        await until(lambda: not turns.is_spent)
        turns.spend(TURN_NS)
        connection.data_received(asked)
        connection.eof_received()
        assert connection._unfed == asked
        assert connections.held_bytes == CONNECTION_BYTES + len(asked)
        assert b"200 OK" in await attacker.read(each)


async def test_a_group_with_a_large_assignment_is_made_in_slices() -> None:
    """Its members and their assignments are in the same lists in pieces as its offsets."""
    status = LargeGroup()
    async with attacked(status) as (client, attacker, connections):
        asked = b"GET /api/v1/groups/g HTTP/1.1\r\nHost: localhost\r\n\r\n"
        async with watched(lambda: sum(status.made)) as turns:
            await attacker.open(asked)
            await until(lambda: connections.held_bytes > CONNECTION_BYTES + 1_000)
            answer = await client.ask("/api/v1/groups/g")
        members = answer.json()["members"]
        assert {each["member_id"]: each["assignment"] for each in members} == status.assigned
        # Topics without partitions are steps when they are checked and when they are walked.
        assert status.made[1] == 3 + PARTITION_COUNT + 1 + 2 * EMPTY_COUNT + 1
        assert 0 < max(turns) <= 2 * SLICE_WORK
        assert status.made[0] < PARTITION_COUNT
        assert connections.held_bytes <= 2 * (2 * PIECE_BYTES + CONNECTION_BYTES + 4_096)


@pytest.fixture
def many_partitions() -> BrokerHarness:
    """A broker with 10,000 partitions in topics without offsets, before and after one that has two
    offsets in 2,000 partitions."""
    config = small_config(partition_count_max_per_topic=2_000, segment_size_bytes=MIB)
    harness = BrokerHarness(config=config)
    for name in ("a", "b", "some", "c", "d", "e"):
        harness.create_topic(name, 2_000)
    for number in range(600):
        harness.create_topic(f"t{number}")
    entry = OffsetEntry(op=OFFSET_COMMITTED, group="g", topic_id=0, partition=5, offset=7)
    found = harness.broker.topics.find("some")
    assert found is not None
    entry = replace(entry, topic_id=found.topic_id)
    harness.broker.groups.commit_offsets([entry, replace(entry, partition=1_999)])
    assert harness.groups.check_commit("g", "", None, -1, 0) == 0
    return harness


class Counting(dict[tuple[int, int], OffsetEntry]):
    """The offsets of a group.

    Attributes:
        calls: how often one was looked for, in all of them.
    """

    calls = 0

    def get(self, *key: Any) -> Any:
        Counting.calls += 1
        return super().get(*key)


def live_status(harness: BrokerHarness) -> LiveStatus:
    """The status of a broker that serves nobody."""
    status = LiveStatus(harness.broker)
    nobody = cast(Any, object())
    status.serves(nobody, GroupsStatus(harness.groups), Address("127.0.0.1", 0))
    return status


async def test_the_offsets_of_a_group_are_looked_for_in_slices(
    many_partitions: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions without an offset are work too, and topics without one are one step each."""
    groups = many_partitions.broker.groups
    real_offsets, real_has = groups.offsets, groups.has_offsets
    asked = 0

    def has_offsets(group: str, topic_id: int) -> bool:
        nonlocal asked
        asked += 1
        return real_has(group, topic_id)

    monkeypatch.setattr(Counting, "calls", 0)
    monkeypatch.setattr(groups, "offsets", lambda group: Counting(real_offsets(group)))
    monkeypatch.setattr(groups, "has_offsets", has_offsets)
    async with (
        serving(live_status(many_partitions)) as client,
        watched(lambda: asked + Counting.calls) as turns,
    ):
        offsets = (await client.ask("/api/v1/groups/g")).json()["offsets"]
    assert [(each["topic"], each["partition"], each["offset"]) for each in offsets] == [
        ("some", 5, 7),
        ("some", 1_999, 7),
    ]
    assert sum(turns) == len(many_partitions.broker.topics.all()) + 2_000
    assert max(turns) <= 2 * SLICE_WORK


async def test_the_partitions_of_a_topic_are_made_in_slices(
    many_partitions: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = many_partitions.broker
    real, made = broker.timers.count_of, 0

    def count_of(partition: Partition) -> int:
        nonlocal made
        made += 1
        return real(partition)

    monkeypatch.setattr(broker.timers, "count_of", count_of)
    async with (
        serving(live_status(many_partitions)) as client,
        watched(lambda: made) as turns,
    ):
        partitions = (await client.ask("/api/v1/topics/some")).json()["partitions"]
    assert [each["partition"] for each in partitions] == list(range(2_000))
    assert sum(turns) == 2_000
    assert max(turns) <= 2 * SLICE_WORK


async def test_a_list_that_is_read_slowly_is_sent_to_its_end() -> None:
    """Each time that is looked at, the client has read some more."""
    async with attacked(ManyTopics()) as (client, attacker, connections):
        head = b"GET /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        each = await attacker.open(head)
        loop = asyncio.get_running_loop()
        received, after_s = 0, 0.0
        async with asyncio.timeout(60):
            while data := await loop.sock_recv(each, 1 << 20):
                if received // (1 << 20) != (received + len(data)) // (1 << 20):
                    after_s += READ_S + 1
                    sweep(connections, after_s)
                received += len(data)
        assert received > LONG_LIST * len(TOPIC.name)
        assert closed(client) == {}


async def test_answers_made_whole_have_a_limit_together() -> None:
    status = Status(found={"found": ["a" * (ANSWERS_MAX_BYTES // 4)]})
    async with attacked(status) as (client, attacker, connections):
        asked = b"GET /api/v1/find?key=a HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(3):
            await attacker.open(asked)
        await until(lambda: connections.held_bytes > 3 * ANSWERS_MAX_BYTES // 4)
        answer = await client.ask("/api/v1/find?key=a")
        assert answer.status == 503
        assert "later" in answer.json()["error"]
        assert (await client.ask("/healthz")).status == 200
        attacker.close()
        await until(lambda: len(connections) == 1)
        assert (await client.ask("/api/v1/find?key=a")).status == 200


@pytest.mark.parametrize("is_request", [True, False], ids=["requests", "a body"])
async def test_bytes_beyond_a_request_are_not_read(is_request: bool) -> None:
    """Further requests in the same bytes may be lost; nobody sends so many."""
    async with attacked(Status()) as (_, attacker, connections):
        head = HEAD + b"\r\n"
        more = head if is_request else b"a"
        length = b"" if is_request else b"Content-Length: 1000000\r\n"
        begin = HEAD + length + b"\r\n"
        each = await attacker.open(begin)
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            await loop.sock_sendall(each, more * (4 * ARRIVED_MAX_BYTES // len(more)))
        answer = await attacker.read(each)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 200 ")
        assert answer.count(b"HTTP/1.1 200 ") <= 1 + ARRIVED_MAX_BYTES // len(head)
        await until(lambda: len(connections) == 0)


async def test_the_metrics_have_the_connections_and_their_memory() -> None:
    """As they are when they are asked for."""
    seen: list[tuple[int, int]] = []

    class Observed(Status):
        def metrics(
            self, *, admin_connections: int, admin_held_bytes: int
        ) -> Iterator[tuple[str, int]]:
            seen.append((admin_connections, admin_held_bytes))
            return iter([("", 1)])

    async with attacked(Observed()) as (client, attacker, connections):
        await attacker.open(HEAD + b"X: " + b"a" * 8_000)
        await until(lambda: connections.held_bytes > 8_000 + CONNECTION_BYTES)
        assert (await client.ask("/metrics")).status == 200
        ((count, held_bytes),) = seen
        assert count == 2
        assert 8_000 + 2 * CONNECTION_BYTES < held_bytes < 12_000 + 2 * CONNECTION_BYTES
