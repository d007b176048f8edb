"""Memory of a partition: a broker in process with many small ones.

    .venv/bin/python -m perf.micro_queues [--partitions 10000] [--records 100] [--batch 10]

Prints resident anonymous memory per partition: once the partitions exist, once they hold records,
and after housekeeping visited all of them. Then the longest turn of housekeeping, and the size of
the unit files. The data is in a temporary directory.
"""

import argparse
import gc
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from _core.paths.session import Session
from appliance.broker import Broker
from appliance.config.config import Config
from appliance.kafka_facade import KAFKA_FACADE
from appliance.store.unit_saver import PARTITIONS_PER_SLICE
from appliance.system.clock import SystemClock
from appliance.system.files import OsFileSystem
from appliance.units import KIB
from perf.wire import produce_request

TOPIC_PARTITIONS: Final = 1_000
VALUE_BYTES: Final = 100
FLUSH_EVERY: Final = 1_000


def private_bytes() -> int:
    """Resident anonymous memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * KIB
    raise RuntimeError("/proc/self/status has no RssAnon")


def open_broker(directory: Path, partition_count: int) -> Broker:
    """A recovered broker that admits this many partitions."""
    config = replace(Config(data_dir=directory), flush="async", partition_total_max=partition_count)
    broker = Broker(SystemClock(), OsFileSystem(), config, KAFKA_FACADE)
    for _ in broker.recover():
        pass
    return broker


def send(broker: Broker, session: Session, request: bytes) -> None:
    """Handle one request; drop its answer."""
    start = 0
    while start < len(request):
        room = session.get_buffer()
        part = request[start : start + len(room)]
        room[: len(part)] = part
        start += len(part)
        session.received(len(part), now_ns=broker.clock.wall_ns())
    broker.commit()
    session.compact()
    assert session.close_reason is None, session.close_reason
    assert session.output(broker.committed_pos)


def make_unit_files(broker: Broker) -> None:
    """Make the files that units wait for, as a thread of the broker does."""
    job = broker.units.begin_files()
    if job is not None:
        job.run()
        broker.units.end_files(job)


def measure(partition_count: int, record_count: int, batch_count: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(dir=".", prefix=".micro_queues-") as name:
        broker = open_broker(Path(name), partition_count)
        gc.collect()
        empty = private_bytes()

        def report(what: str) -> None:
            gc.collect()
            each = (private_bytes() - empty) / partition_count
            print(f"{what:34} {each:8.0f} bytes a partition")

        sizes = [
            min(TOPIC_PARTITIONS, partition_count - start)
            for start in range(0, partition_count, TOPIC_PARTITIONS)
        ]
        for number, size in enumerate(sizes):
            broker.topics.create(f"topic-{number}", size, {})
            broker.commit()
        report("empty")
        session = broker.open_session(lambda _: "no such request is sent here")
        values = [bytes(VALUE_BYTES)] * batch_count
        sent = 0
        for _ in range(record_count // batch_count):
            for number, size in enumerate(sizes):
                for index in range(size):
                    send(broker, session, produce_request(f"topic-{number}", index, values))
                    sent += 1
                    if sent % FLUSH_EVERY == 0:
                        broker.flush()
        report(f"{record_count} records each")
        slowest = 0.0
        for _ in range(2 * partition_count // PARTITIONS_PER_SLICE + 2):
            begin = time.perf_counter()
            broker.housekeep()
            slowest = max(slowest, time.perf_counter() - begin)
            make_unit_files(broker)
        report("after housekeeping")
        print(f"{'slowest turn of housekeeping':34} {slowest * 1e3:8.2f} ms")
        begin = time.perf_counter()
        broker.close()
        print(f"{'clean stop':34} {time.perf_counter() - begin:8.2f} s")


def main() -> None:
    """Read the arguments, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--records", type=int, default=100, help="in each partition")
    parser.add_argument("--batch", type=int, default=10, help="records of one batch")
    args = parser.parse_args()
    measure(args.partitions, args.records, args.batch)


if __name__ == "__main__":
    main()
