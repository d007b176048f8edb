"""Offsets that are lost, or of empty batches: ten billion of them cost what one costs."""

from collections.abc import Callable
from typing import Final

import pytest

from _core.bytes.layout import UNIT_SIZE, UNITS_PER_FILE
from _core.log.frames import read_header
from _core.queue.partition import Partition
from appliance.errors import ColdFrameError
from appliance.store.paths import DataPaths
from tests.support.harness import offline_scenario as scenario
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.configs import DATA_DIR
from tests.support.simulator.virtual_clock import START_MS
from tests.support.values.kafka_records import Record

TEN_BILLION: Final = 10_000_000_000
BEFORE: Final = 700
"""Records before the gap: more than a block of units."""
AFTER: Final = 3
END: Final = BEFORE + TEN_BILLION
PATHS: Final = DataPaths(DATA_DIR)
QUEUE: Final = PATHS.queue("t", 0)
FRAMES: Final = 5
"""Empty batches: each takes two billion offsets at most."""


def partition_of(harness: BrokerHarness) -> Partition:
    return harness.partition()


def send(harness: BrokerHarness, count: int, timestamp_ms: int) -> None:
    records = [Record(b"%d" % i, timestamp_ms=timestamp_ms + i) for i in range(count)]
    for first in range(0, count, 100):
        assert harness.produce("t", 0, records[first : first + 100]).error == 0


def with_empty_batches() -> BrokerHarness:
    harness = with_topic()
    send(harness, BEFORE, START_MS)
    writer = harness.broker._store.writer
    assert writer.append_gap(
        partition_of(harness), end_offset=END, store_time_ms=harness.clock.wall_ms()
    )
    harness.flush()
    send(harness, AFTER, START_MS + 10_000)
    return harness


def with_lost_offsets() -> BrokerHarness:
    """The frames of the empty batches rotted, and were below a flushed mark."""
    harness = with_empty_batches()
    partition = partition_of(harness)
    places = [run[2] for run in partition.runs.overlapping(0, END)]
    assert len(places) == FRAMES
    harness.broker.close()
    for pos in places:
        harness.disk.flip(PATHS.commit_log / ("0" * 20), pos + 40, 1)
    for name in (
        PATHS.checkpoint,
        *(path for path in harness.disk.files() if QUEUE in path.parents),
    ):
        harness.disk.unlink(name)
    harness = BrokerHarness(harness.disk, harness.clock)
    assert harness.report.damage
    return harness


def restarted(harness: BrokerHarness) -> BrokerHarness:
    """From its checkpoint."""
    harness = harness.restart()
    assert harness.report.replayed_bytes == 0
    return harness


def replayed(harness: BrokerHarness) -> BrokerHarness:
    """From the log alone."""
    harness.broker.close()
    for path in list(harness.disk.files()):
        if PATHS.commit_log not in path.parents:
            harness.disk.unlink(path)
    return BrokerHarness(harness.disk, harness.clock)


MAKES: Final = [with_empty_batches, with_lost_offsets]
STARTS: Final = [lambda harness: harness, restarted, replayed]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("make", MAKES)
def test_every_place_of_a_gap_leads_to_what_is_behind_it(
    make: Callable[[], BrokerHarness], start: Callable[[BrokerHarness], BrokerHarness]
) -> None:
    harness = start(make())
    partition = partition_of(harness)
    assert partition.next_offset == END + AFTER
    behind = [END + i for i in range(AFTER)]
    for offset in (BEFORE, BEFORE + 1, BEFORE + 3_333_333_333, END - 1, END):
        assert [record.offset for record in harness.fetch("t", 0, offset)] == behind
    assert [record.offset for record in harness.fetch("t", 0)] == [*range(BEFORE), *behind]
    send(harness, 1, START_MS + 20_000)
    assert partition.next_offset == END + AFTER + 1


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("make", MAKES)
def test_a_time_is_found_on_both_sides_of_a_gap(
    make: Callable[[], BrokerHarness], start: Callable[[BrokerHarness], BrokerHarness]
) -> None:
    harness = start(make())
    topic = harness.topic()

    def find(timestamp_ms: int | None) -> tuple[int, int] | None:
        while True:
            try:
                if timestamp_ms is None:
                    return harness.broker.search.find_highest(topic.partitions[0])
                return harness.broker.search.find(topic.partitions[0], START_MS + timestamp_ms)
            except ColdFrameError as error:
                harness.read_cold([error.place])

    assert find(5) == (5, START_MS + 5)
    assert find(BEFORE) == (END, START_MS + 10_000)
    assert find(10_001) == (END + 1, START_MS + 10_001)
    assert find(99_999) is None
    assert find(None) == (END + 2, START_MS + 10_002)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("make", MAKES)
def test_a_gap_takes_one_unit_and_no_files_of_its_own(
    make: Callable[[], BrokerHarness], start: Callable[[BrokerHarness], BrokerHarness]
) -> None:
    harness = start(make())
    partition = partition_of(harness)
    runs = partition.runs.overlapping(0, partition.next_offset)
    assert (runs[0][0], runs[-1][1]) == (BEFORE, END)
    assert len(runs) == (FRAMES if runs[0][3] > 0 else 1)
    harness.broker.close()
    files = {path: data for path, data in harness.disk.files().items() if QUEUE in path.parents}
    assert len(files) <= FRAMES + 1
    # Sparse: what is in a gap was never written.
    assert max(map(len, files.values())) <= UNITS_PER_FILE * UNIT_SIZE
    for first, end, pos, size, tags_code in runs:
        path, at = first // UNITS_PER_FILE, first % UNITS_PER_FILE * UNIT_SIZE
        data = files[QUEUE / f"{path * UNITS_PER_FILE * UNIT_SIZE:020d}"]
        unit = data[at : at + UNIT_SIZE]
        assert unit[:8] == pos.to_bytes(8, "big")
        assert unit[8:12] == size.to_bytes(4, "big", signed=True)
        assert int.from_bytes(unit[12:], "big") == (end if size < 0 else tags_code)
        assert not any(data[at + UNIT_SIZE : at + 100 * UNIT_SIZE][: (end - first - 1) * UNIT_SIZE])


@pytest.mark.parametrize("make", MAKES)
def test_check_finds_a_gap_as_it_should_be(make: Callable[[], BrokerHarness]) -> None:
    harness = restarted(make().restart())
    harness.broker.close()
    checked = scenario.check(harness.disk)
    assert [fault for fault in checked.faults if fault.path.parent != PATHS.commit_log] == []
    assert checked.report.units <= BEFORE + AFTER + FRAMES


@pytest.mark.parametrize("make", MAKES)
def test_units_beside_a_gap_are_rebuilt(make: Callable[[], BrokerHarness]) -> None:
    harness = restarted(make())
    before = {path: data for path, data in harness.disk.files().items() if QUEUE in path.parents}
    for path in before:
        harness.disk.open(path).truncate(0)
    behind = [END + i for i in range(AFTER)]
    assert [record.offset for record in harness.fetch("t", 0)] == [*range(BEFORE), *behind]
    assert [record.offset for record in harness.fetch("t", 0, END)] == behind
    after = {path: data for path, data in harness.disk.files().items() if QUEUE in path.parents}
    first = QUEUE / ("0" * 20)
    assert after[first][: BEFORE * UNIT_SIZE] == before[first][: BEFORE * UNIT_SIZE]


def test_deleted_records_may_end_inside_a_gap() -> None:
    harness = with_empty_batches()
    topic = harness.topic()
    harness.broker.topics.delete_records(topic, {0: BEFORE + 12_345})
    harness.flush()
    for start in (lambda harness: harness, restarted, replayed):
        harness = start(harness)
        assert partition_of(harness).start_offset == BEFORE + 12_345
        found = harness.fetch("t", 0, BEFORE + 12_345)
        assert [record.offset for record in found] == [END + i for i in range(AFTER)]


def test_empty_batches_are_as_kafka_leaves_them() -> None:
    harness = with_empty_batches()
    runs = partition_of(harness).runs.overlapping(0, END)
    log = harness.disk.files()[PATHS.commit_log / ("0" * 20)]
    following = BEFORE
    for first, end, pos, size, _ in runs:
        frame = log[pos : pos + size]
        header = read_header(frame)
        assert first == header["base_offset"] == following
        assert header["record_count"] == 0
        assert end == header["base_offset"] + header["last_delta"] + 1
        assert header["last_delta"] < (1 << 31) - 1
        assert header["running_max"] == START_MS + BEFORE - 1
        following = end
    assert following == END
