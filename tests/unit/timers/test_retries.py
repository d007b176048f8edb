"""Consumer retry: a record that is produced back comes again later, and in the end is dead."""

import errno
from pathlib import Path

import pytest

from _core.queue.partition import Topic
from appliance.errors import StorageError
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import with_topic
from tests.support.harness.configs import small_config
from tests.support.simulator.virtual_clock import START_MS
from tests.support.values.kafka_records import Fetched, Producer, Record, build_batch
from tests.support.values.raw_batch import CODECS, CREATED_MS, Raw, RawHeaders, make_batch
from tests.support.values.topic_requests import SET, change_settings

GROUP = (b"x-retry-group", b"g")
LEVELS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Levels 3 to 18: the default schedule."""


@pytest.fixture
def client() -> WireClient:
    """A client of a broker with topic `t` of three partitions, and the usual levels."""
    return WireClient(with_topic(3))


def failed(*headers: tuple[bytes, bytes | None]) -> Raw:
    """A record as its consumer produces it back."""
    return Raw(b"value", b"key", [(b"h", b"1"), *headers], 3)


def retry(
    client: WireClient, *headers: tuple[bytes, bytes | None], topic: str = "t", partition: int = 0
) -> int:
    """Produce a record back to group `g`; return the error code."""
    part = client.produce(topic, partition, make_batch([failed(*headers, GROUP)]))
    assert part.base_offset == -1
    return int(part.error_code)


def again(client: WireClient, record: Fetched, *more: tuple[bytes, bytes | None]) -> RawHeaders:
    """The headers of a record that fails again, as a consumer that knows nothing of ours sends."""
    return [*((name.encode(), value) for name, value in record.headers), *more]


def fetched(client: WireClient, topic: str = "g.retry", partition: int = 0) -> list[Fetched]:
    return client.harness.fetch(topic, partition)


def test_a_record_comes_again_in_the_topic_of_its_group(client: WireClient) -> None:
    assert retry(client, partition=2) == 0
    assert [len(client.harness.topic(name).partitions) for name in ("t", "g.retry")] == [3, 3]
    assert client.harness.tick(9_999) == 0
    assert client.harness.tick(1) == 1
    (found,) = fetched(client, partition=2)
    added = (
        ("x-accepted-at", b"%d" % START_MS),
        ("x-due-at", b"%d" % (START_MS + 10_000)),
        ("x-retry-attempt", b"1"),
        ("x-origin", b"t/2/-1"),
    )
    assert found == Fetched(0, CREATED_MS + 3, b"key", b"value", (("h", b"1"), *added))
    assert fetched(client, "t", 2) == []


def test_each_attempt_waits_longer_and_the_last_is_followed_by_the_dead_letter(
    client: WireClient,
) -> None:
    headers: RawHeaders = [GROUP]
    for attempt, delay_s in enumerate(LEVELS_S, start=1):
        topic = "t" if attempt == 1 else "g.retry"
        batch = make_batch([Raw(b"value", b"key", headers)])
        assert client.produce(topic, 1, batch).error_code == 0
        assert client.harness.tick(delay_s * 1000 - 1) == 0
        assert client.harness.tick(1) == 1
        found = fetched(client, partition=1)[attempt - 1]
        assert found.header("x-retry-attempt") == b"%d" % attempt
        assert found.header("x-origin") == b"t/1/-1"
        headers = again(client, found, GROUP)
    client.produce("g.retry", 1, make_batch([Raw(b"value", b"key", headers)]))
    assert client.harness.tick(0) == 1
    (dead,) = fetched(client, "g.dlq", 1)
    assert (dead.key, dead.value) == (b"key", b"value")
    assert [name for name, _ in dead.headers] == [
        *("x-accepted-at", "x-due-at", "x-retry-attempt", "x-origin"),
    ]
    assert dead.header("x-retry-attempt") == b"16"
    assert len(fetched(client, partition=1)) == 16
    assert client.harness.broker.pending_timers == 0


@pytest.mark.parametrize("codec", CODECS)
def test_what_the_consumer_says_stays_with_the_record(client: WireClient, codec: int) -> None:
    """Of a name that repeats the last counts; the origin of the first attempt stays."""
    said = [
        (b"X-Retry-Reason", b"old"),
        (b"x-retry-reason", b"no stock \x00"),
        (b"x-origin", b"t/0/17"),
        (b"X-RETRY-ATTEMPT", b"4"),
        (b"x-retry-group", b"other"),
        (b"x-due-at", b"forged"),
    ]
    batch = make_batch([failed(*said, GROUP)], codec=codec)
    assert client.produce("t", 0, batch).error_code == 0
    assert client.harness.tick(180_000) == 1
    (found,) = fetched(client)
    assert found.headers[0] == ("h", b"1")
    assert found.headers[3:] == (
        ("x-retry-attempt", b"5"),
        ("x-origin", b"t/0/17"),
        ("x-retry-reason", b"no stock \x00"),
    )


def test_without_a_group_these_headers_are_the_users_own(client: WireClient) -> None:
    own = [(b"x-retry-attempt", b"many"), (b"x-origin", None), (b"X-Retry-Reason", b"r")]
    for others in ([], [(b"x-delay", b"1s")]):
        assert client.produce("t", 0, make_batch([failed(*own, *others)])).error_code == 0
    client.harness.tick(1_000)
    for found in fetched(client, "t"):
        assert found.headers[1:4] == (
            ("x-retry-attempt", b"many"),
            ("x-origin", b""),
            ("X-Retry-Reason", b"r"),
        )


def test_settings_of_the_retry_topic_are_the_rules_of_its_group(client: WireClient) -> None:
    client.harness.create_topic("g.retry", 1, {"retry.schedule": "5s 1m", "retry.max": "3"})
    for before, wait_ms in ((0, 5_000), (1, 60_000), (2, 60_000)):
        assert retry(client, (b"x-retry-attempt", b"%d" % before)) == 0
        assert client.harness.tick(wait_ms - 1) == 0
        assert client.harness.tick(1) == 1
    assert retry(client, (b"x-retry-attempt", b"3")) == 0
    assert client.harness.tick(0) == 1
    assert len(fetched(client)) == 3
    assert len(fetched(client, "g.dlq")) == 1
    assert change_settings(client, "g.retry", ("retry.max", SET, "0")) == 0
    assert retry(client) == 0
    assert client.harness.tick(0) == 1
    assert fetched(client, "g.dlq")[1].header("x-retry-attempt") == b"0"


def test_a_delay_of_the_consumer_counts_instead_of_the_schedule(client: WireClient) -> None:
    """Negative and null ones are none, as everywhere."""
    assert retry(client, (b"x-delay", b"1s")) == 0
    assert client.harness.tick(1_000) == 1
    assert retry(client, (b"x-deliver-at", b"100000000000")) == 0
    assert client.harness.tick(0) == 1
    now = b"%d" % (START_MS + 1_000)
    assert fetched(client)[1].header("x-due-at") == now, "an instant in the past is now"
    assert retry(client, (b"x-delay-level", b"0"), (b"x-delay", None)) == 0
    assert client.harness.tick(9_999) == 0
    assert client.harness.tick(1) == 1
    assert [each.header("x-retry-attempt") for each in fetched(client)] == [b"1"] * 3


def test_a_topic_with_fewer_partitions_is_filled_from_the_front(client: WireClient) -> None:
    client.harness.create_topic("g.retry", 2)
    for partition in range(3):
        assert retry(client, partition=partition) == 0
    assert client.harness.tick(10_000) == 3
    assert [len(fetched(client, partition=index)) for index in range(2)] == [2, 1]


def test_a_batch_may_mix_everything(client: WireClient) -> None:
    batch = [
        Raw(b"now"),
        failed(GROUP),
        Raw(b"later", headers=[(b"x-delay", b"5s"), (b"x-deliver-id", b"id")]),
        failed((b"x-retry-group", b"h"), (b"x-retry-attempt", b"16")),
        Raw(b"", headers=[(b"x-deliver-cancel", b"id")]),
        failed((b"x-retry-group", b"h")),
    ]
    part = client.produce("t", 0, make_batch(batch))
    assert (part.error_code, part.base_offset) == (0, -1)
    assert client.harness.timer_state("t", b"id")[0] == "cancelled"
    assert client.harness.tick(10_000) == 3
    assert [each.value for each in fetched(client, "t")] == [b"now"]
    for topic in ("g.retry", "h.retry", "h.dlq"):
        assert [each.value for each in fetched(client, topic)] == [b"value"]
    metrics = client.harness.broker.collect_metrics()
    assert (metrics.retried_records, metrics.dead_letters) == (2, 1)


def test_records_of_a_retry_topic_keep_the_order_of_their_due_times(client: WireClient) -> None:
    """Those that come from other topics, and those that were sent there with a delay."""
    client.harness.create_topic("u", 3)
    client.harness.create_topic("g.retry", 3)
    later = Raw(b"own", headers=[(b"x-delay", b"10s")])
    for topic, record in (("u", Raw(b"u", headers=[GROUP])), ("g.retry", later)):
        assert client.produce(topic, 0, make_batch([record])).error_code == 0
    assert retry(client) == 0
    assert client.harness.tick(20_000) == 3
    assert [each.value for each in fetched(client)] == [b"u", b"own", b"value"]


BAD_GROUPS: list[bytes | None] = [None, b"", b"a b", b"a/b", b"\xff", b"g" * 244, "ä".encode()]


@pytest.mark.parametrize("group", BAD_GROUPS)
def test_a_group_that_no_topic_can_be_named_after_is_refused(
    client: WireClient, group: bytes | None
) -> None:
    batch = make_batch([Raw(b"now"), failed((b"x-retry-group", group))])
    part = client.produce("t", 0, batch)
    assert (part.error_code, part.base_offset) == (ErrorCode.invalid_record, -1)
    assert [error.batch_index for error in part.record_errors] == [1]
    assert "1 to 243 characters" in part.error_message
    assert fetched(client, "t") == []
    assert [topic.name for topic in client.harness.broker.topics.all()] == ["t"]


def test_a_group_may_stand_in_quotes_of_json(client: WireClient) -> None:
    assert client.produce("t", 0, make_batch([failed((b"x-retry-group", b'"g"'))])).error_code == 0
    assert client.harness.tick(10_000) == 1
    assert len(fetched(client)) == 1


def test_the_longest_name_of_a_group_is_accepted(client: WireClient) -> None:
    group = b"g" * 243
    assert client.produce("t", 0, make_batch([failed((b"x-retry-group", group))])).error_code == 0
    assert client.harness.tick(10_000) == 1
    assert len(fetched(client, f"{group.decode()}.retry")) == 1


@pytest.mark.parametrize("name", [b"x-deliver-id", b"x-deliver-cancel"])
def test_an_id_or_a_cancel_contradicts_a_retry(client: WireClient, name: bytes) -> None:
    part = client.produce("t", 0, make_batch([failed((name, b"id"), GROUP)]))
    assert part.error_code == ErrorCode.invalid_record
    assert "x-retry-group cannot be combined" in part.error_message


@pytest.mark.parametrize("attempt", [b"", b"many", b"1.5", None])
def test_an_attempt_that_is_no_number_is_refused_or_none(
    client: WireClient, attempt: bytes | None
) -> None:
    """A null one counts as none."""
    part = client.produce("t", 0, make_batch([failed((b"x-retry-attempt", attempt), GROUP)]))
    if attempt is None:
        assert part.error_code == 0
    else:
        assert part.error_code == ErrorCode.invalid_record
        assert "x-retry-attempt" in part.error_message


def test_a_retry_is_refused_where_delay_headers_are_off(client: WireClient) -> None:
    """It would reach every consumer of the topic at once, again and again."""
    client.harness.create_topic("off", 1, {"delay.headers": "off"})
    part = client.produce("off", 0, make_batch([failed(GROUP)]))
    assert part.error_code == ErrorCode.invalid_record
    assert "delay.headers=off" in part.error_message
    assert fetched(client, "off") == []


@pytest.mark.parametrize("settings", [{}, {"delay.headers": "off"}])
@pytest.mark.parametrize("group", [b"a b", None])
def test_a_topic_that_lets_pass_shows_no_retry_at_once(
    client: WireClient, settings: dict[str, str], group: bytes | None
) -> None:
    """Every group would get it at once, again and again, and no attempt would count."""
    client.harness.create_topic("p", 1, {"delay.invalid": "pass", **settings})
    batch = make_batch([Raw(b"now"), failed((b"x-retry-group", group))])
    assert client.produce("p", 0, batch).error_code == ErrorCode.invalid_record
    assert fetched(client, "p") == []


@pytest.mark.parametrize("name", [b"x-delay", b"x-delay-ms", b"x-cron", b"x-deliver-at"])
def test_on_a_topic_that_lets_pass_a_retry_has_the_delay_of_its_group(
    client: WireClient, name: bytes
) -> None:
    """The record came at once because of that header. It loses it, so it can come again."""
    client.harness.create_topic("p", 1, {"delay.invalid": "pass"})
    assert retry(client, (name, b"soon"), topic="p") == 0
    assert fetched(client, "p") == []
    assert client.harness.tick(10_000) == 1
    (found,) = fetched(client)
    assert found.header(name.decode()) is None
    assert found.header("x-retry-attempt") == b"1"


def test_a_topic_that_insists_takes_a_retry_for_a_request(client: WireClient) -> None:
    client.harness.create_topic("r", 1, {"delay.required": "true", "delay.default": "15m"})
    assert retry(client, topic="r") == 0
    assert client.harness.tick(10_000) == 1


def test_a_batch_with_too_many_groups_is_refused(client: WireClient) -> None:
    groups = [failed((b"x-retry-group", b"g%d" % number)) for number in range(17)]
    part = client.produce("t", 0, make_batch(groups))
    assert part.error_code == ErrorCode.message_too_large, "Java's producer sends it in parts"
    assert "more than 16 different groups" in part.error_message
    assert client.session.produce.delays.refused["retry"] == 1
    assert client.produce("t", 0, make_batch(groups[:16] * 2)).error_code == 0
    assert client.harness.tick(10_000) == 32


def test_a_batch_whose_topics_cannot_be_made_is_refused_and_nothing_of_it_is_stored() -> None:
    client = WireClient(with_topic(2, config=small_config(topic_count_max=4)))
    assert retry(client) == 0
    both = [Raw(b"now"), failed((b"x-retry-group", b"h")), failed((b"x-retry-group", b"i"))]
    part = client.produce("t", 0, make_batch(both))
    assert part.error_code == ErrorCode.policy_violation
    assert "the topic i.retry cannot be created: only a quarter of topics" in part.error_message
    assert fetched(client, "t") == []
    assert client.harness.tick(10_000) == 1
    assert retry(client) == 0


def test_a_batch_that_is_sent_again_is_retried_once(client: WireClient) -> None:
    headers = (("x-retry-group", b"g"),)
    batch = build_batch([Record(b"value", headers=headers)], Producer(7, 0, 0))
    for _ in range(2):
        part = client.produce("t", 0, batch)
        assert (part.error_code, part.base_offset) == (0, -1)
    assert client.harness.tick(60_000) == 1


def test_the_timestamp_of_the_retry_topic_is_its_own_setting(client: WireClient) -> None:
    client.harness.create_topic("g.retry", 3, {"delay.timestamp": "due"})
    assert retry(client) == 0
    client.harness.tick(10_000)
    assert fetched(client)[0].timestamp_ms == START_MS + 10_000


def test_pending_retries_count_in_the_topic_that_they_are_delivered_to(client: WireClient) -> None:
    assert retry(client) == 0
    pending = client.harness.broker.timers
    counts = {
        topic.name: (topic.timers_accepted, topic.timers_delivered)
        for topic in client.harness.broker.topics.all()
    }
    assert counts == {"t": (0, 0), "g.retry": (1, 0)}
    assert pending.count == 1
    assert change_settings(client, "g.retry", ("delay.paused", SET, "true")) == 0
    assert client.harness.tick(10_000) == 0
    assert change_settings(client, "g.retry", ("delay.paused", SET, "false")) == 0
    assert client.harness.tick(0) == 1


def test_pending_retries_count_in_the_limit_of_the_topic_that_they_are_delivered_to(
    client: WireClient,
) -> None:
    client.harness.create_topic("none", 1, {"delay.pending.max": "0"})
    client.harness.create_topic("g.retry", 1, {"delay.pending.max": "2"})
    assert retry(client, topic="none") == 0
    both = make_batch([Raw(b"now"), failed(GROUP), failed(GROUP)])
    part = client.produce("t", 0, both)
    assert part.error_code == ErrorCode.kafka_storage_error
    assert "1 delayed records of g.retry are pending, 2 more" in part.error_message
    assert fetched(client, "t") == []
    assert retry(client) == 0
    later = Raw(b"later", headers=[(b"x-delay", b"1s")])
    assert client.produce("t", 0, make_batch([later])).error_code == 0
    assert client.harness.tick(10_000) == 3
    assert client.produce("t", 0, both).error_code == 0


def test_a_full_disk_refuses_a_retry_as_any_other_record(client: WireClient) -> None:
    """Clients send it again, whether or not its topic is there yet."""
    disk = client.harness.disk
    room, disk.free = disk.free, 0
    for size in (3_000, 1):
        filler = make_batch([Raw(bytes(size))])
        errors = [client.produce("t", 0, filler).error_code for _ in range(99)]
        assert errors[-1] == ErrorCode.kafka_storage_error
    assert retry(client) == ErrorCode.kafka_storage_error
    assert [topic.name for topic in client.harness.broker.topics.all()] == ["t"]
    disk.free = room
    for _ in range(5):
        client.harness.pass_ms(1_000)
        client.harness.housekeep()
    assert retry(client) == 0
    assert client.harness.tick(10_000) == 1


def test_an_error_of_the_disk_while_a_topic_is_made_is_no_refusal(
    client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the process, as any error of the disk."""

    def fail(name: str, _count: int) -> Topic:
        raise StorageError(Path(name), "write", errno.EIO, "I/O error")

    monkeypatch.setattr(client.harness.broker.topics, "create_named", fail)
    with pytest.raises(StorageError):
        retry(client)


def test_an_address_has_so_many_topics_made_at_once(client: WireClient) -> None:
    """Those of clients that name topics have an allowance as well."""
    made = refused = 0
    for number in range(150):
        batch = make_batch([failed((b"x-retry-group", b"g%d" % number))])
        error = client.produce("t", 0, batch).error_code
        made += error == 0
        refused += error == ErrorCode.kafka_storage_error
    assert (made, refused) == (100, 50)
    client.harness.clock.advance_ms(1_000)
    assert retry(client) == 0


def test_a_topic_counts_once_for_each_sixteen_partitions() -> None:
    client = WireClient(with_topic(33, config=small_config(partition_count_max_per_topic=64)))
    batches = [make_batch([failed((b"x-retry-group", b"g%d" % number))]) for number in range(40)]
    errors = [client.produce("t", 0, batch).error_code for batch in batches]
    assert errors == [0] * 33 + [ErrorCode.kafka_storage_error] * 7


def test_retries_and_requests_for_metadata_share_the_allowance(client: WireClient) -> None:
    broker = client.harness.broker
    assert retry(client) == 0
    now_ms = client.harness.clock.monotonic_ns() // 1_000_000
    for _ in range(99):
        assert broker.topics.may_name(1, broker.timer_quota.address, now_ms)
    batch = make_batch([failed((b"x-retry-group", b"h"))])
    part = client.produce("t", 0, batch)
    assert part.error_code == ErrorCode.kafka_storage_error
    assert "one address may create 100 topics at once and 5 a second" in part.error_message
    assert retry(client) == 0


def test_a_batch_whose_topics_do_not_fit_into_a_segment_is_refused() -> None:
    """Each segment declares the topics that its timers point to."""
    harness = with_topic(64, config=small_config(partition_count_max_per_topic=64))
    client = WireClient(harness)
    for number in range(16):
        harness.create_topic(f"g{number}.retry", 64)
        harness.create_topic(f"g{number}.dlq", 64)
    groups = [failed((b"x-retry-group", b"g%d" % number)) for number in range(16)]
    dead = [
        failed((b"x-retry-group", b"g%d" % number), (b"x-retry-attempt", b"16"))
        for number in range(16)
    ]
    roll = harness.broker.log.tail.segment_end
    for _ in range(99):
        assert client.produce("t", 0, make_batch([Raw(bytes(3_000))])).error_code == 0
    assert harness.broker.log.tail.segment_end > roll, "they are declared in an earlier segment"
    part = client.produce("t", 0, make_batch(groups + dead))
    assert part.error_code == ErrorCode.message_too_large
    assert "too many groups" in part.error_message
    for one in groups:
        assert client.produce("t", 0, make_batch([one])).error_code == 0
    assert harness.tick(10_000) == 16
