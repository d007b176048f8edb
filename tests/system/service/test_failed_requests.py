"""A request that fails inside the broker, after what it needed was read from the disk."""

from pathlib import Path
from typing import Any

import pytest

from appliance.errors import ColdFrameError
from appliance.offset_search import OffsetSearch
from compat.kafka.network.connection import KafkaConnection
from tests.support.harness.live_broker import Client, LiveBroker, until
from tests.support.oracles.kafka_oracle import encode_request
from tests.support.values.kafka_records import Record
from tests.support.values.topic_requests import list_offset_request


class FailingSession:
    """The session of a connection; its next fetch that is tried again fails."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._session = connection.session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def retry(self, _parked: object) -> bool:
        self._connection.session = self._session
        raise ZeroDivisionError("a bug")


async def check_only_one_is_closed(live: LiveBroker, client: Client, failed: Client) -> None:
    assert (await client.produce("t", 0, [Record(b"b")])).error == 0
    assert await failed.is_closed_by_broker()
    assert not live.server.pump.has_failed
    assert (await client.produce("t", 0, [Record(b"c")])).error == 0
    await until(lambda: live.server.connection_count == 1)


async def test_a_search_that_fails_after_a_cold_read_closes_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LiveBroker(tmp_path) as live:
        client, failed = await live.connect(), await live.connect()
        await client.produce("t", 0, [Record(b"a")])
        errors: list[Exception] = [ColdFrameError(0), ZeroDivisionError("a bug")]

        def find(*_: object) -> None:
            raise errors.pop(0)

        monkeypatch.setattr(OffsetSearch, "find", find)
        frame = encode_request(list_offset_request("t", [0], 5), 5)
        failed.send_bytes(len(frame).to_bytes(4, "big") + frame)
        await check_only_one_is_closed(live, client, failed)
        assert not errors


async def test_a_fetch_that_fails_when_it_is_tried_again_closes_its_connection(
    tmp_path: Path,
) -> None:
    async with LiveBroker(tmp_path) as live:
        client, failed = await live.connect(), await live.connect()
        failed.send_fetch("t", 0, 0, wait_ms=60_000)

        def waiting() -> list[KafkaConnection]:
            return [each for each in live.server._connections.values() if each._parked]

        await until(lambda: bool(waiting()))
        (connection,) = waiting()
        connection.session = FailingSession(connection)  # type: ignore[assignment]
        await check_only_one_is_closed(live, client, failed)
