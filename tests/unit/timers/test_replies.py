"""`x-deliver-reply`: what became of an id, as a record of the topic that the producer names."""

import json
from typing import Any

import pytest

from _core.bytes.murmur2 import hash_key
from appliance.units import MS_PER_HOUR
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import with_topic
from tests.support.harness.configs import small_config
from tests.support.simulator.virtual_clock import START_MS
from tests.support.values.kafka_records import Fetched, Producer, Record, build_batch
from tests.support.values.raw_batch import CODECS, Raw, make_batch

REPLY = (b"x-deliver-reply", b"r")


@pytest.fixture
def client() -> WireClient:
    """A client of a broker with topic `t` of three partitions."""
    return WireClient(with_topic(3))


def schedule(user_id: bytes, *more: tuple[bytes, bytes | None], delay: bytes = b"1h") -> Raw:
    return Raw(user_id, None, [(b"x-delay", delay), (b"x-deliver-id", user_id), *more])


def cancel(user_id: bytes, *more: tuple[bytes, bytes | None]) -> Raw:
    return Raw(b"", None, [(b"x-deliver-cancel", user_id), *more])


def send(client: WireClient, *records: Raw, topic: str = "t", partition: int = 0) -> int:
    return int(client.produce(topic, partition, make_batch(list(records))).error_code)


def fetched(client: WireClient, topic: str = "r") -> list[Fetched]:
    count = len(client.harness.topic(topic).partitions)
    return [each for index in range(count) for each in client.harness.fetch(topic, index)]


def outcomes(client: WireClient, topic: str = "r") -> list[tuple[bytes, str]]:
    """Key and outcome of each reply, by partition."""
    client.harness.deliver_all()
    found = []
    for each in fetched(client, topic):
        assert each.key is not None
        found.append((each.key, said(each)["outcome"]))
    return found


def said(reply: Fetched) -> dict[str, Any]:
    assert reply.value is not None
    answer: dict[str, Any] = json.loads(reply.value)
    return answer


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hash_equals_kafkas_vectors(key: bytes, expected: int) -> None:
    """Those of Kafka's UtilsTest."""
    assert hash_key(key) == expected % 2**32


def test_a_reply_is_a_record_with_the_id_as_key(client: WireClient) -> None:
    assert send(client, schedule(b"id")) == 0
    client.harness.clock.advance_ms(5)
    assert send(client, cancel(b"id", REPLY), partition=2) == 0
    assert client.harness.tick(0) == 1
    (found,) = fetched(client)
    now_ms = START_MS + 5
    stamps = (("x-accepted-at", b"%d" % now_ms), ("x-due-at", b"%d" % now_ms))
    value = b'{"outcome":"cancelled","topic":"t"}'
    assert (found.timestamp_ms, found.key, found.value, found.headers) == (
        *(now_ms, b"id", value, stamps),
    )
    assert client.harness.timer_state("t", b"id")[0] == "cancelled"


def test_a_reply_is_where_kafkas_partitioner_puts_its_key(client: WireClient) -> None:
    ids = [b"%d" % number for number in range(40)]
    for index in range(3):
        assert send(client, *(cancel(each, REPLY) for each in ids), partition=index) == 0
    client.harness.deliver_all()
    assert len(client.harness.topic("r").partitions) == 3
    for index in range(3):
        keys = [each.key for each in client.harness.fetch("r", index)]
        assert keys == [each for each in ids if (hash_key(each) & 0x7FFFFFFF) % 3 == index] * 3


def test_a_cancel_that_is_sent_again_gets_the_same_reply(client: WireClient) -> None:
    assert send(client, schedule(b"id")) == 0
    for _ in range(2):
        assert send(client, cancel(b"id", REPLY)) == 0
    assert outcomes(client) == [(b"id", "cancelled")] * 2


def test_what_replaces_a_pending_timer_gets_a_reply_and_a_plain_schedule_none(
    client: WireClient,
) -> None:
    assert send(client, schedule(b"id", REPLY)) == 0
    assert outcomes(client) == []
    assert send(client, schedule(b"id", REPLY)) == 0
    now = Raw(b"now", headers=[(b"x-deliver-id", b"id"), REPLY])
    assert send(client, now) == 0
    assert outcomes(client) == [(b"id", "replaced")] * 2
    assert send(client, now) == 0, "delivered before: nothing is replaced"
    assert send(client, schedule(b"id", REPLY)) == 0
    assert send(client, cancel(b"id")) == 0
    assert send(client, schedule(b"id", REPLY)) == 0, "cancelled before: nothing is replaced"
    assert outcomes(client) == [(b"id", "replaced")] * 2


def test_a_cancel_that_is_too_late_says_where_the_record_is(client: WireClient) -> None:
    delayed = [schedule(b"%d" % number, delay=b"1s") for number in range(5)]
    assert send(client, Raw(b"plain"), *delayed, partition=1) == 0
    assert client.harness.tick(1_000) == 5
    for number in range(5):
        assert send(client, cancel(b"%d" % number, REPLY)) == 0
    client.harness.deliver_all()
    for reply in fetched(client):
        answer = said(reply)
        assert (answer["outcome"], answer["topic"], answer["partition"]) == ("too-late", "t", 1)
        (record,) = client.harness.fetch("t", 1, answer["offset"])[:1]
        assert (record.offset, record.header("x-due-id")) == (answer["offset"], reply.key)
    assert len(fetched(client)) == 5


def test_a_record_with_an_id_that_came_at_once_is_found_as_well(client: WireClient) -> None:
    now = Raw(b"now", headers=[(b"x-deliver-id", b"n")])
    before = [Raw(b"plain"), schedule(b"a"), cancel(b"a"), Raw(b"plain")]
    assert send(client, Raw(b"plain")) == 0
    assert send(client, *before, now, cancel(b"n", REPLY)) == 0
    assert send(client, cancel(b"n", REPLY)) == 0
    client.harness.deliver_all()
    value = b'{"outcome":"too-late","topic":"t","partition":0,"offset":3}'
    assert [each.value for each in fetched(client)] == [value] * 2
    assert client.harness.fetch("t", 0, 3)[0].value == b"now"


def test_a_timer_that_another_of_its_batch_replaced_is_not_taken_for_it(client: WireClient) -> None:
    assert send(client, schedule(b"id"), schedule(b"id")) == 0
    timers = client.harness.broker.timers
    listed = timers.listed(client.harness.topic(), b"id")
    assert listed is not None
    accept_pos = listed[1]
    assert client.harness.tick(MS_PER_HOUR) == 1
    assert timers.state_of("t", b"id", accept_pos, 1) == "delivered"
    assert timers.state_of("t", b"id", accept_pos, 0) is None


def test_an_id_that_nobody_knows_or_all_have_forgotten_is_unknown(client: WireClient) -> None:
    client.harness.create_topic("u", 1)
    assert send(client, schedule(b"id"), topic="u") == 0
    assert send(client, cancel(b"id", REPLY)) == 0
    assert outcomes(client) == [(b"id", "unknown")]


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_a_batch_take_effect_in_their_order(client: WireClient, codec: int) -> None:
    now = Raw(b"now", headers=[(b"x-deliver-id", b"id"), REPLY])
    batch = [
        cancel(b"id", REPLY),
        schedule(b"id", REPLY),
        schedule(b"id", REPLY),
        schedule(b"id", REPLY),
        cancel(b"id", REPLY),
        cancel(b"id", REPLY),
        Raw(b"plain"),
        now,
        cancel(b"id", REPLY),
        schedule(b"id"),
        now,
    ]
    part = client.produce("t", 0, make_batch(batch, codec=codec))
    assert (part.error_code, part.base_offset) == (0, -1)
    expected = ["unknown", "replaced", "replaced", "cancelled", "cancelled", "too-late", "replaced"]
    assert [outcome for _, outcome in outcomes(client)] == expected
    assert [said(each).get("offset") for each in fetched(client)] == [None] * 5 + [1, None]
    assert client.harness.broker.pending_timers == 0
    metrics = client.harness.broker.collect_metrics()
    assert metrics.replies == {"cancelled": 2, "replaced": 3, "too-late": 1, "unknown": 1}


def test_a_batch_may_mix_retries_and_replies(client: WireClient) -> None:
    retried = Raw(b"again", headers=[(b"x-retry-group", b"g")])
    batch = [retried, schedule(b"id"), cancel(b"id", REPLY), retried]
    assert send(client, *batch) == 0
    assert outcomes(client) == [(b"id", "cancelled")]
    assert client.harness.tick(10_000) == 2
    assert [each.value for each in fetched(client, "g.retry")] == [b"again"] * 2


def test_a_reply_may_go_to_the_topic_itself(client: WireClient) -> None:
    ids = [b"%d" % number for number in range(9)]
    assert send(client, *(cancel(each, (b"x-deliver-reply", b"t")) for each in ids)) == 0
    assert sorted(outcomes(client, "t")) == [(each, "unknown") for each in ids]


def test_a_batch_that_is_sent_again_is_replied_to_once(client: WireClient) -> None:
    headers = (("x-deliver-cancel", b"id"), ("x-deliver-reply", b"r"))
    batch = build_batch([Record(b"", headers=headers)], Producer(7, 0, 0))
    for _ in range(2):
        assert client.produce("t", 0, batch).error_code == 0
    assert outcomes(client) == [(b"id", "unknown")]


BAD_TOPICS: list[bytes | None] = [
    *(None, b"", b"a b", b"a/b", b"\xff", b".", b"..", b"g" * 250, b"__consumer_offsets"),
]


@pytest.mark.parametrize("topic", BAD_TOPICS)
@pytest.mark.parametrize("settings", [{}, {"delay.invalid": "pass"}])
def test_a_reply_to_no_topic_is_refused(
    client: WireClient, topic: bytes | None, settings: dict[str, str]
) -> None:
    """Also where what cannot be met passes: who asks for a reply waits for it."""
    client.harness.create_topic("p", 1, settings)
    batch = make_batch([schedule(b"id"), cancel(b"id", (b"x-deliver-reply", topic))])
    part = client.produce("p", 0, batch)
    assert part.error_code == ErrorCode.invalid_record
    assert [error.batch_index for error in part.record_errors] == [1]
    assert "x-deliver-reply must be the name of a topic" in part.error_message
    assert client.harness.timer_state("p", b"id")[0] == "unknown"
    assert [each.name for each in client.harness.broker.topics.all()] == ["t", "p"]


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ([], "needs x-deliver-cancel or x-deliver-id"),
        ([(b"x-delay", b"1s")], "needs x-deliver-cancel or x-deliver-id"),
        ([(b"x-retry-group", b"g")], "x-deliver-reply cannot be combined with x-retry-group"),
        ([(b"x-deliver-cancel", b"")], "1 to 255 bytes"),
        ([(b"x-deliver-id", b"id"), (b"x-delay", b"soon")], "malformed"),
        ([(b"x-deliver-id", b"id"), (b"x-delay-ms", b"5")], "no delay header"),
    ],
)
@pytest.mark.parametrize("settings", [{}, {"delay.invalid": "pass"}])
def test_a_request_that_cannot_be_met_is_refused_with_its_reply(
    client: WireClient,
    others: list[tuple[bytes, bytes | None]],
    text: str,
    settings: dict[str, str],
) -> None:
    client.harness.create_topic("p", 1, settings)
    part = client.produce("p", 0, make_batch([Raw(b"v", headers=[*others, REPLY])]))
    assert part.error_code == ErrorCode.invalid_record
    assert text in part.error_message
    assert fetched(client, "p") == []


@pytest.mark.parametrize("invalid", ["refuse", "pass"])
def test_a_reply_is_refused_where_delay_headers_are_off(client: WireClient, invalid: str) -> None:
    client.harness.create_topic("off", 1, {"delay.headers": "off", "delay.invalid": invalid})
    part = client.produce("off", 0, make_batch([cancel(b"id", REPLY)]))
    assert part.error_code == ErrorCode.invalid_record
    assert "x-deliver-reply has no effect in a topic with delay.headers=off" in part.error_message


def test_a_batch_may_name_sixteen_topics(client: WireClient) -> None:
    asked = [cancel(b"id", (b"x-deliver-reply", b"r%d" % number)) for number in range(17)]
    part = client.produce("t", 0, make_batch(asked))
    assert part.error_code == ErrorCode.message_too_large, "Java's producer sends it in parts"
    assert "more than 16 different topics" in part.error_message
    assert client.session.produce.delays.refused["reply"] == 1
    assert send(client, *asked[:16] * 2) == 0
    for number in range(16):
        assert outcomes(client, f"r{number}") == [(b"id", "unknown")] * 2


def test_a_batch_whose_topic_cannot_be_made_is_refused_and_cancels_nothing() -> None:
    client = WireClient(with_topic(2, config=small_config(topic_count_max=4)))
    assert send(client, schedule(b"id")) == 0
    both = [cancel(b"id", (b"x-deliver-reply", name)) for name in (b"a", b"b", b"c")]
    part = client.produce("t", 0, make_batch(both))
    assert part.error_code == ErrorCode.policy_violation
    assert "cannot be created: only a quarter of topics" in part.error_message
    assert client.harness.timer_state("t", b"id")[0] == "pending"
    assert client.harness.broker.collect_metrics().replies == {}


def test_a_topic_may_stand_in_quotes_of_json(client: WireClient) -> None:
    assert send(client, cancel(b"id", (b"X-Deliver-Reply", b'"r"'))) == 0
    assert outcomes(client) == [(b"id", "unknown")]


def test_replies_take_no_room_of_a_full_quota() -> None:
    client = WireClient(with_topic(1, config=small_config(pending_timers_max=4)))
    errors = [send(client, schedule(b"%d" % number)) for number in range(4)]
    assert errors == [0] * 2 + [ErrorCode.kafka_storage_error] * 2, "half of it is one address's"
    assert send(client, *(cancel(b"%d" % number, REPLY) for number in range(9))) == 0
    assert [outcome for _, outcome in outcomes(client)] == ["cancelled"] * 2 + ["unknown"] * 7


def test_replies_that_their_topic_holds_back_are_bounded() -> None:
    client = WireClient(with_topic(1, config=small_config(pending_timers_max=4)))
    client.harness.create_topic("r", 1, {"delay.paused": "true"})
    refused = ErrorCode.kafka_storage_error
    errors = []
    for _ in range(6):
        errors.append(send(client, cancel(b"id", REPLY)))
        client.harness.deliver_all()
    assert errors == [0] * 4 + [refused] * 2
    assert send(client, cancel(b"id")) == 0


def test_replies_that_come_faster_than_deliveries_leave_room_for_others() -> None:
    client = WireClient(with_topic(1, config=small_config(pending_timers_max=80)))
    refused = ErrorCode.kafka_storage_error
    asked = [cancel(b"id", REPLY)] * 5
    assert [send(client, *asked) for _ in range(4)] == [0, 0, refused, refused]
    assert send(client, schedule(b"id")) == 0
    assert send(client, cancel(b"id")) == 0
    client.harness.deliver_all()
    many = [cancel(b"id", REPLY)] * 40
    assert send(client, *many) == 0, "a batch that nothing waits for may ask for any number"
    assert send(client, cancel(b"id", REPLY)) == refused
    client.harness.deliver_all()
    assert len(outcomes(client)) == 50


def test_a_full_disk_takes_a_cancel_but_no_reply(client: WireClient) -> None:
    """A reply is a record, and a cancel none."""
    assert send(client, schedule(b"id")) == 0
    assert send(client, cancel(b"x", REPLY)) == 0
    client.harness.deliver_all()
    disk = client.harness.disk
    room = disk.free
    disk.free = 0
    for size in (2_000, 1):
        filler = make_batch([Raw(bytes(size))])
        errors = [client.produce("t", 0, filler).error_code for _ in range(99)]
        assert errors[-1] == ErrorCode.kafka_storage_error
    assert send(client, cancel(b"id", REPLY)) == ErrorCode.kafka_storage_error
    assert client.harness.timer_state("t", b"id")[0] == "pending"
    assert send(client, cancel(b"id")) == 0
    assert client.harness.timer_state("t", b"id")[0] == "cancelled"
    assert outcomes(client) == [(b"x", "unknown")]
    assert client.harness.broker.collect_metrics().replies == {"unknown": 1}
    disk.free = room
