"""Fetch on a slave: what the master shows and this node has, and nobody writes through it."""

from typing import Any

import pytest

from appliance.store.paths import segment_name
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import framed
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import DATA_DIR
from tests.support.harness.slave_harness import SlaveHarness
from tests.support.oracles.kafka_oracle import FetchResponse, ProduceResponse, decode_response
from tests.support.values.kafka_records import Record, delay, read_batches
from tests.support.values.raw_batch import Raw, make_batch
from tests.support.values.record_requests import fetch_part, fetch_request, produce_request

VERSION = 11
WAIT_MS = 500


class Reader:
    """A client of a slave, and the master that the slave follows.

    Attributes:
        master, slave: the nodes.
        broker: what the slave serves.
    """

    def __init__(self, count: int = 3) -> None:
        self.master, self.slave = BrokerHarness(), SlaveHarness()
        self.master.create_topic("t", 1)
        self.ends = [self.write(b"%d" % number) for number in range(count)]
        self.slave.receive(self.master)
        self.slave.flush()
        self.broker = self.slave.broker.slave()
        self.session = self.broker.open_session(lambda _: "not asked")
        self.parked: list[Any] = []

    def write(self, value: bytes) -> int:
        """Let the master accept a record; return where its log ends then."""
        self.master.produce("t", 0, [Record(value)])
        return self.master.broker.log.pointers.committed

    def follow(self, pos: int, *, is_heard: bool = True) -> None:
        """Let the slave hear of its master, and try again what waits and may be answered."""
        for parked in self.broker.follow(pos, is_heard=is_heard):
            self.session.retry(parked)

    def send(self, request: Any, version: int = VERSION) -> None:
        data = framed(request, version, 1)
        self.session.get_buffer()[: len(data)] = data
        self.session.received(len(data), now_ns=self.slave.clock.wall_ns())
        self.session.compact()
        self.parked = list(self.session.new_parked)

    def answer(self, response: Any = FetchResponse, version: int = VERSION) -> Any:
        """The answer that leaves now; None if there is none."""
        data = b"".join(self.session.output(1 << 62))
        return decode_response(response, version, data[4:]) if data else None

    def fetch(self, offset: int, *, wait_ms: int = 0, epoch: int = -1) -> Any:
        """The partition of the answer to a Fetch; None if it waits."""
        part = fetch_part(0, offset, leader_epoch=epoch)
        self.send(fetch_request([("t", [part])], wait_ms=wait_ms))
        for parked in self.parked:
            while parked.cold:
                assert self.broker.note_read(self.broker.read_cold(parked.cold)) == []
                self.session.retry(parked)
        return self.part()

    def part(self) -> Any:
        """The partition of the answer that leaves now; None if there is none."""
        answer = self.answer()
        return None if answer is None else answer.responses[0].partitions[0]

    def expire(self) -> Any:
        """Let the time of what waits be over; return the partition of the answer."""
        for parked in self.parked:
            parked.is_expired = True
            assert self.session.retry(parked)
        return self.part()


def values(part: Any, offset: int = 0) -> list[bytes]:
    assert part.error_code == 0
    return [each.value for each in read_batches(bytes(part.records), offset)]


def test_consumer_reads_what_the_master_shows() -> None:
    reader = Reader()
    reader.follow(reader.ends[1])
    part = reader.fetch(0)
    assert values(part) == [b"0", b"1"]
    assert part.high_watermark == 2
    assert part.preferred_read_replica == -1
    reader.follow(reader.ends[2])
    assert values(reader.fetch(2), 2) == [b"2"]


def test_record_that_is_not_durable_here_is_not_read() -> None:
    reader = Reader()
    end = reader.write(b"new")
    reader.slave.receive(reader.master)
    reader.follow(end)
    assert values(reader.fetch(0)) == [b"0", b"1", b"2"]
    reader.slave.flush()
    reader.follow(end)
    assert values(reader.fetch(3), 3) == [b"new"]


def test_waiting_fetch_is_answered_when_the_master_shows_more() -> None:
    reader = Reader()
    reader.follow(reader.ends[2])
    assert reader.fetch(3, wait_ms=WAIT_MS) is None
    end = reader.write(b"new")
    reader.slave.receive(reader.master)
    reader.slave.flush()
    reader.follow(reader.ends[2])
    assert reader.part() is None
    reader.follow(end)
    assert values(reader.part(), 3) == [b"new"]


def test_delivered_record_is_read_and_a_pending_one_is_not() -> None:
    reader = Reader(0)
    reader.master.produce("t", 0, [Record(b"later", headers=delay(1_000))])
    reader.slave.receive(reader.master)
    reader.slave.flush()
    reader.follow(reader.master.broker.log.pointers.visible)
    assert values(reader.fetch(0)) == []
    reader.master.tick(1_000)
    reader.slave.receive(reader.master)
    reader.slave.flush()
    reader.follow(reader.master.broker.log.pointers.visible)
    assert values(reader.fetch(0)) == [b"later"]


def test_offset_that_the_slave_has_and_may_not_show_waits_and_is_then_not_available() -> None:
    reader = Reader()
    reader.follow(reader.ends[0])
    assert reader.fetch(2).error_code == ErrorCode.offset_not_available
    assert reader.fetch(2, wait_ms=WAIT_MS) is None
    assert reader.expire().error_code == ErrorCode.offset_not_available


def test_offset_that_the_slave_lacks_waits_and_is_then_the_master_s_to_judge() -> None:
    """A client that takes the slave for the leader asks for it anew, and keeps the offset."""
    reader = Reader()
    reader.follow(reader.ends[2])
    assert reader.fetch(4).error_code == ErrorCode.not_leader_or_follower
    assert reader.fetch(4, wait_ms=WAIT_MS) is None
    assert reader.expire().error_code == ErrorCode.not_leader_or_follower


def test_consumer_that_is_ahead_of_the_slave_reads_on_when_the_slave_has_come() -> None:
    reader = Reader()
    reader.follow(reader.ends[2])
    assert reader.fetch(4, wait_ms=WAIT_MS) is None
    for value in (b"3", b"4"):
        end = reader.write(value)
    reader.slave.receive(reader.master)
    reader.slave.flush()
    reader.follow(end)
    assert values(reader.part(), 4) == [b"4"]


def test_slave_that_does_not_hear_its_master_sends_consumers_to_it() -> None:
    reader = Reader()
    assert not reader.broker.serves_reads
    assert reader.fetch(0).error_code == ErrorCode.not_leader_or_follower
    reader.follow(reader.ends[2])
    assert reader.broker.serves_reads
    assert values(reader.fetch(0)) == [b"0", b"1", b"2"]
    reader.follow(reader.ends[2], is_heard=False)
    assert reader.fetch(0).error_code == ErrorCode.not_leader_or_follower


def test_leader_epoch_is_that_of_the_master() -> None:
    reader = Reader()
    reader.follow(reader.ends[2])
    epoch = reader.master.broker.epoch
    assert reader.broker.epoch == epoch
    assert values(reader.fetch(0, epoch=epoch)) == [b"0", b"1", b"2"]
    assert reader.fetch(0, epoch=epoch - 1).error_code == ErrorCode.fenced_leader_epoch
    assert reader.fetch(0, epoch=epoch + 1).error_code == ErrorCode.unknown_leader_epoch


@pytest.mark.parametrize("name", ["t", "no-such-topic"])
def test_batches_are_refused_and_the_log_stays_as_it_is(name: str) -> None:
    reader = Reader()
    reader.follow(reader.ends[2])
    before = reader.slave.follower.end_pos, reader.slave.follower.received_pos
    batch = make_batch([Raw(b"no")])
    reader.send(produce_request([(name, [(0, batch), (1, batch)])]), 8)
    answer = reader.answer(ProduceResponse, 8)
    codes = [each.error_code for each in answer.responses[0].partition_responses]
    assert codes == [ErrorCode.not_leader_or_follower] * 2
    assert (reader.slave.follower.end_pos, reader.slave.follower.received_pos) == before
    assert values(reader.fetch(0)) == [b"0", b"1", b"2"]


def test_batch_without_an_answer_closes_the_connection() -> None:
    reader = Reader()
    reader.follow(reader.ends[2])
    reader.send(produce_request([("t", [(0, make_batch([Raw(b"no")]))])], acks=0), 8)
    assert reader.session.close_reason == "a batch sent with acks=0 was refused"


def test_record_that_is_on_the_disk_alone_is_read() -> None:
    reader = Reader()
    reader.follow(reader.ends[2])
    reader.slave.broker.log.view.clear()
    assert values(reader.fetch(0)) == [b"0", b"1", b"2"]


def test_damage_sends_consumers_to_the_master() -> None:
    """A master passes over what is damaged; the master of this slave may have it whole."""
    reader = Reader()
    reader.follow(reader.ends[2])
    reader.slave.broker.log.view.clear()
    base = reader.slave.log_bases()[0]
    file = reader.slave.disk.open(DATA_DIR / "commitlog" / segment_name(base))
    file.pwritev([b"\xff" * 8], reader.ends[1] - 16 - base)
    reader.send(fetch_request([("t", [fetch_part(0, 1)])]))
    (parked,) = reader.parked
    assert len(reader.broker.note_read(reader.broker.read_cold(parked.cold))) == 1
    assert reader.session.retry(parked)
    assert reader.part().error_code == ErrorCode.not_leader_or_follower
    reader.follow(reader.ends[2])
    assert not reader.broker.serves_reads


def test_slave_goes_on_after_its_clients_and_is_promoted() -> None:
    reader = Reader()
    reader.follow(reader.ends[2])
    assert values(reader.fetch(0)) == [b"0", b"1", b"2"]
    promoted = reader.slave.promote()
    assert promoted.values() == [b"0", b"1", b"2"]
    promoted.produce("t", 0, [Record(b"3")])
    assert promoted.values()[-1] == b"3"
