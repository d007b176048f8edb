"""What can be done to topics, within the limits of the configuration.

Names and settings are the facade's to check; here are the counts, and what depends on the state of
a topic. Layer 4; does no I/O of its own.
"""

from collections.abc import Mapping

from _core.partition import Topic
from appliance.config import Config
from appliance.errors import (
    InvalidPartitionsError,
    PolicyError,
    TopicExistsError,
    UnknownTopicError,
)
from appliance.store.topic_store import TopicStore


class TopicAdmin:
    """Checks, then changes. A change takes effect at once and is durable after the next flush."""

    def __init__(self, store: TopicStore, config: Config) -> None:
        """Work on the topics of a store."""
        self._store = store
        self._config = config

    def check_create(self, name: str, partition_count: int) -> None:
        """Raise what `create` would raise; a full disk alone is not foreseen."""
        config = self._config
        if self._store.find(name) is not None:
            raise TopicExistsError(f"topic {name} exists already")
        self._check_count(partition_count)
        count = self._store.topic_count
        if count >= config.topic_count_max:
            raise PolicyError(f"there are {count} topics; topics.topic_count_max is reached")
        self._check_total(partition_count)

    def create(self, name: str, partition_count: int, settings: Mapping[str, str | None]) -> Topic:
        """Make a topic.

        Args:
            name: checked by the caller.
            partition_count: of it.
            settings: checked by the caller; those without a value keep the default.

        Raises:
            TopicExistsError: it exists.
            InvalidPartitionsError, PolicyError: a limit forbids it.
            RequestError: the disk is full.
        """
        self.check_create(name, partition_count)
        given = {key: value for key, value in settings.items() if value is not None}
        return self._store.create(name, partition_count, given)

    def delete(self, name: str) -> None:
        """Delete a topic, its records and its timers.

        Raises:
            UnknownTopicError: there is no such topic.
            RequestError: the disk is full.
        """
        topic = self._store.find(name)
        if topic is None:
            raise UnknownTopicError(f"there is no topic {name}")
        self._store.delete(topic)

    def check_add_partitions(self, topic: Topic, partition_count: int) -> None:
        """Raise what `add_partitions` would raise; a full disk alone is not foreseen."""
        present = len(topic.partitions)
        if partition_count == present:
            raise InvalidPartitionsError(f"the topic has {present} partitions already")
        if partition_count < present:
            raise InvalidPartitionsError(
                f"the topic has {present} partitions; their number cannot fall to {partition_count}"
            )
        self._check_count(partition_count)
        self._check_total(partition_count - present)

    def add_partitions(self, topic: Topic, partition_count: int) -> None:
        """Raise the number of a topic's partitions to `partition_count`.

        Raises:
            InvalidPartitionsError, PolicyError: it is no more than now, or a limit forbids it.
            RequestError: the disk is full.
        """
        self.check_add_partitions(topic, partition_count)
        self._store.add_partitions(topic, partition_count)

    def replace_settings(self, topic: Topic, settings: Mapping[str, str]) -> bool:
        """Give a topic other settings, all of them, checked by the caller; whether they differ.

        Raises:
            RequestError: the disk is full.
        """
        if topic.settings == settings:
            return False
        self._store.replace_settings(topic, settings)
        return True

    def delete_records(self, topic: Topic, offsets: Mapping[int, int]) -> bool:
        """Delete the records below an offset of each partition, all or none; whether there are any.

        Args:
            topic: the topic.
            offsets: by partition; no more than what is visible. What is deleted already stays so.

        Raises:
            RequestError: the disk is full.
        """
        starts = {
            index: offset
            for index, offset in offsets.items()
            if offset > topic.partitions[index].start_offset
        }
        if starts:
            self._store.raise_starts(topic, starts)
        return bool(starts)

    def _check_count(self, partition_count: int) -> None:
        limit = self._config.partition_count_max_per_topic
        if not 1 <= partition_count <= limit:
            raise InvalidPartitionsError(
                f"{partition_count} partitions; topics.partition_count_max_per_topic is {limit}"
            )

    def _check_total(self, added: int) -> None:
        present, limit = self._store.partition_total, self._config.partition_total_max
        if present + added > limit:
            raise PolicyError(
                f"there are {present} partitions; {added} more would pass "
                f"topics.partition_total_max = {limit}"
            )
