"""Verdicts and topics that a replay finds too late, so that it must run again.

A verdict comes after the part of the log that it declares lost, and a topic whose first frame was
lost is declared again in a later segment. Both are rare; a replay that finds neither runs once.
Layer 2; does no I/O.
"""

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Final
from uuid import UUID

from _core.bytes.layout import KIND_TOPIC
from _core.state.scan import LogScan
from appliance.store.state.control_frames import (
    TOPIC_DECLARED,
    TOPIC_DELETED,
    Ranges,
    TopicFrame,
    decode_topic,
    encode_topic,
)
from appliance.store.state.state import State

Control = Callable[[int, int, bytes, int], None]
"""(kind, topic id, payload, epoch)"""

RECOVERED_NAME: Final = "recovered-topic-{topic_id}"
"""The name of a topic that has records, but whose topic frames are all lost."""

_NEW_PARTITION: Final = (0, 0, -1)


class LogKnowledge:
    """What is known about a log before its frames are replayed in order.

    Attributes:
        verdicts: ranges that earlier starts declared lost, as (from, to), ascending.
        recovered: ids of topics that are served although the frame that created them is lost.
        epoch: the newest epoch in the checkpoint, -1 for none.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.verdicts: Ranges = ()
        self._topics: dict[int, bytes | None] = {}
        self._late: dict[int, bytes] = {}

    @property
    def recovered(self) -> list[int]:
        """Ids of topics that are served although the frame that created them is lost, sorted."""
        return sorted(topic_id for topic_id, each in self._topics.items() if each is not None)

    def topics(self) -> dict[int, bytes | None]:
        """See `LogScan`; the scan removes the entries that it uses."""
        return dict(self._topics)

    def listen(self, control: Control) -> Control:
        """Return a function that records topic frames and passes all frames to `control`."""
        self._late = {}

        def record(kind: int, topic_id: int, payload: bytes, epoch: int) -> None:
            if kind == KIND_TOPIC:
                self._late[topic_id] = payload
            control(kind, topic_id, payload, epoch)

        return record

    def learn(self, scan: LogScan, state: State, *, start: int) -> bool:
        """Record what a replay found too late; return whether it must run again.

        Args:
            scan: the completed replay.
            state: the state after it.
            start: where the log begins; a verdict on what was freed changes nothing.
        """
        if scan.newer_version:
            return False
        has_more = False
        verdicts = [(max(begin, start), end) for begin, end in state.verdicts if end > start]
        unknown = [each for each in verdicts if not is_covered(each, scan.lost_ranges)]
        if unknown and not set(unknown) <= set(self.verdicts):
            self.verdicts = tuple(sorted({*self.verdicts, *verdicts}))
            has_more = True
        for topic_id, partition in scan.unknown.items():
            if topic_id not in self._topics:
                self._topics[topic_id] = self._describe(topic_id, partition + 1, state)
                has_more = True
        return has_more

    def _describe(self, topic_id: int, partition_count: int, state: State) -> bytes | None:
        """Rebuild the payload of a lost topic frame; None if the topic is deleted."""
        found = self._late.get(topic_id)
        known = state.projections.topics_by_id.get(topic_id)
        if found is not None:
            frame = decode_topic(found)
        elif known is not None:
            frame = decode_topic(state.topics.payload(known))
        else:
            name = RECOVERED_NAME.format(topic_id=topic_id)
            uuid = UUID(bytes=secrets.token_bytes(16), version=4)
            frame = TopicFrame(TOPIC_DECLARED, name, uuid, (), {})
        if frame.op == TOPIC_DELETED:
            return None
        count = max(partition_count, len(frame.partitions))
        return encode_topic(replace(frame, partitions=(_NEW_PARTITION,) * count))


def is_covered(part: tuple[int, int], ranges: list[tuple[int, int]]) -> bool:
    """Return whether a part of the log is entirely in one of these ranges."""
    return any(start <= part[0] and part[1] <= end for start, end in ranges)
