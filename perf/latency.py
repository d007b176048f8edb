"""Clients on confluent-kafka: how long one message takes, as an application in Python sees it.

    python -m perf.latency one-at-a-time --brokers HOST:PORT --topic NAME --count N --size BYTES
    python -m perf.latency end-to-end    ... --rate N

one-at-a-time produces a message and flushes, N times: the time of each is from produce() until
flush() has returned. end-to-end produces at a steady rate; a consumer in a process of its own polls
all partitions, and the time of each message is from produce() to poll(). Both print one JSON object
as perf/client does. One more message goes to each partition before the clock starts, so that
connecting and finding leaders are not measured.
"""

import argparse
import gc
import json
import struct
import subprocess
import sys
import time
from typing import Final

from confluent_kafka import Consumer, Message, Producer, TopicPartition

_STAMP: Final = struct.Struct("<q")
_LIMIT_S: Final = 300.0
_WARM_STAMP: Final = 0
"""What a message sent before the clock starts holds in place of its time."""


class _Clock:
    """Wall and CPU seconds since its construction."""

    def __init__(self) -> None:
        self.begin_s = time.monotonic()
        self._begin_cpu_s = time.process_time()

    def result(self, options: argparse.Namespace, times_ms: list[float]) -> dict[str, object]:
        """The object to print."""
        ranked = sorted(times_ms)
        count = len(ranked)
        return {
            "mode": options.mode,
            "messages": count,
            "bytes": count * options.size,
            "begin_s": self.begin_s,
            "end_s": time.monotonic(),
            "cpu_s": time.process_time() - self._begin_cpu_s,
            "p50_ms": ranked[count // 2],
            "p99_ms": ranked[count * 99 // 100],
            "p999_ms": ranked[count * 999 // 1000],
            "max_ms": ranked[-1],
        }


class _Sender:
    """Produces messages that hold their send time, without lingering."""

    def __init__(self, options: argparse.Namespace) -> None:
        settings = {"bootstrap.servers": options.brokers, "acks": options.acks, "linger.ms": 0}
        self._producer = Producer(settings)
        self._topic = options.topic
        self._partition_count = options.partitions
        self._padding = bytes(options.size - _STAMP.size)
        self._failures: list[str] = []

    def send(self, number: int, stamp_ns: int) -> None:
        self._producer.produce(
            self._topic,
            _STAMP.pack(stamp_ns) + self._padding,
            partition=number % self._partition_count,
            on_delivery=self._note,
        )

    def _note(self, error: object, _: Message) -> None:
        if error is not None:
            self._failures.append(str(error))

    def serve(self) -> None:
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all are acknowledged.

        Raises:
            RuntimeError: one was not.
        """
        left_count = self._producer.flush(_LIMIT_S)
        if left_count or self._failures:
            raise RuntimeError(f"{left_count} not acknowledged; {self._failures[:3]}")

    def warm_up(self) -> None:
        for number in range(self._partition_count):
            self.send(number, _WARM_STAMP)
        self.flush()


def one_at_a_time(options: argparse.Namespace) -> dict[str, object]:
    """Measure produce() and flush()."""
    sender = _Sender(options)
    sender.warm_up()
    times_ms = []
    clock = _Clock()
    for number in range(options.count):
        begin_ns = time.monotonic_ns()
        sender.send(number, begin_ns)
        sender.flush()
        times_ms.append((time.monotonic_ns() - begin_ns) / 1e6)
    return clock.result(options, times_ms)


def end_to_end(options: argparse.Namespace) -> dict[str, object]:
    """Measure produce() to poll(): send here and receive in another process."""
    sender = _Sender(options)
    sender.warm_up()
    command = [sys.executable, "-m", "perf.latency", "receive", *sys.argv[2:]]
    receiver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert receiver.stdout is not None
        if receiver.stdout.readline().strip() != "ready":
            raise RuntimeError("the receiver did not become ready")
        begin_s = time.monotonic()
        for number in range(options.count):
            rest_s = begin_s + number / options.rate - time.monotonic()
            if rest_s > 0:
                time.sleep(rest_s)
            sender.send(number, time.monotonic_ns())
            sender.serve()
        sender.flush()
        said = json.loads(receiver.stdout.readline())
        assert isinstance(said, dict)
        return said
    finally:
        receiver.kill()
        receiver.wait()


def receive(options: argparse.Namespace) -> dict[str, object]:
    """Receive what `end_to_end` sends; print `ready` when all warm-up messages have arrived."""
    settings = {"bootstrap.servers": options.brokers, "group.id": "perf"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([TopicPartition(options.topic, n, 0) for n in range(options.partitions)])
    deadline_s = time.monotonic() + _LIMIT_S
    for _ in range(options.partitions):
        _poll(consumer, deadline_s)
    print("ready", flush=True)
    times_ms = []
    clock = _Clock()
    for _ in range(options.count):
        stamp_ns = _poll(consumer, deadline_s)
        times_ms.append((time.monotonic_ns() - stamp_ns) / 1e6)
    result = clock.result(options, times_ms)
    consumer.close()
    return result


def _poll(consumer: Consumer, deadline_s: float) -> int:
    """Return the send time in the next message."""
    while time.monotonic() < deadline_s:
        message = consumer.poll(1.0)
        if message is None:
            continue
        value = message.value()
        if message.error() is not None or value is None:
            raise RuntimeError(f"consume: {message.error()}")
        stamp_ns: int = _STAMP.unpack_from(value)[0]
        return stamp_ns
    raise RuntimeError("not all messages came in time")


def main() -> int:
    """Run one mode; exit status 1 if a message was lost or timed out."""
    parser = argparse.ArgumentParser(prog="perf.latency", description=__doc__)
    modes = {"one-at-a-time": one_at_a_time, "end-to-end": end_to_end, "receive": receive}
    parser.add_argument("mode", choices=modes)
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--size", type=int, required=True, help="bytes of a message, at least 8")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--acks", default="1")
    parser.add_argument("--rate", type=int, default=1000, help="messages a second")
    options = parser.parse_args()
    gc.freeze()  # keeps the garbage collector from scanning existing objects during the run
    gc.disable()
    try:
        print(json.dumps(modes[options.mode](options)), flush=True)
    except RuntimeError as error:
        print(f"latency: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
