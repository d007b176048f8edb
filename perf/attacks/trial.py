"""One attack against one new broker: what happened, and whether that is allowed."""

import json
import math
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from appliance.config.config import Config
from perf.attacks import good_client, requests
from perf.attacks.arena import GOOD_TOPIC, Arena, Attack, limit_bytes
from perf.attacks.broker import OTHER_ADDRESS, Observed, observed_broker
from perf.attacks.requests import Wire
from perf.machine import REPOSITORY, BenchError

MEMORY_RATIO_MAX: Final = 1.3
P99_RATIO_MAX: Final = 2.0
SINGLE_MAX_MS: Final = 100.0
GAP_MAX_S: Final = 2.0
GAUGE_TOLERANCE: Final = 0.1
WARM_S: Final = 0.5
PREPARED_S: Final = 5.0
"""After its start the broker compiles its codecs, in pieces of some ms."""

SETTLE_S: Final = 4.0
AFTER_SINGLE_S: Final = 0.5
GROWTH_BYTES: Final = 24 << 20
"""What it grew by less than this is not waited for."""

NICE: Final = 19
"""Attackers run on other machines: here they yield to the broker and the good client. With
SCHED_IDLE as well, because others wait some ms for the slice of a process of any other priority."""

_READ_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Times:
    """How long the steps of the good client took, ms."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    slowest: str

    @classmethod
    def of(cls, times: Sequence[tuple[float, str, float]], begin_s: float, end_s: float) -> "Times":
        """Of the steps that overlap a span."""
        inside = [(ms, what) for at, what, ms in times if begin_s <= at and at - ms / 1e3 <= end_s]
        if not inside:
            return cls(0, float("nan"), float("nan"), float("nan"), "nothing was answered")
        inside.sort()
        count = len(inside)
        last = inside[-1]
        p50, p99 = inside[count // 2][0], inside[count * 99 // 100][0]
        return cls(count, p50, p99, last[0], last[1])


@dataclass
class Result:
    """What one attack did; sizes in bytes."""

    name: str
    what: str
    is_flood: bool
    took_s: float
    sent_bytes: int
    before_bytes: int
    peak_bytes: int
    after_bytes: int
    limit_bytes: int
    gauges: dict[str, float]
    gauge_ratio: float
    accounted_bytes: int
    alone: Times
    beside: Times
    gap_s: float
    lost: int
    is_control: bool = False
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def p99_ratio(self) -> float:
        """The p99 beside the attack over the p99 alone."""
        return self.beside.p99_ms / self.alone.p99_ms

    @property
    def misses(self) -> list[str]:
        """What is not as it must be; a control shows only what the machine takes."""
        found = list(self.faults)
        if self.is_control:
            return found
        if self.peak_bytes > MEMORY_RATIO_MAX * self.limit_bytes:
            found.append(f"memory {self.peak_bytes / self.limit_bytes:.1f}x")
        if math.isnan(self.gauge_ratio):
            found.append("the gauge was not read")
        elif abs(self.gauge_ratio - 1) > GAUGE_TOLERANCE:
            found.append(f"gauge {self.gauge_ratio:.2f}x")
        if self.is_flood and not self.p99_ratio <= P99_RATIO_MAX:
            found.append(f"p99 {self.p99_ratio:.1f}x")
        if not self.is_flood and not self.beside.max_ms <= SINGLE_MAX_MS:
            found.append(f"{self.beside.max_ms:.0f} ms")
        if self.gap_s > GAP_MAX_S:
            found.append(f"gap {self.gap_s:.1f} s")
        if self.lost:
            found.append(f"{self.lost} lost")
        return found

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"misses": self.misses}


@contextmanager
def yielding(nice: int) -> Iterator[None]:
    """Lower the priority of this thread and of the threads and processes that it starts.

    Args:
        nice: 0 changes nothing.
    """
    before, policy = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)
    if nice:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        yield
    finally:
        with suppress(PermissionError):
            os.sched_setscheduler(0, policy, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, 0, before)


@contextmanager
def good_client_process(address: str, source: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", good_client.__name__, address, GOOD_TOPIC]
    command += ["--source", source]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_numbers(address: str) -> tuple[set[int], int]:
    """The numbers of all records of the good client, and its committed offset."""
    wire = Wire(address)
    offset, found = 0, set[int]()
    while True:
        answer = wire.ask(requests.fetch({GOOD_TOPIC: [0]}, offset, size=_READ_BYTES))
        found.update(good_client.numbers_in(answer))
        following = good_client.next_offset(answer, GOOD_TOPIC, offset)
        if following == offset:
            break
        offset = following
    answer = wire.ask(requests.offset_fetch(good_client.GROUP, {GOOD_TOPIC: [0]}))
    wire.close()
    # One topic, its name, one partition, its index.
    (committed,) = struct.unpack_from(">q", answer, 4 + 2 + len(GOOD_TOPIC) + 4 + 4)
    (note_size,) = struct.unpack_from(">h", answer, 4 + 2 + len(GOOD_TOPIC) + 4 + 4 + 8)
    note = answer[4 + 2 + len(GOOD_TOPIC) + 4 + 4 + 8 + 2 :][: max(0, note_size)]
    return found, int(note) if committed >= 0 and note else -1


def _count_lost(address: str, said: dict[str, Any]) -> int:
    found, committed = read_numbers(address)
    lost = set(said["acknowledged"]) - found
    return len(lost) + int(committed < said["committed"])


@dataclass(frozen=True, slots=True)
class Span:
    """How long a trial measures.

    Args:
        seconds: of one round of a flood, and alone before a single request.
        rounds: how often a flood is repeated, without a pause. As long without it is before it.
        nice: priority of the attackers; 0 is that of other processes.
        source: address of the good client.
    """

    seconds: float = 2.0
    rounds: int = 4
    nice: int = NICE
    source: str = OTHER_ADDRESS


@dataclass(frozen=True, slots=True)
class Course:
    """When the attack began and ended, what it sent, and what the good client said."""

    begin_s: float
    end_s: float
    sent_bytes: int
    said: dict[str, Any]


class Trial:
    """One attack against one new broker in `directory`."""

    def __init__(self, attack: Attack, directory: Path, span: Span) -> None:
        self._attack = attack
        self._directory = directory
        self._span = span
        self._alone_s = span.seconds * (span.rounds if attack.is_flood else 1)
        self._faults: list[str] = []

    def run(self) -> Result:
        """Measure.

        Raises:
            BenchError: the broker or the good client did not start.
        """
        attack = self._attack
        with observed_broker(
            self._directory,
            attack.config,
            file_limit=attack.file_limit,
            is_unread=attack.is_unread,
        ) as broker:
            ready_s = time.monotonic()
            arena = Arena(broker, self._span.seconds, faults=self._faults)
            arena.create_topics([GOOD_TOPIC], 1)
            if attack.prepare is not None:
                attack.prepare(arena)
                arena.close_all()
            course = self._attack_beside_client(arena, ready_s + PREPARED_S)
            status = broker.process.poll()
            lost = 0
            if status is not None:
                self._faults.append(f"the broker ended with status {status}")
            else:
                lost = self._verify(broker.address, course.said)
                broker.end(signal.SIGKILL)
            observed = broker.observed
        # What it had before its memory was asked for must be there after a crash as well.
        with observed_broker(self._directory, attack.config) as again:
            lost = max(lost, self._verify(again.address, course.said))
        return self._result(observed, arena, course, lost)

    def _attack_beside_client(self, arena: Arena, prepared_s: float) -> Course:
        with good_client_process(arena.broker.address, self._span.source) as client:
            time.sleep(max(WARM_S, prepared_s - time.monotonic()) + self._alone_s)
            begin_s = time.monotonic()
            arena.begin()
            with yielding(self._span.nice):
                self._attack_in_rounds(arena, begin_s + self._alone_s)
            if not self._attack.is_flood:
                time.sleep(AFTER_SINGLE_S)
            sent_bytes = arena.sent_bytes
            end_s = time.monotonic()
            arena.close_all()
            observed = arena.broker.observed
            grown = observed.peak(begin_s, end_s)[1] - observed.last(begin_s)
            time.sleep(SETTLE_S if grown >= GROWTH_BYTES else AFTER_SINGLE_S)
            try:
                output, _ = client.communicate(timeout=good_client.STEP_LIMIT_S + 10)
            except subprocess.TimeoutExpired:
                raise BenchError("the good client does not end") from None
        if not output:
            raise BenchError("the good client failed")
        said: dict[str, Any] = json.loads(output)
        self._faults.extend(f"good client: {error} ({n}x)" for error, n in said["errors"].items())
        return Course(begin_s, end_s, sent_bytes, said)

    def _attack_in_rounds(self, arena: Arena, end_s: float) -> None:
        """Attack; repeat a flood as long as there is time for another round."""
        while True:
            try:
                self._attack.run(arena)
            except OSError as error:
                arena.notes.append(f"the attack ended: {error}")
            is_over = time.monotonic() >= end_s - self._span.seconds / 2
            if is_over or not self._attack.is_flood or arena.broker.has_ended:
                break
            arena.begin_round()

    def _verify(self, address: str, said: dict[str, Any]) -> int:
        try:
            return _count_lost(address, said)
        except OSError as error:
            self._faults.append(f"cannot read everything again: {error}")
            return 0

    def _result(self, observed: Observed, arena: Arena, course: Course, lost: int) -> Result:
        attack, begin_s, end_s = self._attack, course.begin_s, course.end_s
        at_s, peak_bytes = observed.peak(begin_s, end_s)
        before_bytes = observed.peak(begin_s - 0.2, begin_s)[1]
        gauges = observed.gauges_at(at_s)
        idle = observed.gauges_at(begin_s - 0.2)
        held = _held(gauges) - _held(idle)
        times = course.said["times"]
        connection_count = max(arena.connection_count, observed.connection_count(begin_s, end_s))
        return Result(
            name=attack.name,
            what=(attack.run.__doc__ or "").strip(),
            is_flood=attack.is_flood,
            took_s=end_s - begin_s,
            sent_bytes=course.sent_bytes,
            before_bytes=before_bytes,
            peak_bytes=peak_bytes,
            after_bytes=observed.last(end_s + SETTLE_S),
            limit_bytes=limit_bytes(Config(), attack.holds, before_bytes, connection_count),
            gauges=gauges,
            gauge_ratio=observed.gauge_ratio(begin_s, end_s),
            accounted_bytes=before_bytes + int(held),
            alone=Times.of(times, begin_s - self._alone_s, begin_s - 0.01),
            beside=Times.of(times, begin_s, end_s),
            gap_s=observed.gap_s(begin_s, end_s),
            lost=lost,
            is_control=attack.is_control,
            faults=self._faults,
            notes=arena.notes,
        )


def _held(gauges: dict[str, float]) -> float:
    """What the broker says it holds in its own memory."""
    inflight = gauges.get("latermq_inflight_bytes", 0.0)
    return inflight + gauges.get("latermq_cache_bytes", 0.0) - gauges.get("latermq_locked_bytes", 0)
