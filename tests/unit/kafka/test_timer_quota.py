"""How many pending timers there may be, in all and of one address."""

import logging
from typing import Any, Final

import pytest

from _core.paths.timer_quota import ACCOUNTS_MAX, UNSAVED_MAX_BYTES
from appliance.client_log import ClientLog
from appliance.config.config import Config
from appliance.units import KIB, MIB, MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE, MS_PER_SECOND
from compat.kafka.network.delay_reports import DelayReports
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.checkpoints import take_checkpoint
from tests.support.harness.configs import small_config
from tests.support.values.raw_batch import Raw, make_batch
from tests.support.values.record_requests import produce_request
from tests.support.values.topic_requests import DELETE, SET, change_settings

MAX: Final = 64
STORAGE: Final = ErrorCode.kafka_storage_error
FIRST, SECOND, THIRD = "192.0.2.1", "192.0.2.2", "2001:db8::3"


def quota_client(**settings: Any) -> WireClient:
    return WireClient(with_topic(2, config=small_config(pending_timers_max=MAX, **settings)))


def reconnected(client: WireClient, **settings: Any) -> WireClient:
    """After a restart of the broker."""
    harness = client.harness
    harness.broker.close()
    config = small_config(pending_timers_max=settings.pop("pending_timers_max", MAX))
    return WireClient(BrokerHarness(harness.disk, harness.clock, config))


def held(delay_ms: int = MS_PER_DAY, user_id: bytes | None = None) -> Raw:
    ids = [] if user_id is None else [(b"x-deliver-id", user_id)]
    return Raw(headers=[(b"x-delay", b"%d" % delay_ms), *ids])


def cancel(user_id: bytes) -> Raw:
    return Raw(headers=[(b"x-deliver-cancel", user_id)])


def send(client: WireClient, address: str, *records: Raw, **batch: int) -> int:
    """Error code."""
    client.harness.broker.note_client(address)
    part = client.produce("t", 0, make_batch(list(records), **batch))
    return int(part.error_code)


def send_one_by_one(client: WireClient, address: str, count: int) -> int:
    """How many were accepted."""
    return sum(send(client, address, held()) == 0 for _ in range(count))


def pending(client: WireClient) -> int:
    return client.harness.broker.pending_timers


def charged(client: WireClient, address: str) -> int:
    quota = client.session.produce.quota
    return quota.charged_to(address, now_ms=client.harness.clock.wall_ms())


def test_one_address_has_half_of_what_the_others_leave() -> None:
    """So that everybody finds room who has none."""
    client = quota_client()
    assert send_one_by_one(client, FIRST, MAX) == MAX // 2
    assert send_one_by_one(client, SECOND, MAX) == MAX // 4
    assert send_one_by_one(client, THIRD, MAX) == MAX // 8
    assert send(client, FIRST, held()) == STORAGE
    assert pending(client) == MAX // 2 + MAX // 4 + MAX // 8


def test_a_batch_is_refused_as_a_whole_and_others_are_served() -> None:
    client = quota_client()
    batch = [Raw(b"now"), *([held()] * (MAX // 2 + 1))]
    assert send(client, FIRST, *batch) == STORAGE
    assert (pending(client), client.harness.values("t")) == (0, [])
    assert send(client, FIRST, *batch[:-1]) == 0
    assert send(client, FIRST, Raw(b"later")) == 0
    assert client.harness.values("t") == [b"now", b"later"]


def test_the_limit_of_all_is_exact() -> None:
    """Replacing, cancelling and delivering need no room and make it."""
    client = quota_client()
    names = [b"%d" % number for number in range(MAX)]
    for number, name in enumerate(names):
        assert send(client, f"192.0.2.{number}", held(user_id=name)) == 0
    assert send(client, FIRST, held()) == STORAGE
    assert send(client, FIRST, held(user_id=b"new")) == STORAGE
    # The addresses do not matter: 0 and 1 have a timer each.
    assert send(client, FIRST, held(user_id=b"0"), held(user_id=b"1")) == 0
    assert send(client, FIRST, held(user_id=b"0"), held()) == STORAGE
    assert send(client, FIRST, *[cancel(b"2"), held(user_id=b"3"), held(user_id=b"3")]) == 0
    assert pending(client) == MAX - 1
    assert send(client, THIRD, held(5)) == 0
    assert send(client, "::4", held()) == STORAGE
    assert client.harness.tick(10) == 1
    assert send(client, "::4", held()) == 0
    assert pending(client) == MAX


def test_changes_that_no_checkpoint_has_are_bounded_and_saving_makes_room() -> None:
    """The last quarter fills ever more slowly; cancels and plain records need no room."""
    assert UNSAVED_MAX_BYTES == 192 * MIB  # docs/DELAY.md says so
    client = WireClient(with_topic(2))
    quota = client.session.produce.quota
    runs = client.harness.broker._store.runs
    quota.unsaved_max_bytes = 4 * MIB
    batch = [held(user_id=b"%d" % number) for number in range(100)]
    accepted_at: list[int] = []
    refused_at: list[int] = []
    for _ in range(500):
        error = send(client, FIRST, *batch)
        (accepted_at if error == 0 else refused_at).append(runs.delta_bytes)
        assert error in (0, STORAGE)
    assert 3 * MIB < refused_at[0] < accepted_at[-1] < 4 * MIB + 256 * KIB
    assert len(refused_at) > 50
    assert pending(client) == len(batch)
    refusals = client.harness.broker.collect_metrics().delay_refused
    assert refusals["unsaved"] == len(refused_at)
    assert send(client, FIRST, cancel(b"0"), Raw(b"now")) == 0
    take_checkpoint(client.harness)
    assert runs.delta_bytes < MIB
    assert send(client, FIRST, *batch) == 0


def test_changes_are_bounded_while_checkpoints_fail_again_and_again() -> None:
    """Each attempt begins a new memtable and keeps the one before."""
    client = WireClient(with_topic(2))
    harness = client.harness
    client.session.produce.quota.unsaved_max_bytes = 8 * MIB
    runs = harness.broker._store.runs
    batch = [held(user_id=b"%d" % number) for number in range(100)]
    refused = 0
    for number in range(1_000):
        refused += send(client, FIRST, *batch) != 0
        if number % 100 == 99:
            spare, harness.disk.free = harness.disk.free, 100
            assert take_checkpoint(harness).error is not None
            harness.disk.free = spare
            harness.clock.advance_ms(5_000)  # until the next attempt
    assert refused > 100
    assert 6 * MIB < runs.delta_bytes < 9 * MIB
    assert send(client, FIRST, cancel(b"0"), Raw(b"now")) == 0
    assert take_checkpoint(harness).error is None
    assert send(client, FIRST, *batch) == 0
    assert runs.delta_bytes < MIB


def test_a_recurring_record_is_charged_until_it_is_cancelled_or_replaced() -> None:
    client = quota_client()

    def recurring(user_id: bytes) -> Raw:
        return Raw(headers=[(b"x-cron", b"* * * * *"), (b"x-deliver-id", user_id)])

    assert send(client, FIRST, *(recurring(b"%d" % number) for number in range(MAX // 2))) == 0
    for _ in range(3):
        assert client.harness.tick(MS_PER_MINUTE) == MAX // 2
        assert charged(client, FIRST) == MAX // 2
        assert send(client, FIRST, held()) == STORAGE
    assert send(client, FIRST, cancel(b"0"), cancel(b"0"), recurring(b"1"), held(9, b"2")) == 0
    assert charged(client, FIRST) == MAX // 2 - 1
    assert client.harness.tick(10 * MS_PER_SECOND) == 1
    assert charged(client, FIRST) == pending(client) == MAX // 2 - 2
    assert send(client, SECOND, cancel(b"3")) == 0
    assert charged(client, FIRST) == MAX // 2 - 2, "who cancels is credited, if it is charged"


def test_a_topic_has_a_limit_of_its_own_for_all_its_partitions() -> None:
    client = quota_client()
    assert change_settings(client, "t", ("delay.pending.max", SET, "5")) == 0
    client.harness.create_topic("u")
    for partition in (0, 1, 0, 1):
        part = client.produce("t", partition, make_batch([held(user_id=b"%d" % pending(client))]))
        assert part.error_code == 0
    part = client.produce("t", 0, make_batch([held(), held()]))
    assert part.error_code == STORAGE
    assert "4 delayed records of t are pending, 2 more" in part.error_message
    assert "delay.pending.max = 5" in part.error_message
    assert send(client, FIRST, held()) == 0
    # A timer that replaces one, a cancel, what is due now, and other topics need no room.
    assert send(client, FIRST, held()) == STORAGE
    assert send(client, FIRST, held(user_id=b"1"), Raw(b"now"), held(0)) == 0
    assert client.produce("u", 0, make_batch([held()] * 9)).error_code == 0
    assert send(client, FIRST, cancel(b"2")) == 0
    assert send(client, FIRST, held()) == 0
    assert client.session.produce.delays.refused["topic"] == 2


def test_a_limit_of_a_topic_can_be_lowered_below_what_is_pending_and_outlives_the_broker() -> None:
    client = quota_client()
    assert send(client, FIRST, *[held(MS_PER_HOUR)] * 6) == 0
    assert change_settings(client, "t", ("delay.pending.max", SET, "2")) == 0
    client = reconnected(client)
    assert pending(client) == 6
    assert send(client, FIRST, held()) == STORAGE
    assert send(client, FIRST, Raw(b"now")) == 0
    assert client.harness.tick(MS_PER_HOUR) == 6
    assert send(client, FIRST, held(), held()) == 0
    assert send(client, FIRST, held()) == STORAGE
    assert change_settings(client, "t", ("delay.pending.max", DELETE, None)) == 0
    assert send(client, FIRST, held()) == 0
    assert change_settings(client, "t", ("delay.pending.max", SET, "0")) == 0
    assert send(client, FIRST, held(user_id=b"a")) == STORAGE


def test_what_is_cancelled_by_its_own_batch_counts_until_then() -> None:
    """A batch is counted before it is applied. No sequence of requests goes beyond the limit."""
    client = quota_client()
    assert send(client, FIRST, held(user_id=b"a")) == 0
    batch = [cancel(b"a"), held(user_id=b"a")] * MAX
    assert send(client, FIRST, *batch) == 0  # each replaces a pending one
    assert pending(client) == 1
    batch = [held(user_id=b"b"), cancel(b"b")] * MAX
    assert send(client, FIRST, *batch) == STORAGE
    assert pending(client) == 1


def test_a_refusal_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """With what the operator needs to find the producer, limited by address."""
    client = quota_client()
    assert send_one_by_one(client, FIRST, MAX // 2) == MAX // 2
    client.harness.broker.note_client(FIRST)
    part = client.produce("t", 0, make_batch([held()]))
    assert part.error_message == (
        "32 delayed records are pending, about 32 of them from this address; with 1 more it would "
        "have over half of what others leave of limits.pending_timers_max = 64"
    )
    (notice,) = client.session.produce.delays.take()
    assert (notice.topic, notice.partition, notice.record, notice.reason) == ("t", 0, -1, "address")
    lines = ClientLog(client.harness.clock)
    with caplog.at_level(logging.WARNING):
        DelayReports(lines).report(FIRST, f"{FIRST}:1", [notice] * 20)
    assert len(caplog.messages) == 5
    assert caplog.messages[0] == (
        'delay request refused topic="t" partition=0 record=all reason=address '
        f'message="{part.error_message}" client_id="the-oracle" peer={FIRST}:1'
    )
    client = reconnected(client, pending_timers_max=20)
    part = client.produce("t", 0, make_batch([held()]))
    assert part.error_message == (
        "32 delayed records are pending, 1 more would exceed limits.pending_timers_max = 20"
    )
    counts = client.harness.broker.collect_metrics().delay_refused
    assert counts["full"] == 1
    assert sum(counts.values()) == 1
    gauges = client.harness.broker.gauges(0)
    assert (gauges.pending_timers, gauges.pending_timers_max) == (32, 20)


def test_without_acknowledgements_the_connection_is_closed() -> None:
    client = quota_client()
    assert send_one_by_one(client, "", MAX // 2) == MAX // 2
    client.send(produce_request([("t", [(0, make_batch([held()]))])], acks=0), 8)
    assert client.session.close_reason == "a batch sent with acks=0 was refused"


def test_what_is_delivered_is_charged_no_longer() -> None:
    client = quota_client()
    assert send(client, FIRST, *[held(5_000)] * (MAX // 2)) == 0
    assert send(client, FIRST, held(5_000)) == STORAGE
    client.harness.tick(7 * MS_PER_SECOND)
    assert charged(client, FIRST) == 0
    assert send(client, FIRST, *[held(5_000)] * (MAX // 2)) == 0


def test_timers_with_any_delays_are_charged_until_they_are_due() -> None:
    client = quota_client()
    delays_ms = [MS_PER_SECOND, MS_PER_HOUR, MS_PER_DAY, 3_650 * MS_PER_DAY]
    assert send(client, FIRST, *[held(delay_ms) for delay_ms in delays_ms * 3]) == 0
    for left, delay_ms in zip((9, 6, 3), delays_ms, strict=False):
        client.harness.tick(2 * delay_ms)
        assert charged(client, FIRST) == pending(client) == left


def test_who_cancels_is_credited() -> None:
    """A timer is charged to whoever replaces it, too."""
    client = quota_client()
    names = [b"%d" % number for number in range(20)]
    assert send(client, FIRST, *[held(user_id=name) for name in names]) == 0
    assert charged(client, FIRST) == 20
    assert send(client, FIRST, *map(cancel, names[:5])) == 0
    assert charged(client, FIRST) == 15
    assert send(client, FIRST, *map(cancel, names[:5])) == 0  # they are cancelled already
    assert charged(client, FIRST) == 15
    assert send(client, FIRST, *[held(user_id=name) for name in names[5:]]) == 0
    assert charged(client, FIRST) == 15
    assert send(client, SECOND, *map(cancel, names)) == 0
    assert (charged(client, FIRST), charged(client, SECOND)) == (15, 0)
    assert pending(client) == 0


def test_charges_that_outlast_their_timers_hinder_only_the_address() -> None:
    """A topic is deleted: whose timers went is not known. Nobody has more than is pending."""
    client = quota_client()
    client.harness.create_topic("u")
    client.harness.broker.note_client(FIRST)
    for _ in range(3):
        assert client.produce("u", 0, make_batch([held()] * (MAX // 2))).error_code == 0
        client.harness.delete_topic("u")
        client.harness.create_topic("u")
    assert (pending(client), charged(client, FIRST)) == (0, 3 * MAX // 2)
    assert send_one_by_one(client, SECOND, 8) == 8
    assert send_one_by_one(client, FIRST, MAX) == MAX // 2 - 8
    assert send_one_by_one(client, SECOND, MAX) == MAX // 4 - 4


def test_timers_that_a_start_finds_are_nobodys() -> None:
    """They leave less for everybody; whoever made them may have half of the rest again."""
    client = quota_client()
    assert send_one_by_one(client, FIRST, MAX) == MAX // 2
    client = reconnected(client)
    assert (pending(client), charged(client, FIRST)) == (MAX // 2, 0)
    assert send_one_by_one(client, FIRST, MAX) == MAX // 4
    assert send_one_by_one(client, SECOND, MAX) == MAX // 8


def test_a_start_with_more_than_the_limit_delivers_them_all() -> None:
    client = quota_client()
    assert send_one_by_one(client, FIRST, MAX // 2) == MAX // 2
    client = reconnected(client, pending_timers_max=3)
    assert pending(client) == MAX // 2
    assert send(client, FIRST, held()) == STORAGE
    assert client.harness.tick(MS_PER_DAY + 1) == MAX // 2
    assert send(client, FIRST, held(), held()) == 0


def test_the_batches_of_an_idempotent_producer_stay_in_order() -> None:
    """One without timers must not be taken for the first after that was refused."""
    client = quota_client()
    assert send_one_by_one(client, FIRST, MAX // 2) == MAX // 2
    client.harness.broker.note_client(FIRST)
    of_one = {"producer_id": 7, "producer_epoch": 0}
    assert send(client, FIRST, held(), **of_one, base_sequence=0) == STORAGE
    assert send(client, FIRST, Raw(b"b"), **of_one, base_sequence=1) == STORAGE
    client.harness.tick(MS_PER_DAY + 1)
    assert send(client, FIRST, held(), **of_one, base_sequence=0) == 0
    assert send(client, FIRST, Raw(b"b"), **of_one, base_sequence=1) == 0
    assert client.harness.values("t").count(b"b") == 1


def test_what_is_remembered_of_addresses_is_bounded() -> None:
    """Those with most timers stay, whoever else comes."""
    client = WireClient(with_topic(2, config=small_config(pending_timers_max=10**6)))
    assert send(client, FIRST, *[held()] * 50) == 0
    for number in range(2 * ACCOUNTS_MAX):
        assert send(client, f"address {number}", held()) == 0
        assert client.session.produce.quota.account_count <= ACCOUNTS_MAX
    assert charged(client, FIRST) == 50


def test_by_default_one_client_may_have_millions() -> None:
    assert Config().pending_timers_max // 2 >= 20_000_000


def second_client(second_max: int) -> WireClient:
    """At the beginning of a second of the clock, counting by seconds."""
    client = WireClient(with_topic(2, config=small_config(due_per_second_max=second_max)))
    client.harness.housekeep()
    return client


def test_no_more_than_the_limit_are_due_in_one_second() -> None:
    """The first three quarters for everybody, the last one by lot; other seconds are free."""
    client = second_client(100)
    outcomes = [send(client, FIRST, held(10_000)) for _ in range(400)]
    assert outcomes[:75] == [0] * 75
    assert set(outcomes[75:]) == {0, STORAGE}
    assert 0 in outcomes[outcomes.index(STORAGE) :]
    assert 75 < pending(client) <= 100
    # Ever fewer of them get in.
    admitted = [sum(code == 0 for code in outcomes[at : at + 50]) for at in (75, 125, 350)]
    assert admitted[0] > admitted[1] >= admitted[2]
    full = pending(client)
    assert send(client, FIRST, *[held(10_000)] * 26) == STORAGE
    assert send(client, FIRST, *[held(11_000)] * 75) == 0
    assert pending(client) == full + 75
    assert client.harness.tick(10_000) == full
    assert send(client, FIRST, *[held(10_000)] * 75) == 0


def test_far_ahead_sixty_times_as_many_are_due_in_one_minute() -> None:
    client = second_client(2)
    far_ms = 3 * MS_PER_DAY
    assert send(client, FIRST, *[held(far_ms)] * 90) == 0
    assert send(client, FIRST, *[held(far_ms)] * 31) == STORAGE
    assert send(client, FIRST, *[held(far_ms + MS_PER_MINUTE)] * 90) == 0


def test_a_second_that_is_full_is_named_and_counted() -> None:
    client = second_client(4)
    assert send(client, FIRST, *[held(10_000)] * 3) == 0
    part = client.produce("t", 0, make_batch([held(10_000), held(10_000)]))
    assert part.error_code == STORAGE
    assert part.error_message == (
        "3 delayed records are due in one second, 2 more are refused: limits.due_per_second_max = 4"
    )
    assert client.session.produce.delays.refused["second"] == 1


def test_what_replaces_or_cancels_is_refused_by_no_full_second_that_it_leaves() -> None:
    client = second_client(4)
    names = [b"%d" % number for number in range(3)]
    assert send(client, FIRST, *[held(10_000, name) for name in names]) == 0
    assert send(client, FIRST, held(20_000, names[0]), cancel(names[1])) == 0
    assert (pending(client), client.harness.tick(10_000)) == (2, 1)
