"""What the key index costs a producer, and how many look-ups a second it answers.

    make bench-keys                            # or: python -m perf.keys
    python -m perf.keys --rounds 1 --mb 200

Each round produces records with keys to a broker with the index and to one without, in turn, on a
new directory each. The result is the median over the rounds of the ratio of the two rates; it must
be above 0.97. Then keys that exist and keys that do not are looked up through the admin API, one
after the other on one connection, when everything is indexed. Exit status 1 if the ratio is missed.
"""

import argparse
import http.client
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from perf.brokers import (
    PARTITION_COUNT,
    Served,
    build_client,
    create_topics,
    find_broker_command,
    new_directory,
)
from perf.figures import Figure
from perf.machine import BenchError, build_directory, machine_line

RATIO_MIN: Final = 0.97
MEGABYTES: Final = 500
SIZES: Final = (100, 1_024)
KEY_COUNT: Final = 1_000_000
LOOK_UPS: Final = 2_000
LIMIT_S: Final = 120.0
SEED: Final = 1


@dataclass(frozen=True, slots=True)
class Produced:
    """One run of a producer: records a second, and CPU seconds of the broker for them."""

    per_s: float
    broker_cpu_s: float


@dataclass(frozen=True, slots=True)
class LookedUp:
    """Look-ups a second of keys that exist and that do not, and how the index got there.

    Attributes:
        found_per_s, absent_per_s: look-ups.
        behind_bytes: what was not indexed when the producer ended.
        behind_s: how long it took to index that.
        runs: files of the index.
    """

    found_per_s: float
    absent_per_s: float
    behind_bytes: int
    behind_s: float
    runs: int


class Harness:
    """A new data directory and a broker that serves it."""

    def __init__(self, client: Path, directory: Path, *, is_indexed: bool, flush: str) -> None:
        self._client = client
        self._directory = directory
        config = directory / "latermq.toml"
        config.write_text(f"[index]\nkeys = {str(is_indexed).lower()}\n")
        data = ["--data-dir", str(directory / "data"), "--flush", flush, "--config", str(config)]
        ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        self._command = [str(find_broker_command()), "serve", *data, *ports]

    @contextmanager
    def serve(self) -> Iterator[Served]:
        """A broker, stopped cleanly at the end."""
        with (self._directory / "log").open("a") as log:
            served = Served(self._command, log)
            try:
                create_topics(served.address, ("keys",), PARTITION_COUNT, {})
                yield served
            finally:
                served.stop(is_signalled=True)

    def produce(self, broker: Served, size_bytes: int, total_bytes: int) -> Produced:
        """Send records with keys as fast as the client can."""
        place = ["--brokers", broker.address, "--topic", "keys"]
        load = ["--count", str(total_bytes // size_bytes), "--size", str(size_bytes)]
        more = ["--partitions", str(PARTITION_COUNT), "--keys", str(KEY_COUNT)]
        begin_s = _cpu_s(broker.pid)
        command = [str(self._client), "produce", *place, *load, *more]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode:
            raise BenchError(said.stderr.strip())
        result = json.loads(said.stdout)
        per_s = result["messages"] / (result["end_s"] - result["begin_s"])
        return Produced(per_s, _cpu_s(broker.pid) - begin_s)


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


class Admin:
    """One connection to an admin address."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=LIMIT_S)

    def get(self, path: str) -> Any:
        """Return the decoded answer."""
        self._connection.request("GET", f"/api/v1/{path}")
        answer = self._connection.getresponse()
        body = json.loads(answer.read())
        if answer.status != 200:
            raise BenchError(str(body))
        return body

    def metric(self, name: str) -> float:
        """Return the value of a metric without labels."""
        self._connection.request("GET", "/metrics")
        lines = self._connection.getresponse().read().decode().splitlines()
        values = [line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} ")]
        if not values:
            raise BenchError(f"there is no metric {name}")
        return float(values[0])


def look_up(admin: Admin) -> LookedUp:
    """Wait until everything is indexed, then look keys up."""
    begin_s = time.monotonic()
    behind_bytes = admin.get("status")["key_index"]["lag_bytes"]
    while admin.get("status")["key_index"]["lag_bytes"]:
        if time.monotonic() - begin_s > LIMIT_S:
            raise BenchError("the index does not follow the log")
        time.sleep(0.05)
    behind_s = time.monotonic() - begin_s
    rng = random.Random(SEED)
    present = [f"key-{rng.randrange(KEY_COUNT)}" for _ in range(LOOK_UPS)]
    found_per_s = _rate(admin, present)
    absent_per_s = _rate(admin, [f"absent-{number}" for number in range(LOOK_UPS)])
    runs = admin.get("status")["key_index"]["runs"]
    return LookedUp(found_per_s, absent_per_s, behind_bytes, behind_s, runs)


def _rate(admin: Admin, keys: list[str]) -> float:
    begin_s = time.monotonic()
    for key in keys:
        answer = admin.get(f"find?key={key}")
        if answer["scanned_bytes"]:
            raise BenchError(f"{key} was not looked up in the index alone")
    return len(keys) / (time.monotonic() - begin_s)


def run_size(
    client: Path, directory: Path, size_bytes: int, options: argparse.Namespace
) -> list[float]:
    """Measure one size of records; print it, and return the ratios."""
    ratios = []
    looked_up = None
    for number in range(options.rounds):
        found: dict[bool, Produced] = {}
        # The first of a pair is not always the same one.
        for is_indexed in (number % 2 == 0, number % 2 != 0):
            with new_directory(directory) as place:
                harness = Harness(client, place, is_indexed=is_indexed, flush=options.flush)
                with harness.serve() as broker:
                    found[is_indexed] = harness.produce(broker, size_bytes, options.mb * 1_000_000)
                    if is_indexed and number >= options.rounds - 2:
                        looked_up = look_up(Admin(broker.admin))
        ratios.append(found[True].per_s / found[False].per_s)
        print(
            f"| {size_bytes} | {number + 1} | {found[False].per_s:,.0f} | {found[True].per_s:,.0f} "
            f"| {ratios[-1]:.3f} | {found[False].broker_cpu_s:.2f} "
            f"| {found[True].broker_cpu_s:.2f} |"
        )
    assert looked_up is not None
    print(
        f"\n{size_bytes} B: {looked_up.found_per_s:,.0f} look-ups/s of keys that exist, "
        f"{looked_up.absent_per_s:,.0f}/s of others, in {looked_up.runs} runs; "
        f"{looked_up.behind_bytes / 1e6:,.0f} MB behind at the end, indexed after "
        f"{looked_up.behind_s:.1f} s\n"
    )
    return ratios


def run(options: argparse.Namespace) -> bool:
    """Measure and print; returns whether the median ratios are above the bound."""
    print(machine_line())
    client = build_client()
    is_met = True
    with build_directory() as directory:
        for size_bytes in options.size or SIZES:
            print("\n| bytes | round | without, records/s | with | ratio | CPU without, s | with |")
            print("|---|---|---|---|---|---|---|")
            ratio = Figure(tuple(run_size(client, directory, size_bytes, options)))
            verdict = "met" if ratio.median >= RATIO_MIN else "MISSED"
            print(f"ratio {ratio.median:.3f} [{ratio.min:.3f} .. {ratio.max:.3f}]: {verdict}")
            is_met &= ratio.median >= RATIO_MIN
    return is_met


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mb", type=int, default=MEGABYTES, help="of values in a run (500)")
    parser.add_argument("--size", type=int, action="append", help="of a record (100 and 1024)")
    parser.add_argument("--flush", choices=["async", "sync"], default="async")
    options = parser.parse_args()
    try:
        return 0 if run(options) else 1
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
