"""Retention: raises the start offsets of partitions whose oldest records have expired.

A sweep visits all partitions with a limit, a slice a turn, about once a minute:

    age limit    AgeClock - limit -> LogAges: a log position -> OffsetSearch: an offset -.
    size limit   SizeMarks: an offset ---------------------------------------------------+-> start

The age of a record counts from its visible frame, so a record that was delayed for 90 days does not
expire on delivery, and a timer that is pending never expires. A topic whose starts move gets one
topic frame: replay does not know the limits. Layer 3; does no I/O.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Final

from _core.queue.partition import Partition, Topic
from appliance.config.config import Config
from appliance.errors import ColdFrameError, RequestError
from appliance.model import ColdPlace
from appliance.offset_search import NO_RECORD, OffsetSearch
from appliance.store.state.age_clock import AgeClock
from appliance.store.state.log_ages import LogAges, SizeMarks
from appliance.system.clock import Clock
from appliance.topics import Topics
from appliance.units import NS_PER_MS

PARTITIONS_PER_SLICE: Final = 256
"""Partitions visited in one turn: less than a millisecond while nothing expires."""

COLD_READS_MAX: Final = 200
"""Reads for one partition in one sweep; a binary search takes about forty."""

NEVER: Final = -1


@dataclass(slots=True, eq=False)
class Cleanup:
    """One sweep, the regular one or one that an operator asked for.

    Attributes:
        topic: only this topic; None for all.
        before_ms: expire what is older than this instant, epoch ms, instead of what the limits say.
        is_dry_run: expire nothing; only count.
        done: called at the end, if it was asked for.
        expired: number of offsets that expired, or would, by topic.
        error: why some could not expire; None if they could.
    """

    topic: Topic | None = None
    before_ms: int | None = None
    is_dry_run: bool = False
    done: Callable[[], None] | None = None
    expired: dict[str, int] = field(default_factory=dict)
    error: RequestError | None = None


class Retention:
    """Sweeps all partitions again and again. Runs on the loop.

    Attributes:
        expired_records: offsets that expired since the start.
        kept_from: a log position before which no partition has a record that is kept, as of the
            last sweep.
        cold: what a thread must read before the next `step`; None if nothing.
    """

    def __init__(
        self,
        clock: Clock,
        topics: Topics,
        search: OffsetSearch,
        config: Config,
        *,
        ages: LogAges,
        sizes: SizeMarks,
        age_clock: AgeClock,
        visible_end: Callable[[], int],
    ) -> None:
        """Start with a sweep.

        Args:
            clock: for the pauses between sweeps.
            topics, search: the topics, and their records.
            config: the limits of topics that set none.
            ages, sizes, age_clock: the marks and the clock, which the state keeps.
            visible_end: returns the log position after the last visible frame.
        """
        self._clock = clock
        self._topics = topics
        self._search = search
        self._config = config
        self._ages = ages
        self._sizes = sizes
        self._age_clock = age_clock
        self._visible_end = visible_end
        self._sweep: Generator[ColdPlace | None, None, None] | None = None
        self._began_ns: int | None = None
        self._asked: Cleanup | None = None
        self._firsts: dict[int, dict[int, tuple[int, int]]] = {}
        """By topic id and partition: a start offset, and the log position of its record."""
        self.expired_records = 0
        self.kept_from = 0
        self.cold: ColdPlace | None = None

    @property
    def clock_jump_ms(self) -> int:
        """How far the wall clock is ahead of the age that records have, in milliseconds."""
        return self._age_clock.jump_ms

    def confirm_clock(self) -> int:
        """Trust the wall clock at once; return by how many milliseconds all records age."""
        jump_ms = self._age_clock.confirm()
        self._note_age(jump_ms)
        self._began_ns = None
        return jump_ms

    def ask(self, cleanup: Cleanup) -> None:
        """Sweep for an operator, after the sweep that is in progress.

        One that was asked for before and has not begun is dropped: ask for one at a time.
        """
        self._asked = cleanup

    def step(self) -> None:
        """Do a slice of a sweep, if one is due. Call it often, and again after reading `cold`."""
        if self.cold is not None:
            return
        if self._sweep is None:
            if self._is_due():
                self._sweep = self._run(Cleanup())
            elif self._asked is not None:
                self._sweep = self._run(self._asked)
                self._asked = None
            else:
                return
        try:
            self.cold = next(self._sweep)
        except StopIteration:
            self._sweep = None

    def _is_due(self) -> bool:
        now_ns = self._clock.monotonic_ns()
        pause_ns = self._config.retention_check_interval_ms * NS_PER_MS
        if self._began_ns is not None and now_ns - self._began_ns < pause_ns:
            return False
        self._began_ns = now_ns
        return True

    def note_read(self) -> None:
        """Note that `cold` was read, or cannot be read."""
        self.cold = None

    # A sweep. Its generators yield what must be read first, or None at the end of a slice.

    def _run(self, cleanup: Cleanup) -> Generator[ColdPlace | None, None, None]:
        self._note_age(self._age_clock.step())
        limited: set[tuple[int, int]] = set()
        firsts: dict[int, dict[int, tuple[int, int]]] = {}
        visited = 0
        for topic in self._topics.all():
            visited += 1 + len(topic.partitions)
            if visited >= PARTITIONS_PER_SLICE:
                visited = 0
                yield None
            if topic.topic_id in self._firsts:
                firsts[topic.topic_id] = self._firsts[topic.topic_id]
            age_limit_ms, size_limit = self._limits(topic)
            cut_pos = 0
            if age_limit_ms != NEVER:
                cut_pos = self._ages.position_of(self._age_clock.age_ms - age_limit_ms)
            if size_limit != NEVER:
                limited.update((topic.topic_id, each.index) for each in topic.partitions)
            if cleanup.topic is not None and topic is not cleanup.topic:
                continue
            if cleanup.before_ms is not None:
                cut_pos = self._position_before(cleanup.before_ms)
                size_limit = NEVER
            if cut_pos or size_limit != NEVER:
                yield from self._expire(topic, cut_pos, size_limit, cleanup)
        self._sizes.keep(limited)
        self._firsts = firsts  # without those of topics that are gone
        yield from self._find_kept()
        if cleanup.done is not None:
            cleanup.done()

    def _find_kept(self) -> Generator[ColdPlace | None, None, None]:
        """Find the first kept record of the log: start offsets only rise, so it stays true."""
        kept = self._visible_end()
        visited = 0
        for topic in self._topics.all():
            for partition in list(topic.partitions):
                visited += 1
                if visited % PARTITIONS_PER_SLICE == 0:
                    yield None
                if partition.start_offset < partition.next_offset:
                    kept = min(kept, (yield from self._kept_of(partition)))
        self.kept_from = kept

    def _kept_of(self, partition: Partition) -> Generator[ColdPlace, None, int]:
        """The log position of the first record of a partition; 0 if it cannot be read now."""
        for _ in range(COLD_READS_MAX):
            if partition.topic.deleted:
                return NO_RECORD
            try:
                return self._first_position(partition)
            except ColdFrameError as error:
                yield error.place
        return 0

    def _position_before(self, wall_ms: int) -> int:
        """A log position below which everything was written before an instant, epoch ms.

        While the wall clock is in doubt, both readings of the instant must agree.
        """
        age_clock = self._age_clock
        since_ms = max(0, self._clock.wall_ms() - wall_ms)
        return self._ages.position_of(min(age_clock.age_ms - since_ms, age_clock.age_at(wall_ms)))

    def _note_age(self, jump_ms: int) -> None:
        if jump_ms:
            self._ages.raise_doubtful(jump_ms)
        age_clock = self._age_clock
        self._ages.note(self._visible_end(), age_clock.age_ms, is_certain=age_clock.is_certain)

    def _limits(self, topic: Topic) -> tuple[int, int]:
        """The age in ms and the bytes that a topic keeps, or NEVER."""
        settings, config = topic.settings, self._config
        return (
            _limit(settings.get("retention.ms"), config.retention_time_ms),
            _limit(settings.get("retention.bytes"), config.retention_size_bytes),
        )

    def _expire(
        self, topic: Topic, cut_pos: int, size_limit: int, cleanup: Cleanup
    ) -> Generator[ColdPlace | None, None, None]:
        starts: dict[int, int] = {}
        for number, partition in enumerate(list(topic.partitions), 1):
            start = yield from self._start_by_age(partition, cut_pos)
            if size_limit != NEVER:
                key = topic.topic_id, partition.index
                end, size = partition.visible_offset, partition.log_bytes
                start = max(start, self._sizes.excess(key, end, size, size_limit))
            if start > partition.start_offset:
                starts[partition.index] = start
            if number % PARTITIONS_PER_SLICE == 0:
                yield None
        if starts and not topic.deleted:
            before = sum(topic.partitions[index].start_offset for index in starts)
            count = max(0, sum(starts.values()) - before)
            # If a full disk has no reserve left, the next sweep tries again.
            try:
                if not cleanup.is_dry_run:
                    self._topics.delete_records(topic, starts)
                    self.expired_records += count
                cleanup.expired[topic.name] = count
            except RequestError as error:
                cleanup.error = error

    def _start_by_age(self, partition: Partition, cut_pos: int) -> Generator[ColdPlace, None, int]:
        """Find the offset of the first record at or after a log position."""
        for _ in range(COLD_READS_MAX):
            if partition.topic.deleted or not cut_pos:
                break
            try:
                if self._first_position(partition) >= cut_pos:
                    break
                return self._search.find_position(partition, cut_pos)
            except ColdFrameError as error:
                yield error.place
        return partition.start_offset

    def _first_position(self, partition: Partition) -> int:
        """The log position of the first record; raises ColdFrameError."""
        start = partition.start_offset
        of_topic = self._firsts.setdefault(partition.topic.topic_id, {})
        known = of_topic.get(partition.index)
        if known is None or known[0] != start:
            known = start, self._search.position_from(partition, start)
            if known[1] < NO_RECORD:
                of_topic[partition.index] = known
        return known[1]


def _limit(given: str | None, default: int) -> int:
    """A limit of a topic. One that no client can set, as in a forged log, deletes nothing."""
    if given is None:
        return default
    try:
        return max(NEVER, int(given))
    except ValueError:
        return NEVER
