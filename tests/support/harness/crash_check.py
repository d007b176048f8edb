"""What must hold of a broker that starts on what a crash left of a `CrashRun`.

The rule: its state is that of some moment between the last effect that a client has seen (an
answer, a fetched record) and the last request that was sent. A moment is the state after a whole
batch, a whole deliver frame or a whole change of a topic. A `Model` of each moment is kept, so a
state with something partial, duplicated, early or changed matches none of them.

Three brokers are started for each state: one on what the crash left, one on what another power cut
leaves right after that start, and one on the log alone. Disks with equal bytes behave the same, so
the result of each of the three is cached by the disk's content.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from appliance.config.config import Config
from tests.support.harness.broker_harness import BrokerHarness, Digest, produced
from tests.support.harness.checkpoints import read_every_unit, take_checkpoint
from tests.support.harness.configs import DATA_DIR
from tests.support.harness.crash_points import CHECKPOINT
from tests.support.harness.crash_requests import apply_to_model, end_recurrences, send
from tests.support.harness.crash_run import USER_IDS, Known, differences
from tests.support.harness.harness_connection import encode_fetch, fetched_section
from tests.support.oracles.broker_model import Batch, Model, Shown, shown
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.simulator.virtual_clock import VirtualClock
from tests.support.values.kafka_records import read_batches

DERIVED: Final = tuple(
    DATA_DIR / name for name in ("consumequeue", "timer", "timerlog", "index", "control")
)
"""Directories without which a start must work."""

LOG: Final = DATA_DIR / "commitlog"

RECURS_MS: Final = 3_000
"""Some instants of each recurring record."""

BATCH_HEAD_SIZE: Final = 12
"""Base offset and length of a record batch."""

TimerStates = dict[tuple[str, bytes], tuple[str, int | None, int | None]]


class Spectator:
    """Fetches all visible records of brokers; caches batches, so that it decodes only new ones."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, int, int], bytes] = {}
        self._batches: dict[bytes, tuple[Shown, ...]] = {}

    def visible(self, harness: BrokerHarness) -> dict[tuple[str, int], list[Shown]]:
        """The result of `Model.visible` for a real broker."""
        return {
            (topic.name, partition.index): self._partition(harness, topic.name, partition.index)
            for topic in harness.broker.topics.all()
            for partition in topic.partitions
        }

    def _partition(self, harness: BrokerHarness, topic: str, partition: int) -> list[Shown]:
        found = list(self.records(harness, topic, partition))
        assert [offset for offset, _ in found] == list(range(len(found))), f"{topic}/{partition}"
        return [record for _, record in found]

    def records(
        self, harness: BrokerHarness, topic: str, partition: int, offset: int = 0
    ) -> Iterator[tuple[int, Shown]]:
        """Every record of a partition from an offset on, with its offset; some may be missing."""
        while True:
            place = topic, partition, offset
            request = self._requests.get(place)
            if request is None:
                request = encode_fetch(*place, harness.config.fetch_size_max_bytes)
                self._requests[place] = request
            error, end, section = fetched_section(topic, harness.fetch_once(request))
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
    """What a broker that was started on one disk served.

    Attributes:
        left: what remains after another power cut: the log, and the state that it began from.
    """

    epoch: int
    visible: dict[tuple[str, int], list[Shown]]
    timer_states: TimerStates
    pending_timers: int
    left: int


class CrashChecker:
    """Checks the disks that crashes of one run left.

    Attributes:
        checked: how many disks were checked.
        starts: how many brokers it started.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._spectator = Spectator()
        self._starts: dict[int, Start] = {}
        self._rebuilt: dict[int, tuple[list[tuple[int, int]], Digest]] = {}
        self._left: dict[int, SimFileSystem] = {}
        self._gone_on: set[tuple[int, tuple[object, ...]]] = set()
        self.checked = 0
        self.starts = 0

    @property
    def distinct(self) -> int:
        """How many of the disks differ from all others."""
        return len(self._starts)

    def check(self, disk: SimFileSystem, known: Known) -> None:
        """Start on what a crash left and compare the state with the models. Uses up the disk."""
        self.checked += 1
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
            go_on(self._harness(left, known.now_ms), known, found, self._spectator)

    def _harness(self, disk: SimFileSystem, now_ms: int) -> BrokerHarness:
        self.starts += 1
        return BrokerHarness(disk, VirtualClock(wall_ms=now_ms), self._config)

    def _started(self, disk: SimFileSystem, now_ms: int) -> Start:
        harness = self._harness(disk, now_ms)
        assert not harness.report.damage, harness.report
        assert not harness.report.rejected, harness.report.rejected
        # What a start recovered must be durable when it serves: another crash loses nothing of it.
        left = disk.crashed("dropped", random.Random(0))
        start = Start(
            epoch=harness.broker.epoch,
            visible=self._spectator.visible(harness),
            timer_states=timer_states(harness),
            pending_timers=harness.broker.pending_timers,
            left=hash((left.digest(LOG), harness.report.checkpoint, now_ms)),
        )
        # Other files differ from crash to crash, and a start has read them by now.
        self._left.setdefault(start.left, left)
        self._check_same(harness, left, now_ms)
        return start

    def _check_same(self, harness: BrokerHarness, left: SimFileSystem, now_ms: int) -> None:
        """Check that it and the next start differ only in the epoch, also without derived files."""
        log = hash((left.digest(LOG), now_ms))
        if log not in self._rebuilt:
            again = self._harness(left.crashed("kept", random.Random(0)), now_ms)
            bare = left.crashed("kept", random.Random(0))
            for path in DERIVED:
                bare.remove_tree(path)
            if len(self._rebuilt) % 2:
                bare.unlink(CHECKPOINT)
            rebuilt = self._harness(bare, now_ms)
            saved = self._saved(again, now_ms)
            assert again.epoch_starts() == rebuilt.epoch_starts() == saved.epoch_starts()[:-1]
            self._rebuilt[log] = rebuilt.epoch_starts()[:-1], rebuilt.digest(USER_IDS)
            for other in (again, saved):
                assert_same(other, self._rebuilt[log][1])
        epoch_starts, digest = self._rebuilt[log]
        assert harness.epoch_starts() == epoch_starts
        assert_same(harness, digest)

    def _saved(self, harness: BrokerHarness, now_ms: int) -> BrokerHarness:
        """Start from a checkpoint of this broker, whatever else is lost after it."""
        job = take_checkpoint(harness)
        assert job.error is None
        saved = self._harness(harness.disk.crashed("dropped", random.Random(0)), now_ms)
        assert saved.report.applied == job.control.applied == harness.broker.wrote_pos
        assert not saved.report.rejected, saved.report.rejected
        return saved


def timer_states(harness: BrokerHarness) -> TimerStates:
    """State, due time and partition of every id that the broker knows, by topic and id."""
    return {
        (topic.name, user_id): state
        for topic in harness.broker.topics.all()
        for user_id in USER_IDS
        if (state := harness.timer_state(topic.name, user_id))[0] != "unknown"
    }


def matching(start: Start, known: Known) -> list[Model]:
    """The moments whose state equals that of the started broker."""
    found = [
        model
        for model in known.models[known.durable :]
        if len(model.pending) == start.pending_timers
        and model.visible() == start.visible
        and model.timer_states() == start.timer_states
    ]
    assert found, differences(start.visible, known)
    return found


def assert_same(harness: BrokerHarness, expected: Digest) -> None:
    """Check that two brokers are equal; do not use the broker afterwards."""
    if harness.topics_digest() != expected.topics:
        read_every_unit(harness)  # of a topic that was deleted, and whose deletion was lost
    found = harness.digest(USER_IDS)
    names = [name for name in found.__slots__ if getattr(found, name) != getattr(expected, name)]
    assert not names, "\n".join(
        f"{name}: {getattr(found, name)} / {getattr(expected, name)}" for name in names
    )


def go_on(
    harness: BrokerHarness, known: Known, found: Sequence[Model], spectator: Spectator
) -> None:
    """Let clients repeat unanswered requests, then check that every timer fires when due.

    What recurs is cancelled after RECURS_MS.
    """
    models = [model.copy() for model in found]
    for request in known.unanswered:
        if isinstance(request, Batch) and request.producer is None:
            continue
        number = send(harness, request)
        harness.flush()
        answer = harness.answers()[number]
        expected = [apply_to_model(model, request, known.now_ms) for model in models]
        if isinstance(request, Batch):
            outcome = produced(answer)
            kept = [e == (outcome.error, outcome.base_offset) for e in expected]
            assert any(kept), f"{outcome}, expected one of {expected}"
            models = [model for model, is_kept in zip(models, kept, strict=True) if is_kept]
    end_ms = harness.clock.wall_ms() + RECURS_MS
    while (wake_ms := harness.next_wake_ms()) is not None:
        if wake_ms > end_ms and any(model.recurring() for model in models):
            models = end_recurrences(harness, models)
            continue
        models = [model for model in models if wake_ms <= (model.next_due_ms() or wake_ms)]
        harness.clock.advance_to_ms(max(wake_ms, harness.clock.wall_ms()))
        now_ms = harness.clock.wall_ms()
        count = harness.deliver_all()
        models = [model for model in models if model.deliver_all(now_ms) == count]
        assert models, f"{count} timers were delivered at {now_ms}"
    seen = spectator.visible(harness)
    assert any(model.visible() == seen and not model.pending for model in models)
