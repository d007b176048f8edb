"""The key index: what it finds, what it falls back to, and how it is made again."""

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from _core.bytes.pages import free_all
from _core.tables import key_scan
from appliance.find import FindRequest
from appliance.store.keys.key_index import BUSY_PAUSE, RETRY_NS
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.configs import DATA_DIR
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Record
from tests.support.values.raw_batch import ZSTD
from tests.unit.keys.index_harness import (
    LIMITS,
    Sent,
    ask,
    build,
    check_all_keys,
    index_of,
    places,
)

INDEXED = ("a", "b")


@pytest.fixture
def sent() -> Sent:
    """A broker with about 64 KiB of log, all of it in indexed topics."""
    sent = Sent()
    sent.send(300, INDEXED)
    return sent


def run_files(disk: SimFileSystem) -> list[Path]:
    return sorted(path for path in disk.files() if path.parent.name == "keyindex")


def test_every_key_is_found_without_reading_the_log(sent: Sent) -> None:
    index = sent.new_index()
    build(index)
    assert index.indexed_pos == sent.harness.broker.flushed_pos
    assert index.run_count >= 2
    assert check_all_keys(sent, sent.harness, index) == 0


def test_what_is_not_indexed_yet_is_scanned(sent: Sent) -> None:
    index = sent.new_index()
    assert check_all_keys(sent, sent.harness, index) > 0
    for _ in range(8):
        build(index, 3)
        check_all_keys(sent, sent.harness, index)
    build(index)
    sent.send(5, INDEXED)
    assert index.indexed_pos < sent.harness.broker.flushed_pos
    assert check_all_keys(sent, sent.harness, index) > 0


def test_runs_are_merged_and_stay_few(sent: Sent) -> None:
    index = sent.new_index()
    most = 0
    for _ in range(20):
        sent.send(40, INDEXED)
        build(index)
        most = max(most, index.run_count)
        assert len(run_files(sent.harness.disk)) == index.run_count
    assert index.row_count > 40 * LIMITS.run_rows
    assert most <= 12
    assert check_all_keys(sent, sent.harness, index) == 0


def test_a_topic_that_is_left_out_is_scanned_and_can_be_put_in() -> None:
    sent = Sent()
    sent.send(200)
    index = sent.new_index()
    build(index)
    assert check_all_keys(sent, sent.harness, index) > 0
    rows = index.row_count
    answer = ask(sent.harness, index, FindRequest(key=b"key-7", topic="a", limit=1_000))
    assert answer.scanned_bytes == 0
    assert places(answer) == [each for each in sent.visible[b"key-7"] if each[0] == "a"]
    topic = sent.harness.topic("off")
    sent.harness.broker.topics.replace_settings(topic, {})
    sent.harness.flush()
    sent.send(30, ("off",))
    build(index)
    assert index.row_count > rows
    check_all_keys(sent, sent.harness, index)
    sent.harness.disk.remove_tree(DATA_DIR / "keyindex")
    index = sent.new_index()
    build(index)
    assert check_all_keys(sent, sent.harness, index) == 0


def test_a_restart_goes_on_where_the_runs_end(sent: Sent) -> None:
    build(sent.new_index())
    harness = sent.harness.restart()
    index = index_of(harness)
    build(index, 1)
    kept_pos = index.indexed_pos
    assert kept_pos > 0
    assert index.run_count == len(run_files(harness.disk))
    assert index.pieces[-1].to_pos == kept_pos
    build(index)
    assert check_all_keys(sent, harness, index) == 0


def test_files_that_are_deleted_are_made_again(sent: Sent) -> None:
    build(sent.new_index())
    disk = sent.harness.disk
    for path in run_files(disk)[::2]:
        disk.unlink(path)
    index = sent.new_index()
    build(index, 1)
    assert check_all_keys(sent, sent.harness, index) > 0
    build(index)
    assert check_all_keys(sent, sent.harness, index) == 0


@pytest.mark.parametrize("is_open", [True, False], ids=["while it is used", "before a start"])
def test_any_damaged_page_is_noticed_and_made_again(sent: Sent, *, is_open: bool) -> None:
    rng = random.Random(3)
    first = sent.new_index()
    build(first)
    disk = sent.harness.disk
    for path in run_files(disk):
        size = len(disk.files()[path])
        for page in range(0, size, 4_096):
            disk.flip(path, page + rng.randrange(4_096), 1 << rng.randrange(8))
    index = first if is_open else sent.new_index()
    if not is_open:
        build(index, 1)
    assert check_all_keys(sent, sent.harness, index) > 0
    build(index)
    assert check_all_keys(sent, sent.harness, index) == 0


def test_a_run_that_cannot_be_read_is_scanned_and_made_again(sent: Sent) -> None:
    index = sent.new_index()
    build(index)
    disk = sent.harness.disk
    for path in run_files(disk):
        disk.spoil(path, 0, 1 << 20)
    assert check_all_keys(sent, sent.harness, index) > 0
    build(index)
    assert check_all_keys(sent, sent.harness, index) == 0


@pytest.mark.parametrize("is_lost", [False, True], ids=["damaged", "unreadable"])
def test_a_merge_that_meets_damage_makes_the_run_again(sent: Sent, *, is_lost: bool) -> None:
    limits = replace(LIMITS, merged_rows_max=0)
    build(sent.new_index(limits))
    disk = sent.harness.disk
    index = sent.new_index()
    build(index, 1)
    files = run_files(disk)
    assert len(files) >= LIMITS.merged_runs
    for path in files:
        last_rows = len(disk.files()[path]) - 4_096
        if is_lost:
            disk.spoil(path, last_rows, 1)
        else:
            disk.flip(path, last_rows, 1)
    for _ in range(len(files) + 1):
        build(index)
        sent.harness.clock.advance_ms(RETRY_NS // 1_000_000)
    assert index.indexed_pos == sent.harness.broker.flushed_pos
    assert index.run_count < len(files)
    # Runs that no merge has met are damaged still.
    check_all_keys(sent, sent.harness, index)
    build(index)
    assert check_all_keys(sent, sent.harness, index) == 0


def test_runs_of_another_log_are_not_used(sent: Sent) -> None:
    build(sent.new_index())
    other = Sent(seed=2)
    other.send(300, INDEXED)
    disk = other.harness.disk
    disk.make_dirs(DATA_DIR / "keyindex")
    for path in run_files(sent.harness.disk):
        data = sent.harness.disk.files()[path]
        disk.open(path, create=True).pwritev([data], 0)
    index = other.new_index()
    build(index)
    assert check_all_keys(other, other.harness, index) == 0


def test_runs_beyond_an_older_copy_of_the_log_are_not_used(sent: Sent) -> None:
    """The log is restored from a copy, the index is not; then the log goes another way."""
    old = sent.harness.disk.crashed("kept", random.Random(1))
    visible = {key: list(found) for key, found in sent.visible.items()}
    sent.send(200, INDEXED)
    build(sent.new_index())
    runs = {path: sent.harness.disk.files()[path] for path in run_files(sent.harness.disk)}
    old.make_dirs(DATA_DIR / "keyindex")
    for path, data in runs.items():
        old.open(path, create=True).pwritev([data], 0)
    sent.harness = BrokerHarness(old, sent.harness.clock, sent.harness.config)
    sent.visible.clear()
    sent.visible.update(visible)
    sent.send(300, INDEXED)
    index = sent.new_index()
    build(index)
    assert check_all_keys(sent, sent.harness, index) == 0


@pytest.mark.parametrize("merged_rows_max", [0, 1 << 20], ids=["many runs", "one run"])
def test_what_lies_before_the_log_is_skipped_and_dropped(sent: Sent, merged_rows_max: int) -> None:
    """Another part of the broker frees segments; here the first one is taken away."""
    sent.send(600, INDEXED)
    index = sent.new_index(replace(LIMITS, merged_rows_max=merged_rows_max))
    build(index)
    log = sent.harness.broker.log
    assert len(log.files.bases) > 2
    log._segments.pop(0)
    start = log.start_pos
    is_below = index.pieces[0].to_pos <= start
    assert is_below == (merged_rows_max == 0)
    kept = {
        key: [place for place in found if position_of(sent, place) >= start]
        for key, found in sent.visible.items()
    }
    sent.visible.clear()
    sent.visible.update(kept)
    assert check_all_keys(sent, sent.harness, index) == 0
    files = len(run_files(sent.harness.disk))
    build(index)
    assert index.pieces[0].to_pos > start
    assert (len(run_files(sent.harness.disk)) < files) == is_below
    assert check_all_keys(sent, sent.harness, index) == 0


def position_of(sent: Sent, place: tuple[str, int, int]) -> int:
    topic, partition, offset = place
    return sent.harness.position_of(sent.harness.partition(partition, topic), offset)


def test_an_index_that_is_switched_off_leaves_no_file_and_scans(sent: Sent) -> None:
    build(sent.new_index())
    store = sent.harness.broker._store
    index = store.new_key_index(sent.harness.broker._decompress, left_out=frozenset(), is_on=False)
    build(index)
    assert run_files(sent.harness.disk) == []
    assert check_all_keys(sent, sent.harness, index) > 0


def test_an_answer_that_is_cut_goes_on_where_it_ended(sent: Sent) -> None:
    index = sent.new_index()
    build(index)
    sent.send(30, INDEXED)
    for limit in (1, 2, 7):
        found, after = [], None
        while True:
            request = FindRequest(key=b"key-5", limit=limit, after=after)
            # One look at the clock, then the time is over: each call does a part only.
            answer = ask(sent.harness, index, request, goes_on=Once())
            assert len(answer.found) <= limit
            found += places(answer)
            after = answer.next
            if after is None:
                break
        assert sorted(found) == sorted(sent.visible[b"key-5"])


class Once:
    """A function that is true the first few times."""

    def __init__(self) -> None:
        self.left = 3

    def __call__(self) -> bool:
        self.left -= 1
        return self.left >= 0


def test_the_index_gives_way_while_the_log_grows_fast(sent: Sent) -> None:
    index, clock = sent.new_index(), sent.harness.clock
    build(index, 1)

    def grow(byte_count: int, duration_ms: int) -> None:
        clock.advance_ms(duration_ms)
        end = sent.harness.broker.wrote_pos + byte_count
        while sent.harness.broker.wrote_pos < end:
            sent.harness.produce("a", 0, [Record(bytes(6_000))])

    def work(duration_ms: int) -> bool:
        """Do a job of some duration, if there is one now."""
        job = index.step()
        if job is None:
            return False
        clock.advance_ms(duration_ms)
        job.run()
        index.end(job)
        return True

    grow(0, 1_000)
    assert work(10)
    assert work(10)
    clock.advance_ms(1_000)
    index._seen = (clock.monotonic_ns(), sent.harness.broker.committed_pos - (64 << 20))
    grow(10_000, 200)
    assert work(10)
    clock.advance_ms(10 * BUSY_PAUSE - 1)
    assert not work(10)
    clock.advance_ms(1)
    assert work(10)


def test_a_full_disk_delays_the_index_and_loses_nothing(sent: Sent) -> None:
    index = sent.new_index()
    disk = sent.harness.disk
    free, disk.free = disk.free, 0
    build(index)
    assert index.run_count == 0
    assert check_all_keys(sent, sent.harness, index) > 0
    disk.free = free
    assert index.step() is None
    sent.harness.clock.advance_ms(RETRY_NS // 1_000_000)
    build(index)
    assert check_all_keys(sent, sent.harness, index) == 0


def test_the_memory_of_an_unpacked_batch_is_given_back_without_the_interpreters_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freed: list[int] = []

    def free(parts: list[bytes]) -> None:
        # The list has the only reference, so the memory can go; the other one is the argument's.
        count = sys.getrefcount(parts[0])
        assert count == 2
        freed.append(len(parts[0]))
        free_all(parts)

    monkeypatch.setattr(key_scan, "free_all", free)
    harness = with_topic()
    records = [Record(bytes(100), b"key")] * 90
    assert harness.produce("t", 0, records, codec=ZSTD).error == 0
    harness.flush()
    index = index_of(harness)
    build(index)
    assert freed
    assert freed[0] > 9_000
    assert len(places(ask(harness, index, FindRequest(key=b"key", limit=500)))) == 90
