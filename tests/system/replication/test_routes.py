"""Each node of a pair says who the master is, through a promotion and back."""

import socket
from collections.abc import Callable
from contextlib import closing
from typing import Any

from confluent_kafka import Producer

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.command_line import CommandLine
from tests.support.harness.ports import free_address
from tests.support.oracles.kafka_oracle import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
    decode_response,
    encode_request,
)
from tests.system.replication.nodes import LIMIT_S, Node, until
from tests.system.replication.test_promotion import CLIENT, TOPIC, Sender, create_topic

METADATA_VERSION = 5
COORDINATOR_VERSION = 1


def ask(node: Node, request: Any, version: int, response: Any) -> Any:
    """Ask one node over a connection of its own."""
    host, _, port = node.kafka.rpartition(":")
    frame = encode_request(request, version, 1)
    with closing(socket.create_connection((host, int(port)), timeout=10)) as connection:
        connection.sendall(len(frame).to_bytes(4, "big") + frame)
        with connection.makefile("rb") as stream:
            size = int.from_bytes(stream.read(4), "big")
            return decode_response(response, version, stream.read(size))


def seen_by(node: Node) -> tuple[set[int], int, int, int]:
    """The ids of the brokers, of the controller, and of the leader of the topic, and its error."""
    topic = MetadataRequest.MetadataRequestTopic(name=TOPIC)
    request = MetadataRequest(topics=[topic], allow_auto_topic_creation=False)
    answer = ask(node, request, METADATA_VERSION, MetadataResponse)
    (partition,) = answer.topics[0].partitions
    ids = {each.node_id for each in answer.brokers}
    return ids, answer.controller_id, partition.leader_id, partition.error_code


def coordinator_of(node: Node) -> tuple[int, str]:
    """The error and the address of the coordinator of a group."""
    request = FindCoordinatorRequest(key="g", key_type=0)
    answer = ask(node, request, COORDINATOR_VERSION, FindCoordinatorResponse)
    return answer.error_code, f"{answer.host}:{answer.port}"


def produce(servers: str, topic: str, **settings: Any) -> None:
    """Let a producer that connects for the first time send a record."""
    errors: list[object] = []
    producer = Producer({**CLIENT, **settings, "bootstrap.servers": servers})
    producer.produce(topic, b"r", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(LIMIT_S) == 0
    assert errors == [None]


def test_producer_that_asks_the_slave_first_gets_its_id_and_its_topic_from_the_master(
    make_node: Callable[..., Node],
) -> None:
    one, two = make_node("one"), make_node("two")
    one.kafka, two.kafka = free_address(), free_address()
    one.start()
    two.follows(one.replication).start()
    servers = f"{two.kafka},{one.kafka}"  # librdkafka begins with any of them
    for number in range(6):
        produce(servers, f"named{number}")
        produce(servers, f"named{number}", **{"enable.idempotence": True})


def test_both_nodes_name_the_master_before_and_after_a_promotion(
    make_node: Callable[..., Node], shell: CommandLine
) -> None:
    one, two = make_node("one"), make_node("two")
    for node in (one, two):
        node.kafka, node.replication = free_address(), free_address()
    one.start()
    two.follows(one.replication).start()
    create_topic(one)
    for node in (one, two):
        until(lambda each=node: seen_by(each) == ({1, 2}, 1, 1, 0), "what a node says of node 1")
        assert coordinator_of(node) == (0, one.kafka)
    one.kill()
    lost = ({1, 2}, -1, -1, ErrorCode.leader_not_available)
    until(lambda: seen_by(two) == lost, "what a slave without its master says")
    assert coordinator_of(two)[0] == ErrorCode.coordinator_not_available
    two.promote(shell)
    assert seen_by(two) == ({2}, 2, 2, 0)
    assert coordinator_of(two) == (0, two.kafka)
    sender = Sender(two)
    sender.send(10)
    sender.finish()
    one.follows(two.replication).start()
    for node in (one, two):
        until(lambda each=node: seen_by(each) == ({1, 2}, 2, 2, 0), "what a node says of node 2")
        assert coordinator_of(node) == (0, two.kafka)
