"""Produce and Fetch, from bytes to bytes: kio writes the requests, both others read the answers.

All versions, topics by name and by id, tagged fields that we do not need.
"""

from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema

from compat.kafka import dispatch
from compat.kafka.apis.api_00_produce import produce
from compat.kafka.apis.api_01_fetch import fetch
from compat.kafka.protocol.registry import Fields
from tests.support.clients.wire_client import WireClient, split_answers
from tests.support.harness.broker_harness import with_topic
from tests.support.oracles.response_oracle import decode_any_response
from tests.support.values.kio_values import kio_decode, kio_encode
from tests.support.values.raw_batch import Raw, make_batch, split_batches

EXAMPLES = 15
FIRST_FETCH_BY_ID = 13
UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID = 3, 100
INVALID_REQUEST, INVALID_RECORD = 42, 87

BATCH = make_batch([Raw(b"a"), Raw(b"b" * 3000)])
TAGS = b"\x02" + b"\xf4\x03\x00" + b"\xf5\x03\x03xyz"
"""Two unknown tagged fields, which replace an empty list of them."""

PARTITIONS = st.lists(st.sampled_from((0, 1, 2, -1, 1 << 30)), max_size=3)
ASKED = st.lists(st.tuples(st.sampled_from(("t", "u", "töpic", "")), PARTITIONS), max_size=3)


@pytest.fixture(scope="module")
def client() -> WireClient:
    harness = with_topic(2)
    harness.create_topic("u", 1)
    return WireClient(harness)


def ask(client: WireClient, key: int, version: int, body: bytes, tags: bytes = b"\0") -> Fields:
    """Send a request; the answer, as kio reads it, after kafka-python has read it too."""
    api = dispatch.REGISTRY.find(key, version)
    assert api is not None
    is_flexible = api.is_flexible(version)
    header = key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\x07" + b"\xff\xff"
    frame = header + (tags if is_flexible else b"") + body
    client.send_bytes(len(frame).to_bytes(4, "big") + frame)
    client.harness.flush()
    (payload,) = split_answers(client.take())
    assert payload[:4] == b"\0\0\0\x07"
    decode_any_response(key, version, payload)
    return kio_decode(load_response_schema(key, version), payload[5 if is_flexible else 4 :])


def partition_count(topic: str) -> int:
    return {"t": 2, "u": 1}.get(topic, 0)


VERSIONS = [
    pytest.param(api.key, version, id=f"{api.name} {version}")
    for api in (produce, fetch)
    for version in range(api.served_from, api.versions[1] + 1)
]


@pytest.mark.parametrize("version", range(produce.served_from, produce.versions[1] + 1))
def test_produce_is_answered_for_what_was_asked_in_its_order(
    client: WireClient, version: int
) -> None:
    @given(asked=ASKED, records=st.sampled_from((BATCH, None, b"")), has_tags=st.booleans())
    @settings(max_examples=EXAMPLES)
    def check(asked: list[tuple[str, list[int]]], records: bytes | None, has_tags: bool) -> None:
        topics = [
            {
                "name": name,
                "partition_data": [{"index": index, "records": records} for index in indexes],
            }
            for name, indexes in asked
        ]
        values = {"transactional_id": None, "acks": -1, "timeout": 9, "topic_data": topics}
        body = kio_encode(load_request_schema(produce.key, version), values)
        answer = ask(client, produce.key, version, body, TAGS if has_tags else b"\0")
        assert [
            (topic["name"], [part["index"] for part in topic["partition_responses"]])
            for topic in answer["responses"]
        ] == [(name, list(indexes)) for name, indexes in asked]
        named = Counter((name, index) for name, indexes in asked for index in indexes)
        for topic in answer["responses"]:
            for part in topic["partition_responses"]:
                if not 0 <= part["index"] < partition_count(topic["name"]):
                    assert part["error_code"] == UNKNOWN_TOPIC_OR_PARTITION
                elif named[topic["name"], part["index"]] > 1:
                    assert part["error_code"] == INVALID_REQUEST
                else:
                    assert part["error_code"] == (0 if records else INVALID_RECORD)
                assert (part["base_offset"] >= 0) == (part["error_code"] == 0)

    check()


def fetch_values(version: int, topics: list[Fields]) -> Fields:
    """A Fetch request; which of the fields are there depends on the version."""
    return {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": version % 2,
        "session_id": 0,
        "session_epoch": -1,
        "topics": topics,
        "forgotten_topics_data": [],
        "rack_id": "räck",
    }


@pytest.mark.parametrize("version", range(fetch.served_from, fetch.versions[1] + 1))
def test_fetch_is_answered_for_what_was_asked_in_its_order(
    client: WireClient, version: int
) -> None:
    ids = {name: topic.uuid for name in "tu" if (topic := client.harness.broker.topics.find(name))}
    names = {UUID(int=7) if name not in ids else ids[name]: name for name in ("t", "u", "other")}
    is_by_id = version >= FIRST_FETCH_BY_ID
    client.produce("t", 0, BATCH)

    @given(asked=ASKED, offset=st.sampled_from((0, 1)), has_tags=st.booleans())
    @settings(max_examples=EXAMPLES)
    def check(asked: list[tuple[str, list[int]]], offset: int, has_tags: bool) -> None:
        topics: list[Fields] = [
            {
                "topic": name,
                "topic_id": ids.get(name, UUID(int=7)),
                "partitions": [
                    {
                        "partition": index,
                        "current_leader_epoch": -1,
                        "fetch_offset": offset if (name, index) == ("t", 0) else 0,
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                        "partition_max_bytes": 1 << 20,
                    }
                    for index in indexes
                ],
            }
            for name, indexes in asked
        ]
        body = kio_encode(load_request_schema(fetch.key, version), fetch_values(version, topics))
        answer = ask(client, fetch.key, version, body, TAGS if has_tags else b"\0")
        key = "topic_id" if is_by_id else "topic"
        assert [
            (topic[key], [part["partition_index"] for part in topic["partitions"]])
            for topic in answer["responses"]
        ] == [
            (topic[key], list(indexes)) for topic, (_, indexes) in zip(topics, asked, strict=True)
        ]
        seen = set()
        for topic in answer["responses"]:
            name = names.get(topic["topic_id"], "") if is_by_id else topic["topic"]
            for part in topic["partitions"]:
                place = name, part["partition_index"]
                if place in seen and part["error_code"] == INVALID_REQUEST:
                    continue
                assert place not in seen or part["error_code"] != 0
                seen.add(place)
                check_part(name, part, offset, is_by_id=is_by_id)

    check()


def check_part(name: str, part: dict[str, Any], offset: int, *, is_by_id: bool) -> None:
    """What is said of one partition."""
    if not 0 <= part["partition_index"] < partition_count(name):
        is_unknown_id = is_by_id and not partition_count(name)
        error = UNKNOWN_TOPIC_ID if is_unknown_id else UNKNOWN_TOPIC_OR_PARTITION
        assert (part["error_code"], part["high_watermark"]) == (error, -1)
        assert not part["records"]
        return
    assert part["error_code"] == 0
    assert part["high_watermark"] == part["last_stable_offset"]
    batches = split_batches(bytes(part["records"] or b""))
    if (name, part["partition_index"]) == ("t", 0) and batches:
        first, _ = batches[0]
        assert first.base_offset <= offset <= first.base_offset + first.last_delta
