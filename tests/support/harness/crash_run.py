"""A run of a broker beside its model, which a test inspects before each of its system calls.

`tests.support.harness.crash_check` checks what a crash at that moment may leave.
"""

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from appliance.config.config import Config
from appliance.errors import RequestError, StorageError
from appliance.store.runs.runs_merge import RunsMerge
from appliance.store.state.group_frames import (
    GROUP_DELETED,
    GROUP_SAVED,
    OFFSET_COMMITTED,
    OFFSET_DELETED,
    GroupFrame,
    OffsetEntry,
)
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import small_config
from tests.support.harness.crash_points import CrashPoints, ignore_call
from tests.support.harness.crash_requests import Create, Delete, Request, apply_to_model, send
from tests.support.oracles.broker_model import (
    REPLY_TOPIC,
    Batch,
    Intent,
    Model,
    Shown,
    visible_in,
)
from tests.support.simulator.sim_fs import CrashMode
from tests.support.simulator.virtual_clock import VirtualClock
from tests.support.values.group_changes import changed_group
from tests.support.values.kafka_records import Producer

IN_FLIGHT_MAX: Final = 5
"""As with Kafka clients: the broker remembers the answers to this many batches of a producer."""

ROUNDS: Final = 6
"""In a whole run."""

CHECKPOINT_SHARE: Final = 0.6
"""Of rounds that end with a checkpoint."""

USER_IDS: Final = tuple(b"id-%d" % number for number in range(6))


class Refused(Exception):
    """The disk is full: the broker refused a batch, or could not deliver."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known outside the broker at the moment of a crash.

    Attributes:
        models: the state after each requested change, from the first on.
        durable: index of the first model that a restart may find; the last is the end of `models`.
        unanswered: requests without an answer yet, which clients will repeat.
        asked: index in `models` of each unanswered request.
        now_ms: wall clock.
        epoch: of the broker that served until then, which must rise; -1 if none served.
    """

    models: list[Model]
    durable: int
    unanswered: tuple[Request, ...]
    asked: tuple[int, ...]
    now_ms: int
    epoch: int

    @property
    def key(self) -> tuple[object, ...]:
        """A key that is equal for moments of one run with equal knowledge."""
        return len(self.models), self.durable, self.asked, self.now_ms


@dataclass
class CrashRun:
    """Drives a broker and its model side by side."""

    rng: random.Random
    disk: CrashPoints = field(default_factory=CrashPoints)
    clock: VirtualClock = field(default_factory=VirtualClock)
    config: Config = field(default_factory=lambda: small_config(delivery_chunk_records=16))
    may_fail: bool = False
    """A call of the disk fails on purpose, so a checkpoint may fail."""

    def __post_init__(self) -> None:
        self.models = [Model(self.config.delay_levels)]
        self._durable = self._flushed = 0
        self._asked: dict[int, tuple[Request, int]] = {}
        self._cancelled: list[tuple[int, int]] = []
        self._sequences: dict[tuple[str, int], int] = {}
        self._producer_id = 7
        self._values = 0
        self._epoch = -1
        self._is_serving = False
        self._failed: StorageError | None = None
        self._merge: RunsMerge | None = None
        self._merges_beside = self.rng.random() < 0.5
        self.merge_count = 0
        self.harness: BrokerHarness

    def known(self, mode: CrashMode) -> Known:
        """What a check of this moment needs."""
        models, now_ms = self.models[:], self.clock.wall_ms()
        if self._is_lossy(mode):
            # A power cut loses what was answered, and nobody repeats an answered request.
            return Known(models, self._flushed, (), (), now_ms, self._epoch)
        durable = max(self._durable, self._shown())
        asked = tuple(self._asked.values())
        unanswered = tuple(request for request, _ in asked)
        indexes = tuple(index for _, index in asked)
        return Known(models, durable, unanswered, indexes, now_ms, self._epoch)

    def _is_lossy(self, mode: CrashMode) -> bool:
        return self.config.flush == "async" and mode not in ("killed", "kept")

    def _shown(self) -> int:
        """Index of the first model that has all records that may be fetched now."""
        if not self._is_serving:
            return 0
        shown = {
            (topic.name, partition.index): partition.visible_offset
            for topic in self.harness.broker.topics.all()
            for partition in topic.partitions
        }
        for index, model in enumerate(self.models[self._durable :], start=self._durable):
            visible = model.visible()
            if all(len(visible.get(place, ())) >= count for place, count in shown.items() if count):
                return index
        raise AssertionError(f"more is visible than was sent: {shown}")

    # Steps

    def start(self) -> None:
        """Start the broker; create "a" and "b", the topics of "g", and that of replies."""
        self._start()
        for name, count in (("a", 2), ("b", 1), ("g.retry", 2), ("g.dlq", 1), (REPLY_TOPIC, 1)):
            self.ask(Create(name, count))
        self.consume()

    def _start(self) -> None:
        self.harness = BrokerHarness(self.disk, self.clock, self.config)
        self._epoch = self.harness.broker.epoch
        self._merge, self._has_merged = None, False
        if self._merges_beside:
            self.harness.broker._store.runs.at_once_rows = 4
        self._is_serving = True

    def ask(self, request: Request) -> None:
        """Send a request; it is written, and flushed only if the log rolled to a new segment."""
        assert len(self._asked) < IN_FLIGHT_MAX
        self.models.append(self.models[-1].copy())
        # After a crash inside the call the change may be there.
        model = self.models[-1]
        apply_to_model(model, request, self.clock.wall_ms())
        # It counts as unanswered until its answer comes, also while it is being sent.
        self._asked[-1] = (request, len(self.models) - 1)
        refused_count = self.harness.refused_count
        number = send(self.harness, request)
        self._asked[number] = self._asked.pop(-1)
        if self.harness.refused_count > refused_count:
            del self.models[-1], self._asked[number]
            if isinstance(request, Batch) and request.producer is not None:
                # The next batch takes its place.
                self._sequences[request.topic, request.partition] = request.producer.sequence
            raise Refused
        self._take_answers()

    def cancel(self) -> None:
        """Cancel by name, as the admin API does; the next flush acknowledges it."""
        topic, user_id = self.rng.choice("ab"), self.rng.choice(USER_IDS)
        self.models.append(self.models[-1].copy())
        state = self.models[-1].cancel(topic, user_id)
        try:
            assert self.harness.cancel_timer(topic, user_id) == state
        except RequestError:
            del self.models[-1]
            raise Refused from None
        self._cancelled.append((self.harness.broker.wrote_pos, len(self.models) - 1))
        self._take_answers()

    def _take_answers(self) -> None:
        for number in self.harness.answers():
            if number in self._asked:  # else it was refused
                _, index = self._asked.pop(number)
                self._durable = max(self._durable, index)
        durable_pos = self.harness.durable_pos
        while self._cancelled and self._cancelled[0][0] <= durable_pos:
            self._durable = max(self._durable, self._cancelled.pop(0)[1])

    def flush(self) -> None:
        """Flush and receive the answers."""
        self.harness.flush()
        self._flushed = len(self.models) - 1
        self._take_answers()

    def slow_flush(self) -> None:
        """Flush while more is written, as when the sync runs on a thread."""
        log = self.harness.broker.log
        job, raising = log.begin_flush(), log.begin_raise()
        if job is None:
            return
        flushed = len(self.models) - 1
        self.ask(self.batch("a", 0, Intent(self.value(7_000))))
        job.run()
        if raising is not None:
            raising.run()
        self.ask(self.batch("a", 1, Intent(self.value(7_000))))
        if raising is not None:
            log.watermark.end_raise(raising)
        self.harness.broker.end_flush(job)
        self._flushed = flushed
        self._take_answers()

    def checkpoint(self) -> bool:
        """Save a checkpoint while requests arrive between its slices and its thread's calls.

        Returns:
            Whether it was saved; it must be unless a call failed.
        """
        checkpoints = self.harness.broker.checkpoints
        checkpoints.ask()
        self._go_on_merging()
        self.harness.broker.commit()
        while (job := checkpoints.step()) is None:
            if not checkpoints.is_capturing:
                return False
            self._do_something()
            if self.rng.random() < 0.5:
                self.flush()
            self.harness.broker.commit()
        self._go_on_merging()
        self._meet_after(self.rng.randrange(1, 12))
        try:
            job.run()
        finally:
            self.disk.meanwhile = None
        if self._failed is not None:
            raise self._failed
        self._go_on_merging()
        checkpoints.end(job)
        self._go_on_merging()
        return job.error is None

    def _go_on_merging(self) -> None:
        """Begin a merge, run it on its thread or note its end, as may happen at any time."""
        checkpoints = self.harness.broker.checkpoints
        if self._merge is None:
            self._merge = checkpoints.begin_merge()
        elif self.rng.random() < 0.3:
            return
        elif not self._has_merged:
            self._merge.run()
            self._has_merged = True
        else:
            checkpoints.end_merge(self._merge)
            self.merge_count += self._merge.made is not None
            self._merge, self._has_merged = None, False

    def _meet_after(self, call_count: int) -> None:
        """From now on let something happen, now and then, between the calls of a thread."""

        def tick() -> None:
            nonlocal call_count
            call_count -= 1
            if call_count == 0:
                call_count = self.rng.randrange(1, 12)
                try:
                    self._do_something()
                except Refused:
                    pass
                except StorageError as error:
                    self._failed = error  # the loop's error, not the thread's
                    return
            self.disk.meanwhile = tick

        self.disk.meanwhile = tick

    def _do_something(self) -> None:
        """Do one request, delivery or flush, as the event loop may while a thread runs."""
        match self.rng.randrange(6):
            case 0:
                self.flush()
            case 1 if self.models[-1].due_frames(self.clock.wall_ms(), 1):
                self.deliver()
            case _ if len(self._asked) == IN_FLIGHT_MAX:
                self.flush()
            case 2:
                self.cancel()
            case 3:
                self._use_group()
            case _:
                self.ask(self._random_batch())

    def idle(self) -> None:
        """Idle for a while: the checkpoint then says that all is durable."""
        mark = self.harness.broker.flushed_mark
        self.flush()
        for _ in range(2):
            job = mark.step()
            if job is not None:
                job.run()
                mark.end(job)
            self.clock.advance_ms(600)

    def consume(self) -> None:
        """Fetch everything: it must equal the model, and must survive from now on."""
        self.flush()
        assert visible_in(self.harness) == self.models[-1].visible()
        self._durable = len(self.models) - 1

    def peek(self) -> None:
        """Fetch without a flush: what was seen must survive nevertheless."""
        seen = visible_in(self.harness)
        models = self.models[self._durable :]
        shown = [number for number, model in enumerate(models) if model.visible() == seen]
        assert shown, differences(seen, self.known("kept"))
        self._durable += shown[0]

    def deliver(self) -> None:
        """Deliver one chunk of what is due."""
        path = self.harness.broker._deliver
        frames = self.models[-1].due_frames(
            self.clock.wall_ms(), self.config.delivery_chunk_records
        )
        for frame in frames:
            self.models.append(self.models[-1].copy())
            self.models[-1].apply(frame)
        passed_over_before = path.moved_count
        delivery = self.harness.deliver_once()
        count = delivery.count
        expected = sum(len(frame.timers) for frame in frames)
        # A chunk may end early where timers of one ms were loaded apart.
        while delivery.has_more and count + path.moved_count - passed_over_before < expected:
            delivery = self.harness.deliver_once()
            count += delivery.count
        count += path.moved_count - passed_over_before
        # After a read of cold records the chunk is filled again.
        while count > expected:
            (frame, *_) = self.models[-1].due_frames(self.clock.wall_ms(), count - expected)
            self.models.append(self.models[-1].copy())
            self.models[-1].apply(frame)
            expected += len(frame.timers)
        if count < expected:
            while count < expected:
                expected -= len(frames.pop().timers)
                del self.models[-1]
            raise Refused
        assert count == expected

    def batch(self, topic: str, partition: int, *intents: Intent, retries: bool = True) -> Batch:
        """Make a batch of the idempotent producer, or of one that does not retry."""
        if not retries:
            return Batch(topic, partition, intents, None)
        sequence = self._sequences.get((topic, partition), 0)
        self._sequences[topic, partition] = sequence + len(intents)
        return Batch(topic, partition, intents, Producer(self._producer_id, 0, sequence))

    def value(self, size: int = 40) -> bytes:
        """Return a value that no other record has."""
        self._values += 1
        return b"%07d." % self._values + self.rng.randbytes(size)

    def die(self, mode: CrashMode, rng: random.Random) -> None:
        """Crash, restart, and let the clients repeat their unanswered requests."""
        known = self.known(mode)
        self._asked = dict(enumerate(zip(known.unanswered, known.asked, strict=True)))
        self._durable = known.durable
        if mode != "killed":
            self._flushed = known.durable
        self._cancelled.clear()
        self._is_serving = False
        observer = self.disk.observer
        self.disk = self.disk.crashed(mode, rng)
        # A crash during this start must keep what this crash left.
        self.disk.observer = observer
        self._start()
        seen = visible_in(self.harness)
        states = {
            key: state for key, state in self._timer_states().items() if state[0] != "unknown"
        }
        found = [
            model
            for model in known.models[known.durable :]
            if model.visible() == seen
            and model.timer_states() == states
            and len(model.pending) == self.harness.broker.pending_timers
        ]
        assert found, differences(seen, known)
        self.models = [found[-1]]
        self._durable = self._flushed = 0
        self._asked.clear()
        if self._is_lossy(mode):
            # The producer's next sequence would have no predecessor.
            self._producer_id += 1
            self._sequences.clear()
        for request in known.unanswered:
            if not isinstance(request, Batch) or request.producer is not None:
                self.ask(request)

    def _timer_states(self) -> dict[tuple[str, bytes], tuple[str, int | None, int | None]]:
        return {
            (topic.name, user_id): self.harness.timer_state(topic.name, user_id)
            for topic in self.harness.broker.topics.all()
            for user_id in USER_IDS
        }

    # The run

    def play(self, lives: Sequence[CrashMode] = ()) -> None:
        """Do everything that a broker does, over several segments, flushing at times.

        Args:
            lives: how each life but the last ends.
        """
        self.start()
        rounds = ROUNDS // (len(lives) + 1)
        for mode in lives:
            self.play_rounds(rounds)
            if len(self._asked) == IN_FLIGHT_MAX:
                self.flush()
            self.ask(self._random_batch())
            self.die(mode, self.rng)
        self.play_rounds(rounds)
        self.end()

    def close(self) -> None:
        """Stop cleanly."""
        self._is_serving = False
        self._epoch = -1
        self.harness.broker.close()

    def end(self) -> None:
        """Delete and create a topic again, then stop cleanly."""
        self.flush()  # no client repeats a batch into a topic deleted since
        self.ask(Delete("b"))
        self.ask(Create("b", 1))
        self._sequences = {key: value for key, value in self._sequences.items() if key[0] != "b"}
        later = Intent(self.value(), delay_ms=50, user_id=USER_IDS[0])
        self.ask(self.batch("b", 0, Intent(self.value()), later))
        self.harness.broker.groups.save_group(GroupFrame(op=GROUP_SAVED, group="f", generation=2))
        topic = self.harness.broker.topics.all()[0]
        last = OffsetEntry(op=OFFSET_COMMITTED, group="f", topic_id=topic.topic_id, partition=1)
        self.harness.broker.groups.commit_offsets([last])
        self.consume()
        self.close()

    def play_rounds(self, count: int) -> None:
        """Play rounds of batches, passing time and deliveries, in topics "a" and "b"."""
        rng = self.rng
        for _ in range(count):
            self.flush()
            self.ask(self._random_batch())
            self.slow_flush()
            for _ in range(rng.randrange(4, 9)):
                if len(self._asked) == IN_FLIGHT_MAX:
                    self.flush()
                self.ask(self._random_batch())
                if rng.random() < 0.2:
                    self.cancel()
                rng.choice((self.flush, self.flush, self.peek, ignore_call, ignore_call))()
            self.clock.advance_ms(rng.randrange(1, 3_000))
            while self.models[-1].due_frames(self.clock.wall_ms(), 1):
                self.deliver()
                if rng.random() < 0.5:
                    self.flush()
            self._use_group()
            rng.choice((self.flush, self.consume, self.harness.housekeep, self.idle))()
            if rng.random() < CHECKPOINT_SHARE:
                is_saved = self.checkpoint()
                assert is_saved or self.may_fail

    def _use_group(self) -> None:
        """Commit offsets and change groups; tests/unit/offsets checks that they survive."""
        rng = self.rng
        topics = self.harness.broker.topics.all()
        entries = [
            OffsetEntry(
                op=rng.choice((OFFSET_COMMITTED, OFFSET_COMMITTED, OFFSET_DELETED)),
                group=rng.choice("gh"),
                topic_id=rng.choice(topics).topic_id,
                partition=0,
                offset=rng.randrange(1_000),
                metadata="m" * rng.randrange(100),
            )
            for _ in range(rng.randrange(4))
        ]
        groups = self.harness.broker.groups
        with suppress(RequestError):  # the disk is full
            name = rng.choice("gh")
            if rng.random() < 0.2:
                groups.save_group(GroupFrame(op=GROUP_DELETED, group=name))
            else:
                groups.save_group(changed_group(rng, groups.groups.get(name), name))
            groups.commit_offsets(entries)

    def _random_batch(self) -> Batch:
        rng = self.rng
        topic, partition = rng.choice((("a", 0), ("a", 1), ("b", 0)))
        if rng.random() < 0.4:
            sizes = [rng.randrange(1_500, 3_800) for _ in range(rng.randrange(1, 3))]
            plain = [Intent(self.value(size)) for size in sizes]
            return self.batch(topic, partition, *plain, retries=rng.random() < 0.9)
        intents = [self._random_intent() for _ in range(rng.randrange(1, 6))]
        return self.batch(topic, partition, *intents)

    def _random_intent(self) -> Intent:
        rng = self.rng
        user_id = rng.choice(USER_IDS)
        now_ms = self.clock.wall_ms()
        has_reply = rng.random() < 0.5
        match rng.randrange(10):
            case 0:
                return Intent(self.value())
            case 1:
                return Intent(self.value(), cancels=user_id, has_reply=has_reply)
            case 2:
                delay_ms = rng.randrange(1, 4_000)
                return Intent(self.value(), delay_ms, user_id=user_id, has_reply=has_reply)
            case 3:
                return Intent(self.value(), level=rng.randrange(1, 4))
            case 4:
                return Intent(self.value(), due_at_ms=now_ms + rng.randrange(-500, 5_000))
            case 5:
                return Intent(self.value(600), delay_ms=86_400_000 * 3_650)
            case 6:
                return Intent(self.value(), level=1, user_id=user_id)
            case 7:
                wait_ms = rng.choice((0, rng.randrange(1, 2_000)))
                before = rng.choice((0, 1, 16))
                return Intent(self.value(), wait_ms, retry_group="g", attempts=before)
            case 8:
                every_s, missed = rng.choice((1, 2)), rng.choice(("once", "all", "none"))
                return Intent(
                    self.value(), user_id=user_id, every_s=every_s, missed=missed,
                    has_reply=has_reply,
                )  # fmt: skip
            case _:
                return Intent(self.value(300), delay_ms=rng.randrange(1, 2_000))


def differences(seen: dict[tuple[str, int], list[Shown]], known: Known) -> str:
    """Count the records, for the message of a failed test."""
    lines = [f"no moment matches; {known.durable} .. {len(known.models) - 1} might"]
    for place, records in seen.items():
        counts = [len(m.visible().get(place, ())) for m in known.models[known.durable :]]
        lines.append(f"{place}: {len(records)} records, expected one of {sorted(set(counts))}")
    return "\n".join(lines)
