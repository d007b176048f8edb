"""A batch that names a timer whose id is on the disk waits for a thread, and nobody else does."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.errors import CorruptionError
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import WireClient, framed, run_work, split_answers
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.configs import small_config
from tests.support.harness.loading import in_pieces
from tests.support.oracles.kafka_oracle import ProduceResponse, decode_response
from tests.support.values.kafka_records import Record, build_batch, cancel, delay
from tests.support.values.raw_batch import ZSTD
from tests.support.values.record_requests import produce_request

HOUR_MS = 3_600_000
IDS = [b"id-%d" % number for number in range(20)]
MIB = 1 << 20


@pytest.fixture(autouse=True)
def few() -> Iterator[None]:
    """No room for ids that are saved."""
    with in_pieces(count_max=10):
        yield


@pytest.fixture
def harness() -> BrokerHarness:
    """A broker with twenty named timers in topic "t", none of whose ids are in memory."""
    config = small_config(
        decompressed_size_max_bytes=4 * MIB,
        request_decompressed_size_max_bytes=8 * MIB,
        record_size_max_bytes=4 * MIB,
        request_size_max_bytes=16 * MIB,
        segment_size_bytes=64 * MIB,
        batch_size_max_bytes=MIB,
    )
    first = with_topic(3, config=config)
    for number, user_id in enumerate(IDS):
        value = b"%d" % number
        answer = first.produce("t", 0, [Record(value, headers=delay(HOUR_MS + number, user_id))])
        assert answer.error == 0
    harness = first.restart()
    assert not harness.broker._store.state.projections.ids.is_whole
    return harness


def batch(*records: Record, codec: int = 0) -> bytes:
    return build_batch(records, codec=codec)


def send(client: WireClient, *batches: bytes, number: int = 1) -> None:
    """Send a request with a batch for each partition, for one turn."""
    data = framed(produce_request([("t", list(enumerate(batches)))]), 8, number)
    client.feed(data, client.end_turn)


def resume(client: WireClient) -> None:
    client.session.resume(now_ns=client.harness.clock.wall_ns())
    client.end_turn()


def finish(client: WireClient) -> list[list[tuple[int, int]]]:
    """Take all turns that are left; return error and offset of each batch, by request."""
    while client.session.yielded:
        if client.session.work is None or not client.session.work.is_done:
            run_work(client.session)
        resume(client)
    client.harness.flush()
    found = []
    for answer in split_answers(client.take()):
        (topic,) = decode_response(ProduceResponse, 8, answer).responses
        found.append([(part.error_code, part.base_offset) for part in topic.partition_responses])
    return found


@pytest.mark.parametrize("delay_ms", [0, 5])
def test_a_wait_changes_neither_the_due_time_nor_the_order(
    harness: BrokerHarness, delay_ms: int
) -> None:
    """Though the record is due once its id is known."""
    accepted_ms = harness.clock.wall_ms()
    client = WireClient(harness)
    assert harness.produce("t", 0, [Record(b"earlier", headers=delay(2))]).error == 0
    send(client, batch(Record(b"new", headers=delay(delay_ms, IDS[4]))))
    harness.clock.advance_ms(10)
    harness.produce("t", 0, [Record(b"later", headers=delay(0))])
    assert finish(client)[0][0][0] == 0
    assert harness.values() == ([b"later", b"new"] if delay_ms == 0 else [b"later"])
    assert harness.tick(1) == (1 if delay_ms == 0 else 2)
    waited = {record.value: record for record in harness.fetch("t", 0)}
    assert waited[b"new"].header("x-accepted-at") == b"%d" % accepted_ms
    assert waited[b"new"].header("x-due-at") == b"%d" % (accepted_ms + delay_ms)
    if delay_ms:
        assert list(waited) == [b"later", b"earlier", b"new"]


CANCEL = Record(b"", headers=cancel(IDS[3]))
REPLACE = Record(b"new", headers=delay(2 * HOUR_MS, IDS[4]))
PLAIN = Record(b"plain")


@pytest.mark.parametrize("record", [CANCEL, REPLACE], ids=["cancel", "replace"])
def test_a_batch_that_names_a_saved_timer_waits_before_its_append(
    harness: BrokerHarness, record: Record
) -> None:
    client, other = WireClient(harness), WireClient(harness)
    before = harness.broker.wrote_pos
    send(client, batch(record), batch(PLAIN))
    work = client.session.work
    assert work is not None
    assert not work.is_made
    assert harness.broker.wrote_pos == before
    assert other.produce("t", 2, batch(PLAIN)).error_code == 0
    resume(client)
    assert work.is_made
    resume(client)  # the thread is not done
    assert client.session.work is work
    assert finish(client) == [[(0, -1), (0, 0)]]
    assert client.session.work is None
    assert harness.timer_state("t", IDS[3])[0] == ("cancelled" if record is CANCEL else "pending")
    pending = 19 if record is CANCEL else 20
    assert harness.broker.pending_timers == pending
    harness.tick(3 * HOUR_MS)
    values = [b"%d" % number for number in range(20) if number != (3 if record is CANCEL else 4)]
    assert harness.values() == values + ([] if record is CANCEL else [b"new"])


def test_later_requests_for_the_same_id_stay_behind(harness: BrokerHarness) -> None:
    client = WireClient(harness)
    send(client, batch(CANCEL))
    again = Record(b"again", headers=delay(5, IDS[3]))
    more = framed(produce_request([("t", [(0, batch(again))])]), 8, 2)
    room = client.session.get_buffer()
    room[: len(more)] = more
    client.session.received(len(more), now_ns=harness.clock.wall_ns())
    assert finish(client) == [[(0, -1)], [(0, -1)]]
    assert harness.timer_state("t", IDS[3])[0] == "pending"
    harness.tick(10)
    assert harness.values() == [b"again"]


def test_two_connections_that_wait_for_one_id_are_both_right(harness: BrokerHarness) -> None:
    clients = [WireClient(harness), WireClient(harness)]
    for client in clients:
        send(client, batch(CANCEL))
        resume(client)
    for client in clients:
        run_work(client.session)
    assert [finish(client) for client in clients] == [[[(0, -1)]]] * 2
    assert harness.broker.collect_metrics().timers_cancelled == 1


def test_new_ids_do_not_wait(harness: BrokerHarness) -> None:
    """The filters know that no run has them."""
    client = WireClient(harness)
    waited = 0
    for number in range(200):
        send(client, batch(Record(b"", headers=delay(HOUR_MS, b"other-%d" % number))))
        waited += client.session.work is not None
        assert finish(client) == [[(0, -1)]]
    assert waited <= 3
    assert harness.broker.pending_timers == 220


def test_an_id_that_only_a_filter_knows_is_unknown(harness: BrokerHarness) -> None:
    ids = harness.broker._store.state.projections.ids
    topic_id = harness.topic().topic_id
    name = next(
        name
        for name in map(b"seems-%d".__mod__, range(1_000_000))
        if ids.uncertain(topic_id, name) is not None
    )
    client = WireClient(harness)
    send(client, batch(Record(b"", headers=cancel(name))))
    assert client.session.work is not None
    assert not client.session.work.is_packed
    assert finish(client) == [[(0, -1)]]
    assert ids.uncertain(topic_id, name) is None
    assert harness.broker.collect_metrics().id_reads == 1
    assert harness.timer_state("t", name)[0] == "unknown"
    assert harness.broker.pending_timers == 20


@pytest.mark.parametrize("size", [10, 2 * MIB], ids=["unpacked at once", "unpacked by the thread"])
def test_a_compressed_batch_waits_for_both(harness: BrokerHarness, size: int) -> None:
    client = WireClient(harness)
    send(client, batch(CANCEL, REPLACE, Record(bytes(size)), codec=ZSTD), batch(PLAIN))
    assert finish(client) == [[(0, -1), (0, 0)]]
    assert harness.timer_state("t", IDS[3])[0] == "cancelled"
    assert harness.timer_state("t", IDS[4])[0] == "pending"
    assert [len(value) for value in harness.values()] == [size]
    assert harness.broker.pending_timers == 19


def test_a_checkpoint_that_ends_meanwhile_makes_it_wait_again(harness: BrokerHarness) -> None:
    client = WireClient(harness)
    send(client, batch(CANCEL))
    resume(client)
    run_work(client.session)
    checkpoint(harness)
    resume(client)
    assert client.session.work is not None
    assert finish(client) == [[(0, -1)]]
    assert harness.timer_state("t", IDS[3])[0] == "cancelled"


def checkpoint(harness: BrokerHarness) -> None:
    checkpoints = harness.broker.checkpoints
    checkpoints.ask()
    harness.broker.commit()
    while (job := checkpoints.step()) is None:
        pass
    job.run()
    checkpoints.end(job)
    assert job.error is None


def test_a_topic_that_is_deleted_meanwhile_is_unknown(harness: BrokerHarness) -> None:
    client = WireClient(harness)
    send(client, batch(CANCEL))
    resume(client)
    run_work(client.session)
    harness.delete_topic("t")
    assert finish(client) == [[(ErrorCode.unknown_topic_or_partition, -1)]]
    harness.create_topic("t", 3)
    send(client, batch(CANCEL), number=2)
    assert client.session.work is None


def test_a_client_that_leaves_meanwhile_changes_nothing(harness: BrokerHarness) -> None:
    client = WireClient(harness)
    send(client, batch(CANCEL))
    resume(client)
    work = client.session.work
    client.session.close()
    assert work is not None
    work.run()
    assert harness.broker.pending_timers == 20
    assert harness.timer_state("t", IDS[3])[0] == "pending"


def test_a_run_that_is_damaged_ends_the_broker_and_the_next_start_replays_the_log(
    harness: BrokerHarness,
) -> None:
    for path in list(harness.disk.files()):
        if path.parent.name == "index" and path.suffix == "":
            harness.disk.open(path).pwritev([b"\xff" * 8], 60)
    client = WireClient(harness)
    send(client, batch(CANCEL))
    resume(client)
    run_work(client.session)
    with pytest.raises(CorruptionError):
        client.session.resume(now_ns=harness.clock.wall_ns())
    harness = harness.crash("kept", random.Random(1))
    assert (harness.report.checkpoint, len(harness.report.rejected)) == (0, 1)
    assert harness.timer_state("t", IDS[3])[0] == "pending"
    assert finish(sent(harness, CANCEL)) == [[(0, -1)]]
    assert harness.timer_state("t", IDS[3])[0] == "cancelled"
    assert harness.broker.pending_timers == 19


def sent(harness: BrokerHarness, *records: Record) -> WireClient:
    client = WireClient(harness)
    send(client, batch(*records))
    return client


@pytest.mark.parametrize("seed", range(4))
def test_through_many_lives_each_id_names_its_last_timer(seed: int) -> None:
    """Sends, replaces, cancels and deliveries, with checkpoints, kills and stops between them."""
    rng = random.Random(seed)
    harness = with_topic()
    expected: dict[bytes, tuple[str, int]] = {}
    for number in range(400):
        user_id = rng.choice(IDS)
        known = expected.get(user_id, ("unknown", 0))
        if rng.random() < 0.7:
            delay_ms = rng.randrange(1, 2_000)
            record = Record(b"%d" % number, headers=delay(delay_ms, user_id))
            expected[user_id] = ("pending", harness.clock.wall_ms() + delay_ms)
        else:
            record = Record(b"", headers=cancel(user_id))
            if known[0] == "pending":
                expected[user_id] = ("cancelled", known[1])
        assert finish(sent(harness, record)) == [[(0, -1)]]
        if rng.random() < 0.2:
            harness.tick(rng.randrange(1, 500))
            now_ms = harness.clock.wall_ms()
            for each, (state, due_ms) in expected.items():
                if state == "pending" and due_ms <= now_ms:
                    expected[each] = ("delivered", due_ms)
        if rng.random() < 0.1:
            checkpoint(harness)
        if rng.random() < 0.05:
            harness = harness.reborn(rng.choice(["clean", "kept", "dropped"]), number)
    assert not harness.broker._store.state.projections.ids.is_whole
    for user_id, (state, due_ms) in expected.items():
        shown: Any = harness.timer_state("t", user_id)
        assert shown[:2] == (state, due_ms)
