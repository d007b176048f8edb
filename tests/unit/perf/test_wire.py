"""The requests that the benchmarks make by hand are what a broker understands."""

from perf.wire import api_versions_request, fetch_request, produce_error, produce_request
from tests.support.clients.wire_client import WireClient, split_answers
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.oracles.kafka_oracle import ApiVersionsResponse, FetchResponse, decode_response
from tests.support.values.kafka_records import read_batches


def answer(client: WireClient, request: bytes) -> bytes:
    client.send_bytes(request)
    client.harness.flush()
    (payload,) = split_answers(client.take())
    return payload


def test_what_is_produced_is_fetched() -> None:
    harness = BrokerHarness()
    harness.create_topic("bench", 2)
    client = WireClient(harness)
    values = [b"a", bytes(300), b""]
    assert produce_error(answer(client, produce_request("bench", 1, values)), "bench") == 0
    assert produce_error(answer(client, produce_request("none", 1, values)), "none") == 3
    fetched = decode_response(FetchResponse, 4, answer(client, fetch_request("bench", 1)))
    records = read_batches(bytes(fetched.responses[0].partitions[0].records))
    assert [record.value for record in records] == values


def test_nobody_waits_for_an_answer_without_acks() -> None:
    harness = BrokerHarness()
    harness.create_topic("bench")
    client = WireClient(harness)
    client.send_bytes(produce_request("bench", 0, [b"a"], acks=0))
    harness.flush()
    assert client.take() == b""
    assert len(client.fetch_records("bench", 0)) > 0


def test_versions_are_asked_for() -> None:
    reported = decode_response(
        ApiVersionsResponse, 0, answer(WireClient(BrokerHarness()), api_versions_request())
    )
    assert reported.error_code == 0
