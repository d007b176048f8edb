"""What goes on when a record rots, or the system has nothing left to give."""

import errno
import random
from pathlib import Path

from appliance.errors import StorageError
from appliance.system.files import File
from tests.support.clients.wire_client import WireClient, framed
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Record, cancel, delay
from tests.support.values.record_requests import fetch_part, fetch_request


def test_an_id_whose_record_rotted_can_be_cancelled_and_used_again() -> None:
    harness = with_topic()
    assert harness.produce("t", 0, [Record(b"to rot", headers=delay(10, b"id"))]).error == 0
    assert harness.produce("t", 0, [Record(b"other", headers=delay(5_000))]).error == 0
    harness = harness.crash("kept", random.Random(0))
    log = harness.config.data_dir / "commitlog" / ("0" * 20)
    harness.disk.flip(log, harness.disk.files()[log].index(b"to rot"), 1)
    harness.disk.evict(log)
    harness.clock.advance_ms(10)
    assert harness.deliver_all() == 0
    assert harness.produce("t", 0, [Record(b"", headers=cancel(b"id"))]).error == 0
    assert harness.produce("t", 0, [Record(b"again", headers=delay(20, b"id"))]).error == 0
    assert harness.broker.pending_timers == 2
    assert harness.run_until_idle() == 2
    assert harness.values() == [b"again", b"other"]


class NoDescriptors(SimFileSystem):
    """A system without a file descriptor for ConsumeQueue files."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        if "consumequeue" in path.parts:
            raise StorageError(path, "open", errno.EMFILE, "Too many open files")
        return super().open(path, create=create, writable=writable)


def test_without_file_descriptors_the_units_stay_in_memory() -> None:
    harness = BrokerHarness(NoDescriptors())
    harness.create_topic("t")
    for number in range(20):
        assert harness.produce("t", 0, [Record(b"%d" % number)]).error == 0
        harness.housekeep()
    assert len(harness.fetch("t", 0)) == 20
    harness = harness.restart()
    assert len(harness.fetch("t", 0)) == 20


def test_a_fetch_that_names_a_partition_twice_does_not_wait() -> None:
    """It is refused where it names it again."""
    harness = with_topic()
    client = WireClient(harness)
    request = fetch_request([("t", [fetch_part(0, 0)] * 3)], wait_ms=60_000)
    client.send_bytes(framed(request, 11, 1))
    assert harness.partition().waiters == {}
    assert client.take() != b""
