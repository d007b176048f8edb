"""Offsets that are lost, or of empty batches: ten billion of them cost what one costs."""

from collections.abc import Callable
from typing import Final

import pytest

from _core.frames import read_header
from _core.layout import UNIT_SIZE, UNITS_PER_FILE
from _core.partition import Partition
from appliance.errors import ColdFrameError
from appliance.store.paths import DataPaths
from tests.support import offline_scene as scene
from tests.support.broker_rig import BrokerRig
from tests.support.configs import DATA_DIR
from tests.support.kafka_records import Record
from tests.support.virtual_clock import START_MS

TEN_BILLION: Final = 10_000_000_000
BEFORE: Final = 700
"""Records before the gap: more than a block of units."""
AFTER: Final = 3
END: Final = BEFORE + TEN_BILLION
PATHS: Final = DataPaths(DATA_DIR)
QUEUE: Final = PATHS.queue("t", 0)
FRAMES: Final = 5
"""Empty batches: each takes two billion offsets at most."""


def partition_of(rig: BrokerRig) -> Partition:
    topic = rig.broker.find_topic("t")
    assert topic is not None
    return topic.partitions[0]


def send(rig: BrokerRig, count: int, timestamp_ms: int) -> None:
    records = [Record(b"%d" % i, timestamp_ms=timestamp_ms + i) for i in range(count)]
    for first in range(0, count, 100):
        assert rig.produce("t", 0, records[first : first + 100]).error == 0


def with_empty_batches() -> BrokerRig:
    rig = BrokerRig()
    rig.create_topic("t")
    send(rig, BEFORE, START_MS)
    writer = rig.broker._store.writer
    assert writer.append_gap(partition_of(rig), end_offset=END, store_time_ms=rig.clock.wall_ms())
    rig.flush()
    send(rig, AFTER, START_MS + 10_000)
    return rig


def with_lost_offsets() -> BrokerRig:
    """The frames of the empty batches rotted, and were below a flushed mark."""
    rig = with_empty_batches()
    partition = partition_of(rig)
    places = [run[2] for run in partition.runs.overlapping(0, END)]
    assert len(places) == FRAMES
    rig.broker.close()
    for pos in places:
        rig.disk.flip(PATHS.commit_log / ("0" * 20), pos + 40, 1)
    for name in (PATHS.checkpoint, *(path for path in rig.disk.files() if QUEUE in path.parents)):
        rig.disk.unlink(name)
    rig = BrokerRig(rig.disk, rig.clock)
    assert rig.report.damage
    return rig


def restarted(rig: BrokerRig) -> BrokerRig:
    """From its checkpoint."""
    rig = rig.restart()
    assert rig.report.replayed_bytes == 0
    return rig


def replayed(rig: BrokerRig) -> BrokerRig:
    """From the log alone."""
    rig.broker.close()
    for path in list(rig.disk.files()):
        if PATHS.commit_log not in path.parents:
            rig.disk.unlink(path)
    return BrokerRig(rig.disk, rig.clock)


MAKES: Final = [with_empty_batches, with_lost_offsets]
STARTS: Final = [lambda rig: rig, restarted, replayed]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("make", MAKES)
def test_every_place_of_a_gap_leads_to_what_is_behind_it(
    make: Callable[[], BrokerRig], start: Callable[[BrokerRig], BrokerRig]
) -> None:
    rig = start(make())
    partition = partition_of(rig)
    assert partition.next_offset == END + AFTER
    behind = [END + i for i in range(AFTER)]
    for offset in (BEFORE, BEFORE + 1, BEFORE + 3_333_333_333, END - 1, END):
        assert [record.offset for record in rig.fetch("t", 0, offset)] == behind
    assert [record.offset for record in rig.fetch("t", 0)] == [*range(BEFORE), *behind]
    send(rig, 1, START_MS + 20_000)
    assert partition.next_offset == END + AFTER + 1


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("make", MAKES)
def test_a_time_is_found_on_both_sides_of_a_gap(
    make: Callable[[], BrokerRig], start: Callable[[BrokerRig], BrokerRig]
) -> None:
    rig = start(make())
    topic = rig.broker.find_topic("t")
    assert topic is not None

    def find(timestamp_ms: int | None) -> tuple[int, int] | None:
        while True:
            try:
                if timestamp_ms is None:
                    return rig.broker.offset_of_max_timestamp(topic, 0)
                return rig.broker.offset_for_time(topic, 0, START_MS + timestamp_ms)
            except ColdFrameError as error:
                rig.read_cold([error.place])

    assert find(5) == (5, START_MS + 5)
    assert find(BEFORE) == (END, START_MS + 10_000)
    assert find(10_001) == (END + 1, START_MS + 10_001)
    assert find(99_999) is None
    assert find(None) == (END + 2, START_MS + 10_002)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("make", MAKES)
def test_a_gap_takes_one_unit_and_no_files_of_its_own(
    make: Callable[[], BrokerRig], start: Callable[[BrokerRig], BrokerRig]
) -> None:
    rig = start(make())
    partition = partition_of(rig)
    runs = partition.runs.overlapping(0, partition.next_offset)
    assert (runs[0][0], runs[-1][1]) == (BEFORE, END)
    assert len(runs) == (FRAMES if runs[0][3] > 0 else 1)
    rig.broker.close()
    files = {path: data for path, data in rig.disk.files().items() if QUEUE in path.parents}
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
def test_check_finds_a_gap_as_it_should_be(make: Callable[[], BrokerRig]) -> None:
    rig = restarted(make().restart())
    rig.broker.close()
    checked = scene.check(rig.disk)
    assert [fault for fault in checked.faults if fault.path.parent != PATHS.commit_log] == []
    assert checked.report is not None
    assert checked.report.units <= BEFORE + AFTER + FRAMES


@pytest.mark.parametrize("make", MAKES)
def test_units_beside_a_gap_are_made_anew(make: Callable[[], BrokerRig]) -> None:
    rig = restarted(make())
    before = {path: data for path, data in rig.disk.files().items() if QUEUE in path.parents}
    for path in before:
        rig.disk.open(path).truncate(0)
    behind = [END + i for i in range(AFTER)]
    assert [record.offset for record in rig.fetch("t", 0)] == [*range(BEFORE), *behind]
    assert [record.offset for record in rig.fetch("t", 0, END)] == behind
    after = {path: data for path, data in rig.disk.files().items() if QUEUE in path.parents}
    first = QUEUE / ("0" * 20)
    assert after[first][: BEFORE * UNIT_SIZE] == before[first][: BEFORE * UNIT_SIZE]


def test_deleted_records_may_end_inside_a_gap() -> None:
    rig = with_empty_batches()
    topic = rig.broker.find_topic("t")
    assert topic is not None
    rig.broker.delete_records(topic, {0: BEFORE + 12_345})
    rig.flush()
    for start in (lambda rig: rig, restarted, replayed):
        rig = start(rig)
        assert partition_of(rig).start_offset == BEFORE + 12_345
        found = rig.fetch("t", 0, BEFORE + 12_345)
        assert [record.offset for record in found] == [END + i for i in range(AFTER)]


def test_empty_batches_are_as_kafka_leaves_them() -> None:
    rig = with_empty_batches()
    runs = partition_of(rig).runs.overlapping(0, END)
    log = rig.disk.files()[PATHS.commit_log / ("0" * 20)]
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
