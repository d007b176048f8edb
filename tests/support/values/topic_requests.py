"""Short requests about topics: built by kafka-python, answered by the broker of a `WireClient`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.support.clients.wire_client import WireClient
from tests.support.oracles.kafka_oracle import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)

TOPIC: Final = 2
SET, DELETE, APPEND, SUBTRACT = range(4)
HIGHEST, EARLIEST, LATEST = -3, -2, -1
"""Instead of a time: the record with the highest one, and the ends of a partition."""

Step = tuple[str, int, str | None]
"""A setting, what to do with it, and the value."""


def alter_request(
    resources: Sequence[tuple[int, str, Sequence[tuple[str, str | None]]]],
    *,
    validate_only: bool = False,
) -> Any:
    """An AlterConfigs request: type, name and settings of each resource."""
    kind = AlterConfigsRequest.AlterConfigsResource
    return AlterConfigsRequest(
        resources=[
            kind(
                resource_type=type_,
                resource_name=name,
                configs=[kind.AlterableConfig(name=key, value=value) for key, value in settings],
            )
            for type_, name, settings in resources
        ],
        validate_only=validate_only,
    )


def incremental_request(
    resources: Sequence[tuple[int, str, Sequence[Step]]], *, validate_only: bool = False
) -> Any:
    """An IncrementalAlterConfigs request: type, name and steps of each resource."""
    kind = IncrementalAlterConfigsRequest.AlterConfigsResource
    return IncrementalAlterConfigsRequest(
        resources=[
            kind(
                resource_type=type_,
                resource_name=name,
                configs=[
                    kind.AlterableConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in steps
                ],
            )
            for type_, name, steps in resources
        ],
        validate_only=validate_only,
    )


def replace_settings(client: WireClient, topic: str, settings: Mapping[str, str]) -> int:
    """Replace all settings of a topic; return the error code."""
    request = alter_request([(TOPIC, topic, list(settings.items()))])
    (answer,) = client.ask(request, 2, AlterConfigsResponse).responses
    code: int = answer.error_code
    return code


def change_settings(client: WireClient, topic: str, *steps: Step) -> int:
    """Change some settings of a topic; return the error code."""
    request = incremental_request([(TOPIC, topic, steps)])
    (answer,) = client.ask(request, 1, IncrementalAlterConfigsResponse).responses
    code: int = answer.error_code
    return code


def settings_of(client: WireClient, topic: str) -> dict[str, str]:
    """The settings that a topic was given."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=TOPIC, resource_name=topic, configuration_keys=None
    )
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=False, include_documentation=False
    )
    (answer,) = client.ask(request, 4, DescribeConfigsResponse).results
    assert answer.error_code == 0
    return {each.name: each.value for each in answer.configs if each.config_source == 1}


def create_partitions(client: WireClient, topic: str, count: int) -> int:
    """Raise the number of partitions; return the error code."""
    kind = CreatePartitionsRequest.CreatePartitionsTopic
    request = CreatePartitionsRequest(
        topics=[kind(name=topic, count=count, assignments=None)], timeout_ms=1, validate_only=False
    )
    (answer,) = client.ask(request, 3, CreatePartitionsResponse).results
    code: int = answer.error_code
    return code


def delete_records_request(topics: Sequence[tuple[str, Sequence[tuple[int, int]]]]) -> Any:
    """A DeleteRecords request: (partition, offset) pairs by topic."""
    kind = DeleteRecordsRequest.DeleteRecordsTopic
    return DeleteRecordsRequest(
        topics=[
            kind(
                name=name,
                partitions=[
                    kind.DeleteRecordsPartition(partition_index=index, offset=offset)
                    for index, offset in parts
                ],
            )
            for name, parts in topics
        ],
        timeout_ms=1,
    )


def delete_records(
    client: WireClient, topic: str, *parts: tuple[int, int], version: int = 2
) -> dict[int, tuple[int, int]]:
    """Delete below an offset of each partition; return error code and low watermark of each."""
    request = delete_records_request([(topic, parts)])
    (answer,) = client.ask(request, version, DeleteRecordsResponse).topics
    assert answer.name == topic
    return {
        part.partition_index: (part.error_code, part.low_watermark) for part in answer.partitions
    }


def list_offset_request(topic: str, partitions: Sequence[int], timestamp: int) -> Any:
    """A ListOffsets request."""
    kind = ListOffsetsRequest.ListOffsetsTopic
    parts = [
        kind.ListOffsetsPartition(
            partition_index=partition, current_leader_epoch=-1, timestamp=timestamp
        )
        for partition in partitions
    ]
    return ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[kind(name=topic, partitions=parts)]
    )


def list_offset(
    client: WireClient, topic: str, partition: int, timestamp: int
) -> tuple[int, int, int]:
    """Error code, offset and timestamp that ListOffsets answers."""
    (answer,) = list_offsets(client, topic, [partition], timestamp)
    return answer


def list_offsets(
    client: WireClient, topic: str, partitions: Sequence[int], timestamp: int
) -> list[tuple[int, int, int]]:
    """Error code, offset and timestamp that one ListOffsets answers for each partition."""
    request = list_offset_request(topic, partitions, timestamp)
    (of_topic,) = client.ask(request, 9, ListOffsetsResponse).topics
    assert [answer.partition_index for answer in of_topic.partitions] == list(partitions)
    return [(answer.error_code, answer.offset, answer.timestamp) for answer in of_topic.partitions]
