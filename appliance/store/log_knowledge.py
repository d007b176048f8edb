"""What a replay learns too late, so that it has to begin again: verdicts, and topics.

A verdict stands behind what it judges, and a topic whose first frame was lost is told of again by a
later segment. Both are rare, and a replay that meets neither runs once. Layer 2; does no I/O.
"""

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Final
from uuid import UUID

from _core.layout import KIND_TOPIC
from _core.log_scan import LogScan
from appliance.store.control_frames import (
    TOPIC_DECLARED,
    TOPIC_DELETED,
    Ranges,
    TopicFrame,
    decode_topic,
    encode_topic,
)
from appliance.store.state import State

Control = Callable[[int, int, bytes, int], None]
"""(kind, topic id, payload, epoch)"""

RECOVERED_NAME: Final = "recovered-topic-{topic_id}"
"""Of a topic whose every frame was lost, and of which there are records."""

_NEW_PARTITION: Final = (0, 0, -1)


class LogKnowledge:
    """What is known of a log beside its frames in their order.

    Attributes:
        verdicts: what earlier starts judged lost, as (from, to), ascending.
        recovered: ids of topics that are served though the frame that made them was lost.
        epoch: the newest one that the checkpoint tells of, -1 for none.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.verdicts: Ranges = ()
        self._topics: dict[int, bytes | None] = {}
        self._late: dict[int, bytes] = {}
        self._scanned: LogScan | None = None

    @property
    def recovered(self) -> list[int]:
        """Ids of topics that are served though a frame that told of them was lost."""
        return sorted(topic_id for topic_id, each in self._topics.items() if each is not None)

    def topics(self) -> dict[int, bytes | None]:
        """See `LogScan`; the scan takes out what it uses."""
        return dict(self._topics)

    def listen(self, control: Control) -> Control:
        """Let `control` have all frames, and remember topic frames that come late."""
        self._late = {}

        def heard(kind: int, topic_id: int, payload: bytes, epoch: int) -> None:
            if kind == KIND_TOPIC:
                self._late[topic_id] = payload
            control(kind, topic_id, payload, epoch)

        return heard

    def learn(self, scan: LogScan, state: State) -> bool:
        """Whether a replay has to begin again, with what it has learned.

        Args:
            scan: the replay, at its end.
            state: what followed from it.
        """
        if scan.newer_version:
            return False
        has_more = False
        unknown = [each for each in state.verdicts if not is_covered(each, scan.lost_ranges)]
        if unknown and not set(unknown) <= set(self.verdicts):
            self.verdicts = tuple(sorted({*self.verdicts, *unknown, *state.verdicts}))
            has_more = True
        for topic_id, partition in scan.unknown.items():
            if topic_id not in self._topics:
                self._topics[topic_id] = self._describe(topic_id, partition + 1, state)
                has_more = True
        return has_more

    def _describe(self, topic_id: int, partition_count: int, state: State) -> bytes | None:
        """The payload of the topic frame that was lost, as far as others tell."""
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
    """Whether a part of the log lies in one of these ranges as a whole."""
    return any(start <= part[0] and part[1] <= end for start, end in ranges)
