"""Latency of a good client beside 1,000 idle connections, 200 new ones a second, and bad ones.

    make bench-connections                     # or: python -m perf.connections
    python -m perf.connections --rounds 3 --messages 1000 --flush async

One client on a plain socket produces 200 B messages, 250 a second, and times each answer. In each
round it does so three times against one broker: alone, beside the crowd (perf.crowd), and alone
again. The result is the median over the rounds of the ratio of its p99 beside the crowd to that of
the two quiet times; it must be below 2. Prints a table; exit status 1 if it is not.
"""

import argparse
import gc
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perf import crowd
from perf.brokers import ASYNC, SYNC, Brokers
from perf.figures import Figure
from perf.machine import REPOSITORY, BenchError, build_directory, machine_line
from perf.wire import produce_error, produce_request

RATIO_MAX: Final = 2.0
VALUE_BYTES: Final = 200
PER_S: Final = 250
WARM_MESSAGES: Final = 200
FILL_REQUESTS: Final = 64
"""Of 100 KB each, for the slow readers to fetch."""

NICE: Final = -10
"""The client's priority, where permitted: its own wait for a processor is not what is measured."""

_LIMIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Times:
    """How long answers took, ms."""

    p50_ms: float
    p99_ms: float
    max_ms: float


class GoodClient:
    """Sends one message and waits for its answer."""

    def __init__(self, broker: str, topic: str) -> None:
        host, port = broker.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=_LIMIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._topic = topic
        self._request = produce_request(topic, 0, [bytes(VALUE_BYTES)])

    def close(self) -> None:
        self._socket.close()

    def fill(self) -> None:
        """Produce the records that the slow readers fetch."""
        for _ in range(FILL_REQUESTS):
            self._send(produce_request(self._topic, 0, [bytes(1_000)] * 100))

    def measure(self, count: int) -> Times:
        """Produce `count` messages at a steady rate and time each answer."""
        times_ms = []
        due_s = time.monotonic()
        for _ in range(count):
            due_s += 1 / PER_S
            time.sleep(max(0.0, due_s - time.monotonic()))
            begin_s = time.perf_counter()
            self._send(self._request)
            times_ms.append((time.perf_counter() - begin_s) * 1e3)
        ranked = sorted(times_ms)
        return Times(ranked[count // 2], ranked[count * 99 // 100], ranked[-1])

    def _send(self, request: bytes) -> None:
        self._socket.sendall(request)
        size = int.from_bytes(self._receive(4), "big")
        error = produce_error(self._receive(size), self._topic)
        if error:
            raise BenchError(f"the broker answered error {error}")

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise BenchError("the broker closed the connection of the measured client")
            data += part
        return data


@contextmanager
def gathered(broker: str, topic: str, counts: dict[str, int]) -> Iterator[None]:
    """Run the crowd; add its results to `counts` at the end."""
    command = [sys.executable, "-m", crowd.__name__, "--broker", broker, "--topic", topic]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            raise BenchError("the crowd did not connect")
        yield
        said, _ = process.communicate(timeout=_LIMIT_S)
        for what, count in json.loads(said).items():
            counts[what] = counts.get(what, 0) + count
    finally:
        process.kill()
        process.wait()


def run_round(
    brokers: Brokers, broker: str, message_count: int, counts: dict[str, int]
) -> tuple[Times, Times, Times]:
    """Measure before, beside and after the crowd, against one new broker."""
    with brokers.serve(broker) as endpoint:
        client = GoodClient(endpoint.address, endpoint.topic)
        client.fill()
        client.measure(WARM_MESSAGES)
        before = client.measure(message_count)
        with gathered(endpoint.address, endpoint.topic, counts):
            beside = client.measure(message_count)
        client.measure(WARM_MESSAGES)
        after = client.measure(message_count)
        client.close()
    return before, beside, after


def run(options: argparse.Namespace) -> bool:
    """Measure and print; returns whether all medians are below the bound."""
    print(machine_line())
    print(
        f"{crowd.IDLE} idle, {crowd.HALF_OPEN} half-open, {crowd.SLOW_SENDERS} slow senders, "
        f"{crowd.SLOW_READERS} that read nothing, {crowd.NEW_PER_S} new ones a second; "
        f"{options.messages} messages of {VALUE_BYTES} B each time, {PER_S}/s"
    )
    is_fine = True
    modes = {"async": ASYNC, "sync": SYNC}
    with build_directory() as directory, Brokers(Path(), frozenset(), directory) as brokers:
        for flush in options.flush:
            counts: dict[str, int] = {}
            rounds = [
                run_round(brokers, modes[flush], options.messages, counts)
                for _ in range(options.rounds)
            ]
            is_fine &= _report(flush, rounds, counts)
    return is_fine


def _report(flush: str, rounds: list[tuple[Times, Times, Times]], counts: dict[str, int]) -> bool:
    quiet = Figure(tuple((b.p99_ms + a.p99_ms) / 2 for b, _, a in rounds))
    beside = Figure(tuple(c.p99_ms for _, c, _ in rounds))
    ratio = Figure(tuple(c / q for c, q in zip(beside.values, quiet.values, strict=True)))
    medians = [Figure(tuple(each[i].p50_ms for each in rounds)).median for i in range(3)]
    print(f"\nflush = {flush}, {len(rounds)} rounds; {counts}")
    print("| | alone | beside the crowd | alone again |")
    print("|---|---|---|---|")
    print("| p50 ms, median | " + " | ".join(f"{value:.2f}" for value in medians) + " |")
    for number, round_ in enumerate(rounds, 1):
        cells = " | ".join(f"{t.p99_ms:.2f} (max {t.max_ms:.1f})" for t in round_)
        print(f"| p99 ms, round {number} | {cells} |")
    verdict = "met" if ratio.median < RATIO_MAX else "MISSED"
    print(
        f"p99 alone {quiet.median:.2f} ms, beside the crowd {beside.median:.2f} ms; ratio "
        f"{ratio.median:.2f} [{ratio.min:.2f} .. {ratio.max:.2f}], below {RATIO_MAX:g}: {verdict}"
    )
    return ratio.median < RATIO_MAX


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=2_500, help="each time (2500: ten seconds)")
    parser.add_argument("--flush", nargs="+", choices=["async", "sync"], default=["async", "sync"])
    options = parser.parse_args()
    gc.disable()
    with suppress(PermissionError):
        os.nice(NICE)
    try:
        return 0 if run(options) else 1
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
