"""How fast pending timers and users' ids are saved as runs, merged and loaded.

    .venv/bin/python perf/micro_runs.py [--timers 10000000] [--dir /tmp]

Prints seconds of processor time of each step, and million rows per second of it. "freeze" is how
long the event loop stalls; the rest of a checkpoint runs on a thread. The merged runs: one of all
timers, one in which a tenth of them is completed and as many are new, and three tenths more
completed.
"""

import argparse
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

from _core.queue.partition import Topic
from _core.state.projections import Projections
from appliance.store.paths import DataPaths
from appliance.store.runs.run_set import Runs
from appliance.system.files import OsFileSystem
from tests.support.compiled import timer_calls as calls

TOPICS: Final = 100
PARTITIONS: Final = 10
START_MS: Final = 1_780_000_000_000
DAY_MS: Final = 86_400_000
MIXER: Final = 0x9E3779B97F4A7C15


def new_projections() -> Projections:
    projections = Projections(id_key=bytes(16))
    for topic_id in range(1, TOPICS + 1):
        topic = Topic(f"t{topic_id}", UUID(int=topic_id), topic_id, {})
        projections.add_topic(topic, [(0, 0, -1)] * PARTITIONS)
    return projections


def due_of(number: int) -> int:
    """A time within a day, in another order than the numbers."""
    mixed = number * MIXER & (1 << 64) - 1
    mixed = (mixed ^ mixed >> 32) * MIXER & (1 << 64) - 1
    return START_MS + (mixed >> 20) % DAY_MS


def fill(projections: Projections, first: int, count: int, *, with_ids: bool) -> None:
    """Accept this many timers, a hundred a batch."""
    memtable = projections.memtable
    assert memtable is not None
    rng = random.Random(first)
    for number in range(first, first + count):
        pos, index = number // 100 * 40_000, number % 100
        topic_id = number // 100 % TOPICS + 1
        due_ms = due_of(number)
        partition = number % PARTITIONS
        calls.note_pushed(memtable, due_ms, pos, index, topic_id=topic_id, partition=partition)
        calls.push(projections.due, due_ms, pos, index, (topic_id - 1) * PARTITIONS + partition)
        if with_ids:
            hashed = rng.getrandbits(64), number & 0xFFFFFFFF
            calls.note_named(memtable, *hashed, topic_id, position=pos, due_ms=due_ms)


def complete(projections: Projections, first: int, count: int, step: int) -> None:
    memtable = projections.memtable
    assert memtable is not None
    for number in range(first, first + count * step, step):
        pos, index = number // 100 * 40_000, number % 100
        handle = number // 100 % TOPICS * PARTITIONS + number % PARTITIONS
        calls.note_completed(memtable, pos, index, due_of(number))
        calls.cancel(projections.due, pos, index, handle)


def timed(call: Callable[[], object]) -> float:
    begin = time.thread_time()
    call()
    return time.thread_time() - begin


class Stalls:
    """Measures how long another thread could not run Python."""

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        self._is_over = False
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        last = time.perf_counter()
        while not self._is_over:
            time.sleep(0.0002)
            now = time.perf_counter()
            self.longest_seconds = max(self.longest_seconds, now - last)
            last = now

    def __enter__(self) -> "Stalls":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()


def drain(steps: Iterator[int]) -> float:
    """Run all steps; return the longest, seconds."""
    longest, last = 0.0, time.thread_time()
    for _ in steps:
        now = time.thread_time()
        longest = max(longest, now - last)
        last = now
    return longest


def save(what: str, runs: Runs, pos: int, rows: int) -> None:
    begin = time.perf_counter()
    job = runs.freeze(pos)
    frozen = time.perf_counter() - begin
    with Stalls() as stalls:
        spent = timed(job.run)
    runs.end(job)
    megabytes = sum(entry.size for entry in runs.entries) / 1e6
    print(
        f"{what:24} {spent:6.2f} s, {rows / spent / 1e6:5.1f} M rows/s; {megabytes:6.0f} MB; "
        f"freeze {frozen * 1e6:.0f} us, another thread waited {stalls.longest_seconds * 1e3:.1f} ms"
    )


def measure(paths: DataPaths, count: int, *, with_ids: bool) -> None:
    fs = OsFileSystem()
    for directory in paths.directories():
        fs.make_dirs(directory)
    projections = new_projections()
    runs = Runs(fs, paths, projections)
    runs.open()
    fill(projections, 0, count, with_ids=with_ids)
    save("write all", runs, 1, count * (1 + with_ids))
    load_all("check", "load", fs, paths, runs)
    tenth = count // 10
    complete(projections, 0, tenth, 10)
    fill(projections, count, tenth, with_ids=False)
    save("write a tenth", runs, 2, 2 * tenth)
    load_all("check of both", "load of both", fs, paths, runs)
    complete(projections, 1, tenth * 3, 3)
    save("merge", runs, 3, count + 5 * tenth)


def load_all(
    check_name: str, load_name: str, fs: OsFileSystem, paths: DataPaths, runs: Runs
) -> None:
    rows = sum(entry.rows for entry in runs.entries)
    projections = new_projections()
    loading = Runs(fs, paths, projections)
    spent = timed(lambda: drain(loading.check(runs.entries)))
    print(f"{check_name:24} {spent:6.2f} s, {rows / spent / 1e6:5.1f} M rows/s")
    begin = time.thread_time()
    slowest = drain(loading.load(runs.entries, 1))
    spent = time.thread_time() - begin
    loaded = projections.due.pending
    print(
        f"{load_name:24} {spent:6.2f} s, {rows / spent / 1e6:5.1f} M rows/s; {loaded} timers, "
        f"{projections.ids.count} ids, slowest step {slowest * 1e3:.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--timers", type=int, default=10_000_000)
    parser.add_argument("--dir", type=Path, default=None, help="where the files go")
    options = parser.parse_args()
    for with_ids in (False, True):
        print("timers with ids" if with_ids else "timers")
        with tempfile.TemporaryDirectory(dir=options.dir) as root:
            count = options.timers // 5 if with_ids else options.timers
            measure(DataPaths(Path(root)), count, with_ids=with_ids)


if __name__ == "__main__":
    main()
