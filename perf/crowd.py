"""Misbehaving clients for perf.connections: idle, half-open, slow, and constantly new ones.

    python -m perf.crowd --broker HOST:PORT --topic NAME

Prints `ready` when they are connected, runs until standard input ends, and then prints one JSON
object with the counts. All clients are plain sockets of one event loop.
"""

import argparse
import asyncio
import json
import os
import resource
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

from perf.wire import api_versions_request, fetch_request, produce_request

IDLE: Final = 1_000
HALF_OPEN: Final = 100
SLOW_SENDERS: Final = 50
SLOW_READERS: Final = 50
NEW_PER_S: Final = 200

SLOW_BYTE_S: Final = 0.05
"""Interval between two bytes of a slow sender."""

NICE: Final = 10
"""Real clients run on other machines: here they yield to the broker and the measured client."""

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_Handler = Callable[[], Coroutine[Any, Any, None]]


class Crowd:
    """All of them, against one broker."""

    def __init__(self, broker: str, topic: str) -> None:
        host, port = broker.rsplit(":", 1)
        self._address = (host, int(port))
        self._topic = topic
        self._streams: list[_Streams] = []
        self.counts: Counter[str] = Counter()

    async def connect(self) -> _Streams:
        """One more connection, kept open."""
        streams = await asyncio.open_connection(*self._address)
        self._streams.append(streams)
        return streams

    async def idle(self) -> None:
        """Connect as a client does, then send nothing."""
        reader, writer = await self.connect()
        writer.write(api_versions_request())
        size = int.from_bytes(await reader.readexactly(4), "big")
        await reader.readexactly(size)

    async def half_open(self) -> None:
        """Send the beginning of a request."""
        _, writer = await self.connect()
        writer.write(produce_request(self._topic, 0, [bytes(1_000)])[:100])

    async def slow_sender(self) -> None:
        """Send a large request byte by byte; reconnect when the broker closes the connection."""
        data = produce_request(self._topic, 0, [bytes(1_000_000)])
        while True:
            _, writer = await self.connect()
            writer.write(data[:200_000])
            for byte in data[200_000:]:
                if writer.is_closing():
                    break
                writer.write(bytes([byte]))
                await asyncio.sleep(SLOW_BYTE_S)
            self.counts["slow senders cut off"] += 1

    async def slow_reader(self) -> None:
        """Fetch everything many times over, and read no answer."""
        _, writer = await self.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(fetch_request(self._topic, 0) * 100)

    async def newcomers(self) -> None:
        """Connect, request the versions and leave, NEW_PER_S times a second."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        tasks: set[asyncio.Task[None]] = set()
        while True:
            due_s += 1 / NEW_PER_S
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            task = asyncio.ensure_future(self._come_and_go())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _come_and_go(self) -> None:
        try:
            reader, writer = await asyncio.open_connection(*self._address)
            writer.write(api_versions_request())
            size = int.from_bytes(await reader.readexactly(4), "big")
            await reader.readexactly(size)
            writer.close()
            self.counts["came and went"] += 1
        except (OSError, asyncio.IncompleteReadError):
            self.counts["were refused"] += 1

    async def run(self) -> None:
        """Connect all, print `ready`, and run until standard input ends."""
        kinds: tuple[tuple[int, _Handler], ...] = (
            (IDLE, self.idle),
            (HALF_OPEN, self.half_open),
            (SLOW_READERS, self.slow_reader),
        )
        for count, kind in kinds:
            for _ in range(count):
                await kind()
        lasting = [asyncio.ensure_future(self.slow_sender()) for _ in range(SLOW_SENDERS)]
        lasting.append(asyncio.ensure_future(self.newcomers()))
        await asyncio.sleep(0.5)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, sys.stdin.read)
        for task in lasting:
            task.cancel()
        self.counts["are connected"] = len(self._streams)
        for _, writer in self._streams:
            writer.transport.abort()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--topic", required=True)
    options = parser.parse_args()
    os.nice(NICE - os.nice(0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    crowd = Crowd(options.broker, options.topic)
    asyncio.run(crowd.run())
    sys.stdout.write(json.dumps(crowd.counts) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
