"""What must hold of a broker that starts on what a crash left of a `CrashRun`.

The rule: it is the broker of some moment between the last thing that a client knows of (an answer,
a fetched record) and the last thing that was asked of it. A moment is the state after a whole
batch, a whole deliver frame or a whole change of a topic; a `Model` of each is kept, so everything
that is there in part, twice, too early, or changed, matches none of them.

Three brokers are started for each state: one on what the crash left, one on what another power cut
leaves right after that start, and one on the log alone. Disks that are the same to the last byte
behave the same, so of each of the three an equal one is remembered and not started again.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from appliance.config import Config
from tests.support.broker_model import Batch, Model, Shown, shown
from tests.support.broker_rig import BrokerRig, Digest, produced
from tests.support.checkpoints import read_every_unit, take_checkpoint
from tests.support.configs import DATA_DIR
from tests.support.crash_points import CHECKPOINT
from tests.support.crash_requests import apply_to_model, send
from tests.support.crash_run import USER_IDS, Known, differences
from tests.support.kafka_records import read_batches
from tests.support.rig_connection import encode_fetch, fetched_section
from tests.support.sim_fs import SimFileSystem
from tests.support.virtual_clock import VirtualClock

DERIVED: Final = tuple(DATA_DIR / name for name in ("consumequeue", "timer", "index", "control"))
"""Directories that a start must be able to do without."""

LOG: Final = DATA_DIR / "commitlog"

BATCH_HEAD_SIZE: Final = 12
"""Base offset and length of a record batch."""

TimerStates = dict[tuple[str, bytes], tuple[str, int | None, int | None]]


class Spectator:
    """Fetches all that brokers show; it knows a batch again, so that only new ones are decoded."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, int, int], bytes] = {}
        self._batches: dict[bytes, tuple[Shown, ...]] = {}

    def visible(self, rig: BrokerRig) -> dict[tuple[str, int], list[Shown]]:
        """What `Model.visible` tells, of a real broker."""
        return {
            (topic.name, partition.index): self._partition(rig, topic.name, partition.index)
            for topic in rig.broker.topics()
            for partition in topic.partitions
        }

    def _partition(self, rig: BrokerRig, topic: str, partition: int) -> list[Shown]:
        found = list(self.records(rig, topic, partition))
        assert [offset for offset, _ in found] == list(range(len(found))), f"{topic}/{partition}"
        return [record for _, record in found]

    def records(
        self, rig: BrokerRig, topic: str, partition: int, offset: int = 0
    ) -> Iterator[tuple[int, Shown]]:
        """Every record of a partition from an offset on, each with its own; some may be missing."""
        while True:
            place = topic, partition, offset
            request = self._requests.get(place)
            if request is None:
                request = encode_fetch(*place, rig.config.fetch_size_max_bytes)
                self._requests[place] = request
            error, end, section = fetched_section(topic, rig.fetch_once(request))
            assert error == 0, f"{topic}/{partition} at {offset}: {error}"
            at = 0
            while at < len(section):
                size = BATCH_HEAD_SIZE + int.from_bytes(section[at + 8 : at + 12], "big")
                base_offset = int.from_bytes(section[at : at + 8], "big")
                assert base_offset >= offset, f"{topic}/{partition}: {base_offset} at {offset}"
                batch = self._batch(section[at : at + size])
                yield from enumerate(batch, start=base_offset)
                offset = base_offset + 1 + int.from_bytes(section[at + 23 : at + 27], "big")
                at += size
            if not section or offset >= end:
                return

    def _batch(self, data: bytes) -> tuple[Shown, ...]:
        known = self._batches.get(data)
        if known is None:
            records = read_batches(data)
            first = records[0].offset if records else 0
            assert [record.offset - first for record in records] == list(range(len(records)))
            known = tuple(shown(record) for record in records)
            self._batches[data] = known
        return known


@dataclass(frozen=True, slots=True)
class Start:
    """What a broker showed that was started on one disk.

    Attributes:
        left: what goes on after another power cut: by the log, and the state that it began from.
    """

    epoch: int
    visible: dict[tuple[str, int], list[Shown]]
    timer_states: TimerStates
    pending_timers: int
    left: int


class CrashChecker:
    """Checks what crashes of one run left.

    Attributes:
        looked: how many disks it was shown.
        starts: how many brokers it started.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._spectator = Spectator()
        self._starts: dict[int, Start] = {}
        self._rebuilt: dict[int, tuple[list[tuple[int, int]], Digest]] = {}
        self._left: dict[int, SimFileSystem] = {}
        self._gone_on: set[tuple[int, tuple[object, ...]]] = set()
        self.looked = 0
        self.starts = 0

    @property
    def distinct(self) -> int:
        """How many of the disks were different from all others."""
        return len(self._starts)

    def check(self, disk: SimFileSystem, known: Known) -> None:
        """Start on what a crash left, and compare it with what may be there; it is used up."""
        self.looked += 1
        digest = hash((disk.digest(), known.now_ms))
        start = self._starts.get(digest)
        if start is None:
            start = self._started(disk, known.now_ms)
            self._starts[digest] = start
        assert start.epoch > known.epoch
        found = matching(start, known)
        key = start.left, known.key
        if key not in self._gone_on:
            self._gone_on.add(key)
            left = self._left[start.left].crashed("kept", random.Random(0))
            go_on(self._rig(left, known.now_ms), known, found, self._spectator)

    def _rig(self, disk: SimFileSystem, now_ms: int) -> BrokerRig:
        self.starts += 1
        return BrokerRig(disk, VirtualClock(wall_ms=now_ms), self._config)

    def _started(self, disk: SimFileSystem, now_ms: int) -> Start:
        rig = self._rig(disk, now_ms)
        assert not rig.report.damage, rig.report
        assert not rig.report.rejected, rig.report.rejected
        # What a start accepted must be durable when it serves: another crash takes nothing of it.
        left = disk.crashed("dropped", random.Random(0))
        start = Start(
            epoch=rig.broker.epoch,
            visible=self._spectator.visible(rig),
            timer_states=timer_states(rig),
            pending_timers=rig.broker.pending_timers,
            left=hash((left.digest(LOG), rig.report.checkpoint, now_ms)),
        )
        # What else lies there differs from crash to crash, and a start has looked at it by now.
        self._left.setdefault(start.left, left)
        self._check_same(rig, left, now_ms)
        return start

    def _check_same(self, rig: BrokerRig, left: SimFileSystem, now_ms: int) -> None:
        """It and the next start differ in nothing but the epoch, also without derived files."""
        log = hash((left.digest(LOG), now_ms))
        if log not in self._rebuilt:
            again = self._rig(left.crashed("kept", random.Random(0)), now_ms)
            bare = left.crashed("kept", random.Random(0))
            for path in DERIVED:
                bare.remove_tree(path)
            if len(self._rebuilt) % 2:
                bare.unlink(CHECKPOINT)
            rebuilt = self._rig(bare, now_ms)
            saved = self._saved(again, now_ms)
            assert again.epoch_starts() == rebuilt.epoch_starts() == saved.epoch_starts()[:-1]
            self._rebuilt[log] = rebuilt.epoch_starts()[:-1], rebuilt.digest(USER_IDS)
            for other in (again, saved):
                assert_same(other, self._rebuilt[log][1])
        epoch_starts, digest = self._rebuilt[log]
        assert rig.epoch_starts() == epoch_starts
        assert_same(rig, digest)

    def _saved(self, rig: BrokerRig, now_ms: int) -> BrokerRig:
        """What starts from a checkpoint of this broker, whatever else is lost after it."""
        job = take_checkpoint(rig)
        assert job.error is None
        saved = self._rig(rig.disk.crashed("dropped", random.Random(0)), now_ms)
        assert saved.report.applied == job.control.applied == rig.broker.wrote_pos
        assert not saved.report.rejected, saved.report.rejected
        return saved


def timer_states(rig: BrokerRig) -> TimerStates:
    """State, due and partition of every id that the broker knows, by topic and id."""
    return {
        (topic.name, user_id): state
        for topic in rig.broker.topics()
        for user_id in USER_IDS
        if (state := rig.timer_state(topic.name, user_id))[0] != "unknown"
    }


def matching(start: Start, known: Known) -> list[Model]:
    """The moments that the started broker may be that of."""
    found = [
        model
        for model in known.models[known.durable :]
        if len(model.pending) == start.pending_timers
        and model.visible() == start.visible
        and model.timer_states() == start.timer_states
    ]
    assert found, differences(start.visible, known)
    return found


def assert_same(rig: BrokerRig, expected: Digest) -> None:
    """A broker is the same as another; it is of no use after this."""
    if rig.topics_digest() != expected.topics:
        read_every_unit(rig)  # of a topic that was deleted, and whose deletion was lost
    found = rig.digest(USER_IDS)
    names = [name for name in found.__slots__ if getattr(found, name) != getattr(expected, name)]
    assert not names, "\n".join(
        f"{name}: {getattr(found, name)} / {getattr(expected, name)}" for name in names
    )


def go_on(rig: BrokerRig, known: Known, found: Sequence[Model], spectator: Spectator) -> None:
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
    seen = spectator.visible(rig)
    assert any(model.visible() == seen and not model.pending for model in models)
