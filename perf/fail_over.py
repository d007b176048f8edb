"""How long clients of a pair wait when its master is killed, and when it hands over.

    make bench-fail-over                       # or: python -m perf.fail_over
    python -m perf.fail_over --rounds 1 --timers 100000 --only hand-over

Both nodes and an etcd are on this machine. Each round makes a new pair with sync replication,
sends --timers records that are due in an hour, and lets one confluent-kafka producer send a record
every 10 ms while a consumer waits for records that are due every 5 ms. Then the master is killed
with SIGKILL, or hands over. Prints, in seconds after that: the first acknowledgement and the first
delivery of the other node. The goal of a kill is the lease in etcd and 2 seconds more. Of a
hand-over it prints the longest time that one record took.
"""

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from perf.brokers import build_client, create_topics, find_broker_command, new_directory
from perf.figures import Figure
from perf.keys import Admin
from perf.machine import BenchError, build_directory, machine_line
from tests.support.harness.etcd_server import EtcdServer

PARTITION_COUNT: Final = 4
LIMIT_S: Final = 120.0
WAIT_S: Final = 0.02
SEND_EVERY_S: Final = 0.01
DUE_EVERY_MS: Final = 5
DUE_COUNT: Final = 4_000
DUE_LEAD_MS: Final = 2_000
LATER_MS: Final = 3_600_000
RECORD_BYTES: Final = 100
AFTER_S: Final = 12.0
TRICKLE: Final = "trickle"
DUE: Final = "due"
LATER: Final = "later"
HAND_OVER: Final = "hand-over"
EVENTS: Final = ("kill -9", HAND_OVER)
CLIENT: Final = {"log_level": 0, "broker.address.ttl": 1_000}

CONFIG: Final = """\
[flush]
mode = "{flush}"
[disk]
refuse_percent = 100
[index]
keys = false
[replication]
node = {number}
etcd = "{etcd}"
etcd_lease_ms = {lease_ms}
peer = "{peer}"
"""


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@dataclass(slots=True)
class Node:
    """One node of the pair.

    Attributes:
        number: 1, which begins as the master, or 2.
        kafka, admin, replication: its addresses.
    """

    number: int
    kafka: str = field(default_factory=_free_address)
    admin: str = field(default_factory=_free_address)
    replication: str = field(default_factory=_free_address)
    _process: subprocess.Popen[bytes] | None = None

    def start(self, place: Path, config: str, master: str | None) -> None:
        """Start it.

        Args:
            place: a directory.
            config: the content of its configuration file.
            master: where the other node replicates, if this one is the slave.
        """
        path = place / f"{self.number}.toml"
        path.write_text(config)
        command = [str(find_broker_command()), "serve", "--config", str(path)]
        command += ["--data-dir", str(place / str(self.number)), "--replication", "sync"]
        command += ["--listen", self.kafka, "--admin", self.admin]
        command += ["--replication-listen", self.replication]
        if master is not None:
            command += ["--role", "slave", "--master", master]
        with (place / f"{self.number}.log").open("w") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)

    def serves(self) -> bool:
        """It is a master with a slave that has everything, which etcd knows."""
        try:
            found = Admin(self.admin).get("replication")
        except (OSError, BenchError):
            return False
        is_master = found["role"] == "master" and found["state"] == "streaming"
        return bool(is_master and found["coordinator"]["in_sync"])

    def kill(self) -> None:
        """End it at once; nothing if it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def hand_over(self) -> None:
        """Let the other node be the master."""
        command = [str(find_broker_command()), "handover", "--admin", self.admin]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode:
            raise BenchError(said.stderr.strip())


class Trickle(threading.Thread):
    """Sends a record every SEND_EVERY_S.

    Attributes:
        times: when each record was sent and acknowledged, monotonic seconds.
        failed: errors.
    """

    def __init__(self, addresses: str) -> None:
        super().__init__(daemon=True)
        self.times: list[tuple[float, float]] = []
        self.failed: list[str] = []
        settings = {"bootstrap.servers": addresses, "linger.ms": 0, "acks": "all", **CLIENT}
        self._producer = Producer(settings)
        self._is_stopping = threading.Event()

    def run(self) -> None:
        while not self._is_stopping.wait(SEND_EVERY_S):
            sent_s = time.monotonic()

            def note(error: KafkaError | None, _: Message, sent_s: float = sent_s) -> None:
                if error is None:
                    self.times.append((sent_s, time.monotonic()))
                else:
                    self.failed.append(str(error))

            self._producer.produce(TRICKLE, bytes(RECORD_BYTES), on_delivery=note)
            self._producer.poll(0)
        self._producer.flush(LIMIT_S)

    def stop(self) -> None:
        self._is_stopping.set()
        self.join()


class Waiting(threading.Thread):
    """Reads the records that become due.

    Attributes:
        came: due time in ms, and when each came, monotonic seconds.
    """

    def __init__(self, addresses: str) -> None:
        super().__init__(daemon=True)
        self.came: list[tuple[int, float]] = []
        settings = {"bootstrap.servers": addresses, "group.id": "bench", **CLIENT}
        self._consumer = Consumer({**settings, "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(DUE, each, 0) for each in range(PARTITION_COUNT)])
        self._is_stopping = threading.Event()

    def run(self) -> None:
        while not self._is_stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.came.append((int(message.value() or b"0"), time.monotonic()))

    def stop(self) -> None:
        self._is_stopping.set()
        self.join()
        self._consumer.close()


def _await(is_so: Callable[[], bool], what: str) -> None:
    limit_s = time.monotonic() + LIMIT_S
    while not is_so():
        if time.monotonic() > limit_s:
            raise BenchError(f"no {what} within {LIMIT_S:.0f} s")
        time.sleep(WAIT_S)


@contextmanager
def _serve(place: Path, options: argparse.Namespace) -> Iterator[tuple[Node, Node]]:
    """A pair with an etcd, in sync."""
    etcd = EtcdServer(place)
    one, two = Node(1), Node(2)
    with contextlib.ExitStack() as stack:
        etcd.start()
        stack.callback(etcd.stop)
        for node, other in ((two, one), (one, two)):
            config = CONFIG.format(
                flush=options.flush,
                number=node.number,
                etcd=etcd.url,
                lease_ms=options.lease_ms,
                peer=other.replication,
            )
            node.start(place, config, other.replication if node is two else None)
            stack.callback(node.kill)
        _await(one.serves, "pair in sync")
        yield one, two


def _send_due(address: str, begin_ms: int) -> None:
    """Send records that are due one after the other."""
    producer = Producer({"bootstrap.servers": address, "acks": "all", **CLIENT})
    for number in range(DUE_COUNT):
        due = b"%d" % (begin_ms + number * DUE_EVERY_MS)
        producer.produce(DUE, due, headers=[("x-deliver-at", due)])
    if producer.flush(LIMIT_S):
        raise BenchError("the records that become due were not acknowledged")


def _send_timers(client: Path, address: str, count: int) -> None:
    command = [str(client), "produce", "--brokers", address, "--topic", LATER]
    command += ["--partitions", str(PARTITION_COUNT), "--count", str(count)]
    command += ["--size", str(RECORD_BYTES), "--delay-ms", str(LATER_MS)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode:
        raise BenchError(said.stderr.strip())


@dataclass(frozen=True, slots=True)
class Run:
    """What clients noticed, in seconds.

    Attributes:
        acknowledged_s, delivered_s: from the kill to the first of the other node.
        pause_s: the longest time that one record took.
    """

    acknowledged_s: float
    delivered_s: float
    pause_s: float


def measure(event: str, client: Path, directory: Path, options: argparse.Namespace) -> Run:
    """Make a pair, let it lose its master, and say what clients noticed."""
    with new_directory(directory) as place, _serve(place, options) as (one, two):
        create_topics(one.kafka, (TRICKLE, DUE, LATER), PARTITION_COUNT, {})
        _send_timers(client, one.kafka, options.timers)
        addresses = f"{one.kafka},{two.kafka}"
        _send_due(one.kafka, int(time.time() * 1_000) + DUE_LEAD_MS)
        trickle, waiting = Trickle(addresses), Waiting(addresses)
        trickle.start()
        waiting.start()
        _await(lambda: len(waiting.came) > 0 and len(trickle.times) > 0, "record")
        _await(one.serves, "pair in sync")
        time.sleep(1)
        at_s, at_ms = time.monotonic(), time.time() * 1_000
        if event == HAND_OVER:
            one.hand_over()
        else:
            one.kill()
        time.sleep(AFTER_S)
        trickle.stop()
        waiting.stop()
        if trickle.failed:
            raise BenchError(f"{len(trickle.failed)} records failed: {trickle.failed[0]}")
        acked = [acked_s for sent_s, acked_s in trickle.times if sent_s > at_s]
        came = [came_s for due_ms, came_s in waiting.came if due_ms > at_ms]
        if not acked or not came:
            raise BenchError(f"nothing within {AFTER_S} s")
        pause_s = max(acked_s - sent_s for sent_s, acked_s in trickle.times)
        return Run(min(acked) - at_s, min(came) - at_s, pause_s)


def _shown(times: list[float]) -> str:
    figure = Figure(tuple(times))
    return f"{figure.median:.2f} s [{figure.min:.2f} .. {figure.max:.2f}]"


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    print(machine_line())
    client = build_client()
    events = [event for event in EVENTS if options.only in (None, event)]
    found: dict[str, list[Run]] = {event: [] for event in events}
    print("\n| round | event | first acknowledgement, s | first delivery | longest record |")
    print("|---|---|---|---|---|")
    with build_directory() as directory:
        for number in range(options.rounds):
            for event in events:
                each = measure(event, client, directory, options)
                found[event].append(each)
                first = f"{each.acknowledged_s:.2f} | {each.delivered_s:.2f}"
                if event == HAND_OVER:  # the old master goes on until it stops
                    first = " | "
                print(f"| {number + 1} | {event} | {first} | {each.pause_s:.2f} |", flush=True)
    for event, runs in found.items():
        said = f"the longest record took {_shown([each.pause_s for each in runs])}"
        if event != HAND_OVER:
            acked = _shown([each.acknowledged_s for each in runs])
            came = _shown([each.delivered_s for each in runs])
            said = f"acknowledged after {acked}, delivered after {came}, {said}"
        print(f"\n{event}, {options.timers} timers, lease {options.lease_ms} ms: {said}")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--timers", type=int, default=1_000_000)
    parser.add_argument("--lease-ms", type=int, default=2_000, help="in etcd (2000, the least)")
    parser.add_argument("--flush", choices=["async", "sync"], default="async")
    parser.add_argument("--only", choices=EVENTS)
    options = parser.parse_args()
    if shutil.which("etcd") is None:
        print("this needs an etcd: apt-get install etcd-server", file=sys.stderr)
        return 1
    try:
        run(options)
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    # A benchmark that is stopped ends its processes.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    sys.exit(main())
