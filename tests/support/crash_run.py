"""A run of a broker that is crashed before each of its system calls, and what must hold after.

The rule: what a restart finds is the broker of some moment between the last thing that a client
knows of (an answer, a fetched record) and the last thing that was asked of it. A moment is the
state after a whole batch, a whole deliver frame or a whole change of a topic; a `Model` of each is
kept, so everything that is there in part, twice, too early, or changed, matches none of them.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from appliance.config import Config
from appliance.errors import RequestError
from appliance.store.group_frames import (
    GROUP_DELETED,
    GROUP_TOLD,
    OFFSET_COMMITTED,
    OFFSET_DELETED,
    GroupFrame,
    OffsetEntry,
)
from tests.support.broker_model import Batch, Intent, Model, Shown, visible_in
from tests.support.broker_rig import BrokerRig, Digest, produced
from tests.support.configs import DATA_DIR, small_config
from tests.support.kafka_records import Producer
from tests.support.sim_fs import CrashMode, Fault, SimFileSystem
from tests.support.virtual_clock import VirtualClock

DERIVED: Final = tuple(DATA_DIR / name for name in ("consumequeue", "timer", "index", "control"))
"""Directories that a start must be able to do without."""

IN_FLIGHT_MAX: Final = 5
"""As with Kafka clients: of so many batches of a producer the broker knows the answers."""

USER_IDS: Final = tuple(b"id-%d" % number for number in range(6))


class CrashPoints(SimFileSystem):
    """Calls `observer` before each call that reaches the disk."""

    def __init__(self) -> None:
        super().__init__()
        self.observer: Callable[[], None] = _look_away

    def reach(self, operation: str, path: Path, detail: str = "") -> Fault | None:
        self.observer()
        return super().reach(operation, path, detail)


def _look_away() -> None:
    pass


class Refused(Exception):
    """The disk is full: the broker took nothing of a batch, or could not deliver."""


@dataclass(frozen=True, slots=True)
class Create:
    name: str
    partition_count: int


@dataclass(frozen=True, slots=True)
class Delete:
    name: str


Request = Create | Delete | Batch


@dataclass(frozen=True, slots=True)
class Known:
    """What is known outside of the broker at the moment of a crash.

    Attributes:
        models: the state after each change that was asked for, from the first on.
        durable: index of the first model that a restart may find; the last is the end of `models`.
        unanswered: requests without an answer yet, which clients will repeat.
        now_ms: wall clock.
        epoch: of the broker that served until then, which must rise; -1 if none did.
    """

    models: list[Model]
    durable: int
    unanswered: tuple[Request, ...]
    now_ms: int
    epoch: int


@dataclass
class CrashRun:
    """Drives a broker and its model side by side."""

    rng: random.Random
    disk: CrashPoints = field(default_factory=CrashPoints)
    clock: VirtualClock = field(default_factory=VirtualClock)
    config: Config = field(default_factory=lambda: small_config(delivery_chunk_records=16))

    def __post_init__(self) -> None:
        self.models = [Model(self.config.delay_levels)]
        self._durable = self._flushed = 0
        self._asked: dict[int, tuple[Request, int]] = {}
        self._cancelled: list[tuple[int, int]] = []
        self._sequences: dict[tuple[str, int], int] = {}
        self._values = 0
        self._epoch = -1
        self.rig: BrokerRig

    def known(self, mode: CrashMode) -> Known:
        """What a check of this moment needs."""
        models, now_ms = self.models[:], self.clock.wall_ms()
        if self.config.flush == "async" and mode != "kept":
            # A power cut takes back answers, and nobody repeats what was answered.
            return Known(models, self._flushed, (), now_ms, self._epoch)
        unanswered = tuple(request for request, _ in self._asked.values())
        return Known(models, self._durable, unanswered, now_ms, self._epoch)

    # Steps

    def start(self) -> None:
        """Start the broker on the empty disk."""
        self.rig = BrokerRig(self.disk, self.clock, self.config)
        self._epoch = self.rig.broker.epoch

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
        assert shown, _differences(seen, self.known("kept"))
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
        return Batch(topic, partition, intents, Producer(7, 0, sequence))

    def value(self, size: int = 40) -> bytes:
        """A value that no other record has."""
        self._values += 1
        return b"%07d." % self._values + self.rng.randbytes(size)

    # The run

    def play(self) -> None:
        """Everything that a broker does, several segments of it, at times flushed at times not."""
        self.start()
        self.play_rounds(6)
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
        self._epoch = -1
        self.rig.broker.close()

    def play_rounds(self, count: int) -> None:
        """Topics, and rounds of batches, of time that passes and of deliveries."""
        rng = self.rng
        self.ask(Create("a", 2))
        self.ask(Create("b", 1))
        self.consume()
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
                rng.choice((self.flush, self.flush, self.peek, _look_away, _look_away))()
            self.clock.advance_ms(rng.randrange(1, 3_000))
            while self.models[-1].due_groups(self.clock.wall_ms(), 1):
                self.deliver()
                if rng.random() < 0.5:
                    self.flush()
            self._use_group()
            rng.choice((self.flush, self.consume, self.rig.housekeep))()

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


def send(rig: BrokerRig, request: Request) -> int:
    """Send a request; its correlation id."""
    match request:
        case Create(name, partition_count):
            return rig.send_create_topic(name, partition_count)
        case Delete(name):
            return rig.send_delete_topic(name)
        case Batch(topic, partition, intents, producer):
            records = [intent.record() for intent in intents]
            return rig.send_produce(topic, partition, records, producer)


def apply_to_model(model: Model, request: Request, now_ms: int) -> tuple[int, int]:
    """Error code and base offset that the broker must answer."""
    match request:
        case Create(name, partition_count):
            return model.create_topic(name, partition_count), -1
        case Delete(name):
            return model.delete_topic(name), -1
        case Batch():
            return model.produce(request, now_ms)


# What must hold


def check_disk(disk: SimFileSystem, known: Known, config: Config, mode: CrashMode) -> None:
    """Start on what a crash left, and compare it with what may be there; `disk` is used up."""
    rng = random.Random(0)
    rig = BrokerRig(disk, VirtualClock(wall_ms=known.now_ms), config)
    assert not rig.report.damage, rig.report
    assert rig.broker.epoch > known.epoch
    found = candidates(rig, known)
    # What a start accepted must be durable when it serves: another crash takes nothing of it.
    again = BrokerRig(disk.crashed("dropped", rng), VirtualClock(wall_ms=known.now_ms), config)
    bare = disk.crashed(mode, rng)
    for path in DERIVED:
        bare.remove_tree(path)
    check_same_log(rig, BrokerRig(bare, rig.clock, config))
    go_on(again, known, found)


def candidates(rig: BrokerRig, known: Known) -> list[Model]:
    """The moments that the restarted broker may be that of."""
    seen = visible_in(rig)
    states = {
        (topic.name, user_id): state
        for topic in rig.broker.topics()
        for user_id in USER_IDS
        if (state := rig.timer_state(topic.name, user_id))[0] != "unknown"
    }
    found = [
        model
        for model in known.models[known.durable :]
        if model.visible() == seen
        and model.timer_states() == states
        and len(model.pending) == rig.broker.pending_timers
    ]
    assert found, _differences(seen, known)
    return found


def _differences(seen: dict[tuple[str, int], list[Shown]], known: Known) -> str:
    lines = [f"no moment matches; {known.durable} .. {len(known.models) - 1} might"]
    for place, records in seen.items():
        counts = [len(m.visible().get(place, ())) for m in known.models[known.durable :]]
        lines.append(f"{place}: {len(records)} records, expected one of {sorted(set(counts))}")
    return "\n".join(lines)


def check_same_log(rig: BrokerRig, other: BrokerRig) -> None:
    """A start and the next one differ in nothing but the epoch, whatever else was on the disks."""
    left, right = rig.digest(USER_IDS), other.digest(USER_IDS)
    assert left == right, _unequal(left, right)
    assert rig.broker.epoch + 1 == other.broker.epoch


def _unequal(left: Digest, right: Digest) -> str:
    names = [name for name in left.__slots__ if getattr(left, name) != getattr(right, name)]
    return "\n".join(f"{name}: {getattr(left, name)} / {getattr(right, name)}" for name in names)


def go_on(rig: BrokerRig, known: Known, found: list[Model]) -> None:
    """Clients repeat what was not answered, time goes on, and every timer fires when it is due."""
    models = [model.copy() for model in found]
    for request in known.unanswered:
        if isinstance(request, Batch) and request.producer is None:
            continue
        number = send(rig, request)
        rig.flush()
        answer = rig.answers()[number]
        expected = [apply_to_model(model, request, known.now_ms) for model in models]
        if isinstance(request, Batch):
            outcome = produced(answer)
            kept = [e == (outcome.error, outcome.base_offset) for e in expected]
            assert any(kept), f"{outcome}, expected one of {expected}"
            models = [model for model, is_kept in zip(models, kept, strict=True) if is_kept]
    while (wake_ms := rig.broker.next_wake_ms()) is not None:
        models = [model for model in models if wake_ms <= (model.next_due_ms() or wake_ms)]
        rig.clock.advance_to_ms(max(wake_ms, rig.clock.wall_ms()))
        now_ms = rig.clock.wall_ms()
        count = rig.deliver_all()
        models = [model for model in models if model.deliver_all(now_ms) == count]
        assert models, f"{count} timers were delivered at {now_ms}"
    seen = visible_in(rig)
    assert any(model.visible() == seen and not model.pending for model in models)
