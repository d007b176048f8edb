"""Random logs of timers and ids, frame by frame, and the result of replaying them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from _core.bytes.layout import COMPLETION_DUE_FINAL, COMPLETION_FINAL
from _core.queue.partition import Topic
from _core.state.id_rows import named_timer
from _core.state.projections import Projections
from _core.state.scan import LogScan
from appliance.store.state import control_frames as control
from tests.support.compiled import timer_calls as calls
from tests.support.oracles import frames_model as model
from tests.support.simulator.virtual_clock import START_MS
from tests.support.values.scanned_log import reader, sizes

LEVEL_MS: Final = (1_000, 5_000, 10_000)
ID_KEY: Final = bytes(range(16))
IDS: Final = tuple(b"id-%d" % number for number in range(8))
PARTITIONS: Final = 3

TimerId = tuple[int, int]


@dataclass
class Pending:
    """A timer that is neither delivered nor cancelled."""

    topic_id: int
    partition: int
    due_ms: int
    user_id: bytes
    level: int = 0


@dataclass
class TimerHistory:
    """Writes a log such as a broker might write, with clocks that step back.

    Attributes:
        log: the log so far; it begins at position 0.
        ends: position after each frame.
        now_ms: store time of the next frame.
        says_due: whether frames say the due times of the timers that they complete; those of an
            older latermq do not.
        topics: ids of those that exist.
        pending: timers that wait.
    """

    rng: random.Random
    log: bytearray = field(default_factory=bytearray)
    ends: list[int] = field(default_factory=lambda: [0])
    now_ms: int = START_MS
    says_due: bool = True
    topics: list[int] = field(default_factory=list)
    pending: dict[TimerId, Pending] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._topic_count = 0
        self._named: dict[tuple[int, bytes], TimerId] = {}
        self._next_offsets: dict[tuple[int, int], int] = {}
        self._levels = [0] * (len(LEVEL_MS) + 1)
        self.create()

    def play(self, frames: int) -> None:
        """Write this many frames."""
        rng = self.rng
        for _ in range(frames):
            if rng.random() < 0.02:
                self.now_ms -= rng.randrange(3_000)  # someone sets the clock
            self.now_ms += rng.choice((0, 0, 1, 500))
            what = rng.random()
            if what < 0.02 and len(self.topics) < 6:
                self.create()
            elif what < 0.03 and len(self.topics) > 1:
                self.delete(rng.choice(self.topics))
            elif what < 0.45:
                self.deliver()
            elif what < 0.55:
                self.cancel()
            else:
                self.accept()

    def _add(self, frame: model.Frame) -> None:
        self.log += frame.encode()
        self.ends.append(len(self.log))

    def create(self) -> None:
        """Declare a topic."""
        self._topic_count += 1
        topic_id = self._topic_count
        self.topics.append(topic_id)
        partitions = ((0, 0, -1),) * PARTITIONS
        self._topic_frame(topic_id, control.TOPIC_DECLARED, partitions)

    def delete(self, topic_id: int) -> None:
        """Delete a topic with its timers."""
        self.topics.remove(topic_id)
        self._topic_frame(topic_id, control.TOPIC_DELETED, ())
        gone = [key for key, timer in self.pending.items() if timer.topic_id == topic_id]
        for key in gone:
            del self.pending[key]

    def _topic_frame(
        self, topic_id: int, op: int, partitions: tuple[tuple[int, int, int], ...]
    ) -> None:
        name = f"t{topic_id}"
        frame = control.TopicFrame(op, name, UUID(int=topic_id), partitions, {})
        self._add(
            model.control_frame(
                model.TOPIC,
                control.encode_topic(frame),
                position=len(self.log),
                topic_id=topic_id,
                store_time=self.now_ms,
            )
        )

    def _frame(self, kind: int, topic_id: int, partition: int) -> model.Frame:
        return model.Frame(
            kind=kind,
            position=len(self.log),
            topic_id=topic_id,
            partition=partition,
            store_time=self.now_ms,
        )

    def accept(self) -> None:
        """Accept one batch of timers and cancels, in any order."""
        rng = self.rng
        topic_id, partition = rng.choice(self.topics), rng.randrange(PARTITIONS)
        held, cancels = [], []
        index = 0
        for _ in range(rng.randrange(1, 7)):
            index += rng.randrange(1, 3)
            kind = rng.random()
            if kind < 0.2:
                cancels.append(self._cancel_entry(topic_id, index))
            else:
                held.append(self._held(topic_id, partition, index))
        frame = self._frame(model.ACCEPT, topic_id, partition)
        self._add(model.with_timers(frame, held, model.Batch(records=()), cancels))

    def _cancel_entry(self, topic_id: int, index: int) -> model.Cancel:
        user_id = self.rng.choice(IDS)
        known = self._named.pop((topic_id, user_id), None)
        if known is not None:
            self.pending.pop(known, None)
        if self.rng.random() < 0.5:
            return model.Cancel(index=index, kind=model.CANCEL_BY_HEADER, user_id=user_id)
        return model.Cancel(
            index=index, kind=model.CANCEL_BY_DELIVERY, user_id=user_id, due=self.now_ms
        )

    def _held(self, topic_id: int, partition: int, index: int) -> model.Held:
        rng = self.rng
        level = rng.choice((0, 0, 1, 2, 3))
        due_ms = self.now_ms + rng.choice((1, 700, 30_000, 10**10))
        level_offset = -1
        if level:
            due_ms = self.now_ms + LEVEL_MS[level - 1]
            level_offset = self._levels[level]
            self._levels[level] += 1
        user_id = rng.choice(IDS) if rng.random() < 0.5 else b""
        key = len(self.log), index
        if user_id:
            self.pending.pop(self._named.get((topic_id, user_id), (-1, -1)), None)
            self._named[topic_id, user_id] = key
        place = topic_id, partition
        target = 0, -1
        if not user_id and rng.random() < 0.3:
            target = place = rng.choice(self.topics), rng.randrange(PARTITIONS)
        self.pending[key] = Pending(*place, due_ms, user_id, level)
        return model.Held(
            index=index,
            due=due_ms,
            level=level,
            level_offset=level_offset,
            user_id=user_id,
            target_topic=target[0],
            target_partition=target[1],
            record=model.Record(timestamp=self.now_ms),
        )

    def deliver(self) -> None:
        """Deliver some due timers of a partition."""
        due = [item for item in self.pending.items() if item[1].due_ms <= self.now_ms]
        if not due:
            return
        first = self.rng.choice(due)[1]
        place = first.topic_id, first.partition
        group = [item for item in due if (item[1].topic_id, item[1].partition) == place]
        group.sort(key=lambda item: (item[1].due_ms, item[0]))
        group = group[: self.rng.randrange(1, 9)]
        base_offset = self._next_offsets.get(place, 0)
        self._next_offsets[place] = base_offset + len(group)
        records = tuple(model.Record(timestamp=self.now_ms) for _ in group)
        batch = model.Batch(records=records, base_offset=base_offset)
        self._complete(model.DELIVER, place, group, base_offset, batch)

    def cancel(self) -> None:
        """Cancel one named timer, as the admin API does."""
        named = [item for item in self.pending.items() if item[1].user_id]
        if named:
            item = self.rng.choice(named)
            place = item[1].topic_id, item[1].partition
            self._complete(model.CANCEL, place, [item], -1, model.Batch(records=()))

    def _complete(
        self,
        kind: int,
        place: tuple[int, int],
        group: Sequence[tuple[TimerId, Pending]],
        base_offset: int,
        batch: model.Batch,
    ) -> None:
        completed = [
            model.Completed(
                accept_pos=pos,
                index=index,
                user_id=timer.user_id,
                op=COMPLETION_DUE_FINAL if self.says_due else COMPLETION_FINAL,
                level=timer.level if self.says_due else 0,
                due=timer.due_ms if self.says_due else 0,
            )
            for (pos, index), timer in group
        ]
        for key, _ in group:
            del self.pending[key]
        frame = self._frame(kind, *place)
        self._add(
            replace(
                frame,
                base_offset=base_offset,
                record_count=len(batch.records),
                timer_count=len(completed),
                tables=model.completed_table(completed),
                visible=batch.encode(),
            )
        )


def new_projections(id_key: bytes = ID_KEY, *, forget_pos: int = 0) -> Projections:
    """Empty projections, which forget ids of timers completed below a log position."""
    projections = Projections(id_key=id_key)
    projections.ids.forget_below(forget_pos)
    return projections


def replay(projections: Projections, log: bytes, start: int, end: int) -> None:
    """Apply the frames from `start` to `end`, both ends of frames."""

    def apply_control(kind: int, topic_id: int, payload: bytes, _epoch: int) -> None:
        assert kind == model.TOPIC
        frame = control.decode_topic(payload)
        known = projections.topics_by_id.get(topic_id)
        if frame.op == control.TOPIC_DELETED:
            assert known is not None
            projections.remove_topic(known)
        else:
            topic = known or Topic(frame.name, frame.uuid, topic_id, {})
            projections.add_topic(topic, list(frame.partitions))

    if start == end:
        return
    segments = [(start, log[start:end])]
    scan = LogScan(projections, sizes(segments), reader(segments), apply_control)
    while not scan.step(1 << 40):
        pass
    assert (scan.pos, scan.damage, scan.tail_fault) == (end, [], None)


def copy_topics(of: Projections, to: Projections) -> None:
    """Copy the topics, as loading a state snapshot does."""
    for topic_id in sorted(of.topics_by_id, reverse=True):  # another order: other handles
        known = of.topics_by_id[topic_id]
        offsets = [(p.start_offset, p.next_offset, p.running_max) for p in known.partitions]
        to.add_topic(Topic(known.name, known.uuid, topic_id, {}), offsets)


def state_of(projections: Projections) -> dict[str, object]:
    """Everything known of timers and ids. It pops the timers."""
    places = {
        partition.handle: (topic_id, partition.index)
        for topic_id, topic in projections.topics_by_id.items()
        for partition in topic.partitions
    }
    ids = {}
    for topic_id, topic in projections.topics_by_id.items():
        for user_id in IDS:
            named_timer(projections, topic, user_id)  # reads a run if it must
            known = calls.find_id(projections.ids, topic_id, user_id)
            if known is not None:
                ids[topic_id, user_id] = (*known[:2], places[known[2]], *known[3:])
    due = projections.due
    return {
        "ids": ids,
        "pending": due.pending,
        "by partition": {place: due.pending_of(handle) for handle, place in places.items()},
        "levels": projections.levels.all(),
        "next due": due.next_due >= 0,
        "timers": [(*timer[:3], places[timer[3]]) for timer in calls.pop(due, 1 << 47, 1 << 20)],
    }
