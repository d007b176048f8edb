"""Commits that write much to the log wait while clients that ask for little are served."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from appliance.loop_turns import LoopTurns
from appliance.system.clock import SystemClock
from appliance.units import MIB, MS_PER_SECOND, NS_PER_MS
from compat.kafka.apis import api_08_offset_commit
from compat.kafka.network.commit_turns import WAIT_MAX_NS
from compat.kafka.network.log_debts import CREDIT_BYTES
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.offsets_client import Commit, commit_request
from tests.support.clients.wire_client import framed
from tests.support.harness.live_broker import Client, LiveBroker, until
from tests.support.oracles.kafka_oracle import OffsetCommitResponse, decode_response
from tests.support.values.kafka_records import Record

SECOND_NS: Final = MS_PER_SECOND * NS_PER_MS


class StillClock(SystemClock):
    """A clock that moves when it is moved."""

    def __init__(self) -> None:
        self.now_ns = 1

    def monotonic_ns(self) -> int:
        return self.now_ns


class Stage:
    """A broker, and a client whose address owes all its credit because of its commits.

    Attributes:
        live: the broker.
        clock: of the broker.
        client: the client.
    """

    def __init__(self, live: LiveBroker, clock: StillClock, client: Client) -> None:
        self.live = live
        self.clock = clock
        self.client = client

    @property
    def waiting_count(self) -> int:
        return self.live.server._commits.waiting_count

    @property
    def held_back(self) -> int:
        return self.live.broker.metrics.commits_held_back


def send(client: Client, offset: int) -> None:
    client.send_bytes(framed(commit_request("g", {("t", 0): Commit(offset)}), 8, offset))


async def code_of(client: Client) -> int:
    answer = decode_response(OffsetCommitResponse, 8, await client.read_answer())
    return int(answer.topics[0].partitions[0].error_code)


@asynccontextmanager
async def staged(tmp_path: Path) -> AsyncIterator[Stage]:
    clock = StillClock()
    async with LiveBroker(tmp_path, clock=clock) as live:
        client = await live.connect()
        # Each commit takes a little more than a quarter of the credit.
        for number in range(4):
            send(client, number)
            assert await code_of(client) == 0
        stage = Stage(live, clock, client)
        assert (stage.held_back, stage.waiting_count) == (0, 0)
        yield stage


@pytest.fixture(autouse=True)
def _large_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_08_offset_commit, "ENTRY_BYTES", CREDIT_BYTES // 4)
    monkeypatch.setattr(LoopTurns, "serves_light", lambda turns, now_ns: True)


async def test_a_commit_waits_until_its_address_has_paid(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with staged(tmp_path) as stage:
        caplog.set_level(logging.WARNING)
        send(stage.client, 7)
        await until(lambda: stage.waiting_count == 1)
        assert stage.held_back == 1
        assert [line.getMessage() for line in caplog.records] == [
            "commits from 127.0.0.1 wait: they write more than 1 MiB/s to the log while others are "
            "served; commit less often, or with less metadata"
        ]
        # Records are accepted meanwhile, also from this address.
        other = await stage.live.connect()
        assert (await other.produce("t", 0, [Record(b"a")])).error == 0
        assert stage.waiting_count == 1
        stage.clock.now_ns += 3 * SECOND_NS
        assert await code_of(stage.client) == 0
        assert stage.waiting_count == 0
        committed = stage.live.broker.groups.offsets("g").values()
        assert [each.offset for each in committed] == [7]


async def test_commits_that_wait_go_one_after_the_other(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        clients = [await stage.live.connect() for _ in range(3)]
        for number, client in enumerate(clients, 1):
            send(client, 10 + number)
            await until(lambda number=number: stage.waiting_count == number)  # type: ignore[misc]
        for number, client in enumerate(clients, 1):
            stage.clock.now_ns += 2 * SECOND_NS + NS_PER_MS
            assert await code_of(client) == 0
            assert stage.waiting_count == 3 - number


async def test_a_commit_that_waits_too_long_is_refused_and_the_next_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(tmp_path) as stage:
        monkeypatch.setattr(api_08_offset_commit, "ENTRY_BYTES", 4 * CREDIT_BYTES)
        stage.clock.now_ns += SECOND_NS
        send(stage.client, 6)
        assert await code_of(stage.client) == 0
        send(stage.client, 7)
        await until(lambda: stage.waiting_count == 1)
        stage.clock.now_ns += WAIT_MAX_NS
        assert await code_of(stage.client) == ErrorCode.coordinator_load_in_progress
        # What was refused is no debt.
        stage.clock.now_ns += 4 * CREDIT_BYTES // MIB * SECOND_NS
        send(stage.client, 8)
        assert await code_of(stage.client) == 0


async def test_a_commit_of_a_client_that_is_gone_waits_no_longer(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        send(stage.client, 7)
        await until(lambda: stage.waiting_count == 1)
        await stage.client.close()
        await until(lambda: stage.waiting_count == 0)
        stage.clock.now_ns += 3 * SECOND_NS
        other = await stage.live.connect()
        send(other, 8)
        assert await code_of(other) == 0


async def test_a_commit_does_not_wait_while_nobody_else_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(tmp_path) as stage:
        monkeypatch.setattr(LoopTurns, "serves_light", lambda turns, now_ns: False)
        send(stage.client, 7)
        assert await code_of(stage.client) == 0
        assert stage.held_back == 0
