"""What thousands of clients wait for at once does not keep the loop from the others."""

import asyncio
from pathlib import Path

import pytest

from _core.paths.parked_fetch import ParkedFetch
from _core.queue.partition import Partition
from appliance import piece_queue
from compat.kafka.network import server
from compat.kafka.network.connection import KafkaConnection
from tests.support.harness.live_broker import LIMIT_S, LiveBroker, until
from tests.support.values.kafka_records import Record

COUNT = 30


def partition_of(live: LiveBroker) -> Partition:
    topic = live.broker.topics.find("t")
    assert topic is not None
    return topic.partitions[0]


@pytest.fixture(autouse=True)
def one_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop does one piece in a turn, as if each took a millisecond."""
    monkeypatch.setattr(piece_queue, "AT_ONCE_NS", 1)
    monkeypatch.setattr(server, "ENDS_NS", 1)


async def test_a_record_wakes_its_consumers_in_many_turns(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path) as live:
        consumers = [await live.connect() for _ in range(COUNT)]
        producer = await live.connect()
        for each in consumers:
            each.send_fetch("t", 0, 0, wait_ms=LIMIT_S * 1000)
        waiters = partition_of(live).waiting
        await until(lambda: len(waiters()) == COUNT)
        before = live.server.turns.turn_count
        await producer.produce("t", 0, [Record(b"a")])
        for each in consumers:
            assert [record.value for record in await each.read_fetched()] == [b"a"]
        assert live.server.turns.turn_count - before >= COUNT - 1
        assert waiters() == []


async def test_a_consumer_of_another_address_is_woken_second(tmp_path: Path) -> None:
    """Not after the thousands that waited before it."""
    async with LiveBroker(tmp_path) as live:
        consumers = [await live.connect() for _ in range(COUNT)]
        other, producer = await live.connect("127.0.0.2"), await live.connect("127.0.0.3")
        waiters = partition_of(live).waiting
        for number, each in enumerate([*consumers, other]):
            each.send_fetch("t", 0, 0, wait_ms=LIMIT_S * 1000)
            await until(lambda number=number: len(waiters()) == number + 1)  # type: ignore[misc]
        left: list[int] = []
        looked = live.server._woken._run

        def look(parked: ParkedFetch) -> None:
            if live.server._address_of_parked(parked) == "127.0.0.2":
                left.append(len(waiters()))
            looked(parked)

        live.server._woken._run = look
        producer.send_produce("t", 0, [Record(b"a")])
        assert [record.value for record in await other.read_fetched()] == [b"a"]
        assert left == [COUNT]
        for each in consumers:
            await each.read_fetched()


async def test_a_consumer_that_hangs_up_before_its_turn_is_passed_over(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path) as live:
        consumers = [await live.connect() for _ in range(COUNT)]
        producer = await live.connect()
        for each in consumers:
            each.send_fetch("t", 0, 0, wait_ms=LIMIT_S * 1000)
        waiters = partition_of(live).waiting
        await until(lambda: len(waiters()) == COUNT)
        producer.send_produce("t", 0, [Record(b"a")])
        await until(lambda: len(waiters()) < COUNT)
        assert len(waiters()) > 1, "some have not had their turn"
        for each in consumers[1::2]:
            await each.close()
        for each in consumers[::2]:
            assert [record.value for record in await each.read_fetched()] == [b"a"]
        await until(lambda: live.server.connection_count == 1 + COUNT // 2)
        await producer.read_produced()
        assert (await producer.produce("t", 0, [Record(b"b")])).base_offset == 1


async def test_a_flush_lets_its_answers_go_in_many_turns(tmp_path: Path) -> None:
    async with LiveBroker(tmp_path, flush="sync") as live:
        producers = [await live.connect() for _ in range(COUNT)]
        partition = partition_of(live)
        live.disk.hold()
        for each in producers:
            each.send_produce("t", 0, [Record(b"a")])
        await until(lambda: partition.next_offset == COUNT)
        before = live.server.turns.turn_count
        live.disk.let_go()
        answers = await asyncio.gather(*(each.read_produced() for each in producers))
        assert sorted(each.base_offset for each in answers) == list(range(COUNT))
        # One of them may have had a flush of its own, which was on its way.
        assert live.server.turns.turn_count - before >= COUNT - 2


async def test_clients_that_hang_up_together_end_in_many_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost_in_turn = [0]
    lose = KafkaConnection.connection_lost

    def count(connection: KafkaConnection, exc: Exception | None) -> None:
        lost_in_turn[-1] += 1
        lose(connection, exc)

    monkeypatch.setattr(KafkaConnection, "connection_lost", count)
    loop = asyncio.get_running_loop()

    def turn() -> None:
        lost_in_turn.append(0)
        loop.call_soon(turn)

    async with LiveBroker(tmp_path) as live:
        consumers = [await live.connect() for _ in range(COUNT)]
        producer = await live.connect()
        for each in consumers:
            each.send_fetch("t", 0, 0, wait_ms=LIMIT_S * 1000)
        waiters = partition_of(live).waiting
        await until(lambda: len(waiters()) == COUNT)
        turn()
        await asyncio.gather(*(each.close() for each in consumers))
        await until(lambda: sum(lost_in_turn) == COUNT)
        await until(lambda: live.server.connection_count == 1)
        assert max(lost_in_turn) <= 2
        assert waiters() == []
        assert live.server.held_bytes < 100_000
        assert (await producer.produce("t", 0, [Record(b"a")])).base_offset == 0


async def test_all_connections_end_with_the_server(tmp_path: Path) -> None:
    """Also those that wait for their turn when the pump stops."""
    async with LiveBroker(tmp_path) as live:
        consumers = [await live.connect() for _ in range(COUNT)]
        await until(lambda: live.server.connection_count == COUNT)
        for each in consumers:
            each.send_fetch("t", 0, 0, wait_ms=LIMIT_S * 1000)
        waiters = partition_of(live).waiting
        await until(lambda: len(waiters()) == COUNT)
    await until(lambda: live.server.connection_count == 0)
    assert waiters() == []
