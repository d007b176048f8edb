"""The client that behaves: produces a record every 15 ms and reads it back, beside the attack.

    python -m perf.attacks.good_client HOST:PORT TOPIC [--source ADDRESS]

A process of its own. It fetches with long polls, commits its offset, and asks for the versions now
and then. When a connection breaks it connects again and sends the record again, as clients do. When
standard input ends it prints one JSON object: what took how long, and what was acknowledged.

A step that takes longer than 15 ms delays the next one, so a stall counts once.
"""

import argparse
import gc
import json
import os
import re
import select
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from perf.attacks import batches, requests
from perf.attacks.requests import Wire

INTERVAL_S: Final = 0.015
CALLS_EVERY: Final = 5
"""Records between two commits, each with a call of ApiVersions."""

VALUE_BYTES: Final = 200
GROUP: Final = "good"
REALTIME: Final = 1
"""Its priority as a realtime process, where permitted: it stands for a client on another machine,
so its own wait for a processor is not what is measured. With a nice value alone it may wait for the
next tick of the scheduler, 4 ms."""

FETCH_BYTES: Final = 1 << 20
STEP_LIMIT_S: Final = 60.0
NUMBER: Final = re.compile(rb"number=(\d{12});")


def value_of(number: int) -> bytes:
    return b"number=%012d;" % number + bytes(VALUE_BYTES - 20)


def numbers_in(data: bytes) -> list[int]:
    """The numbers of the records in the answer to a fetch."""
    return [int(each) for each in NUMBER.findall(data)]


def next_offset(answer: bytes, topic: str, offset: int) -> int:
    """The offset after the batches in the answer to a fetch of one partition."""
    # Throttle time, one topic, one partition, its index, error, two offsets.
    pos = 4 + 4 + 2 + len(topic) + 4 + 4
    (error,) = struct.unpack_from(">h", answer, pos)
    if error:
        raise ConnectionError(f"fetch was answered with error {error}")
    pos += 2 + 8 + 8
    (aborted,) = struct.unpack_from(">i", answer, pos)
    pos += 4 + 16 * max(0, aborted) + 4
    while pos + 61 <= len(answer):
        base, size = struct.unpack_from(">qi", answer, pos)
        (last,) = struct.unpack_from(">i", answer, pos + 23)
        if pos + 12 + size > len(answer):
            break
        offset = max(offset, base + last + 1)
        pos += 12 + size
    return offset


def produced_offset(answer: bytes, topic: str) -> int:
    """The base offset in the answer to Produce with one batch; raises on an error."""
    pos = 4 + 2 + len(topic) + 4 + 4
    error, base = struct.unpack_from(">hq", answer, pos)
    if error:
        raise ConnectionError(f"produce was answered with error {error}")
    return int(base)


@dataclass
class GoodClient:
    """Does one step after the other.

    Attributes:
        times: when each ended, seconds of the monotonic clock, what it was, and ms.
        acknowledged: numbers of the records.
        committed: the last offset whose commit was acknowledged.
        errors: what broke its connection or was answered with an error, and how often.
    """

    address: str
    topic: str
    source: str = ""
    times: list[tuple[float, str, float]] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    committed: int = -1
    errors: dict[str, int] = field(default_factory=dict)
    _read_to: int = 0
    _is_fetching: bool = False
    _writer: Wire | None = None
    _reader: Wire | None = None

    def step(self, number: int) -> None:
        """Produce and read back one record; try again until that worked or standard input ends."""
        begin_s = time.monotonic()
        while not is_over(0):
            try:
                self._attempt(number, begin_s)
                return
            except OSError as error:
                name = f"{type(error).__name__}: {error}"
                self.errors[name] = self.errors.get(name, 0) + 1
                self.close()
                time.sleep(INTERVAL_S)

    def close(self) -> None:
        for wire in (self._writer, self._reader):
            if wire is not None:
                wire.close()
        self._writer = self._reader = None
        self._is_fetching = False

    def _attempt(self, number: int, begin_s: float) -> None:
        if self._writer is None or self._reader is None:
            self._writer, self._reader = (
                Wire(self.address, limit_s=STEP_LIMIT_S, source=self.source) for _ in range(2)
            )
        self._fetch()
        batch = batches.plain([value_of(number)])
        answer = self._writer.ask(requests.produce({self.topic: {0: batch}}))
        offset = produced_offset(answer, self.topic)
        self.acknowledged.append(number)
        self._note("produce", begin_s)
        while self._read_to <= offset:
            self._fetch()
            self._read_to = next_offset(self._reader.receive(), self.topic, self._read_to)
            self._is_fetching = False
        self._note("read back", begin_s)
        self._fetch()
        if number % CALLS_EVERY == 0:
            self._call(self._writer)

    def _call(self, wire: Wire) -> None:
        begin_s = time.monotonic()
        wire.ask(requests.api_versions())
        self._note("versions", begin_s)
        begin_s = time.monotonic()
        answer = wire.ask(requests.offset_commit(GROUP, {self.topic: [0]}, str(self._read_to)))
        (error,) = struct.unpack_from(">h", answer, len(answer) - 2)
        if error:
            raise ConnectionError(f"a commit was answered with error {error}")
        self.committed = self._read_to
        self._note("commit", begin_s)

    def _fetch(self) -> None:
        if not self._is_fetching:
            assert self._reader is not None
            at = {self.topic: [0]}
            self._reader.send(requests.fetch(at, self._read_to, wait_ms=1_000, size=FETCH_BYTES))
            self._is_fetching = True

    def _note(self, what: str, begin_s: float) -> None:
        now_s = time.monotonic()
        self.times.append((now_s, what, (now_s - begin_s) * 1e3))


def is_over(wait_s: float) -> bool:
    """Wait so long at most for standard input to end."""
    return bool(select.select([sys.stdin], [], [], max(0.0, wait_s))[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--source", default="", help="its own address")
    options = parser.parse_args()
    gc.disable()
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(REALTIME))
    client = GoodClient(options.address, options.topic, options.source)
    number, due_s = 0, time.monotonic()
    while not is_over(due_s - time.monotonic()):
        client.step(number)
        number += 1
        due_s = max(due_s + INTERVAL_S, time.monotonic())
    found: dict[str, Any] = {
        "times": client.times,
        "acknowledged": client.acknowledged,
        "committed": client.committed,
        "errors": client.errors,
    }
    client.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
