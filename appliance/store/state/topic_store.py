"""Topics: replays topic frames, and appends them.

A topic frame describes its whole topic: the settings, and the start offset and next offset of every
partition. So each change is one frame, which a crash leaves complete or not at all, and the topic
frame in a later segment includes all changes before it. Layer 2.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final
from uuid import UUID

from _core.log.tail import ROOM_CONTROL, ROOM_RECORDS
from _core.queue.partition import Topic
from _core.state.projections import Projections
from appliance.store.state.change_positions import ChangePositions
from appliance.store.state.control_frames import (
    TOPIC_DECLARED,
    TOPIC_DELETED,
    TopicFrame,
    decode_topic,
    encode_topic,
)
from appliance.store.state.log_calls import LogCalls

_NEW_PARTITION: Final = (0, 0, -1)


class TopicStore:
    """Changes topics in the log and in the projections, and replays such changes.

    Attributes:
        partition_total: number of partitions of all topics.
        next_topic_id: greater than the id of every topic that ever existed.
        changes: where the log ended after the last change of a topic.
    """

    def __init__(
        self,
        projections: Projections,
        log: LogCalls,
        *,
        configure: Callable[[Topic], None],
        removed: Callable[[Topic], None],
    ) -> None:
        """Start without topics.

        Args:
            projections: hold the topics.
            log: appends the topic frames.
            configure: applies a topic's settings to it.
            removed: called with a topic that was deleted.
        """
        self._projections = projections
        self._log = log
        self._configure = configure
        self._removed = removed
        self.next_topic_id = 1
        self.changes = ChangePositions(log.flushed_pos)
        self.partition_total = 0

    @property
    def topic_count(self) -> int:
        """The number of topics."""
        return len(self._projections.topics_by_id)

    def find(self, name: str) -> Topic | None:
        """The topic of that name."""
        return self._projections.topics_by_name.get(name.encode("utf-8", "surrogateescape"))

    # Changes: durable after the next flush

    def create(self, name: str, partition_count: int, settings: Mapping[str, str]) -> Topic:
        """Make a topic; the caller has checked name and settings.

        Raises:
            RequestError: the disk is full.
        """
        uuid = UUID(bytes=secrets.token_bytes(16), version=4)
        frame = TopicFrame(
            TOPIC_DECLARED, name, uuid, (_NEW_PARTITION,) * partition_count, dict(settings)
        )
        topic_id = self.next_topic_id
        self._write(topic_id, frame, ROOM_RECORDS)
        return self._projections.topics_by_id[topic_id]

    def delete(self, topic: Topic) -> None:
        """Delete a topic with its records and timers; on a full disk, use the reserve.

        Raises:
            RequestError: the disk is full and the reserve is used up.
        """
        frame = TopicFrame(TOPIC_DELETED, topic.name, topic.uuid, (), {})
        self._log.append_topic(encode_topic(frame), topic.topic_id)
        self._apply(topic.topic_id, frame)
        self._log.end()
        self.changes.note(topic.name, self._log.end_pos())

    def add_partitions(self, topic: Topic, partition_count: int) -> None:
        """Add empty partitions to a topic, so that it has `partition_count`.

        Raises:
            RequestError: the disk is full.
        """
        present = self._describe(topic)
        added = partition_count - len(present.partitions)
        assert added > 0
        partitions = (*present.partitions, *(_NEW_PARTITION,) * added)
        self._write(topic.topic_id, replace(present, partitions=partitions), ROOM_RECORDS)

    def replace_settings(self, topic: Topic, settings: Mapping[str, str]) -> None:
        """Replace a topic's settings; the new ones apply to every record from now on.

        On a full disk, use the reserve.

        Raises:
            RequestError: the disk is full.
        """
        frame = replace(self._describe(topic), settings=dict(settings))
        self._write(topic.topic_id, frame, ROOM_CONTROL)

    def raise_starts(self, topic: Topic, starts: Mapping[int, int]) -> None:
        """Make records unreadable; they stay in the log. On a full disk, use the reserve.

        Args:
            topic: the topic.
            starts: by partition: the first offset that can still be fetched; it is visible, or
                the one after the last visible offset.

        Raises:
            RequestError: the disk is full.
        """
        present = self._describe(topic)
        partitions = list(present.partitions)
        for index, start in starts.items():
            assert start <= topic.partitions[index].visible_offset
            partitions[index] = max(start, partitions[index][0]), *partitions[index][1:]
        frame = replace(present, partitions=tuple(partitions))
        self._write(topic.topic_id, frame, ROOM_CONTROL)

    def _write(self, topic_id: int, frame: TopicFrame, room: int) -> None:
        payload = encode_topic(frame)
        self._log.check_room(len(payload), room)
        segment_end = self._log.append_topic(payload, topic_id)
        self._apply(topic_id, frame)
        self._projections.topics_by_id[topic_id].declared_in = segment_end
        self._log.end()
        self.changes.note(frame.name, self._log.end_pos())

    # Checkpoints

    def capture(self) -> list[tuple[int, str, UUID, tuple[tuple[str, str], ...]]]:
        """Return id, name, uuid and settings of every topic, oldest first."""
        return [
            (topic.topic_id, topic.name, topic.uuid, tuple(topic.settings.items()))
            for topic in self._projections.topics_by_id.values()
        ]

    def restore(self, topic_id: int, payload: bytes, partition_count: int) -> Topic:
        """Restore a topic from a state snapshot; the caller restores its partitions.

        Args:
            topic_id: its id.
            payload: of a topic frame without partitions.
            partition_count: number of its partitions.

        Raises:
            CorruptionError: the payload is not valid.
        """
        self._apply(topic_id, decode_topic(payload), [_NEW_PARTITION] * partition_count)
        return self._projections.topics_by_id[topic_id]

    def restore_next_topic_id(self, topic_id: int) -> None:
        """Never allocate ids below `topic_id` again, including those of deleted topics."""
        self.next_topic_id = max(self.next_topic_id, topic_id)

    # Frames

    def payload(self, topic: Topic) -> bytes:
        """Return the payload of the topic frame at the start of a segment."""
        return encode_topic(self._describe(topic))

    def _describe(self, topic: Topic) -> TopicFrame:
        partitions = tuple((p.start_offset, p.next_offset, p.running_max) for p in topic.partitions)
        return TopicFrame(TOPIC_DECLARED, topic.name, topic.uuid, partitions, dict(topic.settings))

    def replay(self, topic_id: int, payload: bytes) -> None:
        """Apply a topic frame of the log.

        Raises:
            CorruptionError: the payload is not valid.
        """
        self._apply(topic_id, decode_topic(payload))

    def _apply(
        self,
        topic_id: int,
        frame: TopicFrame,
        partitions: list[tuple[int, int, int]] | None = None,
    ) -> None:
        known = self._projections.topics_by_id.get(topic_id)
        self.next_topic_id = max(self.next_topic_id, topic_id + 1)
        if frame.op == TOPIC_DELETED:
            if known is not None:
                self._remove(known)
            return
        namesake = self.find(frame.name)
        if namesake is not None and namesake is not known:
            self._remove(namesake)  # the frame that deleted it was lost
        topic = known or Topic(frame.name, frame.uuid, topic_id, {})
        topic.settings.clear()
        topic.settings.update(frame.settings)
        self._configure(topic)
        self.partition_total -= len(topic.partitions)
        self._projections.add_topic(
            topic, list(frame.partitions) if partitions is None else partitions
        )
        self.partition_total += len(topic.partitions)

    def _remove(self, topic: Topic) -> None:
        self.partition_total -= len(topic.partitions)
        self._projections.remove_topic(topic)
        self._removed(topic)
