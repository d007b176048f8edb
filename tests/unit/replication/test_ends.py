"""Two real ends on loopback: whatever happens between them, the slave gets the master's bytes."""

import asyncio
import random

from tests.support.harness.replica_logs import MemoryLog
from tests.support.harness.replica_pair import (
    running,
    until,
)


def filled(node: int, *epochs: int, seed: int = 1, count: int = 20) -> MemoryLog:
    """A log with `count` frames of up to 10,000 random bytes in each epoch."""
    chance = random.Random(seed)
    log = MemoryLog(node)
    for epoch in epochs:
        log.write(epoch, *(chance.randbytes(chance.randrange(10_000)) for _ in range(count)))
    return log


def test_an_empty_slave_gets_the_whole_log_and_what_follows() -> None:
    async def run() -> None:
        source, replica = filled(1, 11, 13, count=100), MemoryLog(2)
        async with running(source, replica) as pair:
            client = pair.follow()
            await until(lambda: pair.is_streaming() and pair.is_equal(), "the catch-up")
            await until(lambda: client.following.has_caught_up)
            for number in range(20):
                source.write(13, b"record %d" % number)
                pair.server.notify()
                await asyncio.sleep(0)
            await until(pair.is_equal, "the stream")
            await until(lambda: client.following.lag_bytes == 0)
            assert pair.catch_ups == 1
            assert replica.calls == ["restart 0"]
            assert client.following.committed_pos == source.committed_pos
            assert pair.server.replicated.node == 2
            assert pair.server.replicated.proved_ms is not None

    asyncio.run(run())
