"""The message codec against kafka-python's, which shares no code with it, and against bad bytes."""

import tracemalloc
from uuid import UUID

import pytest

from appliance.errors import RemoteProtocolError
from compat.kafka import dispatch
from compat.kafka.protocol import messages
from tests.support.oracles.kafka_oracle import (
    CreateTopicsRequest,
    ListOffsetsRequest,
    MetadataRequest,
    encode_request,
)


def decode(frame: bytes) -> dict[str, object]:
    header, body_pos = dispatch.read_header(frame)
    return messages.decode_request(header.api_key, header.api_version, frame[body_pos:])


@pytest.mark.parametrize("version", range(2, 8))
def test_nested_requests_are_read_as_they_were_written(version: int) -> None:
    """Arrays in arrays, of structures and of numbers, nulls, negative numbers, in both forms."""
    topic = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[
            topic(
                name="näme",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[
                    topic.CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])
                ],
                configs=[
                    topic.CreatableTopicConfig(name="a", value=None),
                    topic.CreatableTopicConfig(name="b", value=""),
                ],
            ),
            topic(name="", num_partitions=2**31 - 1, replication_factor=7),
        ],
        timeout_ms=-5,
        validate_only=True,
    )
    assert decode(encode_request(request, version)) == {
        "topics": [
            {
                "name": "näme",
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": 0, "broker_ids": [1, 2]}],
                "configs": [{"name": "a", "value": None}, {"name": "b", "value": ""}],
            },
            {
                "name": "",
                "num_partitions": 2**31 - 1,
                "replication_factor": 7,
                "assignments": [],
                "configs": [],
            },
        ],
        "timeout": -5,
        "validate_only": True,
    }


def test_topic_ids_are_read_and_the_zero_id_is_none() -> None:
    topic = MetadataRequest.MetadataRequestTopic
    request = MetadataRequest(
        topics=[topic(topic_id=UUID(int=9), name=None), topic(name="n")],
        allow_auto_topic_creation=False,
    )
    decoded = decode(encode_request(request, 12))
    assert decoded["topics"] == [
        {"topic_id": UUID(int=9), "name": None},
        {"topic_id": None, "name": "n"},
    ]
    assert decoded["allow_auto_topic_creation"] is False


def test_unknown_tagged_fields_are_skipped_at_every_level() -> None:
    partition = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=1,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name="t",
                partitions=[partition(partition_index=3, current_leader_epoch=8, timestamp=-1)],
            )
        ],
    )
    frame = encode_request(request, 9)
    assert frame.endswith(b"\x00\x00\x00")  # no tags in the partition, the topic, the request
    tagged = frame[:-3] + b"\x01\x64\x02xy" + b"\x02\x00\x00\x07\x01z" + b"\x01\x7f\x00"
    assert decode(tagged) == decode(frame)


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (3, 1, b"\x7f\xff\xff\xff"),
        (3, 12, b"\xff\xff\xff\xff\x0f"),
        (19, 7, b"\xff\xff\xff\xff\x0f" + bytes(100)),
        (19, 2, b"\x00\x00\x00\x01\x00\x01t" + bytes(6) + b"\x7f\xff\xff\xff" + bytes(100)),
        (10, 6, b"\x00\xff\xff\xff\xff\x0f"),
        (3, 12, b"\x00\x00\x00\xff\xff\xff\xff\x0f"),
    ],
)
def test_a_count_of_billions_costs_nothing(key: int, version: int, body: bytes) -> None:
    messages.decode_request(3, 12, b"\x01\x00\x00\x00")  # loads and compiles the schemas
    with pytest.raises(RemoteProtocolError):
        messages.decode_request(key, version, body)
    tracemalloc.start()
    with pytest.raises(RemoteProtocolError):
        messages.decode_request(key, version, body)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_bytes_after_the_last_field_are_ignored() -> None:
    assert messages.decode_request(3, 1, b"\x00\x00\x00\x00" + b"later") == {"topics": []}


def test_a_value_without_default_must_be_given() -> None:
    with pytest.raises(KeyError, match="topics"):
        messages.encode_response(19, 7, {})


def test_an_item_that_is_encoded_already_is_put_in_its_place() -> None:
    item = {
        "key": "k",
        "node_id": 1,
        "host": "h",
        "port": 2,
        "error_code": 0,
        "error_message": None,
    }
    encoded = messages.encode_response_item(10, 6, "coordinators", item)
    assert messages.encode_response(10, 6, {"coordinators": [encoded]}) == messages.encode_response(
        10, 6, {"coordinators": [item]}
    )
