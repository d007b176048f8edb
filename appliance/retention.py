"""Retention: raises the start offsets of partitions whose oldest records have expired.

A sweep visits all partitions with a limit, a slice a turn, about once a minute:

    age limit    Expiry: a log position -> OffsetSearch: an offset -.
    size limit   SizeMarks: an offset ------------------------------+-> start

The age of a record counts from its visible frame, so a record that was delayed for 90 days does not
expire on delivery, and a timer that is pending never expires. A topic whose starts move gets one
topic frame: replay does not know the limits. The frame has all partitions of the topic, so starts
move in coarse steps: `AGE_PARTS`, `BYTES_PER_FRAME_BYTE`. Layer 3; does no I/O.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from _core.bytes.layout import FRAME_HEADER_SIZE
from _core.queue.partition import Partition, Topic
from appliance.config.config import Config
from appliance.errors import ColdFrameError, RequestError
from appliance.model import ColdPlace
from appliance.offset_search import NO_RECORD, OffsetSearch
from appliance.store.state.expiry import Expiry
from appliance.store.state.log_ages import SizeMarks
from appliance.system.clock import Clock, MovableClock
from appliance.topics import Topics
from appliance.units import NS_PER_MS

PARTITIONS_PER_SLICE: Final = 256
"""Partitions visited in one turn: less than a millisecond while nothing expires."""

COLD_READS_MAX: Final = 200
"""Reads for one partition in one sweep; a binary search takes about forty."""

AGE_PARTS: Final = 64
"""The starts of a topic rise by age at most this often within its age limit."""

BYTES_PER_FRAME_BYTE: Final = 16
"""The starts of a topic rise by size when it has grown by this many times the topic frame."""

PARTITION_FRAME_BYTES: Final = 24
"""What a partition takes in a topic frame."""

TOPIC_FRAME_BYTES: Final = FRAME_HEADER_SIZE + 128
"""What the rest takes, with an average name and settings."""

SPREAD_MS: Final = 7_919_000
"""Between the steps of topics with consecutive ids, modulo the step; a prime number of seconds."""

NEVER: Final = -1


@dataclass(slots=True, kw_only=True, eq=False)
class Cleanup:
    """One sweep, the regular one or one that an operator asked for.

    Attributes:
        topic: only this topic; None for all.
        before_ms: expire what is older than this instant, epoch ms, instead of what the limits say.
        below_pos: expire what lies below this log position, of topics that do not keep their
            records for ever; 0 for what the limits say.
        takes_all: with `below_pos`, of all topics.
        is_dry_run: expire nothing; only count.
        done: called at the end, if it was asked for.
        expired: number of offsets that expired, or would, by topic.
        left_bytes: with `below_pos`, about the bytes of all records of the other topics.
        error: why some could not expire; None if they could.
    """

    topic: Topic | None = None
    before_ms: int | None = None
    below_pos: int = 0
    takes_all: bool = False
    is_dry_run: bool = False
    done: Callable[[], None] | None = None
    expired: dict[str, int] = field(default_factory=dict)
    left_bytes: int = 0
    error: RequestError | None = None


@dataclass(slots=True)
class _First:
    """The first record of a partition.

    Attributes:
        start, carried: start offset and carried records of the partition when this was found.
        position, origin: where its frame lies, and where the frame lay that first held it.
        lowest: the lowest log position of a record of the partition; None if not yet known.
    """

    start: int
    carried: tuple[int, list[tuple[int, int]]]
    position: int
    origin: int
    lowest: int | None = None


class Retention:
    """Sweeps all partitions again and again. Runs on the loop.

    Attributes:
        expired_records: offsets that expired since the start.
        kept_from: a log position below which no record lies that a partition keeps, as of the
            last sweep. A carried record counts where it is now.
        cold: what a thread must read before the next `step`; None if nothing.
    """

    def __init__(
        self,
        clock: Clock,
        topics: Topics,
        search: OffsetSearch,
        config: Config,
        *,
        expiry: Expiry,
        sizes: SizeMarks,
    ) -> None:
        """Start with a sweep.

        Args:
            clock: for the pauses between sweeps.
            topics, search: the topics, and their records.
            config: the limits of topics that set none.
            expiry, sizes: how old the log is, and marks of sizes; the state keeps both.
        """
        self._clock = clock
        self._topics = topics
        self._search = search
        self._config = config
        self._expiry = expiry
        self._sizes = sizes
        self._sweep: Generator[ColdPlace | None, None, None] | None = None
        self._began_ns: int | None = None
        self._asked: Cleanup | None = None
        self._early: Cleanup | None = None
        self._firsts: dict[int, dict[int, _First]] = {}
        """By topic id and partition: the first record, as long as nothing changed."""
        self._sizes_at: dict[int, tuple[int, int]] = {}
        """By topic id: its size limit when its starts last rose by size, and its bytes then."""
        self.expired_records = 0
        self.kept_from = 0
        self.cold: ColdPlace | None = None

    @property
    def clock_jump_ms(self) -> int:
        """How far the wall clock is ahead of the age that records have, in milliseconds."""
        return self._expiry.age_clock.jump_ms

    def confirm_clock(self) -> int:
        """Trust the wall clock at once; return by how many milliseconds all records age."""
        jump_ms = self._expiry.confirm()
        self._began_ns = None
        return jump_ms

    def advance(self, clock: MovableClock, by_ms: int) -> None:
        """Advance the clock of the broker; records age by as much, and a sweep follows.

        Args:
            clock, by_ms: as `MovableClock.advance`.
        """
        self._expiry.advance(partial(clock.advance, by_ms), by_ms)
        self._began_ns = None

    def ask(self, cleanup: Cleanup) -> None:
        """Sweep for an operator, after the sweep that is in progress.

        One that was asked for before and has not begun is dropped: ask for one at a time.
        """
        self._asked = cleanup

    def ask_early(self, cleanup: Cleanup) -> None:
        """Sweep because the disk fills up, like `ask` but apart from it."""
        self._early = cleanup

    def step(self) -> None:
        """Do a slice of a sweep, if one is due. Call it often, and again after reading `cold`."""
        if self.cold is not None:
            return
        if self._sweep is None:
            if self._is_due():
                self._sweep = self._run(Cleanup())
            elif self._early is not None:
                self._sweep = self._run(self._early)
                self._early = None
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
        self._expiry.step()
        limited: set[tuple[int, int]] = set()
        firsts: dict[int, dict[int, _First]] = {}
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
                cut_pos = self._position_to_expire(topic, age_limit_ms)
            if size_limit != NEVER:
                limited.update((topic.topic_id, each.index) for each in topic.partitions)
            if cleanup.topic is not None and topic is not cleanup.topic:
                continue
            if cleanup.before_ms is not None:
                cut_pos = self._position_before(cleanup.before_ms)
                size_limit = NEVER
            if cleanup.below_pos:
                is_taken = cleanup.takes_all or age_limit_ms != NEVER
                cut_pos = cleanup.below_pos if is_taken else 0
                size_limit = NEVER
                if not is_taken:
                    cleanup.left_bytes += sum(each.kept_bytes for each in topic.partitions)
            if cut_pos or size_limit != NEVER:
                yield from self._expire(topic, cut_pos, size_limit, cleanup)
        self._sizes.keep(limited)
        # Without those of topics that are gone.
        self._firsts = firsts
        limited_ids = {topic_id for topic_id, _ in limited}
        self._sizes_at = {key: at for key, at in self._sizes_at.items() if key in limited_ids}
        yield from self._find_kept()
        if cleanup.done is not None:
            cleanup.done()

    def _find_kept(self) -> Generator[ColdPlace | None, None, None]:
        """Find the first kept record of the log: start offsets only rise, so it stays true."""
        kept = self._expiry.visible_end()
        visited = 0
        for topic in self._topics.all():
            for partition in list(topic.partitions):
                visited += 1
                if visited % PARTITIONS_PER_SLICE == 0:
                    yield None
                if partition.start_offset < partition.next_offset:
                    kept = min(kept, (yield from self._kept_of(partition)))
        self.kept_from = kept

    def keeps_below(self, cut: int) -> bool:
        """Whether a partition may keep a record that lies below a log position."""
        return self.kept_from < cut

    def _kept_of(self, partition: Partition) -> Generator[ColdPlace, None, int]:
        """The lowest log position of a record of a partition; 0 if it cannot be read now."""
        for _ in range(COLD_READS_MAX):
            if partition.topic.deleted:
                return NO_RECORD
            try:
                return self._lowest_position(partition)
            except ColdFrameError as error:
                yield error.place
        return 0

    def _position_before(self, wall_ms: int) -> int:
        """A log position below which everything was written before an instant, epoch ms.

        While the wall clock is in doubt, both readings of the instant must agree.
        """
        age_clock = self._expiry.age_clock
        since_ms = max(0, self._clock.wall_ms() - wall_ms)
        age_ms = min(age_clock.age_ms - since_ms, age_clock.age_at(wall_ms))
        return self._expiry.ages.position_of(age_ms)

    def _position_to_expire(self, topic: Topic, limit_ms: int) -> int:
        """A log position below which all is older than the limit; it rises in coarse steps.

        Topics of one limit take their steps at different times.
        """
        age_ms = self._expiry.age_clock.age_ms - limit_ms
        step_ms = max(1, limit_ms // AGE_PARTS)
        late_ms = (age_ms - topic.topic_id * SPREAD_MS) % step_ms
        return self._expiry.ages.position_of(age_ms - late_ms)

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
        by_size: dict[int, int] = {}
        total = 0
        for number, partition in enumerate(list(topic.partitions), 1):
            start = yield from self._start_by_age(partition, cut_pos)
            if start > partition.start_offset:
                starts[partition.index] = start
            if size_limit != NEVER:
                key = topic.topic_id, partition.index
                end, size = partition.visible_offset, partition.log_bytes
                by_size[partition.index] = self._sizes.excess(key, end, size, size_limit)
                total += size
            if number % PARTITIONS_PER_SLICE == 0:
                yield None
        if starts or self._has_grown(topic, size_limit, total):
            for index, start in by_size.items():
                if start > max(starts.get(index, 0), topic.partitions[index].start_offset):
                    starts[index] = start
        if starts and not topic.deleted:
            before = sum(topic.partitions[index].start_offset for index in starts)
            count = max(0, sum(starts.values()) - before)
            # If a full disk has no reserve left, the next sweep tries again.
            try:
                if not cleanup.is_dry_run:
                    self._topics.delete_records(topic, starts)
                    self.expired_records += count
                    self._sizes_at[topic.topic_id] = size_limit, total
                cleanup.expired[topic.name] = count
            except RequestError as error:
                cleanup.error = error

    def _has_grown(self, topic: Topic, size_limit: int, total: int) -> bool:
        """Whether a topic of `total` bytes has grown enough for another topic frame by size."""
        limit_then, total_then = self._sizes_at.get(topic.topic_id, (NEVER, 0))
        frame_size = TOPIC_FRAME_BYTES + PARTITION_FRAME_BYTES * len(topic.partitions)
        return limit_then != size_limit or total - total_then >= BYTES_PER_FRAME_BYTE * frame_size

    def _start_by_age(self, partition: Partition, cut_pos: int) -> Generator[ColdPlace, None, int]:
        """Find the offset of the first record at or after a log position."""
        for _ in range(COLD_READS_MAX):
            if partition.topic.deleted or not cut_pos:
                break
            try:
                if self._first(partition).origin >= cut_pos:
                    break
                start = self._search.find_position(partition, cut_pos)
                # A search passes over damage, and so may end before some that is as old.
                return self._search.skip_damaged(partition, start, cut_pos)
            except ColdFrameError as error:
                yield error.place
        return partition.start_offset

    def _first(self, partition: Partition) -> _First:
        """The first record of a partition; raises ColdFrameError."""
        start = partition.start_offset
        # Damage of a carried frame may lead back to an earlier place, and changes the parts.
        parts = [(begin, end) for begin, end, _ in partition.carried_parts()]
        carried = partition.carried_pos, parts
        of_topic = self._firsts.setdefault(partition.topic.topic_id, {})
        known = of_topic.get(partition.index)
        if known is None or (known.start, known.carried) != (start, carried):
            position, origin = self._search.positions_from(partition, start)
            known = _First(start, carried, position, origin)
            if position < NO_RECORD:
                of_topic[partition.index] = known
        return known

    def _lowest_position(self, partition: Partition) -> int:
        """The lowest log position of a record of a partition; raises ColdFrameError.

        Positions rise with offsets within each part of carried records, and after all of them.
        """
        first = self._first(partition)
        if first.lowest is None:
            start = partition.start_offset
            parts = partition.carried_parts()
            begins = {begin for begin, _, _ in parts}
            # What comes after a part and begins no other was not carried.
            others = [end for _, end, _ in parts if end not in begins] or [start]
            found = [self._search.positions_from(partition, offset)[0] for offset in others]
            lowest = min(first.position, *found)
            for begin, _, bound in sorted(parts, key=lambda part: part[2]):
                if bound >= lowest:
                    break
                offset = max(begin, start)
                position, _ = self._search.positions_from(partition, offset)
                partition.carried.confirm(offset, position)
                lowest = min(lowest, position)
            first.lowest = lowest
        return first.lowest


def _limit(given: str | None, default: int) -> int:
    """A limit of a topic. One that no client can set, as in a forged log, deletes nothing."""
    if given is None:
        return default
    try:
        return max(NEVER, int(given))
    except ValueError:
        return NEVER
