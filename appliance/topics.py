"""Topics: find them, and change them within the limits of the configuration.

The facade checks names and settings. This module checks counts and whatever depends on the state of
a topic. Layer 3; does no I/O of its own.
"""

import logging
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from _core.queue.partition import Topic
from _core.state.projections import Projections
from appliance.allowance import Allowance
from appliance.client_log import ANYBODY, ClientLog
from appliance.config.config import Config
from appliance.errors import (
    InvalidPartitionsError,
    PolicyError,
    TopicExistsError,
    UnknownTopicError,
)
from appliance.log_text import quoted
from appliance.store.state.change_positions import ChangePositions
from appliance.store.state.topic_store import TopicStore

NO_SUCH_TOPIC: Final = "This server does not host this topic-partition."
"""The words of Kafka's broker. Tools match on the begin of a message, here and below."""

NAMED_PART: Final = 0.75
"""Of all topics and partitions that may exist: as many may come from clients that name them."""

NAMED_BURST: Final = 100
"""Topics that one address may create at once by naming them: in a request for metadata, or as the
group of a retry. One that names ten thousand must not take the place of everybody's."""

NAMED_PER_S: Final = 5
"""Topics a second that it may create so for ever."""

PARTITIONS_COUNTED: Final = 16
"""A topic with more partitions counts as several."""

_log = logging.getLogger(__name__)


class Topics:
    """Checks, then changes. A change takes effect at once and is durable after the next flush."""

    def __init__(
        self, store: TopicStore, projections: Projections, config: Config, lines: ClientLog
    ) -> None:
        self._lines = lines
        self._store = store
        self._projections = projections
        self._config = config
        self._named = Allowance(NAMED_BURST, NAMED_PER_S)
        self._is_debug = _log.isEnabledFor(logging.DEBUG)

    def all(self) -> list[Topic]:
        """All topics, in the order of their creation."""
        return list(self._projections.topics_by_id.values())

    def find(self, name: str) -> Topic | None:
        """The topic of that name."""
        return self._store.find(name)

    def find_by_uuid(self, uuid: UUID) -> Topic | None:
        """The topic with that id."""
        return self._projections.topics_by_uuid.get(uuid.bytes)

    def partition_totals(self) -> tuple[int, int]:
        """Return how many partitions this process made, and how many of them it removed."""
        return len(self._projections.partitions), self._projections.partitions_removed

    @property
    def changes(self) -> ChangePositions:
        """Where the log ended after the last change of each topic, by name."""
        return self._store.changes

    def check_create(self, name: str, partition_count: int) -> None:
        """Raise what `create` would raise, except for a full disk."""
        config = self._config
        if self._store.find(name) is not None:
            raise TopicExistsError(f"Topic '{name}' already exists.")
        self._check_count(partition_count)
        count = self._store.topic_count
        if count >= config.topic_count_max:
            raise PolicyError(f"there are {count} topics: topics.topic_count_max is reached")
        self._check_total(partition_count)

    def create(self, name: str, partition_count: int, settings: Mapping[str, str | None]) -> Topic:
        """Make a topic.

        Args:
            name: checked by the caller.
            partition_count: number of its partitions.
            settings: checked by the caller; those without a value keep the default.

        Raises:
            TopicExistsError: a topic of that name exists.
            InvalidPartitionsError, PolicyError: a limit forbids it.
            RequestError: the disk is full.
        """
        self.check_create(name, partition_count)
        given = {key: value for key, value in settings.items() if value is not None}
        topic = self._store.create(name, partition_count, given)
        self._log_change("created", topic, logging.INFO)
        return topic

    def may_name(self, partition_count: int, address: str, now_ms: int) -> bool:
        """Return whether a client may create a topic by naming it now; if so, it counts.

        Args:
            partition_count: of the topic.
            address: IP address of the client.
            now_ms: monotonic ms, not below that of the last call.
        """
        count = 1 + (partition_count - 1) // PARTITIONS_COUNTED
        return all(self._named.take(address, now_ms) for _ in range(count))

    def create_named(self, name: str, partition_count: int) -> Topic:
        """Make a topic because a client named it; some are left for those who ask for one.

        Args:
            name: checked by the caller.
            partition_count: number of its partitions.

        Raises:
            RequestError: as `create`.
        """
        config, store = self._config, self._store
        for what, setting, count, limit in (
            ("topics", "topic_count_max", store.topic_count + 1, config.topic_count_max),
            (
                "partitions",
                "partition_total_max",
                store.partition_total + partition_count,
                config.partition_total_max,
            ),
        ):
            if count > NAMED_PART * limit:
                raise PolicyError(
                    f"only a quarter of topics.{setting} = {limit} is left, for {what} that are "
                    "created on purpose: create the topic, or raise the limit"
                )
        return self.create(name, partition_count, {})

    def delete(self, name: str) -> None:
        """Delete a topic, its records and its timers.

        Raises:
            UnknownTopicError: there is no such topic.
            RequestError: the disk is full.
        """
        topic = self._store.find(name)
        if topic is None:
            raise UnknownTopicError(f"{NO_SUCH_TOPIC} There is no topic {name}")
        self._store.delete(topic)
        self._log_change("deleted", topic, logging.INFO)

    def check_add_partitions(self, topic: Topic, partition_count: int) -> None:
        """Raise what `add_partitions` would raise, except for a full disk."""
        present = len(topic.partitions)
        if partition_count == present:
            raise InvalidPartitionsError(f"Topic already has {present} partition(s).")
        if partition_count < present:
            raise InvalidPartitionsError(
                f"The topic {topic.name} currently has {present} partition(s); {partition_count} "
                "would not be an increase."
            )
        self._check_count(partition_count)
        self._check_total(partition_count - present)

    def add_partitions(self, topic: Topic, partition_count: int) -> None:
        """Raise the number of a topic's partitions to `partition_count`.

        Raises:
            InvalidPartitionsError, PolicyError: the count does not grow, or a limit forbids it.
            RequestError: the disk is full.
        """
        self.check_add_partitions(topic, partition_count)
        self._store.add_partitions(topic, partition_count)
        self._log_change("extended", topic, logging.INFO)

    def replace_settings(self, topic: Topic, settings: Mapping[str, str]) -> None:
        """Give a topic other settings, all of them, checked by the caller.

        Raises:
            RequestError: the disk is full.
        """
        if topic.settings != settings:
            self._store.replace_settings(topic, settings)
            self._log_change("configured", topic)

    def delete_records(self, topic: Topic, offsets: Mapping[int, int]) -> None:
        """Delete the records below an offset of each partition, all or none.

        Args:
            topic: the topic.
            offsets: by partition, each at most the visible offset. Deleted records stay deleted.

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
            self._log_change("trimmed", topic)

    def _log_change(self, what: str, topic: Topic, level: int = logging.DEBUG) -> None:
        if level == logging.DEBUG and not self._is_debug:
            return
        settings = " ".join(f"{key}={value}" for key, value in sorted(topic.settings.items()))
        text = "topic %s name=%s id=%s partitions=%d settings=%s"
        facts = what, quoted(topic.name), topic.uuid, len(topic.partitions), quoted(settings)
        if self._is_debug:
            _log.log(level, text, *facts)
        else:
            self._lines.write(_log, level, ("changed topic", ANYBODY), text, *facts)

    def _check_count(self, partition_count: int) -> None:
        limit = self._config.partition_count_max_per_topic
        allowed = f"use 1 to {limit} (topics.partition_count_max_per_topic)"
        if partition_count < 1:
            raise InvalidPartitionsError(
                "Number of partitions was set to an invalid non-positive value. "
                f"{partition_count} is out of range: {allowed}"
            )
        if partition_count > limit:
            raise InvalidPartitionsError(
                "Excessively large number of partitions per request. "
                f"{partition_count} is out of range: {allowed}"
            )

    def _check_total(self, added: int) -> None:
        present, limit = self._store.partition_total, self._config.partition_total_max
        if present + added > limit:
            raise PolicyError(
                f"there are {present} partitions; {added} more would exceed "
                f"topics.partition_total_max = {limit}"
            )
