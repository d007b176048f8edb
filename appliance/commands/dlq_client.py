"""The dead letters of a group, through a Kafka client. Layer 6.

At most READ_TOGETHER records are held at a time, and what the client reads ahead.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from appliance.commands import kafka_client
from appliance.commands.arguments import Interrupts, to_bytes
from appliance.commands.groups import commit_offsets
from appliance.commands.output import printable
from appliance.commands.send import outcome_of
from appliance.dead_letters import (
    REMEMBERED_MS,
    Header,
    Place,
    can_have_dead_letters,
    dlq_topic,
    replay_group,
    replayed_headers,
    retry_topic,
)
from appliance.errors import InvalidTopicError, RequestError, UnknownTopicError

READ_TOGETHER: Final = 500
"""Records that are read, sent or committed together."""

POLL_MS: Final = 500

SILENT_POLLS: Final = 4
"""Polls without any of the records known to exist, after which to check that the broker answers."""

ERROR_TOPIC_EXISTS: Final = 36

Bounds = Mapping[int, tuple[int, int]]
"""First and next offset by partition."""


class DeadLetters:
    """The records of `GROUP.dlq`, as of when this was made.

    Attributes:
        topic: its name.
        bounds: the first and the next offset of its partitions; empty if there is no such topic.
        interrupts: postpones Ctrl-C while the client works.
    """

    def __init__(self, consumer: Any, bootstrap: str, group: str) -> None:
        """Ask for the bounds of the partitions.

        Args:
            consumer: a KafkaConsumer.
            bootstrap: the broker's address.
            group: whose dead letters these are.

        Raises:
            InvalidTopicError: no topic can have that name.
        """
        from kafka import TopicPartition  # type: ignore[import-untyped]

        if not can_have_dead_letters(group):
            raise InvalidTopicError(
                f"group {printable(group)} has no dead letters: use a name of 1 to 243 letters, "
                "digits, dots, dashes and underscores, as a topic has"
            )
        self.topic = dlq_topic(group)
        self.interrupts = Interrupts()
        self._group = group
        self._consumer = consumer
        self._bootstrap = bootstrap
        known = sorted(kafka_client.partitions_of(consumer, self.topic))
        partitions = [TopicPartition(self.topic, index) for index in known]
        begins = consumer.beginning_offsets(partitions) if partitions else {}
        ends = consumer.end_offsets(partitions) if partitions else {}
        self.bounds: Bounds = {
            each.partition: (begins[each], max(begins[each], ends[each])) for each in partitions
        }

    @property
    def missing(self) -> str:
        """What to say if there is no such topic."""
        return f"{printable(self._group)} has no dead letters: there is no topic {self._shown}"

    @property
    def _shown(self) -> str:
        return printable(self.topic)

    def check_exists(self) -> None:
        """Raise UnknownTopicError if there is no such topic."""
        if not self.bounds:
            raise UnknownTopicError(self.missing)

    def chosen(self, partition: int | None) -> list[int]:
        """Return one partition, or all of them in order.

        Raises:
            UnknownTopicError: there is no such partition.
        """
        if partition is None:
            return sorted(self.bounds)
        kafka_client.check_partition(self._shown, partition, set(self.bounds))
        return [partition]

    def check_place(self, place: Place) -> None:
        """Raise UnknownTopicError if no record can be at a place."""
        (partition,) = self.chosen(place.partition)
        begin, end = self.bounds[partition]
        if place.offset < begin:
            raise UnknownTopicError(
                f"record {place} of {self._shown} is gone: partition {partition} begins at {begin}"
            )
        if place.offset >= end:
            raise UnknownTopicError(
                f"record {place} of {self._shown} does not exist: partition {partition} ends at "
                f"{end}"
            )

    def record_at(self, place: Place) -> Any:
        """Return the record at a place that was checked.

        Raises:
            UnknownTopicError: the broker no longer has it.
        """
        for records in self.read(place.partition, place.offset, place.offset + 1):
            return records[0]
        raise UnknownTopicError(f"record {place} of {self._shown} is lost")

    def read(self, partition: int, start: int, end: int) -> Iterator[list[Any]]:
        """Yield the records of a partition from one offset to before another, a few at a time.

        Raises:
            UnreachableError: the broker does not answer any more.
            UnknownTopicError: the topic was deleted.
        """
        from kafka import TopicPartition

        part = TopicPartition(self.topic, partition)
        self._consumer.assign([part])
        self._consumer.seek(part, start)
        silent_polls = 0
        while self._consumer.position(part) < end:
            with self.interrupts.held_back():
                found = self._consumer.poll(timeout_ms=POLL_MS, max_records=READ_TOGETHER)
            records = [each for each in found.get(part, ()) if start <= each.offset < end]
            if records:
                yield records
            silent_polls = 0 if found else silent_polls + 1
            if silent_polls >= SILENT_POLLS:
                kafka_client.check_reachable(self._bootstrap)
                if not kafka_client.partitions_of(self._consumer, self.topic):
                    raise UnknownTopicError(f"topic {self._shown} was deleted")


@contextmanager
def dead_letters(bootstrap: str, group: str) -> Iterator[DeadLetters]:
    """Yield the dead letters of a group; there may be none."""
    with kafka_client.consumer(bootstrap) as consumer:
        letters = DeadLetters(consumer, bootstrap, group)
        with letters.interrupts.heard():
            yield letters


def place_of(record: Any) -> Place:
    """Return where a record is."""
    return Place(record.partition, record.offset)


def headers_of(record: Any) -> list[Header]:
    """Return the headers of a record, their names as bytes."""
    return [(to_bytes(name), value) for name, value in record.headers]


# Replay


def replayer(bootstrap: str) -> AbstractContextManager[Any]:
    """Yield a KafkaProducer that sends each record once, and waits until it is stored."""
    return kafka_client.producer(
        bootstrap,
        acks="all",
        enable_idempotence=True,
        max_request_size=kafka_client.REQUEST_MAX_BYTES,
        value_serializer=kafka_client.null_serializer(),
    )


def ensure_retry_topic(client: Any, group: str, partition_count: int) -> int:
    """Make the topic in which a group gets records again, if there is none.

    Args:
        client: a KafkaAdminClient.
        group: the group.
        partition_count: of a topic that is made.

    Returns:
        How many partitions it has.

    Raises:
        RequestError: the broker refuses to make it.
    """
    topic = retry_topic(group)
    wanted = {"num_partitions": partition_count, "configs": {}}
    (found,) = client.describe_topics([topic])
    if not found["error_code"]:
        return len(found["partitions"])
    (made,) = client.create_topics({topic: wanted}, raise_errors=False)["topics"]
    if made["error_code"] == ERROR_TOPIC_EXISTS:  # it was made meanwhile
        (found,) = client.describe_topics([topic])
        kafka_client.check_code(found["error_code"], None)
        return len(found["partitions"])
    kafka_client.check_code(made["error_code"], made.get("error_message"))
    return partition_count


class Replay:
    """Gives dead records back to their group.

    Attributes:
        count: records that are acknowledged.
    """

    def __init__(self, producer: Any, group: str, partition_count: int) -> None:
        """Send nothing yet.

        Args:
            producer: of `replayer`.
            group: whose records these are.
            partition_count: of its retry topic.
        """
        self._producer = producer
        self._topic = retry_topic(group)
        self._partition_count = partition_count
        self.count = 0

    def send(self, records: Sequence[Any]) -> None:
        """Send records, and wait until all are acknowledged.

        Raises:
            RequestError: one cannot be sent, or was refused; those before it are acknowledged.
        """
        waiting = []
        refusal = None
        for record in records:
            try:
                waiting.append((record, self._send(record)))
            except RequestError as error:
                refusal = record, error
                break
        for record, future in waiting:
            try:
                outcome_of(future)
            except RequestError as error:
                raise self._refusal(record, error) from None
            self.count += 1
        if refusal is not None:
            raise self._refusal(*refusal)

    def _send(self, record: Any) -> Any:
        from kafka import errors

        headers = replayed_headers(headers_of(record))
        if any(value is None for _, value in headers):
            raise RequestError(
                "it has a header that is null, which the client cannot send: replay it through "
                "the admin API (docs/ADMIN.md), which can"
            )
        try:
            return self._producer.send(
                self._topic,
                kafka_client.NULL if record.value is None else record.value,
                record.key,
                [(name.decode(), value) for name, value in headers],
                record.partition % self._partition_count,
                record.timestamp if record.timestamp >= 0 else None,
            )
        except errors.BrokerResponseError as error:  # it is larger than the client sends
            raise kafka_client.refusal(error) from None

    def _refusal(self, record: Any, error: RequestError) -> RequestError:
        before = f"; {self.count} before it were replayed" if self.count else ""
        return RequestError(f"record {place_of(record)} was refused: {error.message}{before}")


def replay_all(
    letters: DeadLetters, client: Any, replay: Replay, group: str, partitions: Sequence[int]
) -> None:
    """Replay all records of some partitions that were not replayed by an earlier call.

    The group of `replay_group` has committed up to where that is. It commits after the records are
    acknowledged, so that an end at any moment repeats READ_TOGETHER records at most.

    Args:
        letters: all of them.
        client: a KafkaAdminClient.
        replay: sends the records.
        group: whose records they are.
        partitions: of the dead letters.

    Raises:
        RequestError: a record cannot be replayed, or somebody reads as the group that commits.
    """
    from kafka import TopicPartition

    commits = replay_group(group)
    kafka_client.keep_offsets(client, REMEMBERED_MS)
    committed = client.list_group_offsets(commits)[commits]
    begins = {}
    for index in partitions:
        part = TopicPartition(letters.topic, index)
        begin, end = letters.bounds[index]
        known = committed[part].offset if part in committed else begin
        if max(begin, known) < end:
            begins[part] = max(begin, known)
    # Fails before anything is sent if the group has members.
    commit_offsets(client, commits, begins)
    for part, start in begins.items():
        for records in letters.read(part.partition, start, letters.bounds[part.partition][1]):
            with letters.interrupts.held_back():
                count_before = replay.count
                try:
                    replay.send(records)
                finally:
                    count = replay.count - count_before
                    if count:
                        commit_offsets(client, commits, {part: records[count - 1].offset + 1})
