"""Delayed messages through a broker that is killed half-way, with a live view: `make demo`.

Starts latermq with a data directory of its own, sends a few thousand records that are due later,
cancels some of them, kills the broker with SIGKILL, starts it again, and checks that every record
arrives exactly once and not too early. The client is an ordinary confluent-kafka; only the headers
of the records are special. Ends with status 1 if anything is wrong.
"""

import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, cast

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.live import Live
from rich.table import Table

TOPIC: Final = "orders"
PARTITION_COUNT: Final = 4
RECORD_COUNT: Final = 5_000
SEND_SECONDS: Final = 16.0
DELAY_MIN_MS: Final = 500
DELAY_MAX_MS: Final = 12_000
LEVEL_COUNT: Final = 3  # 1 s, 5 s and 10 s

KILL_AFTER_S: Final = 10.0
DOWN_S: Final = 1.0
QUIET_S: Final = 1.0  # after the last record, for one that comes twice
LIMIT_S: Final = 75.0  # the demo ends after this time in any case

# The defaults suit clusters of many brokers; with one broker, clients should reconnect eagerly.
CLIENT: Final = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "metadata.recovery.strategy": "none",
    "log_level": 0,
}
BUCKETS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Broker:
    """The broker in its own process."""

    def __init__(self, directory: Path) -> None:
        self.address = "127.0.0.1:0"  # port 0: any free port; a restart uses the same one
        self.state = "starting"
        self.restarted_ms = 0
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        latermq = Path(sys.executable).with_name("latermq")
        where = ["--data-dir", str(self._directory / "data"), "--listen", self.address]
        with (self._directory / "log").open("a") as log:
            self._process = subprocess.Popen(
                [str(latermq), "serve", *where, "--admin", "127.0.0.1:0"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        words = self._process.stdout.readline().split()  # latermq ready kafka=... admin=...
        if words[:2] != ["latermq", "ready"]:
            raise RuntimeError((self._directory / "log").read_text())
        self.address = words[2].removeprefix("kafka=")
        self.state = "serving"

    def crash_and_restart(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self.state = "killed (SIGKILL)"
        time.sleep(DOWN_S)
        self.start()
        self.restarted_ms = now_ms()
        self.state = "serving again"

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


@dataclass
class Ledger:
    """What was sent and what arrived. The unique text of a record identifies it."""

    acknowledged: set[str] = field(default_factory=set)
    cancelled: dict[str, str] = field(default_factory=dict)  # "cancelled" or "replaced"
    came: Counter[str] = field(default_factory=Counter)
    early: int = 0
    lateness_ms: list[int] = field(default_factory=list)
    overdue_ms: list[int] = field(default_factory=list)  # of those due while no broker ran
    errors: list[str] = field(default_factory=list)

    def count(self) -> dict[str, int]:
        how = Counter(self.cancelled.values())
        came = self.came.keys()
        return {
            "sent": len(self.acknowledged),
            "delivered": len(came & self.acknowledged - self.cancelled.keys()),
            "cancelled": how["cancelled"],
            "replaced": how["replaced"],
            "lost": len(self.acknowledged - self.cancelled.keys() - came),
            "duplicated": sum(self.came.values()) - len(came),
            "early": self.early,
            "came though cancelled": len(came & self.cancelled.keys()),
            "came though never sent": len(came - self.acknowledged),
        }


class Sender:
    """Sends records that are due later, and cancels or replaces one in five of them."""

    def __init__(self, address: str, ledger: Ledger) -> None:
        self._ledger = ledger
        self._random = random.Random(1)
        self._begin_s = time.monotonic()
        self._number = 0
        self._to_cancel: deque[tuple[str, str]] = deque()
        # Idempotent: a record that it resends after the crash is stored once.
        self._producer = Producer(
            {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5, **CLIENT}
        )

    def work(self) -> bool:
        """Send what is due to be sent; return whether everything is sent and acknowledged."""
        share = min(1.0, (time.monotonic() - self._begin_s) / SEND_SECONDS)
        while self._number < RECORD_COUNT * share:
            self._send_order(f"order {self._number}")
            self._number += 1
        while self._to_cancel:
            self._cancel(*self._to_cancel.popleft())
        self._producer.poll(0)
        return share == 1.0 and len(self._producer) == 0 and not self._to_cancel

    def _send_order(self, text: str) -> None:
        """Send a record with a header that says when to deliver it."""
        delay_ms = self._random.randint(DELAY_MIN_MS, DELAY_MAX_MS)
        match self._number % 10:
            case 0 | 1 | 2 | 3:
                self._send(text, {"x-delay": f"{delay_ms}ms"})
            case 4 | 5:
                self._send(text, {"x-delay-level": f"{self._random.randint(1, LEVEL_COUNT)}"})
            case 6 | 7:
                self._send(text, {"x-deliver-at": f"{now_ms() + delay_ms}"})
            case digit:
                # Only once it is acknowledged: a cancel must not overtake its record.
                what = (text, "cancelled" if digit == 8 else "replaced")
                named = {"x-delay": f"{DELAY_MAX_MS}", "x-deliver-id": text}
                self._send(text, named, lambda: self._to_cancel.append(what))

    def _cancel(self, text: str, how: str) -> None:
        """Cancel or replace a record."""

        def done() -> None:
            self._ledger.cancelled[text] = how

        if how == "cancelled":
            self._produce(None, {"x-deliver-cancel": text}, done)
        else:
            delay_ms = self._random.randint(DELAY_MIN_MS, DELAY_MAX_MS)
            self._send(f"{text}, changed", {"x-delay": f"{delay_ms}", "x-deliver-id": text}, done)

    def _send(
        self, text: str, headers: dict[str, str], then: Callable[[], None] | None = None
    ) -> None:
        def done() -> None:
            self._ledger.acknowledged.add(text)
            if then is not None:
                then()

        self._produce(text, headers, done)

    def _produce(self, text: str | None, headers: dict[str, str], done: Callable[[], None]) -> None:
        def on_delivery(error: KafkaError | None, _: Message) -> None:
            if error is None:
                done()
            else:
                self._ledger.errors.append(str(error))

        self._producer.produce(
            TOPIC,
            text,
            partition=self._number % PARTITION_COUNT,
            on_delivery=on_delivery,
            headers=dict(headers),
        )


class Receiver(threading.Thread):
    """Reads all partitions, before, during and after the crash."""

    def __init__(self, broker: Broker, ledger: Ledger) -> None:
        super().__init__(daemon=True)
        self.last_s = time.monotonic()
        self._broker = broker
        self._ledger = ledger
        self._back_ms = 0  # when the first record arrived after the restart
        self._stopping = threading.Event()
        # It assigns its partitions itself and commits nothing.
        settings = {"group.id": "demo", "enable.auto.commit": False, "fetch.wait.max.ms": 100}
        self._consumer = Consumer({"bootstrap.servers": broker.address, **settings, **CLIENT})
        self._consumer.assign([TopicPartition(TOPIC, part, 0) for part in range(PARTITION_COUNT)])

    def run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self._note(message, now_ms())

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        self._consumer.close()

    def _note(self, message: Message, at_ms: int) -> None:
        headers = dict(cast("list[tuple[str, bytes]]", message.headers()))
        due_ms = int(headers["x-due-at"])  # latermq adds it to what it delivers
        ledger = self._ledger
        if self._broker.restarted_ms and not self._back_ms:
            self._back_ms = at_ms
        ledger.came[(message.value() or b"").decode()] += 1
        ledger.early += at_ms < due_ms
        is_overdue = due_ms < self._back_ms
        (ledger.overdue_ms if is_overdue else ledger.lateness_ms).append(at_ms - due_ms)
        self.last_s = time.monotonic()


def percentiles(values: list[int]) -> str:
    """Return p50 and p99 as text."""
    if not values:
        return "-"
    ranked = sorted(values)
    return f"p50 {ranked[len(ranked) // 2]} ms, p99 {ranked[len(ranked) * 99 // 100]} ms"


def progress(broker: Broker, ledger: Ledger, begin_s: float) -> str:
    count = ledger.count()
    return (
        f"{time.monotonic() - begin_s:4.0f} s  broker {broker.state}: {count['sent']} sent, "
        f"{count['delivered']} delivered, {count['cancelled']} cancelled, "
        f"{count['replaced']} replaced, {count['lost']} pending"
    )


class View:
    """A live line on a terminal, otherwise a new line from time to time."""

    def __init__(self, console: Console, line: Callable[[], str]) -> None:
        self._console = console
        self._line = line
        self._live = Live(console=console) if console.is_terminal else None
        self._next_s = 0.0

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def refresh(self) -> None:
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + (0.1 if self._live else 2.0)
        if self._live:
            self._live.update(self._line())
        else:
            self._console.print(self._line(), highlight=False, soft_wrap=True)


def report(console: Console, ledger: Ledger) -> bool:
    """Print what became of all records; return whether the broker kept its promises."""
    count = ledger.count()
    table = Table(title="What became of the records")
    table.add_column("")
    table.add_column("records", justify="right")
    is_right = not ledger.errors and count["sent"] > RECORD_COUNT and len(ledger.overdue_ms) > 0
    for name, number in count.items():
        is_wanted = name in ("sent", "delivered", "cancelled", "replaced")
        is_fine = number > 0 if is_wanted else number == 0
        is_right = is_right and is_fine
        table.add_row(name, f"{number}", style=None if is_fine else "bold red")
    table.add_section()
    table.add_row("lateness", percentiles(ledger.lateness_ms))
    table.add_row(
        f"overdue after the crash ({len(ledger.overdue_ms)})", percentiles(ledger.overdue_ms)
    )
    console.print(table)
    for error in ledger.errors[:5]:
        console.print(error, style="red")
    return is_right


def print_histogram(console: Console, lateness_ms: list[int]) -> None:
    """Print how late records arrived while the broker was up."""
    counts = [0] * (len(BUCKETS_MS) + 1)
    for late_ms in lateness_ms:
        counts[bisect_left(BUCKETS_MS, late_ms)] += 1
    for index, number in enumerate(counts):
        label = f"<= {BUCKETS_MS[index]}" if index < len(BUCKETS_MS) else f"> {BUCKETS_MS[-1]}"
        bar = "#" * round(50 * number / max(counts))
        console.print(f"{label:>8} ms {number:>6} {bar}", highlight=False)


def create_topic(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    created = admin.create_topics([NewTopic(TOPIC, PARTITION_COUNT, 1)])
    created[TOPIC].result(10)


def run(console: Console, broker: Broker) -> bool:
    ledger = Ledger()
    broker.start()
    create_topic(broker.address)
    begin_s = time.monotonic()
    receiver, sender = Receiver(broker, ledger), Sender(broker.address, ledger)
    receiver.start()
    crash = threading.Timer(KILL_AFTER_S, broker.crash_and_restart)
    crash.start()
    is_done = False
    try:
        with View(console, lambda: progress(broker, ledger, begin_s)) as view:
            while not is_done and time.monotonic() - begin_s < LIMIT_S:
                all_sent = sender.work()
                all_came = all_sent and not crash.is_alive() and ledger.count()["lost"] == 0
                is_done = all_came and time.monotonic() - receiver.last_s > QUIET_S
                view.refresh()
                time.sleep(0.01)
    finally:
        crash.cancel()
        crash.join()  # so that it leaves no broker that it has just started
    receiver.stop()
    is_right = report(console, ledger)
    print_histogram(console, ledger.lateness_ms)
    return is_right


def main() -> int:
    console = Console()
    # Not in the system's temporary directory, which may be in memory: the demo needs a disk.
    build = Path(__file__).resolve().parent.parent / "build"
    build.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="demo-", dir=build))
    broker = Broker(directory)
    try:
        is_right = run(console, broker)
    except KeyboardInterrupt:
        return 130
    finally:
        broker.stop()
        shutil.rmtree(directory)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
