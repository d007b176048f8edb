"""Whatever happens to pending timers, in any order: a model of a few lines says what follows."""

import random
from typing import Any, get_args

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from appliance.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE
from tests.support.harness.broker_harness import Stop
from tests.support.harness.checkpoints import rebuild, take_checkpoint
from tests.support.harness.forecast import Forecast
from tests.support.harness.loading import in_pieces
from tests.support.simulator.sim_fs import CrashMode
from tests.support.values.kafka_records import Record, cancel, delay
from tests.unit.retention.test_freeing import broker, fill, free, start_pos
from tests.unit.timers.test_levels import at_level, levels_of
from tests.unit.timers.test_pending_timers import listed, purge
from tests.unit.timers.test_placed_moves import move

DELAYS_MS = (1, 1_000, 90_000, 3 * MS_PER_HOUR, 60 * MS_PER_HOUR, 30 * MS_PER_DAY)
LEVEL = 9
NAMES = tuple(b"id-%d" % number for number in range(6))

delays_ms = st.tuples(st.sampled_from(DELAYS_MS), st.integers(0, 3)).map(
    lambda d: d[0] * (1 + d[1])
)


class Model:
    """Pending timers by value, and the values that were delivered."""

    def __init__(self) -> None:
        self.pending: dict[bytes, tuple[int, int]] = {}
        self.named: dict[bytes, bytes] = {}
        self.of_level: set[bytes] = set()
        self.delivered: list[bytes] = []
        self.count = 0

    def add(self, due_ms: int, name: bytes | None) -> bytes:
        self.count += 1
        value = b"%d" % self.count
        if name is not None:
            self.cancel(name)
            self.named[name] = value
        self.pending[value] = due_ms, self.count
        return value

    def cancel(self, name: bytes) -> None:
        self.pending.pop(self.named.pop(name, b""), None)

    def move(self, value: bytes, due_ms: int) -> None:
        self.count += 1
        self.pending[value] = due_ms, self.count
        self.of_level.discard(value)

    def pass_time(self, now_ms: int) -> None:
        for value in self.in_order():
            if self.pending[value][0] <= now_ms:
                del self.pending[value]
                self.delivered.append(value)

    def in_order(self) -> list[bytes]:
        return sorted(self.pending, key=self.pending.__getitem__)

    def lag(self) -> int:
        return len(self.of_level & self.pending.keys())


class TimerMachine(RuleBasedStateMachine):
    """A broker with segments of 64 KiB; the records of `t` are kept, those of `filler` expire."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = broker()
        self.harness.create_topic("t", settings={"retention.ms": "-1"})
        self.harness.create_topic("filler")
        self.model = Model()

    @property
    def now_ms(self) -> int:
        return self.harness.clock.wall_ms()

    def _produce(self, *records: Record) -> None:
        assert self.harness.produce("t", 0, list(records)).error == 0

    @rule(delay_ms=delays_ms, name=st.none() | st.sampled_from(NAMES))
    def add_or_replace(self, delay_ms: int, name: bytes | None) -> None:
        value = self.model.add(self.now_ms + delay_ms, name)
        self._produce(Record(value, headers=delay(delay_ms, *([name] if name else []))))

    @rule(name=st.none() | st.sampled_from(NAMES))
    def add_at_level(self, name: bytes | None) -> None:
        due_ms = self.now_ms + self.harness.config.delay_levels[LEVEL - 1]
        value = self.model.add(due_ms, name)
        self.model.of_level.add(value)
        record = at_level(LEVEL, name)
        self._produce(Record(value, headers=record.headers))

    @rule(name=st.sampled_from(NAMES), by_header=st.booleans())
    def cancel(self, name: bytes, by_header: bool) -> None:
        self.model.cancel(name)
        if by_header:
            self._produce(Record(b"", headers=cancel(name)))
        else:
            self.harness.cancel_timer("t", name)
            self.harness.flush()

    @precondition(lambda self: self.model.pending)
    @rule(chosen=st.floats(0, 1, exclude_max=True), delay_ms=delays_ms)
    def move(self, chosen: float, delay_ms: int) -> None:
        """Give a timer another due time, by its place; it comes after others of its ms."""
        values = self.model.in_order()
        at = int(chosen * len(values))
        due_ms = self.now_ms + delay_ms
        assert move(self.harness, listed(self.harness)[at], due_ms)
        self.model.move(values[at], due_ms)

    @rule()
    def purge_all(self) -> None:
        assert purge(self.harness) == len(self.model.pending)
        self.harness.flush()
        self.model.pending.clear()

    @rule(duration_ms=st.sampled_from([0, 1, 1_000, 95_000, 4 * MS_PER_HOUR]))
    def tick(self, duration_ms: int) -> None:
        self.harness.tick(duration_ms)
        self.harness.housekeep()
        self.model.pass_time(self.now_ms)

    @rule(step_ms=st.sampled_from([-10 * MS_PER_MINUTE, -700, 700, 10 * MS_PER_MINUTE]))
    def step_the_clock(self, step_ms: int) -> None:
        self.harness.clock.step_ms(step_ms)

    @rule()
    def checkpoint(self) -> None:
        assert take_checkpoint(self.harness).error is None

    @rule()
    def carry(self) -> None:
        """Fill a segment; four hours later it is expired, and the log begins after it."""
        before = start_pos(self.harness)
        fill(self.harness, 1.5, "filler")
        free(self.harness)
        assert start_pos(self.harness) > before
        self.model.pass_time(self.now_ms)

    @rule(how=st.sampled_from(["clean", *get_args(CrashMode)]))
    def stop(self, how: Stop) -> None:
        self.harness = self.harness.reborn(how)

    @precondition(lambda self: self.model.pending)
    @rule()
    def lose_all_but_the_log(self) -> None:
        self.harness.flush()
        disk = self.harness.crash("kept", random.Random(0)).disk
        self.harness = rebuild(self.harness, disk)

    @rule()
    def load_piece(self) -> None:
        """Load some of what the last start left to load; most often nothing."""
        self.harness.load_piece()

    @rule()
    def forecast(self) -> None:
        due = self.harness.broker._store.state.projections.due
        Forecast(due, self.now_ms).check([due_ms for due_ms, _ in self.model.pending.values()])

    @invariant()
    def the_model_agrees(self) -> None:
        # A timer may be due that no tick has delivered yet: it is pending in both.
        assert self.harness.values("t") == self.model.delivered
        assert self.harness.broker.pending_timers == len(self.model.pending)
        if self.harness.is_loaded:
            assert [timer[0] for timer in listed(self.harness)] == [
                self.model.pending[value][0] for value in self.model.in_order()
            ]
        if self.model.of_level:
            assert levels_of(self.harness)[LEVEL][2] == self.model.lag()

    def teardown(self) -> None:
        self.harness.tick(121 * MS_PER_DAY)
        self.model.pass_time(self.now_ms)
        self.the_model_agrees()
        assert self.model.pending == {}


class PiecesMachine(TimerMachine):
    """The same, and each start with a saved state leaves the timers to be loaded later."""

    count_max: int | None = None

    def __init__(self) -> None:
        self._pieces = in_pieces(count_max=self.count_max)
        self._pieces.__enter__()
        super().__init__()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self._pieces.__exit__(None, None, None)


class FewMachine(PiecesMachine):
    """The same, and most timers are never in memory at once."""

    count_max = 4


TestTimers: Any = TimerMachine.TestCase
TestTimers.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestTimersInPieces: Any = PiecesMachine.TestCase
TestTimersInPieces.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestFewTimersInMemory: Any = FewMachine.TestCase
TestFewTimersInMemory.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
