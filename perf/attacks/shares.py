"""What one client gets beside hundreds of connections of another address that ask for as much.

    python -m perf.attacks.shares [--only NAME ...] [--count 400] [--seconds 15]

The attacks measure a client that asks for little. This one asks for what the others ask for, one
request at a time, and they all do the same as fast as the broker answers. Each row is a new broker
with default settings. Prints a Markdown table: ms alone, and beside the others.
"""

import argparse
import os
import random
import selectors
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from perf.attacks import batches, requests
from perf.attacks.arena import GOOD_TOPIC
from perf.attacks.broker import CONFIG, OTHER_ADDRESS, observed_broker
from perf.attacks.requests import Wire

TOPIC: Final = "shared"
COLD_BATCHES: Final = 1_500
BATCH_RECORDS: Final = 900
LEAD_S: Final = 4.0
"""How long the others are at work before it is measured."""


@dataclass(frozen=True)
class Share:
    """What everybody asks for.

    Args:
        says: the first column of the table.
        request: makes the next request of one of many, or of the one that is measured.
        prepare: fills the broker.
        is_cold: the system forgets all the time what it read.
    """

    says: str
    request: Callable[[bool], bytes]
    prepare: Callable[[Wire], None] = lambda _: None
    is_cold: bool = False


@cache
def _batch() -> bytes:
    return batches.plain([random.randbytes(1_000)] * BATCH_RECORDS)


def _fill_searched(wire: Wire) -> None:
    batch = batches.many_records(1_000_000)
    for index in range(16):
        wire.ask(requests.produce({TOPIC: {index: batch}}))


def _search(is_measured: bool) -> bytes:
    return requests.list_offsets({TOPIC: range(1 if is_measured else 16)}, 1)


def _fill_topics(wire: Wire) -> None:
    wire.ask(requests.create_topics({f"topic-{number}": 10 for number in range(300)}))


def _fill_cold(wire: Wire) -> None:
    batch = _batch()
    for _ in range(COLD_BATCHES):
        wire.ask(requests.produce({TOPIC: {1: batch}}))


def _fetch_cold(_: bool) -> bytes:
    offset = random.randrange(COLD_BATCHES - 300) * BATCH_RECORDS
    return requests.fetch({TOPIC: [1]}, offset, size=1 << 20)


SHARES: Final = {
    "produce": Share(
        "Produce with a record of 100 bytes",
        lambda _: requests.produce({GOOD_TOPIC: {0: batches.plain([b"x" * 100])}}),
    ),
    "produce-large": Share(
        "Produce with 900 KB", lambda _: requests.produce({TOPIC: {1: _batch()}})
    ),
    "unpack": Share(
        "Produce with a batch that unpacks to 63 MiB, to 20 MB for the one",
        lambda is_measured: requests.produce(
            {TOPIC: {1: batches.unpacks_to(20_000_000 if is_measured else 63 << 20)}}
        ),
    ),
    "search": Share(
        "ListOffsets by time over 16 partitions of a million records, one for the one",
        _search,
        _fill_searched,
    ),
    "list": Share(
        "Metadata of 300 topics of ten partitions",
        lambda _: requests.metadata(None),
        _fill_topics,
    ),
    "read-cold": Share(
        "Fetch of 1 MiB that is not in memory", _fetch_cold, _fill_cold, is_cold=True
    ),
}


def measure(share: Share, address: str, seconds: float) -> list[float]:
    """Ask one after the other for so long, once in any case; return the ms of each."""
    times: list[float] = []
    wire = Wire(address, source=OTHER_ADDRESS)
    end_s = time.monotonic() + seconds
    while not times or (time.monotonic() < end_s and len(times) < 300):
        request = share.request(True)
        begin_s = time.monotonic()
        wire.ask(request)
        times.append((time.monotonic() - begin_s) * 1e3)
    wire.close()
    return times


def crowd(share: Share, address: str, count: int) -> None:
    """Ask on so many connections, each again as soon as it is answered, until killed."""
    ready = selectors.DefaultSelector()
    for _ in range(count):
        wire = Wire(address)
        wire.send(share.request(False))
        ready.register(wire.socket, selectors.EVENT_READ, (wire, bytearray()))
    while True:
        for key, _ in ready.select():
            wire, data = key.data
            data += wire.socket.recv(1 << 20)
            if len(data) >= 4 and len(data) >= 4 + int.from_bytes(data[:4], "big"):
                data.clear()
                wire.send(share.request(False))


def forget_cache(is_over: threading.Event) -> None:
    while not is_over.wait(0.2):
        os.sync()
        with suppress(PermissionError):  # then what was read stays in memory
            Path("/proc/sys/vm/drop_caches").write_text("1")


def trial(name: str, count: int, seconds: float) -> str:
    """Return a row of the table."""
    share, is_over = SHARES[name], threading.Event()
    with tempfile.TemporaryDirectory() as directory, observed_broker(Path(directory), CONFIG) as it:
        wire = Wire(it.address)
        wire.ask(requests.create_topics({GOOD_TOPIC: 1, TOPIC: 16}))
        share.prepare(wire)
        wire.close()
        time.sleep(LEAD_S)  # the broker compiles its codecs
        if share.is_cold:
            threading.Thread(target=forget_cache, args=(is_over,)).start()
        alone = measure(share, it.address, seconds / 3)
        command = [sys.executable, "-m", "perf.attacks.shares", "--crowd", it.address]
        others = subprocess.Popen([*command, "--only", name, "--count", str(count)])
        time.sleep(LEAD_S)
        beside = measure(share, it.address, seconds)
        assert others.poll() is None, "the others ended"
        others.kill()
        others.wait()
        is_over.set()
    medians = [statistics.median(each) for each in (alone, beside)]
    figures = f"{medians[0]:,.0f} | {medians[1]:,.0f}, {max(beside):,.0f}"
    return f"| {share.says} | {figures} | {medians[1] / medians[0]:,.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SHARES, default=list(SHARES))
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--crowd", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.crowd:
        with suppress(KeyboardInterrupt, OSError):
            crowd(SHARES[options.only[0]], options.crowd, options.count)
        return
    print("| everybody asks for | alone, ms | beside: median, maximum | times |")
    print("|---|---|---|---|")
    for name in options.only:
        print(trial(name, options.count, options.seconds), flush=True)


if __name__ == "__main__":
    main()
