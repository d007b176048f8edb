"""Instructions that latermq executes for one record: what a busy machine cannot blur.

    make bench-instructions                     # or: python -m perf.instructions
    python -m perf.instructions --other ../before/.venv --top 20
    python -m perf.instructions --only pipelined --flush sync --keep build/perf/dumps

Each broker runs under valgrind's callgrind, which counts the instructions of all its threads; the
index of keys is measured on and off. A workload runs twice, with N and with 2N records. What the
second run took more, without what an idle broker executes in that time, is the cost of N records.
`--other` counts another build beside this one, with its default configuration. callgrind_annotate
shows the lines of a dump that `--keep` has kept.

Not counted: the kernel, waiting for memory, and what only processors with AVX-512 do, which
valgrind hides. So the figures compare two brokers; they do not predict a time. Between two runs of
one build they differ by some percent, because a busy loop has fewer and larger turns.
"""

import argparse
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from perf.brokers import (
    PARTITION_COUNT,
    Served,
    build_client,
    create_topics,
    new_directory,
)
from perf.machine import BenchError, MissingToolError, await_idle, build_directory

CONTROL_LIMIT_S: Final = 60.0
CLIENT_LIMIT_S: Final = 330.0
IDLE_LIMIT_S: Final = 20.0
IDLE_TIMES: Final = 4
"""On a busy machine a process that gets no processor looks idle for a moment."""

VECTOR_COPIES: Final = ":".join(
    f"glibc.cpu.x86_rep_{each}_threshold=1073741824" for each in ("movsb", "stosb")
)
"""Callgrind counts each byte of `rep movsb` as an instruction."""

SETTLE_S: Final = 2.0
"""After its client ended, a broker flushes and indexes what came; that counts."""

IDLE_S: Final = 2.0
"""For so long the work of a broker without clients is counted; it is no part of a record's cost."""

TOPICS: Final = ("bench", "load")

WARM_UP_COUNT: Final = 200
"""Records before a workload is counted: a topic's first records cost more."""


@dataclass(frozen=True, slots=True)
class Load:
    """One workload: `count` and twice as many records of one mode of perf/client."""

    name: str
    count: int
    options: tuple[str, ...]
    prepare: tuple[str, ...] = ()
    """Sends twice as many records that the workload reads; empty if it reads none."""
    reads_own: bool = False
    """Reads what it sends, from the beginning of a topic: each run needs its own."""


def _sized(size_bytes: int) -> tuple[str, ...]:
    return ("--size", str(size_bytes))


_DELAY: Final = ("--delay-ms", "3600000", "--delay-spread-ms", "3600000")

LOADS: Final = (
    Load("produce 1 KiB", 100_000, ("produce", *_sized(1024))),
    Load("produce 100 B", 300_000, ("produce", *_sized(100))),
    Load("pipelined", 20_000, ("pipeline", *_sized(200))),
    Load("accept delayed", 50_000, ("produce", *_sized(200), *_DELAY)),
    Load("fetch 1 KiB", 100_000, ("consume",), ("produce", *_sized(1024))),
    Load("due at once", 20_000, ("burst", *_sized(200), "--lead-ms", "15000"), reads_own=True),
)


@dataclass(slots=True)
class Cost:
    """Instructions by function, and by thread."""

    own: Counter[str] = field(default_factory=Counter)
    inclusive: Counter[str] = field(default_factory=Counter)
    """With what a function calls; a recursive one counts several times."""
    calls: Counter[str] = field(default_factory=Counter)
    threads: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0
    """The time over which these were counted."""

    @property
    def total(self) -> int:
        return sum(self.threads.values())

    def minus(self, other: "Cost", times: float = 1.0) -> "Cost":
        """Return what `times` the other cost leaves."""
        rest = Cost(seconds=self.seconds - times * other.seconds)
        for name in ("own", "inclusive", "calls", "threads"):
            counted, before, after = getattr(rest, name), getattr(other, name), getattr(self, name)
            for key in after.keys() | before.keys():
                counted[key] = after[key] - round(times * before[key])
        return rest


class DumpReader:
    """Reads callgrind's dumps: see "Callgrind Format Specification" in valgrind's manual."""

    def __init__(self, cost: Cost) -> None:
        self._cost = cost
        self._names: dict[tuple[str, str], str] = {}
        self._object = ""
        self._function = ""
        self._called = ""
        self._called_object = ""
        self._is_call = False
        self._thread = 1

    def read(self, dump: Path) -> None:
        """Add one dump, of one thread."""
        self._names.clear()
        for line in dump.read_text(errors="replace").splitlines():
            key, is_assigned, value = line.partition("=")
            if is_assigned and key.isalpha():
                self._assign(key, value)
            elif line.startswith("thread:"):
                self._thread = int(line.split()[1])
            elif line and line[0] in "+-*0123456789":
                self._count(int(line.split()[1]))

    def _assign(self, key: str, value: str) -> None:
        if key == "ob":
            self._object = self._called_object = self._name("ob", value)
        elif key == "fn":
            self._function = f"{self._name('fn', value)} [{Path(self._object).name}]"
            self._called_object = self._object
        elif key == "cob":
            self._called_object = self._name("ob", value)
        elif key == "cfn":
            self._called = f"{self._name('fn', value)} [{Path(self._called_object).name}]"
            self._called_object = self._object
        elif key == "calls":
            self._cost.calls[self._called] += int(value.split(maxsplit=1)[0])
            self._is_call = True

    def _name(self, kind: str, value: str) -> str:
        number, _, name = value.partition(" ")
        if name:
            self._names[kind, number] = name
        return self._names[kind, number]

    def _count(self, count: int) -> None:
        cost = self._cost
        if not self._is_call:
            cost.own[self._function] += count
            cost.threads[self._thread] += count
        cost.inclusive[self._function] += count
        self._is_call = False


class CountedBroker:
    """A broker under callgrind, on a new data directory."""

    def __init__(
        self, venv: Path, directory: Path, log: Path, *, flush: str, is_indexed: bool | None
    ) -> None:
        """Start it. `is_indexed` is None for a broker that may have no index of keys."""
        self._dumps = directory / "dumps"
        self._dumps.mkdir()
        callgrind = [
            *("env", f"GLIBC_TUNABLES={VECTOR_COPIES}"),
            *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes"),
            *("--fair-sched=try", f"--callgrind-out-file={self._dumps}/out"),
        ]
        ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--flush", flush]
        serve = ["serve", "--data-dir", str(directory / "data"), *ports]
        if is_indexed is not None:
            config = directory / "latermq.toml"
            config.write_text(f"[index]\nkeys = {str(is_indexed).lower()}\n")
            serve += ["--config", str(config)]
        program = [str(venv / "bin" / "python"), str(venv / "bin" / "latermq")]
        with log.open("w") as file:
            self._served = Served([*callgrind, *program, *serve], file)
        self.address = self._served.address

    def prepare(self) -> None:
        """Create the topics, and wait until the work after a start is done."""
        create_topics(self.address, TOPICS, PARTITION_COUNT, {})
        self.await_idle()

    def await_idle(self) -> None:
        """Wait until codecs are compiled and the index of keys has followed."""
        for _ in range(IDLE_TIMES):
            time.sleep(1.0)
            await_idle(self._served.pid, IDLE_LIMIT_S)

    def count(self, work: Callable[[], None]) -> Cost:
        """Return what the broker executes meanwhile."""
        self._control("instrumentation on")
        self._control("zero")
        begin_s = time.monotonic()
        work()
        seconds = time.monotonic() - begin_s
        self._control("dump")
        self._control("instrumentation off")
        cost = Cost(seconds=seconds)
        for dump in self._dumps.glob("out.*"):
            DumpReader(cost).read(dump)
        return cost

    def keep(self, place: Path) -> None:
        """Move the dumps to `place`, and forget them."""
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for dump in self._dumps.glob("out.*"):
            shutil.move(dump, place / dump.name)

    def stop(self) -> None:
        self._served.stop(is_signalled=True)

    def _control(self, words: str) -> None:
        command = ["vgdb", f"--pid={self._served.pid}", *words.split()]
        subprocess.run(command, check=True, capture_output=True, timeout=CONTROL_LIMIT_S)


def run_client(command: list[str]) -> None:
    """Run perf/client; raise BenchError if it fails."""
    said = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=CLIENT_LIMIT_S
    )
    if said.returncode:
        raise BenchError(said.stderr.strip())


def count_load(broker: CountedBroker, client: Path, load: Load, kept: Path) -> Cost:
    """Return the cost of `load.count` records."""
    broker.prepare()

    def send(options: tuple[str, ...], count: int, topic: str = TOPICS[0]) -> None:
        place = ["--brokers", broker.address, "--topic", topic]
        more = ["--partitions", str(PARTITION_COUNT), "--count", str(count)]
        run_client([str(client), *options, *place, *more])

    def work(times: int, topic: str = TOPICS[0]) -> None:
        send(load.options, times * load.count, topic)
        time.sleep(SETTLE_S)

    if load.prepare:
        send(load.prepare, 2 * load.count)
    elif not load.reads_own:
        send(load.options, WARM_UP_COUNT)
    once = broker.count(lambda: work(1))
    broker.keep(kept / "once")
    twice = broker.count(lambda: work(2, TOPICS[load.reads_own]))
    broker.keep(kept / "twice")
    broker.await_idle()
    idle = broker.count(lambda: time.sleep(IDLE_S))
    broker.keep(kept / "idle")
    loaded = twice.minus(once)
    cost = loaded.minus(idle, times=loaded.seconds / idle.seconds)
    print(
        f"{kept.name}: {once.seconds:.1f} s and {twice.seconds:.1f} s, idle "
        f"{idle.total / idle.seconds / 1e6:.2f} M/s, raw {loaded.total / load.count:,.0f}",
        file=sys.stderr,
    )
    return cost


def print_top(cost: Cost, count: int, top_count: int) -> None:
    """Print the functions that cost the most for each record."""
    shown = [*cost.own.most_common(top_count)]
    print(f"  {'self':>9} {'inclusive':>10} {'calls':>8}  function")
    for name, own in shown:
        print(
            f"  {own / count:9.1f} {cost.inclusive[name] / count:10.1f} "
            f"{cost.calls[name] / count:8.3f}  {name}"
        )
    threads = ", ".join(f"{k}: {v / count:,.1f}" for k, v in cost.threads.most_common() if v)
    print(f"  by thread: {threads}")


def run(options: argparse.Namespace, directory: Path) -> None:
    """Count and print."""
    client = build_client()
    brokers: list[tuple[str, Path, bool | None]] = []
    own = Path(sys.executable).parent.parent
    if not options.others_only:
        brokers += [("without index", own, False), ("with index", own, True)]
    brokers += [(venv.resolve().parent.name, venv, None) for venv in options.other]
    print("| workload | flush | " + " | ".join(name for name, _, _ in brokers) + " |")
    print("|---" * (2 + len(brokers)) + "|", flush=True)
    for load in LOADS:
        if options.only and not any(each in load.name for each in options.only):
            continue
        for flush in options.flush or ("async",):
            costs = []
            for name, venv, is_indexed in brokers:
                kept = (options.keep or directory) / f"{load.name} {flush} {name}".replace(" ", "_")
                with new_directory(directory) as data:
                    broker = CountedBroker(
                        venv, data, directory / "log", flush=flush, is_indexed=is_indexed
                    )
                    try:
                        costs.append(count_load(broker, client, load, kept))
                    finally:
                        broker.stop()
            row = " | ".join(f"{cost.total / load.count:,.0f}" for cost in costs)
            print(f"| {load.name} | {flush} | {row} |", flush=True)
            if options.top:
                for (name, _, _), cost in zip(brokers, costs, strict=True):
                    print(f" {load.name}, {name}:")
                    print_top(cost, load.count, options.top)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", help="a part of a workload's name")
    parser.add_argument("--flush", action="append", choices=["async", "sync"])
    parser.add_argument(
        "--other", type=Path, action="append", default=[], help="the .venv of another build"
    )
    parser.add_argument("--others-only", action="store_true", help="those builds alone")
    parser.add_argument("--top", type=int, default=0, help="functions to print")
    parser.add_argument("--keep", type=Path, help="directory for callgrind's dumps")
    options = parser.parse_args()
    if shutil.which("vgdb") is None:
        print("counting instructions needs valgrind: apt-get install valgrind", file=sys.stderr)
        return 1
    try:
        with build_directory() as directory:
            run(options, directory)
    except (BenchError, MissingToolError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
