"""make bench-attacks: a broker understands what it sends, and it notices what it must."""

from dataclasses import replace

import pytest

from appliance.config.config import Config
from perf.attacks import batches, requests
from perf.attacks.arena import limit_bytes
from perf.attacks.broker import GAUGE, Observed
from perf.attacks.good_client import next_offset, numbers_in, produced_offset, value_of
from perf.attacks.starts import START_ATTACKS
from perf.attacks.table import ATTACKS
from perf.attacks.trial import Result, Times
from tests.support.clients.wire_client import WireClient, split_answers
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import small_config

MIB = 1 << 20
ALONE = Times(count=100, p50_ms=1.0, p99_ms=2.0, max_ms=3.0, slowest="produce")
FINE = Result(
    name="x",
    what="",
    is_flood=True,
    took_s=1.0,
    sent_bytes=1,
    before_bytes=50,
    peak_bytes=130,
    after_bytes=50,
    limit_bytes=100,
    gauges={},
    gauge_ratio=1.05,
    accounted_bytes=100,
    alone=ALONE,
    beside=ALONE,
    gap_s=0.02,
    lost=0,
)


@pytest.fixture(name="client")
def make_client() -> WireClient:
    limits = {
        "batch_size_max_bytes": MIB,
        "decompressed_size_max_bytes": 4 * MIB,
        "record_size_max_bytes": 4 * MIB,
        "header_count_max": 1_000,
        "segment_size_bytes": 32 * MIB,
        "request_size_max_bytes": 2 * MIB,
    }
    harness = BrokerHarness(config=small_config(**limits))
    harness.create_topic("t", 2)
    return WireClient(harness)


def answer(client: WireClient, request: bytes) -> bytes:
    """The answer without its correlation id."""
    client.send_bytes(request)
    client.harness.flush()
    (payload,) = split_answers(client.take())
    return payload[4:]


def test_the_good_client_finds_its_records(client: WireClient) -> None:
    for number in range(3):
        batch = batches.plain([value_of(number)])
        assert produced_offset(answer(client, requests.produce({"t": {0: batch}})), "t") == number
    fetched = answer(client, requests.fetch({"t": [0]}, 1, size=MIB))
    assert numbers_in(fetched) == [1, 2]
    assert next_offset(fetched, "t", 1) == 3


@pytest.mark.parametrize(
    "batch",
    [
        batches.many_records(20_000),
        batches.unpacks_to(3 * MIB),
        batches.unpacks_to(3 * MIB, codec=batches.GZIP),
        batches.frames_of(100_000, 16_384),
        batches.many_headers(1_000),
        batches.batch(batches.record(0, b""), 1, producer_id=7, sequence=0),
    ],
    ids=["records", "zstd", "gzip", "frames", "headers", "producer"],
)
def test_batches_are_accepted(client: WireClient, batch: bytes) -> None:
    assert produced_offset(answer(client, requests.produce({"t": {0: batch}})), "t") == 0


def test_timers_are_held_back(client: WireClient) -> None:
    batch = batches.delayed_records(100, "id", 60_000)
    assert produced_offset(answer(client, requests.produce({"t": {0: batch}})), "t") == -1
    assert client.harness.broker.gauges(connections=0).pending_timers == 100


def test_one_record_is_later_than_the_others(client: WireClient) -> None:
    answer(client, requests.produce({"t": {0: batches.many_records(1_000)}}))
    found = answer(client, requests.list_offsets({"t": [0]}, 1))
    assert int.from_bytes(found[-8:], "big") == 999


@pytest.mark.parametrize(
    "request_",
    [
        requests.metadata(None),
        requests.offset_commit("g", {"t": [0, 1]}, "note"),
        requests.offset_fetch("g", {"t": [0, 1]}),
        requests.offset_fetch("g", None),
        requests.describe_groups(["g"]),
        requests.describe_configs([(2, "t")]),
        requests.describe_producers("t", [0, 1]),
        requests.create_topics({"u": 2}, {"max.message.bytes": "2000000"}),
        requests.fetch_with_tag("t", 0, wait_ms=0, tag_size=1_000),
    ],
    ids=lambda request: str(int.from_bytes(request[4:6], "big")),
)
def test_requests_are_answered(client: WireClient, request_: bytes) -> None:
    assert answer(client, request_)


def test_each_attack_has_a_name_of_its_own_and_says_what_it_does() -> None:
    names = [attack.name for attack in ATTACKS]
    assert len(set(names)) == len(names)
    assert all(attack.run.__doc__ for attack in ATTACKS)
    assert all(attack.__doc__ for attack in START_ATTACKS)


def test_what_must_not_happen_is_a_miss() -> None:
    assert not FINE.misses
    assert replace(FINE, peak_bytes=131).misses == ["memory 1.3x"]
    assert replace(FINE, beside=replace(ALONE, p99_ms=4.1)).misses == ["p99 2.0x"]
    assert replace(FINE, gap_s=2.1).misses == ["gap 2.1 s"]
    assert replace(FINE, gauge_ratio=0.8).misses == ["gauge 0.80x"]
    assert replace(FINE, lost=1).misses == ["1 lost"]
    assert replace(FINE, faults=["it ended"]).misses == ["it ended"]
    single = replace(FINE, is_flood=False, beside=replace(ALONE, p99_ms=90, max_ms=101))
    assert single.misses == ["101 ms"]
    nothing = Times.of([], 0, 1)
    assert replace(FINE, beside=nothing).misses == ["p99 nanx"]


def test_steps_that_overlap_the_attack_count() -> None:
    times = [(1.0, "produce", 5.0), (2.0, "read back", 1_500.0), (3.5, "commit", 400.0)]
    found = Times.of(times, 1.5, 3.0)
    assert (found.count, found.max_ms, found.slowest) == (1, 1_500.0, "read back")


def test_a_gap_that_begins_before_the_attack_counts() -> None:
    observed = Observed(pings=[1.0, 1.1, 3.0, 3.1])
    assert observed.gap_s(2.0, 3.05) == pytest.approx(1.9)
    assert observed.gap_s(3.05, 4.0) == pytest.approx(0.9)


def test_the_gauge_is_compared_with_what_was_there_at_the_same_moment() -> None:
    observed = Observed(anonymous=[(1.0, 100), (2.0, 200)])
    observed.gauges = [(1.1, {GAUGE: 100.0}), (1.9, {GAUGE: 150.0}), (9.0, {GAUGE: 1.0})]
    observed.asked = [1.05, 1.85, 9.0]
    assert observed.gauge_ratio(0, 3) == 0.75


def test_the_limit_has_what_the_configuration_allows() -> None:
    config = Config()
    assert limit_bytes(config, frozenset(), 10, 2) == 10 + config.inflight_max_bytes + 131_072
    more = limit_bytes(config, frozenset({"request"}), 0, 0)
    assert more == config.inflight_max_bytes + config.request_size_max_bytes
