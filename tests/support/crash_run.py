"""A run of a broker beside its model, which a test looks at before each of its system calls.

What a crash at that moment may leave is checked by `tests.support.crash_check`.
"""

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from appliance.config import Config
from appliance.errors import RequestError, StorageError
from appliance.store.group_frames import (
    GROUP_DELETED,
    GROUP_TOLD,
    OFFSET_COMMITTED,
    OFFSET_DELETED,
    GroupFrame,
    OffsetEntry,
)
from tests.support.broker_model import Batch, Intent, Model, Shown, visible_in
from tests.support.broker_rig import BrokerRig
from tests.support.configs import small_config
from tests.support.crash_points import CrashPoints, look_away
from tests.support.crash_requests import Create, Delete, Request, apply_to_model, send
from tests.support.kafka_records import Producer
from tests.support.sim_fs import CrashMode
from tests.support.virtual_clock import VirtualClock

IN_FLIGHT_MAX: Final = 5
"""As with Kafka clients: of so many batches of a producer the broker knows the answers."""

ROUNDS: Final = 6
"""In a whole run."""

CHECKPOINT_SHARE: Final = 0.6
"""Of rounds that end with a checkpoint."""

USER_IDS: Final = tuple(b"id-%d" % number for number in range(6))


class Refused(Exception):
    """The disk is full: the broker took nothing of a batch, or could not deliver."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known outside of the broker at the moment of a crash.

    Attributes:
        models: the state after each change that was asked for, from the first on.
        durable: index of the first model that a restart may find; the last is the end of `models`.
        unanswered: requests without an answer yet, which clients will repeat.
        asked: index in `models` of each of these.
        now_ms: wall clock.
        epoch: of the broker that served until then, which must rise; -1 if none did.
    """

    models: list[Model]
    durable: int
    unanswered: tuple[Request, ...]
    asked: tuple[int, ...]
    now_ms: int
    epoch: int

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for moments of one run at which the same is known."""
        return len(self.models), self.durable, self.asked, self.now_ms


@dataclass
class CrashRun:
    """Drives a broker and its model side by side."""

    rng: random.Random
    disk: CrashPoints = field(default_factory=CrashPoints)
    clock: VirtualClock = field(default_factory=VirtualClock)
    config: Config = field(default_factory=lambda: small_config(delivery_chunk_records=16))
    may_fail: bool = False
    """A call of the disk fails on purpose, so a checkpoint may come to nothing."""

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
        self.rig: BrokerRig

    def known(self, mode: CrashMode) -> Known:
        """What a check of this moment needs."""
        models, now_ms = self.models[:], self.clock.wall_ms()
        if self._is_lossy(mode):
            # A power cut takes back answers, and nobody repeats what was answered.
            return Known(models, self._flushed, (), (), now_ms, self._epoch)
        durable = max(self._durable, self._shown())
        asked = tuple(self._asked.values())
        unanswered = tuple(request for request, _ in asked)
        indexes = tuple(index for _, index in asked)
        return Known(models, durable, unanswered, indexes, now_ms, self._epoch)

    def _is_lossy(self, mode: CrashMode) -> bool:
        return self.config.flush == "async" and mode not in ("killed", "kept")

    def _shown(self) -> int:
        """Index of the first model that has all that may be fetched now."""
        if not self._is_serving:
            return 0
        shown = {
            (topic.name, partition.index): partition.visible_offset
            for topic in self.rig.broker.topics()
            for partition in topic.partitions
        }
        for index, model in enumerate(self.models[self._durable :], start=self._durable):
            visible = model.visible()
            if all(len(visible.get(place, ())) >= count for place, count in shown.items() if count):
                return index
        raise AssertionError(f"more is visible than there can be: {shown}")

    # Steps

    def start(self) -> None:
        """Start the broker, and make the topics "a" and "b"."""
        self._start()
        self.ask(Create("a", 2))
        self.ask(Create("b", 1))
        self.consume()

    def _start(self) -> None:
        self.rig = BrokerRig(self.disk, self.clock, self.config)
        self._epoch = self.rig.broker.epoch
        self._is_serving = True

    def ask(self, request: Request) -> None:
        """Send a request; it is written, and not flushed unless the log went to a new segment."""
        assert len(self._asked) < IN_FLIGHT_MAX
        self.models.append(self.models[-1].copy())
        # A crash inside of the call may find it done.
        model = self.models[-1]
        apply_to_model(model, request, self.clock.wall_ms())
        # Without an answer it counts as unanswered, also while it is being sent.
        self._asked[-1] = (request, len(self.models) - 1)
        refused_count = self.rig.refused_count
        number = send(self.rig, request)
        self._asked[number] = self._asked.pop(-1)
        if self.rig.refused_count > refused_count:
            del self.models[-1], self._asked[number]
            if isinstance(request, Batch) and request.producer is not None:
                # The next batch takes its place.
                self._sequences[request.topic, request.partition] = request.producer.sequence
            raise Refused
        self._take_answers()

    def cancel(self) -> None:
        """Cancel by name, as the admin API does; it is acknowledged by the next flush."""
        topic, user_id = self.rng.choice("ab"), self.rng.choice(USER_IDS)
        self.models.append(self.models[-1].copy())
        state = self.models[-1].cancel(topic, user_id)
        try:
            assert self.rig.cancel_timer(topic, user_id) == state
        except RequestError:
            del self.models[-1]
            raise Refused from None
        self._cancelled.append((self.rig.broker.wrote_pos, len(self.models) - 1))
        self._take_answers()

    def _take_answers(self) -> None:
        for number in self.rig.answers():
            if number in self._asked:  # else it was refused
                _, index = self._asked.pop(number)
                self._durable = max(self._durable, index)
        durable_pos = self.rig.durable_pos
        while self._cancelled and self._cancelled[0][0] <= durable_pos:
            self._durable = max(self._durable, self._cancelled.pop(0)[1])

    def flush(self) -> None:
        """Flush, and take the answers."""
        self.rig.flush()
        self._flushed = len(self.models) - 1
        self._take_answers()

    def slow_flush(self) -> None:
        """A flush during which more is written, as with one that runs on a thread."""
        job = self.rig.broker.begin_flush()
        if job is None:
            return
        flushed = len(self.models) - 1
        self.ask(self.batch("a", 0, Intent(self.value(7_000))))
        job.run()
        self.ask(self.batch("a", 1, Intent(self.value(7_000))))
        self.rig.broker.end_flush(job)
        self._flushed = flushed
        self._take_answers()

    def checkpoint(self) -> bool:
        """Save a state, while requests come between its slices and between calls of its thread.

        Returns:
            Whether it was saved, which must be if nothing failed.
        """
        checkpoints = self.rig.broker.checkpoints
        checkpoints.ask()
        self.rig.broker.commit()
        while (job := checkpoints.step()) is None:
            if not checkpoints.is_capturing:
                return False
            self._do_something()
            if self.rng.random() < 0.5:
                self.flush()
            self.rig.broker.commit()
        self._meet_after(self.rng.randrange(1, 12))
        try:
            job.run()
        finally:
            self.disk.meanwhile = None
        if self._failed is not None:
            raise self._failed
        checkpoints.end(job)
        return job.error is None

    def _meet_after(self, call_count: int) -> None:
        """Let something happen, now and then, between calls that a thread makes from now on."""

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
                    self._failed = error  # the loop's, which is none of the thread
                    return
            self.disk.meanwhile = tick

        self.disk.meanwhile = tick

    def _do_something(self) -> None:
        """One request, a delivery or a flush, as the loop may be at while a thread runs."""
        match self.rng.randrange(6):
            case 0:
                self.flush()
            case 1 if self.models[-1].due_groups(self.clock.wall_ms(), 1):
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
        """Nothing happens for a while: the checkpoint says that all is durable."""
        checkpoints = self.rig.broker.checkpoints
        self.flush()
        for _ in range(2):
            job = checkpoints.step()
            if job is not None:
                job.run()
                checkpoints.end(job)
            self.clock.advance_ms(600)

    def consume(self) -> None:
        """Fetch everything: what was seen must stay, and be what the model says."""
        self.flush()
        assert visible_in(self.rig) == self.models[-1].visible()
        self._durable = len(self.models) - 1

    def peek(self) -> None:
        """Fetch what there is without a flush: it is there to stay all the same."""
        seen = visible_in(self.rig)
        models = self.models[self._durable :]
        shown = [number for number, model in enumerate(models) if model.visible() == seen]
        assert shown, differences(seen, self.known("kept"))
        self._durable += shown[0]

    def deliver(self) -> None:
        """One chunk of what is due."""
        chunk = self.config.delivery_chunk_records
        groups = self.models[-1].due_groups(self.clock.wall_ms(), chunk)
        for group in groups:
            self.models.append(self.models[-1].copy())
            self.models[-1].deliver(group)
        count = self.rig.deliver_once().count
        if count < sum(map(len, groups)):
            while count < sum(map(len, groups)):
                del self.models[-1], groups[-1]
            raise Refused
        assert count == sum(map(len, groups))

    def batch(self, topic: str, partition: int, *intents: Intent, retries: bool = True) -> Batch:
        """A batch of the one idempotent producer, or of one that does not retry."""
        if not retries:
            return Batch(topic, partition, intents, None)
        sequence = self._sequences.get((topic, partition), 0)
        self._sequences[topic, partition] = sequence + len(intents)
        return Batch(topic, partition, intents, Producer(self._producer_id, 0, sequence))

    def value(self, size: int = 40) -> bytes:
        """A value that no other record has."""
        self._values += 1
        return b"%07d." % self._values + self.rng.randbytes(size)

    def die(self, mode: CrashMode, rng: random.Random) -> None:
        """Crash, start again, and let the clients repeat what they have no answer for."""
        known = self.known(mode)
        self._asked = dict(enumerate(zip(known.unanswered, known.asked, strict=True)))
        self._durable = known.durable
        if mode != "killed":
            self._flushed = known.durable
        self._cancelled.clear()
        self._is_serving = False
        observer = self.disk.observer
        self.disk = self.disk.crashed(mode, rng)
        # A crash of this start must leave what this one left.
        self.disk.observer = observer
        self._start()
        seen = visible_in(self.rig)
        states = {
            key: state for key, state in self._timer_states().items() if state[0] != "unknown"
        }
        found = [
            model
            for model in known.models[known.durable :]
            if model.visible() == seen
            and model.timer_states() == states
            and len(model.pending) == self.rig.broker.pending_timers
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
            (topic.name, user_id): self.rig.timer_state(topic.name, user_id)
            for topic in self.rig.broker.topics()
            for user_id in USER_IDS
        }

    # The run

    def play(self, lives: Sequence[CrashMode] = ()) -> None:
        """Everything that a broker does, several segments of it, at times flushed at times not.

        Args:
            lives: how each life but the last ends.
        """
        self.start()
        rounds = ROUNDS // (len(lives) + 1)
        for mode in lives:
            self.play_rounds(rounds)
            self.ask(self._random_batch())
            self.die(mode, self.rng)
        self.play_rounds(rounds)
        self.end()

    def close(self) -> None:
        """A clean stop."""
        self._is_serving = False
        self._epoch = -1
        self.rig.broker.close()

    def end(self) -> None:
        """A topic that goes and comes back, then a clean stop."""
        self.flush()  # nobody repeats a batch into a topic that was deleted since
        self.ask(Delete("b"))
        self.ask(Create("b", 1))
        self._sequences = {key: value for key, value in self._sequences.items() if key[0] != "b"}
        later = Intent(self.value(), delay_ms=50, user_id=USER_IDS[0])
        self.ask(self.batch("b", 0, Intent(self.value()), later))
        self.rig.broker.tell_group(GroupFrame(op=GROUP_TOLD, group="f", generation=2))
        topic = self.rig.broker.topics()[0]
        last = OffsetEntry(op=OFFSET_COMMITTED, group="f", topic_id=topic.topic_id, partition=1)
        self.rig.broker.commit_offsets([last])
        self.consume()
        self.close()

    def play_rounds(self, count: int) -> None:
        """Rounds of batches, of time that passes and of deliveries, into topics "a" and "b"."""
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
                rng.choice((self.flush, self.flush, self.peek, look_away, look_away))()
            self.clock.advance_ms(rng.randrange(1, 3_000))
            while self.models[-1].due_groups(self.clock.wall_ms(), 1):
                self.deliver()
                if rng.random() < 0.5:
                    self.flush()
            self._use_group()
            rng.choice((self.flush, self.consume, self.rig.housekeep, self.idle))()
            if rng.random() < CHECKPOINT_SHARE:
                is_saved = self.checkpoint()
                assert is_saved or self.may_fail

    def _use_group(self) -> None:
        """Offsets and groups in between; that they survive is tested in tests/offsets."""
        rng = self.rng
        topics = self.rig.broker.topics()
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
        op = rng.choice((GROUP_TOLD, GROUP_TOLD, GROUP_DELETED))
        with suppress(RequestError):  # the disk is full
            self.rig.broker.tell_group(GroupFrame(op=op, group=rng.choice("gh"), generation=1))
            self.rig.broker.commit_offsets(entries)

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
        match rng.randrange(8):
            case 0:
                return Intent(self.value())
            case 1:
                return Intent(self.value(), cancels=user_id)
            case 2:
                return Intent(self.value(), delay_ms=rng.randrange(1, 4_000), user_id=user_id)
            case 3:
                return Intent(self.value(), level=rng.randrange(1, 4))
            case 4:
                return Intent(self.value(), due_at_ms=now_ms + rng.randrange(-500, 5_000))
            case 5:
                return Intent(self.value(600), delay_ms=86_400_000 * 3_650)
            case 6:
                return Intent(self.value(), level=1, user_id=user_id)
            case _:
                return Intent(self.value(300), delay_ms=rng.randrange(1, 2_000))


def differences(seen: dict[tuple[str, int], list[Shown]], known: Known) -> str:
    """How many records there are, for the message of a failed test."""
    lines = [f"no moment matches; {known.durable} .. {len(known.models) - 1} might"]
    for place, records in seen.items():
        counts = [len(m.visible().get(place, ())) for m in known.models[known.durable :]]
        lines.append(f"{place}: {len(records)} records, expected one of {sorted(set(counts))}")
    return "\n".join(lines)
