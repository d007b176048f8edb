"""All state derived from the log, in memory: how it is restored, and how it is captured.

`apply_control` applies a replayed control frame. `restore` loads a state snapshot, a slice at a
time, before the replay; `Capture` collects the content of the next one, also a slice at a time,
while the broker serves. Layer 2; does no I/O.
"""

import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from _core.bytes.layout import (
    KIND_CARRY,
    KIND_EPOCH,
    KIND_GROUP,
    KIND_GROUP_DELTA,
    KIND_HEAD,
    KIND_OFFSET,
    KIND_PRODUCER,
    KIND_STAGES,
    KIND_TOPIC,
    KIND_VERDICT,
)
from _core.queue.partition import Topic
from _core.state.partition_rows import kept_rows, partition_rows, pending_rows
from _core.state.projections import Projections
from _core.state.run_loader import RunLoader
from appliance.config.config import Config
from appliance.store.log.commit_log import RESERVE_FRACTION
from appliance.store.state import control_frames, group_deltas, group_frames, snapshot
from appliance.store.state.age_clock import SavedAge
from appliance.store.state.carry_frames import (
    VALUE_IDS,
    VALUE_LEVELS,
    decode_carry,
    decode_ids,
    decode_levels,
)
from appliance.store.state.control_frames import (
    NONE_STOPPED,
    TOPIC_DECLARED,
    EpochFrame,
    Floors,
    HeadFrame,
    TopicFrame,
)
from appliance.store.state.epoch_starts import EpochStarts
from appliance.store.state.expiry import Expiry
from appliance.store.state.group_store import GroupStore
from appliance.store.state.id_key import id_key
from appliance.store.state.log_ages import LogAges, SizeMarks
from appliance.store.state.log_calls import LogCalls
from appliance.store.state.offset_expiry import OffsetExpiry
from appliance.store.state.sequences import decode_sequences
from appliance.store.state.snapshot import (
    KEPT_BYTES,
    PARTITION,
    VALUE_SEQUENCES,
    VALUE_SIZE_MARKS,
    ControlState,
    KnownDamage,
    encode_value,
)
from appliance.store.state.topic_store import TopicStore

VALUES_PER_SLICE: Final = 256
"""Values of a state snapshot restored between two turns of the loop: about two milliseconds."""

_NO_LIMIT: Final = (1 << 63) - 1

ENTRIES_PER_SLICE: Final = 512
"""Topics, groups or committed offsets encoded in one slice: about a millisecond."""

PARTITIONS_PER_SLICE: Final = 256
"""Partitions whose producers or size marks are encoded in one slice."""


UnitRuns = dict[tuple[int, int], list[Any]]
"""Runs of offsets without units, by topic id and partition."""


class State:
    """Topics, offsets, groups, producers, timers, ids, epochs.

    Attributes:
        log: the functions by which the parts append.
        node: which node of a pair writes the log: 1 or 2, 0 if there is no pair.
        cluster: the id of the cluster that the log belongs to.
        salt: a random number in the header of every frame, which clients never see.
        verdicts: ranges that the log declares lost for good, as (from, to), ascending.
        next_producer_id, producer_id_limit: ids in this range may be allocated; the limit is in
            the log.
        projections, topics, groups, epochs, offset_expiry, ages, sizes: the parts.
        expiry: what is old enough to expire; None while a log is replayed.
    """

    def __init__(
        self,
        config: Config,
        log: LogCalls,
        *,
        configure: Callable[[Topic], None],
        removed: Callable[[Topic], None],
        new_projections: type[Projections] = Projections,
    ) -> None:
        """Start empty.

        Args:
            config: settings.
            log: the functions by which the parts append.
            configure: applies a topic's settings to it.
            removed: called with a topic that was deleted.
            new_projections: makes the projections that frames are applied to.
        """
        self.log = log
        self.node = 0
        self.cluster = UUID(bytes=secrets.token_bytes(16), version=4)
        self.salt = 0
        self.verdicts: control_frames.Ranges = ()
        self.next_producer_id = 0
        self.producer_id_limit = 0
        self.settings = ""
        """The part of the configuration that the state depends on: nothing at present."""
        self.epochs = EpochStarts()
        self.groups = GroupStore(
            log,
            payload_size_max=config.segment_size_bytes // 2,
            reserve_bytes=config.segment_size_bytes // RESERVE_FRACTION // 2,
            offsets_size_max=config.offset_total_size_max_bytes,
        )
        self.offset_expiry = OffsetExpiry(self.groups, retention_ms=config.offset_retention_ms)
        self.projections = new_projections(
            id_key=secrets.token_bytes(16),
        )
        self.lost: list[tuple[int, int]] = []
        """(from, to) of parts of the log whose timers are unknown."""
        self.damage: list[KnownDamage] = []
        """All known damage of the log, found by recovery or later."""
        self.ages = LogAges()
        self.sizes = SizeMarks()
        self.stopped_stages = NONE_STOPPED
        self.saved_age: SavedAge | None = None
        """What the state snapshot said; `expiry` continues from there."""
        self.expiry: Expiry | None = None
        self._removed = removed
        self.topics = TopicStore(
            self.projections, log, configure=configure, removed=self._forget_topic
        )

    def _forget_topic(self, topic: Topic) -> None:
        self.groups.forget_topic(topic.topic_id, len(topic.partitions))
        self._removed(topic)

    def apply_control(self, kind: int, topic_id: int, payload: bytes, epoch: int) -> None:
        """Replay a frame of control state.

        Raises:
            CorruptionError: its payload is not valid for its kind.
        """
        if kind == KIND_TOPIC:
            self.topics.replay(topic_id, payload)
            if topic_id not in self.projections.topics_by_id:
                # What declared it may be freed, but not the commits before its deletion.
                self.groups.forget_topic(topic_id, 0)
        elif kind == KIND_PRODUCER:
            self._raise_producer_id(control_frames.decode_producer(payload))
        elif kind == KIND_HEAD:
            head = control_frames.decode_head(payload)
            self.cluster, self.salt = head.cluster, head.salt
            self._set_id_key()
            self.raise_floors(head.floors)
            self.add_verdicts(head.lost)
        elif kind == KIND_VERDICT:
            verdict = control_frames.decode_verdict(payload)
            self.raise_floors(verdict.floors)
            self.groups.raise_generations(verdict.generation_jump)
            self.add_verdicts(verdict.lost)
        elif kind == KIND_EPOCH:
            frame = control_frames.decode_epoch(payload)
            self.epochs.add(frame.epoch, frame.start_pos)
            self.cluster = frame.cluster
        elif kind == KIND_OFFSET:
            self.groups.apply_offsets(group_frames.decode_offsets(payload))
        elif kind == KIND_GROUP:
            self.groups.apply_group(group_frames.decode_group(payload))
        elif kind == KIND_GROUP_DELTA:
            self.groups.apply_delta(group_deltas.decode_delta(payload))
        elif kind == KIND_CARRY:
            self._apply_carry(payload, epoch)
        elif kind == KIND_STAGES:
            self.stopped_stages = control_frames.decode_stages(payload)
        else:
            # A frame of an unknown kind ends the scan before it gets here.
            raise AssertionError(f"a control frame of kind {kind}")

    def begin_log(self, salt: int) -> None:
        """Set the salt of a log that begins."""
        self.salt = salt
        self._set_id_key()

    def _set_id_key(self) -> None:
        """Hash ids as the carry frames of this log do, unless some are hashed otherwise.

        That happens if the first head of the log is damaged: carried ids are then unknown.
        """
        if self.projections.ids.count == 0:
            self.projections.set_id_key(id_key(self.cluster, self.salt))

    def _apply_carry(self, payload: bytes, epoch: int) -> None:
        for value in decode_carry(payload):
            if value.kind == VALUE_LEVELS:
                self.projections.levels.restore(decode_levels(value.payload))
            elif value.kind == VALUE_IDS:
                RunLoader(self.projections).carry_ids(decode_ids(value.payload))
            elif value.kind == VALUE_SEQUENCES:
                # Damage may have taken its topic, or some of its partitions.
                topic = self.projections.topics_by_id.get(value.topic_id)
                index, _ = decode_sequences(value.payload)
                if topic is not None and index < len(topic.partitions):
                    partition = topic.partitions[index]
                    partition.restore_producers(value.payload, self.projections.applied_pos)
            else:
                self.apply_control(value.kind, value.topic_id, value.payload, epoch)

    @property
    def age(self) -> SavedAge | None:
        """The age to save; None if there is none that is certain. A slave's log does not age."""
        return self.saved_age if self.expiry is None else self.expiry.age_clock.saved

    # Floors and verdicts

    @property
    def floors(self) -> Floors:
        """The values at which the allocators continue."""
        return Floors(
            producer_id=self.producer_id_limit,
            topic_id=self.topics.next_topic_id,
            generation=self.groups.generation_floor,
        )

    def raise_floors(self, floors: Floors) -> None:
        """Make the allocators continue at these values or above."""
        self._raise_producer_id(floors.producer_id)
        self.topics.restore_next_topic_id(floors.topic_id)
        self.groups.generation_floor = max(self.groups.generation_floor, floors.generation)

    def _raise_producer_id(self, producer_id: int) -> None:
        self.producer_id_limit = max(self.producer_id_limit, producer_id)
        self.next_producer_id = self.producer_id_limit

    def add_verdicts(self, ranges: control_frames.Ranges) -> None:
        """Note parts of the log that are declared lost for good."""
        self.verdicts = tuple(sorted({*self.verdicts, *ranges}))

    def head(self) -> HeadFrame:
        """Return the content of the head frame of the next segment."""
        return HeadFrame(
            cluster=self.cluster,
            salt=self.salt,
            node=self.node,
            floors=self.floors,
            lost=self.verdicts,
        )

    # Restore from a state snapshot

    def restore(self, control: ControlState) -> Iterator[None]:
        """Load a state snapshot, except for timers and ids; yield between slices.

        Raises:
            CorruptionError: its content is invalid; discard this state.
        """
        self.projections.set_id_key(control.id_key)
        self.projections.ids.forget_below(control.forget_pos)
        self.stopped_stages = control.stopped_stages
        rows: dict[int, list[tuple[int, ...]]] = {}
        for topic_id, _, *row in PARTITION.iter_unpack(control.partitions):
            rows.setdefault(topic_id, []).append(tuple(row))
        runs: UnitRuns = {}
        for topic_id, index, *run in control.unit_runs:
            runs.setdefault((topic_id, index), []).append(tuple(run))
        carried: UnitRuns = {}
        for topic_id, index, *run in control.carried_parts:
            carried.setdefault((topic_id, index), []).append(tuple(run))
        kept: dict[tuple[int, int], int] = {}
        for topic_id, index, size in KEPT_BYTES.iter_unpack(control.kept_bytes or b""):
            kept[topic_id, index] = size
        unknown = 0 if control.kept_bytes is not None else -1
        for number, value in enumerate(control.values, 1):
            if value.kind == KIND_TOPIC:
                topic_rows = rows.get(value.topic_id, [])
                topic = self.topics.restore(value.topic_id, value.payload, len(topic_rows))
                for partition, saved in zip(topic.partitions, topic_rows, strict=True):
                    key = value.topic_id, partition.index
                    start, following, running_max, log_bytes = saved
                    partition.restore(
                        start_offset=start,
                        next_offset=following,
                        running_max=running_max,
                        log_bytes=log_bytes,
                        runs=runs.get(key, ()),
                        carried=carried.get(key, ()),
                        kept_bytes=kept.get(key, unknown),
                        applied=control.applied,
                    )
            elif value.kind == VALUE_SEQUENCES:
                self._restore_producers(value.topic_id, value.payload, control.applied)
            elif value.kind == VALUE_SIZE_MARKS:
                self.sizes.restore(snapshot.decode_size_marks(value.payload))
            else:
                self.apply_control(value.kind, value.topic_id, value.payload, control.epoch)
            if number % VALUES_PER_SLICE == 0:
                yield
        # The log behind a saved state is short, and whoever is new there was admitted: a lower
        # limit forgets nobody who may still send again.
        self.projections.producers.count_max = _NO_LIMIT
        for payload in control.epochs:
            self.apply_control(KIND_EPOCH, 0, payload, control.epoch)
        self.cluster, self.salt = control.cluster, control.salt
        self.raise_floors(
            Floors(
                producer_id=control.next_producer_id,
                topic_id=control.next_topic_id,
                generation=control.generation_floor,
            )
        )
        self.verdicts = control.lost
        self.saved_age = control.age
        # Without the age that belongs to them, the marks say nothing.
        if control.age is not None:
            self.ages = LogAges(control.age_marks, control.doubtful_marks)
        self.projections.restore_totals(control.totals)

    def _restore_producers(self, topic_id: int, payload: bytes, applied: int) -> None:
        topic = self.projections.topics_by_id[topic_id]
        partition = topic.partitions[int.from_bytes(payload[:4], "big")]
        partition.restore_producers(payload, applied)


class Capture:
    """The control state at the time of construction, encoded incrementally while the broker runs.

    Made at the end of a turn, when memory and log agree.

    Attributes:
        values: those encoded so far, of the kinds that may be numerous.
    """

    def __init__(self, state: State, control: ControlState) -> None:
        """Copy whatever may change; O(topics + partitions + groups), a few milliseconds at most.

        Args:
            state: the state to capture.
            control: number, position and last frame; everything else except `runs` is set here.
        """
        self._state = state
        projections = state.projections
        self.control = replace(
            control,
            next_producer_id=state.producer_id_limit,
            next_topic_id=state.topics.next_topic_id,
            generation_floor=state.groups.generation_floor,
            cluster=state.cluster,
            salt=state.salt,
            settings=state.settings,
            id_key=projections.id_key,
            totals=projections.totals,
            level_offsets=projections.levels.all(),
            epochs=tuple(
                control_frames.encode_epoch(EpochFrame(epoch, pos, state.cluster))
                for epoch, pos in state.epochs.all()
            ),
            partitions=partition_rows(projections),
            unit_runs=tuple(_unit_runs(projections)),
            kept_bytes=kept_rows(projections),
            carried_parts=tuple(_carried_parts(projections)),
            pending=pending_rows(projections),
            due_minutes=projections.due.wheels.save(),
            age=state.age,
            forget_pos=projections.ids.forget_pos,
            age_marks=tuple(state.ages.certain()),
            doubtful_marks=tuple(state.ages.doubtful()),
            stopped_stages=state.stopped_stages,
        )
        projections.captured.begin(projections.partitions)
        self._groups, self._offsets = state.groups.begin_capture()
        self._topics = state.topics.capture()
        self._sizes = state.sizes.capture()
        self.values: list[bytes] = []
        self._steps = self._run()

    def step(self) -> bool:
        """Encode a slice in a millisecond or two; return True when all is done."""
        return next(self._steps, None) is None

    def abandon(self) -> None:
        """Discard the capture."""
        self._steps.close()
        self._state.groups.end_capture()
        self._state.projections.captured.take()

    def _run(self) -> Generator[bool, None, None]:
        for start in range(0, len(self._topics), ENTRIES_PER_SLICE):
            for topic_id, name, uuid, settings in self._topics[start : start + ENTRIES_PER_SLICE]:
                frame = TopicFrame(TOPIC_DECLARED, name, uuid, (), dict(settings))
                payload = control_frames.encode_topic(frame)
                self.values.append(encode_value(KIND_TOPIC, payload, topic_id))
            yield True
        yield from self._encode_groups()
        yield from self._encode_offsets()
        for start in range(0, len(self._sizes), PARTITIONS_PER_SLICE):
            part = self._sizes[start : start + PARTITIONS_PER_SLICE]
            self.values.append(snapshot.encode_size_marks(part))
            yield True
        self._state.groups.end_capture()
        while not self._state.projections.captured.collect(PARTITIONS_PER_SLICE):
            yield True
        self.values += [
            encode_value(VALUE_SEQUENCES, payload, topic_id)
            for topic_id, payload in self._state.projections.captured.take()
        ]

    def _encode_groups(self) -> Iterator[bool]:
        size = 0
        for group in self._groups:
            payload = group_frames.encode_group(group)
            self.values.append(encode_value(KIND_GROUP, payload))
            # One member costs about as much as one offset.
            size += 1 + len(group.members)
            if size >= ENTRIES_PER_SLICE:
                size = 0
                yield True

    def _encode_offsets(self) -> Iterator[bool]:
        encoded: list[bytes] = []
        for offsets in self._offsets:
            for entry in offsets.values():
                encoded.append(group_frames.encode_offset(entry))
                if len(encoded) >= ENTRIES_PER_SLICE:
                    self._add_offsets(encoded)
                    encoded = []
                    yield True
        self._add_offsets(encoded)

    def _add_offsets(self, encoded: list[bytes]) -> None:
        if encoded:
            payload = group_frames.join_offsets(encoded)
            self.values.append(encode_value(KIND_OFFSET, payload))


def _unit_runs(projections: Projections) -> Iterator[tuple[int, ...]]:
    """UNIT_RUN of every run of offsets that can still be fetched."""
    for topic in projections.topics_by_id.values():
        for partition in topic.partitions:
            if partition.runs.count:
                start, stop = partition.start_offset, partition.next_offset
                for run in partition.runs.overlapping(start, stop):
                    yield topic.topic_id, partition.index, *run


def _carried_parts(projections: Projections) -> Iterator[tuple[int, ...]]:
    """CARRIED_PART of every part of carried records that can still be fetched."""
    for topic in projections.topics_by_id.values():
        for partition in topic.partitions:
            if partition.carried_end:
                for part in partition.carried_parts():
                    yield topic.topic_id, partition.index, *part


def encode_control(control: ControlState, values: Sequence[bytes]) -> list[bytes]:
    """Return the parts of a state snapshot, in order."""
    return [
        snapshot.encode_head(control),
        snapshot.encode_small_values(control),
        *values,
    ]
