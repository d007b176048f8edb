"""Access to a running broker through kafka-python, with its errors turned into ours. Layer 6.

Importing kafka-python takes a tenth of a second, so each function imports it when needed.
"""

import socket
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from appliance.commands.arguments import read_address
from appliance.errors import InvalidTopicError, RequestError, UnknownTopicError, UnreachableError
from appliance.units import MIB

CONNECT_S: Final = 5.0
REQUEST_MS: Final = 15_000
"""A broker that has not answered by then will not answer."""

RETRIES_MAX: Final = 8
"""They take some seconds. A broker that refuses a record for longer, because its disk is full, is
reported with what it says, and not as one that does not answer."""

REQUEST_MAX_BYTES: Final = 32 * MIB
"""As much as the broker takes unless it is told otherwise."""

NULL: Final = object()
"""A null value until it is serialized: kafka-python refuses one beside a null key."""

_CLIENT_ID: Final = "latermq-cli"

_HELLO: Final = bytes.fromhex("0000000a 0012 0000 6c61746d ffff")
"""ApiVersions version 0, which every broker answers; its correlation id comes back."""

_CORRELATION_ID: Final = slice(8, 12)

_OFFSET_COMMIT_WITH_RETENTION: Final = 4
"""The last version of OffsetCommit that says how long an offset is kept."""


def admin_client(bootstrap: str) -> AbstractContextManager[Any]:
    """Yield a KafkaAdminClient, closed at the end; `translated` lists the errors."""
    return _client(bootstrap, "KafkaAdminClient", {}, request_timeout_ms=REQUEST_MS)


def change_topic(bootstrap: str, topic: str, changes: Mapping[str, str | None]) -> None:
    """Change settings of a topic, all of them or none.

    Args:
        bootstrap: HOST:PORT of a broker.
        topic: its name.
        changes: the new values; None for the default.

    Raises:
        RequestError: the broker refuses it; the message says why.
    """
    from kafka.admin import (  # type: ignore[import-untyped]
        ConfigResource,
        ConfigResourceType,
    )

    steps = {
        name: ("DELETE", "") if value is None else ("SET", value) for name, value in changes.items()
    }
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, steps)
    with admin_client(bootstrap) as client:
        answer = client.alter_configs([resource], raise_on_unknown=False, incremental=True)
    result = answer["topic"][topic]
    if result != "OK":  # else "[Error 40] InvalidConfigurationError: ..."
        raise RequestError(result.partition("Error: ")[2] or result)


def producer(bootstrap: str, **settings: Any) -> AbstractContextManager[Any]:
    """Yield a KafkaProducer, closed at the end; `translated` lists the errors."""
    return _client(
        bootstrap,
        "KafkaProducer",
        {"timeout": 0},  # the caller has waited for the acknowledgements that it needs
        request_timeout_ms=REQUEST_MS,
        delivery_timeout_ms=2 * REQUEST_MS,
        max_block_ms=int(CONNECT_S * 1000),
        retries=RETRIES_MAX,
        metrics_enabled=False,
        **settings,
    )


def null_serializer() -> Any:
    """Return what a producer calls for each value: it makes null of NULL."""
    from kafka.serializer import Serializer  # type: ignore[import-untyped]

    class Values(Serializer):  # type: ignore[misc]
        def serialize(self, _topic: str, _headers: object, value: object) -> object:
            return None if value is NULL else value

    return Values()


def consumer(bootstrap: str, **settings: Any) -> AbstractContextManager[Any]:
    """Yield a KafkaConsumer, closed at the end; `translated` lists the errors."""
    return _client(
        bootstrap,
        "KafkaConsumer",
        {"autocommit": False, "timeout_ms": int(CONNECT_S * 1000)},
        enable_auto_commit=False,
        allow_auto_create_topics=False,
        metrics_enabled=False,
        **settings,
    )


def keep_offsets(client: Any, retention_ms: int) -> None:
    """Let the offsets that a client sets be kept for this long, whatever the broker's setting is.

    Args:
        client: a KafkaAdminClient, which has no option for it.
        retention_ms: how long after it was set an offset of a group without members expires.
    """
    make = client._alter_group_offsets_request

    def make_kept(group: str, offsets: object) -> Any:
        request = make(group, offsets)
        request.retention_time_ms = retention_ms
        request._max_version = _OFFSET_COMMIT_WITH_RETENTION
        return request

    client._alter_group_offsets_request = make_kept


@contextmanager
def _client(
    bootstrap: str, class_name: str, close: dict[str, Any], **settings: Any
) -> Iterator[Any]:
    check_reachable(bootstrap)
    import kafka  # type: ignore[import-untyped]

    with translated(bootstrap):
        client = getattr(kafka, class_name)(
            bootstrap_servers=bootstrap,
            client_id=_CLIENT_ID,
            bootstrap_timeout_ms=int(CONNECT_S * 1000),
            **settings,
        )
        if not settings.get("allow_auto_create_topics", True):
            # kafka-python does not hand the setting on to what asks for metadata.
            client._cluster.config["allow_auto_create_topics"] = False
        try:
            yield client
        finally:
            client.close(**close)


def check_reachable(bootstrap: str) -> None:
    """Fail at once where the client library would retry for seconds, or for ever.

    Raises:
        ConfigError: the address is not HOST:PORT.
        UnreachableError: no Kafka broker answers at the address.
    """
    address = read_address("--bootstrap", bootstrap)
    try:
        with socket.create_connection(address, timeout=CONNECT_S) as connection:
            connection.sendall(_HELLO)
            answer = _read_head(connection)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UnreachableError(
            f"no broker answers at {address} ({reason}): start it with `latermq serve`, or give "
            "its address with --bootstrap"
        ) from None
    if answer[4:] != _HELLO[_CORRELATION_ID]:
        raise UnreachableError(
            f"the server at {address} {_describe(answer)}: give the broker's address for Kafka "
            "clients with --bootstrap (`latermq status` shows it)"
        )


def _read_head(connection: socket.socket) -> bytes:
    """Return the size and the correlation id of an answer; less if the connection ends."""
    answer = b""
    while len(answer) < 8:
        piece = connection.recv(8 - len(answer))
        if not piece:
            break
        answer += piece
    return answer


def _describe(answer: bytes) -> str:
    """What a server is that answers something else than a broker does."""
    if answer.startswith(b"HTTP"):
        return "speaks HTTP, as the admin address does"
    if not answer:
        return "closed the connection: it has too many, or it is no broker"
    return "does not speak Kafka's protocol"


def partitions_of(client: Any, topic: str) -> set[int]:
    """Return the indexes of a topic's partitions; none if there is no such topic.

    Args:
        client: a KafkaProducer, which makes the broker create a missing topic, or a KafkaConsumer.
        topic: the topic's name.

    Raises:
        InvalidTopicError: a topic cannot have this name.
        UnknownTopicError: the topic does not exist, and the broker does not create it.
    """
    from kafka.errors import KafkaTimeoutError  # type: ignore[import-untyped]

    ask = getattr(client, "partitions_for", None) or client.partitions_for_topic
    try:
        return set(ask(topic) or ())
    except ValueError as error:
        raise InvalidTopicError(str(error)) from None
    except KafkaTimeoutError:
        # A producer has no other error for it: the topic might be created while it waits.
        raise UnknownTopicError(
            f"there is no topic {topic}, and this broker does not create topics on first use: "
            "create it with `latermq topics create`"
        ) from None


def check_partition(topic: str, partition: int, known: set[int]) -> None:
    """Raise UnknownTopicError unless a partition is among the known ones."""
    if partition not in known:
        raise UnknownTopicError(f"{topic} has no partition {partition}: use 0 to {max(known)}")


@contextmanager
def translated(bootstrap: str) -> Iterator[None]:
    """Turn the errors of kafka-python into ours.

    Raises:
        UnreachableError: the broker did not answer.
        RequestError: the broker refused; UnknownTopicError if there is no such topic.
    """
    from kafka import errors

    try:
        yield
    except errors.BrokerResponseError as error:
        raise refusal(error) from None
    except errors.KafkaError as error:
        raise UnreachableError(
            f"no answer from the broker at {bootstrap}: {error}; clients connect to the broker's "
            "advertised address (`latermq status` shows it), which must be reachable from here"
        ) from None


def refusal(error: Any) -> RequestError:
    """Return the error for a broker's error response, with the broker's own message if it has one.

    Args:
        error: kafka.errors.BrokerResponseError.
    """
    from kafka import errors

    said = " ".join(str(each) for each in error.args if each)
    sentence = said or f"{error.description or error.message or type(error).__name__}"
    if isinstance(error, errors.UnknownTopicOrPartitionError):
        return UnknownTopicError(said or "there is no such topic")
    return RequestError(sentence)


def check_code(code: int, message: str | None) -> None:
    """Raise RequestError if the error code of a response is not 0."""
    from kafka import errors

    if code:
        raise refusal(errors.for_code(code)(*([message] if message else [])))
