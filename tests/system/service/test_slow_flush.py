"""A disk that takes long to confirm a flush, as clients on sockets see it."""

import asyncio
import contextlib
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer as ConfluentProducer

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.offsets_client import Commit, commit_request
from tests.support.clients.wire_client import framed
from tests.support.harness.appliance_process import CONFIG, ApplianceProcess, running_appliance
from tests.support.harness.broker_harness import Produced
from tests.support.harness.live_broker import LIMIT_S, Client, LiveBroker, until
from tests.support.oracles.kafka_oracle import (
    ApiVersionsRequest,
    MetadataRequest,
    OffsetCommitResponse,
    decode_response,
)
from tests.support.simulator.virtual_clock import VirtualClock
from tests.support.values.group_requests import heartbeat_request
from tests.support.values.kafka_records import Producer, Record

REQUEST_TIMED_OUT: Final = 7
BOUND_MS: Final = 300


async def test_producers_are_answered_while_the_disk_hangs_and_connections_stay_usable(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()

    async def timed_out(client: Client) -> Produced:
        """The answer to what waits for the disk, once its time is over."""
        answer = asyncio.ensure_future(client.read_produced())
        while not answer.done():
            clock.advance_ms(BOUND_MS // 10)
            await asyncio.wait([answer], timeout=0.01)
        return answer.result()

    async with LiveBroker(tmp_path, 2, clock=clock, flush_timeout_ms=BOUND_MS) as live:
        safe, other = await live.connect(), await live.connect()
        by = Producer(4711, 0, 0)
        live.disk.hold()
        for _ in range(2):  # a retry times out as well while the disk hangs
            safe.send_produce("t", 0, [Record(b"a")], producer=by)
            answer = await timed_out(safe)
            assert (answer.error, answer.base_offset) == (REQUEST_TIMED_OUT, -1)
        other.send_produce("t", 1, [Record(b"b")])
        assert (await timed_out(other)).error == REQUEST_TIMED_OUT
        assert live.broker.collect_metrics().request_errors == {REQUEST_TIMED_OUT: 3}
        # Others are served, and see nothing that is not on the disk.
        assert await other.fetch("t", 0, 0) == []
        live.disk.let_go()
        safe.send_produce("t", 0, [Record(b"a")], producer=by)
        assert await safe.read_produced() == Produced(0, 0, None)
        assert await other.produce("t", 1, [Record(b"c")]) == Produced(0, 1, None)
        assert [record.value for record in await other.fetch("t", 0, 0)] == [b"a"]
        assert [record.value for record in await other.fetch("t", 1, 0)] == [b"b", b"c"]


async def test_commits_are_answered_while_the_disk_hangs_and_keep_nobody_else_waiting(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    async with LiveBroker(tmp_path, clock=clock, flush_timeout_ms=BOUND_MS) as live:
        committing, other = await live.connect(), await live.connect()
        live.disk.hold()
        committing.send_bytes(framed(commit_request("g", {("t", 0): Commit(7)}), 8, 1))
        await until(lambda: live.broker.wrote_pos > live.broker.flushed_pos)
        topic = MetadataRequest.MetadataRequestTopic(name="t")
        for request, version in (
            (ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3),
            (MetadataRequest(topics=[topic], allow_auto_topic_creation=True), 8),
            (heartbeat_request("g", "m", 1), 3),
        ):
            other.send_bytes(framed(request, version, 2))
            await asyncio.wait_for(other.read_answer(), LIMIT_S)
        waiting = asyncio.ensure_future(committing.read_answer())
        while not waiting.done():
            clock.advance_ms(BOUND_MS // 10)
            await asyncio.wait([waiting], timeout=0.01)
        answer = decode_response(OffsetCommitResponse, 8, waiting.result())
        assert answer.topics[0].partitions[0].error_code == ErrorCode.coordinator_not_available
        assert live.broker.collect_metrics().late_answers == 1
        live.disk.let_go()
        committing.send_bytes(framed(commit_request("g", {("t", 0): Commit(8)}), 8, 3))
        answer = decode_response(OffsetCommitResponse, 8, await committing.read_answer())
        assert answer.topics[0].partitions[0].error_code == ErrorCode.none


@contextlib.contextmanager
def slow_syncs(pid: int, delay_ms: int) -> Iterator[None]:
    """Let each fdatasync of a process take so much longer."""
    if shutil.which("strace") is None:
        pytest.skip("no strace here, with which to make fdatasync slow")
    delay = f"inject=fdatasync:delay_exit={delay_ms * 1000}"
    strace = subprocess.Popen(
        ["strace", "-f", "-p", str(pid), "-e", "trace=fdatasync", "-e", delay, "-o", "/dev/null"],
        stderr=subprocess.PIPE,
    )
    assert strace.stderr is not None
    with strace.stderr:
        reported = strace.stderr.readline()
        if b"attached" not in reported:
            strace.wait()
            pytest.skip(f"strace may not attach here: {reported.decode().strip()}")
        try:
            yield
        finally:
            strace.send_signal(signal.SIGINT)
            strace.wait()


def test_a_real_client_gets_through_a_slow_disk_with_nothing_lost_or_doubled(
    tmp_path: Path,
) -> None:
    config = tmp_path / "latermq.toml"
    config.write_text(f"{CONFIG}[flush]\ntimeout_ms = {BOUND_MS}\n")
    with running_appliance(tmp_path, ["--config", str(config)]) as appliance:
        producer = ConfluentProducer(
            {
                "bootstrap.servers": appliance.kafka,
                "enable.idempotence": True,
                "retry.backoff.ms": 20,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        offsets: list[int | None] = []

        def note(error: object, message: object) -> None:
            assert error is None, error
            offsets.append(message.offset())  # type: ignore[attr-defined]

        producer.produce("t", b"first", partition=0, on_delivery=note)
        assert producer.flush(LIMIT_S) == 0
        with slow_syncs(appliance.pid, 4 * BOUND_MS):
            for number in range(20):
                producer.produce("t", b"%d" % number, partition=0, on_delivery=note)
                producer.poll(0.01)
            deadline_s = time.monotonic() + LIMIT_S
            while timed_out(appliance) == 0:
                assert time.monotonic() < deadline_s, "nothing timed out"
                producer.poll(0.05)
        assert producer.flush(LIMIT_S) == 0
        assert offsets == list(range(21))


def timed_out(appliance: ApplianceProcess) -> int:
    """How many batches the metrics say were answered REQUEST_TIMED_OUT."""
    with urllib.request.urlopen(f"http://{appliance.admin}/metrics", timeout=LIMIT_S) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith('latermq_request_errors_total{error="REQUEST_TIMED_OUT"}'):
                return int(float(line.split()[-1]))
    return 0
