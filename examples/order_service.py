"""An order service: deadlines, retries with back-off, dead letters, a nightly report.

    python examples/order_service.py

It starts a latermq of its own whose clock can be advanced, so that hours pass in a second. The
client is an ordinary confluent-kafka; only the headers of records are special.

    checkout  --> orders             each order, at once
              --> deadlines          "close it", delayed by 30 minutes, named after the order
    payment   --> deadlines          cancels what is named so, and asks for a reply
              <-- outcomes           the cancel came in time, or the order was closed before
              --> paid               the order is to be shipped
    shipping  <-- paid, shipping.retry     what fails comes again: after 10 s, 30 s, 1 min ...
              --> shipping.dlq             and is dead after the last attempt
    reporting --> reports            "report", each night at two, until it is cancelled

Ends with status 1 if an order is not where it belongs.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

PAYMENT_TIME: Final = "30m"
GROUP: Final = "shipping"
TOPICS: Final = ("orders", "deadlines", "outcomes", "paid", "reports")
LATERMQ: Final = Path(sys.executable).with_name("latermq")
REPORTS: Final = ["1 closed, 2 shipped", "1 refunded, 2 shipped"]
QUIET_S: Final = 0.5
"""A topic that gives nothing for so long has nothing more."""

Headers = list[tuple[str, bytes]]


class Broker:
    """A broker in its own process, with a clock of its own."""

    def __init__(self, directory: str) -> None:
        command = [str(LATERMQ), "serve", "--data-dir", directory, "--clock", "virtual"]
        command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()  # latermq ready kafka=... admin=...
        if words[:2] != ["latermq", "ready"]:
            raise RuntimeError("latermq did not start; its log is above")
        self.kafka, self.admin = (word.partition("=")[2] for word in words[2:4])

    def advance(self, duration: str) -> None:
        """Let time pass; what is due by then can be read when this returns."""
        run("clock", "advance", duration, "--admin", self.admin)

    def stop(self) -> None:
        """Stop the broker cleanly."""
        self.process.terminate()
        self.process.wait()


def run(*words: str) -> str:
    """Run a command of latermq; return what it prints."""
    return subprocess.run(
        [str(LATERMQ), *words], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


class OrderService:
    """Checkout, payment and shipping.

    Attributes:
        states: of each order: placed, paid, closed, refunded or shipped.
        reports: one for each night.
        broken: orders that the warehouse cannot ship now.
    """

    def __init__(self, bootstrap: str) -> None:
        self.states: dict[str, str] = {}
        self.broken: set[str] = set()
        self.reports: list[str] = []
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        self._bootstrap = bootstrap

    def _send(self, topic: str, order: str, headers: Headers | None = None) -> None:
        """Send a record, and return once it is stored."""
        failed: list[str] = []
        self._producer.produce(
            topic,
            order.encode(),
            key=order.encode(),
            headers=headers or [],
            on_delivery=lambda error, _: failed.append(str(error)) if error else None,
        )
        self._producer.flush()
        if failed:
            raise RuntimeError(f"{topic} refused {order}: {failed[0]}")

    # Checkout and payment

    def place(self, order: str) -> None:
        """Accept an order. It is closed in half an hour unless it is paid."""
        self.states[order] = "placed"
        self._send("orders", order)
        wish = [("x-delay", PAYMENT_TIME.encode()), ("x-deliver-id", order.encode())]
        self._send("deadlines", order, wish)

    def pay(self, order: str) -> None:
        """Take the payment of an order. `settle` finds out whether it came in time."""
        wish = [("x-deliver-cancel", order.encode()), ("x-deliver-reply", b"outcomes")]
        self._send("deadlines", order, wish)

    def settle(self) -> None:
        """Ship what was paid in time, and give back the money for what was closed before."""
        self._consume("payment", ["outcomes"], self._settle)

    def _settle(self, message: Message) -> None:
        outcome, order = json.loads(text_of(message))["outcome"], (message.key() or b"").decode()
        if outcome == "cancelled":
            self.states[order] = "paid"
            self._send("paid", order)
        else:
            self.states[order] = "refunded"

    # Consumers

    def close_unpaid(self) -> None:
        """Close the orders whose deadline has come."""
        self._consume("closing", ["deadlines"], self._close)

    def _close(self, message: Message) -> None:
        self.states[text_of(message)] = "closed"

    def ship(self) -> None:
        """Ship what is paid; what fails is wanted again later."""
        self._consume(GROUP, ["paid", f"{GROUP}.retry"], self._ship_or_retry)

    def _ship_or_retry(self, message: Message) -> None:
        try:
            self._ship(text_of(message))
        except OSError as error:
            headers = list(message.headers() or [])
            if "x-origin" not in dict(headers):
                origin = f"{message.topic()}/{message.partition()}/{message.offset()}"
                headers.append(("x-origin", origin.encode()))
            headers += [("x-retry-group", GROUP.encode()), ("x-retry-reason", str(error).encode())]
            # Stored before the offset of the record is committed: a crash repeats it.
            self._send(message.topic() or "", text_of(message), headers)

    def _ship(self, order: str) -> None:
        if order in self.broken:
            raise OSError(f"no stock for {order}")
        self.states[order] = "shipped"

    # The nightly report

    def start_reports(self) -> None:
        """Ask for a report each night. To ask again, at each start, replaces what was asked."""
        wish = [
            ("x-cron", b"0 2 * * *"),
            ("x-cron-zone", b"Asia/Tokyo"),
            ("x-deliver-id", b"nightly-report"),
        ]
        self._send("reports", "report", wish)

    def report(self) -> None:
        """Write the reports that are due."""
        self._consume("reporting", ["reports"], self._report)

    def _report(self, message: Message) -> None:
        del message
        counts = sorted(Counter(self.states.values()).items())
        self.reports.append(", ".join(f"{count} {state}" for state, count in counts))

    def _consume(self, group: str, topics: list[str], handle: Callable[[Message], None]) -> None:
        """Handle all that a group has not handled yet, one record after the other."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )
        consumer.subscribe(topics)
        try:
            while True:
                is_member = bool(consumer.assignment())
                message = consumer.poll(QUIET_S)
                if message is None:
                    if is_member:
                        return
                elif message.error() is None:
                    handle(message)
                    consumer.commit(message, asynchronous=False)
        finally:
            consumer.close()


def text_of(message: Message) -> str:
    """Return the value of a record: in most topics the order that it is about."""
    value = message.value()
    assert value is not None
    return value.decode()


def tell(service: OrderService, what: str) -> None:
    """Print what happened, and how it stands with each order."""
    states = ", ".join(f"{order} {state}" for order, state in service.states.items())
    sys.stdout.write(f"{what:<47} {states}\n")
    sys.stdout.flush()


def play(broker: Broker) -> list[str]:
    """Play an evening of the shop; return what is wrong."""
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in TOPICS]).values():
        made.result()
    # Three attempts, and GROUP.retry exists before its consumers subscribe to it.
    rules = ("--retry-schedule", "10s 1m 10m", "--retry-max", "3", "--bootstrap", broker.kafka)
    run("groups", "alter", GROUP, *rules)
    service = OrderService(broker.kafka)
    wrong: list[str] = []

    def expect(**states: str) -> None:
        if service.states != states:
            wrong.append(f"expected {states}, found {service.states}")

    for order in ("tea", "rum", "gin"):
        service.place(order)
    tell(service, "three orders are placed")
    broker.advance("20m")
    service.pay("tea")
    service.pay("gin")
    service.settle()
    service.broken = {"gin"}
    service.ship()
    tell(service, "20 min later two are paid, gin is out of stock")
    expect(tea="shipped", rum="placed", gin="paid")

    broker.advance(PAYMENT_TIME)
    service.close_unpaid()
    tell(service, "30 min later what is not paid is closed")
    expect(tea="shipped", rum="closed", gin="paid")

    for _ in range(3):
        service.ship()
        broker.advance("10m")
    dead = run("dlq", "list", GROUP, "--bootstrap", broker.kafka)
    tell(service, "after three attempts gin is a dead letter")
    sys.stdout.write(dead)
    if "no stock for gin" not in dead:
        wrong.append(f"no dead letter: {dead}")
    expect(tea="shipped", rum="closed", gin="paid")

    service.broken.clear()
    run("dlq", "replay", GROUP, "--all", "--bootstrap", broker.kafka)
    service.ship()
    tell(service, "new stock has come, the operator replays it")
    expect(tea="shipped", rum="closed", gin="shipped")

    service.start_reports()
    broker.advance("24h")
    service.report()
    service.pay("rum")
    service.settle()
    tell(service, "the next day somebody pays what was closed")
    expect(tea="shipped", rum="refunded", gin="shipped")
    broker.advance("24h")
    service.report()
    for report in service.reports:
        sys.stdout.write(f"nightly report: {report}\n")
    if service.reports[:1] + service.reports[-1:] != REPORTS:
        wrong.append(f"expected the reports {REPORTS}, found {service.reports}")
    return wrong


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="latermq-orders-") as directory:
        broker = Broker(directory)
        try:
            wrong = play(broker)
        finally:
            broker.stop()
    for each in wrong:
        sys.stderr.write(f"{each}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
