"""A slave whose log is damaged gets these parts from its master, and nothing else."""

import pytest

from appliance.errors import RemoteProtocolError, ReplicaError
from appliance.replication import wire
from appliance.replication.facts import Facts, Role
from appliance.replication.master_session import MasterSession
from appliance.replication.message_reader import MessageReader
from appliance.replication.repair_session import RepairSession
from appliance.replication.states import State
from appliance.replication.wire import Data, MessageType, RefusalCode
from tests.support.harness.replica_logs import SEGMENT_SIZE_BYTES, MemoryLog
from tests.support.harness.replica_sessions import LIMITS, SECRET

NOW_MS = 1_000

Part = tuple[int, int]


class DamagedLog(MemoryLog):
    """The log of a slave.

    Attributes:
        parts: that are damaged.
        written: what was written over them, by position.
        flushes: how often it was made durable.
    """

    def __init__(self, source: MemoryLog, *parts: Part) -> None:
        super().__init__(2, start_pos=source.start_pos)
        self.append(source.start_pos, source.data)
        self.cluster = source.cluster
        self.parts = list(parts)
        self.written: dict[int, bytes] = {}
        self.flushes = 0

    def damaged(self) -> list[Part]:
        return list(self.parts)

    def write(self, pos: int, data: bytes) -> None:  # type: ignore[override]
        self.written[pos] = data

    def flush(self) -> int:
        self.flushes += 1
        return 0


def source_log(count: int = 400) -> MemoryLog:
    source = MemoryLog(1)
    source.write(11, *(bytes([number % 256]) * 1_000 for number in range(count)))
    return source


def master_of(source: MemoryLog, *, term: int = 3, lease_ms: int = 0) -> MasterSession:
    return MasterSession(
        source,
        SECRET,
        nonce=bytes([1]) * wire.NONCE_SIZE,
        now_ms=NOW_MS,
        admit=lambda _: pytest.fail("it is no slave that follows"),
        limits=LIMITS,
        facts=lambda: Facts(term, Role.MASTER, lease_ms=lease_ms),
    )


def slave_of(log: DamagedLog, *, term: int = 3) -> RepairSession:
    nonce = bytes([2]) * wire.NONCE_SIZE
    return RepairSession(log, Facts(term, Role.REPAIRING), SECRET, nonce)


def step_master(master: MasterSession, source: MemoryLog) -> bytes:
    """What the master sends, after it read what it was asked for."""
    wanted = master.next_read(NOW_MS)
    if wanted is not None:
        master.loaded(wanted[0], source.read(*wanted), NOW_MS)
    return b"".join(master.take_output())


def run(master: MasterSession, slave: RepairSession, source: MemoryLog) -> int:
    """Pass messages until the slave is done; return how many turns that took."""
    for turn in range(1_000):
        if slave.is_done:
            return turn
        sent = slave.received(step_master(master, source))
        if sent:
            master.received(sent, NOW_MS)
    pytest.fail("it does not end")


def test_the_damaged_parts_come_in_pieces_and_are_durable_before_it_is_done() -> None:
    source = source_log()
    large = (SEGMENT_SIZE_BYTES - 500, SEGMENT_SIZE_BYTES + 2 * wire.READ_SIZE_MAX_BYTES)
    log = DamagedLog(source, (1_012, 2_024), large, (source.committed_pos - 9, source.end_pos))
    master, slave = master_of(source), slave_of(log)
    run(master, slave, source)
    assert log.flushes == 1
    for begin, end in log.parts:
        found = b"".join(data for pos, data in sorted(log.written.items()) if begin <= pos < end)
        assert found == source.data[begin:end]
    assert sum(map(len, log.written.values())) == sum(end - begin for begin, end in log.parts)
    assert max(source.read_sizes) <= wire.READ_SIZE_MAX_BYTES
    assert master.state is State.REPAIRING
    assert not master.has_stream


def test_a_master_that_waits_for_a_lease_supplies_too() -> None:
    """The slave is not promoted in this state, however short its own lease is."""
    source = source_log(10)
    log = DamagedLog(source, (1_012, 2_024))
    run(master_of(source, lease_ms=9_000), slave_of(log), source)
    assert log.flushes == 1


@pytest.mark.parametrize("lacks", ["freed", "differs", "is shorter"])
def test_what_the_master_cannot_have_is_not_asked_for(lacks: str) -> None:
    source = source_log(200)
    log = DamagedLog(source, (1_012, 2_024))
    if lacks == "freed":
        source.free(100 * 1_012)
    elif lacks == "differs":
        source = MemoryLog(1)
        source.write(13, *(b"other" for _ in range(300)))
    else:
        log = DamagedLog(source, (150 * 1_012, 151 * 1_012))
        source = source_log(100)
    slave, master = slave_of(log), master_of(source)
    with pytest.raises(ReplicaError, match="are damaged"):
        run(master, slave, source)
    assert not log.written
    assert not source.read_sizes


def test_a_part_in_which_an_epoch_begins_is_repaired_although_the_slave_does_not_know_it() -> None:
    source = source_log(10)
    source.write(13, *(b"later" for _ in range(10)))
    begin = dict(source.epochs())[13]
    log = DamagedLog(source, (begin, begin + 17))
    log.epochs = lambda: [(11, 0)]  # type: ignore[method-assign]
    run(master_of(source), slave_of(log), source)
    assert log.written == {begin: source.data[begin : begin + 17]}


def test_a_damaged_end_of_the_log_is_repaired() -> None:
    """It is beyond the last frame that the slave can read."""
    source = source_log(20)
    end = 10 * 1_012
    log = DamagedLog(source_log(10), (end, end + 1_012))
    run(master_of(source), slave_of(log), source)
    assert log.written == {end: source.data[end : end + 1_012]}


def test_a_request_beyond_where_the_logs_part_ends_the_connection() -> None:
    source = source_log(10)
    log = DamagedLog(source, (0, 1_012))
    source.write(13, *(b"of the master" for _ in range(10)))
    MemoryLog.write(log, 12, b"of the slave, when it was the master")
    common = 10 * 1_012
    master = in_repair(source, log)
    master.received(_request(common - 5, 5), NOW_MS)
    assert master.next_read(NOW_MS) == (common - 5, 5)
    other = in_repair(source, log)
    other.received(_request(common - 5, 6), NOW_MS)
    assert other.state is State.LOST


def test_a_slave_of_a_later_term_fences_the_master_and_gets_nothing() -> None:
    source = source_log(10)
    log, master = DamagedLog(source, (0, 1_012)), master_of(source, term=2)
    slave = slave_of(log, term=3)
    with pytest.raises(RemoteProtocolError, match="newer term"):
        run(master, slave, source)
    assert master.refused is not None
    assert master.refused.code == RefusalCode.NEWER_TERM


@pytest.mark.parametrize(
    ("pos", "size"),
    [(-1, 10), (0, wire.READ_SIZE_MAX_BYTES + 1), (20 * 1_012 - 5, 6), (20 * 1_012, 1)],
)
def test_a_request_for_what_the_master_does_not_have_ends_the_connection(
    pos: int, size: int
) -> None:
    source = source_log(20)
    log = DamagedLog(source_log(10), (0, 1_012))
    master = in_repair(source, log)
    master.received(_request(pos, size), NOW_MS)
    assert master.state is State.LOST
    assert master.next_read(NOW_MS) is None


def test_a_second_request_before_the_answer_ends_the_connection() -> None:
    source = source_log(20)
    master = in_repair(source, DamagedLog(source, (0, 1_012)))
    master.received(_request(0, 10), NOW_MS)
    assert master.state is State.REPAIRING
    master.received(_request(10, 10), NOW_MS)
    assert master.state is State.LOST
    assert "before the last one is answered" in master.reason


def test_a_master_that_has_nothing_there_ends_the_connection_and_says_so() -> None:
    source = source_log(20)
    master = in_repair(source, DamagedLog(source, (0, 1_012)))
    master.received(_request(0, 10), NOW_MS)
    master.loaded(0, b"", NOW_MS)
    assert master.state is State.LOST
    assert "has nothing at 0" in master.reason


def test_a_read_that_ends_after_the_connection_sends_nothing() -> None:
    source = source_log(20)
    master = in_repair(source, DamagedLog(source, (0, 1_012)))
    master.received(_request(0, 10), NOW_MS)
    assert master.next_read(NOW_MS) == (0, 10)
    master.closed("the slave has gone")
    master.loaded(0, source.read(0, 10), NOW_MS)
    assert not master.take_output()


@pytest.mark.parametrize(("pos", "size"), [(1_011, 5), (1_013, 5), (1_012, 1_013)])
def test_bytes_that_were_not_asked_for_are_not_written(pos: int, size: int) -> None:
    source = source_log(20)
    log = DamagedLog(source, (1_012, 2_024))
    slave, master = slave_of(log), master_of(source)
    master.received(slave.received(step_master(master, source)), NOW_MS)
    slave.received(step_master(master, source))
    with pytest.raises(RemoteProtocolError, match="a SUPPLY from"):
        slave.received(wire.encode_bytes(pos, bytes(size), MessageType.SUPPLY))
    assert not log.written


def in_repair(source: MemoryLog, log: DamagedLog) -> MasterSession:
    """A master that said WELCOME to a slave that repairs."""
    slave, master = slave_of(log), master_of(source)
    master.received(slave.received(step_master(master, source)), NOW_MS)
    (kind, _) = _first(step_master(master, source))
    assert kind is MessageType.WELCOME
    assert master.state is State.REPAIRING
    return master


def _first(data: bytes) -> tuple[MessageType, bytes]:
    reader = MessageReader()
    reader.feed(data)
    found = reader.next_message(list(MessageType))
    assert found is not None
    assert not isinstance(found, Data)
    return found


def _request(pos: int, size: int) -> bytes:
    body = wire._READ.pack(pos, size)
    return wire.HEADER.pack(1 + len(body), MessageType.REQUEST) + body
