"""Ids that are in the runs alone: what they name is what a full replay knows."""

import random
from collections.abc import Callable

import pytest

from _core.bytes.crc32c import crc32c
from _core.bytes.layout import RUN_ID_SIZE, RUN_IDS
from _core.state.frame_ids import uncertain_ids
from _core.state.id_rows import named_timer
from _core.timers.id_filter import IdFilter, find_rows
from appliance.errors import CorruptionError
from appliance.store.head.id_carrier import IdCarrier
from appliance.store.paths import segment_name
from appliance.store.runs.id_run import DIRECTORY as ID_DIRECTORY
from appliance.store.runs.id_run import KEY_SIZE, IdRunReader, IdRunWriter
from appliance.store.runs.indexed_run import POSITION
from appliance.store.runs.run_files import BLOCK_HEAD, CRC, ID_ROW, RunEntry, RunWriter
from appliance.store.runs.saved_ids import IdLookup
from appliance.store.state.carry_frames import decode_carry, decode_ids
from tests.support.harness.saved_history import PATHS, Play, checkpoint, new_disk
from tests.support.oracles.timer_history import IDS


def saved(seed: int = 2, frames: int = 300) -> Play:
    """A history of which a checkpoint in the middle left all ids to the runs."""
    play = Play(seed, frames=frames, keeps_ids=False)
    play.go_to(play.ends[len(play.ends) * 3 // 4])
    play.checkpoint()
    assert not play.projections.ids.is_whole
    return play


def uncertain(play: Play) -> list[tuple[int, bytes, bytes]]:
    """Topics and ids that a run must be read for, and their keys."""
    ids = play.projections.ids
    found = [
        (topic_id, user_id, ids.uncertain(topic_id, user_id))
        for topic_id in play.projections.topics_by_id
        for user_id in IDS
    ]
    return [(topic_id, user_id, key) for topic_id, user_id, key in found if key is not None]


def look_up(play: Play) -> IdLookup:
    lookup = play.runs.ids.look_up([key for _, _, key in uncertain(play)])
    lookup.run()
    return lookup


@pytest.mark.parametrize("seed", range(40))
def test_what_ids_name_is_what_a_full_replay_knows(seed: int) -> None:
    """Through several lives, each of which begins with few ids in memory."""
    play = Play(seed, keeps_ids=False)
    left = 0
    lives = sorted(play.rng.sample(play.ends[5:-5], 8))
    for pos, following in zip(lives, [*lives[1:], play.ends[-1]], strict=True):
        play.go_to(pos)
        counts = play.checkpoint()
        if play.rng.random() < 0.5:
            play.restart(play.runs.entries, pos, counts)
        left += not play.projections.ids.is_whole
        for end in [each for each in play.ends if pos < each <= following]:
            if play.rng.random() < 0.1:
                play.checkpoint()
            play.go_to(end)
    assert left
    expected = play.expected_state()
    assert expected["ids"]
    assert play.state() == expected


def test_a_look_up_makes_all_that_it_was_asked_for_certain() -> None:
    play = saved()
    asked = uncertain(play)
    assert len(asked) > 5
    before = play.projections.ids.count
    lookup = look_up(play)
    assert {key for key, row in lookup.found if row}
    play.runs.ids.take(lookup)
    assert uncertain(play) == []
    play.runs.ids.take(lookup)  # again: nothing changes
    assert play.projections.ids.count <= before + len(asked)
    assert play.state() == play.expected_state()


def test_what_changes_while_a_run_is_read_stays() -> None:
    play = saved()
    lookup = look_up(play)
    play.go_to(play.ends[-1])
    play.runs.ids.take(lookup)
    assert play.state() == play.expected_state()


def test_what_was_read_before_the_end_of_a_checkpoint_is_not_taken() -> None:
    play = saved()
    lookup = look_up(play)
    play.go_to(play.ends[-1])
    play.checkpoint()
    left = uncertain(play)
    play.runs.ids.take(lookup)
    assert uncertain(play) == left
    assert play.state() == play.expected_state()


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_checkpoint_saves_is_in_memory_until_it_ends(*, fails: bool) -> None:
    play = saved()
    play.go_to(play.ends[-40])
    job = play.runs.freeze(play.pos)
    certain = len(IDS) * len(play.projections.topics_by_id) - len(uncertain(play))
    play.go_to(play.ends[-20])
    job.run()
    assert certain > 0
    if fails:
        play.runs.abandon(job)
        assert play.state() == play.expected_state()
        return
    play.runs.end(job)
    play.go_to(play.ends[-1])
    play.checkpoint()
    assert play.state() == play.expected_state()


def test_nothing_is_dropped_while_somebody_compares_rows_with_the_index() -> None:
    play = saved()
    ids = play.projections.ids
    rows_now = play.runs.ids_now()
    assert rows_now is not None
    ids.hold(True)
    play.go_to(play.ends[play.ends.index(play.pos) + 12])
    play.checkpoint()
    play.checkpoint()
    old_rows = b"".join(rows_now.blocks())
    newer = play.runs.ids_now()
    assert newer is not None
    now = {row[:4]: row for row in ID_ROW.iter_unpack(b"".join(newer.blocks()))}
    current = list(ID_ROW.iter_unpack(ids.current_rows(old_rows)))
    assert current
    assert all(now[row[:4]][5] == row[5] for row in current)
    generation = ids.generation
    ids.hold(False)
    play.checkpoint()
    assert ids.generation == generation + 1
    assert play.state() == play.expected_state()


def test_a_carry_goes_on_through_checkpoints_and_carries_nothing_old() -> None:
    play = saved()
    frames: list[bytes] = []

    def append(_kind: int, payload: bytes, _flags: int) -> bool:
        frames.append(payload)
        return True

    carrier = IdCarrier(play.runs, play.projections, append=append, payload_max=1 << 16)
    carrier.begin(1 << 40)
    job = carrier.step()
    assert job is not None
    generation = play.projections.ids.generation
    play.go_to(play.ends[play.ends.index(play.pos) + 12])
    play.checkpoint()
    play.checkpoint()
    assert play.projections.ids.generation == generation
    while not carrier.is_done:
        if job is not None:
            job.run()
            carrier.end(job)
        job = carrier.step()
    newest = play.runs.ids_now()
    assert newest is not None
    now = set(ID_ROW.iter_unpack(b"".join(newest.blocks())))
    carried = [
        row
        for payload in frames
        for value in decode_carry(payload)
        for row in ID_ROW.iter_unpack(decode_ids(value.payload))
    ]
    assert carried
    assert set(carried) <= now
    play.checkpoint()
    assert play.projections.ids.generation > generation


def test_a_replay_that_needs_many_ids_loads_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.store.runs.saved_ids.RECALLS_MAX", 3)
    play = Play(2, keeps_ids=False)
    play.go_to(play.ends[150])
    counts = play.checkpoint()
    play.restart(play.runs.entries, play.pos, counts)
    assert not play.projections.ids.is_whole
    play.go_to(play.ends[-1])
    assert play.projections.ids.is_whole
    assert play.state() == play.expected_state()


@pytest.mark.parametrize("seed", range(20))
def test_no_run_is_read_for_frames_whose_ids_were_looked_up(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = saved(seed)
    recalled: list[bytes] = []
    monkeypatch.setattr(play.runs.ids, "recall", recalled.append)
    count = 0
    while play.pos < play.ends[-1]:
        ends = [end for end in play.ends if end > play.pos]
        end = ends[min(play.rng.randrange(20), len(ends) - 1)]
        keys = uncertain_ids(play.projections, play.log[play.pos : end], play.pos)
        count += len(keys)
        lookup = play.runs.ids.look_up(keys)
        lookup.run()
        play.runs.ids.take(lookup)
        assert uncertain_ids(play.projections, play.log[play.pos : end], play.pos) == []
        play.go_to(end)
        assert not recalled
        if play.rng.random() < 0.2:
            play.checkpoint()
    assert count
    monkeypatch.undo()
    assert play.state() == play.expected_state()


def test_ids_of_frames_after_a_damaged_one_are_not_read() -> None:
    play = saved()
    ends = [end for end in play.ends if end >= play.pos]
    keys = [uncertain_ids(play.projections, play.log[play.pos : end], play.pos) for end in ends]
    first = next(index for index, found in enumerate(keys) if found)
    assert len(keys[-1]) > len(keys[first]), "a later frame names ids as well"
    damaged = bytearray(play.log[play.pos :])
    damaged[ends[first] - play.pos + 20] ^= 1
    assert uncertain_ids(play.projections, damaged, play.pos) == keys[first]
    assert uncertain_ids(play.projections, b"", play.pos) == []


def test_a_broker_that_serves_does_not_load_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.store.runs.saved_ids.RECALLS_MAX", 3)
    play = saved()
    play.runs.ids.end_replay()
    play.go_to(play.ends[-1])
    for topic in play.projections.topics_by_id.values():
        for user_id in IDS:
            named_timer(play.projections, topic, user_id)
    assert not play.projections.ids.is_whole


def test_runs_of_an_older_version_are_loaded_and_written_anew() -> None:
    play = Play(4)
    play.go_to(play.ends[200])
    counts = play.checkpoint()
    entries = [as_older(play, each) if each.kind == RUN_IDS else each for each in play.runs.entries]
    play._keeps_ids = False
    play.restart(entries, play.pos, counts)
    assert play.projections.ids.is_whole
    play.go_to(play.ends[203])  # so few changes that no merge would include the older run
    play.checkpoint()
    assert not play.projections.ids.is_whole
    play.go_to(play.ends[-1])
    assert play.state() == play.expected_state()


def as_older(play: Play, entry: RunEntry) -> RunEntry:
    """Write a run of ids in place of another, without a directory."""
    with_directory = IdRunReader(play.disk, entry.path(PATHS), entry)
    blocks = list(with_directory.blocks())
    writer = RunWriter(
        play.disk,
        PATHS,
        kind=RUN_IDS,
        number=entry.number + 100,
        from_pos=entry.from_pos,
        to_pos=entry.to_pos,
    )
    for block in blocks:
        writer.append(block, len(block) // RUN_ID_SIZE)
    made = writer.finish()
    assert made is not None
    return made


def test_a_damaged_block_ends_the_broker_and_its_run_is_set_aside() -> None:
    play = saved()
    entry = next(each for each in play.runs.entries if each.kind == RUN_IDS)
    path = entry.path(PATHS)
    play.disk.open(path).pwritev([b"\xff" * 40], 60)
    lookup = look_up(play)
    assert lookup.error is not None
    with pytest.raises(CorruptionError) as caught:
        play.runs.ids.take(lookup)
    assert caught.value.path == path
    assert not play.disk.exists(path)
    assert play.disk.exists(path.with_suffix(".damaged"))


# Filters and searches


def rows_of(hashes: list[tuple[int, int]]) -> list[bytes]:
    return [
        ID_ROW.pack(high, low, 1, 8, 0, 0, 0, 0, 1)[:RUN_ID_SIZE].ljust(RUN_ID_SIZE, b"\0")
        for high, low in sorted(hashes)
    ]


def random_hashes(rng: random.Random, count: int) -> list[tuple[int, int]]:
    return [(rng.getrandbits(64), rng.getrandbits(32)) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 32, 33, 5_000])
def test_a_filter_knows_all_ids_of_its_run_and_few_others(count: int) -> None:
    rng = random.Random(count)
    rows = rows_of(random_hashes(rng, count))
    made = IdFilter(count)
    assert made.add_rows(b"".join(rows)) == 0
    read = IdFilter.decode(made.encode())
    assert read.size == made.size == -(-count // 32) * 64
    keys = [row[:KEY_SIZE] for row in rows]
    assert read.pick(keys) == keys
    others = [row[:KEY_SIZE] for row in rows_of(random_hashes(rng, 20_000))]
    assert len(read.pick(others)) < 20_000 // 150
    assert IdFilter(count).pick(others) == []


def test_an_id_is_found_whatever_other_hashes_begin_like_its_own() -> None:
    """Also if rows with the same first word fill more than one block."""
    rng = random.Random(5)
    hashes = random_hashes(rng, 1_500)
    middle = sorted(hashes)[700][0]
    hashes += [(middle, low) for low in rng.sample(range(1 << 32), 1_000)]
    rows = rows_of(hashes)
    disk = new_disk()
    writer = IdRunWriter(disk, PATHS, kind=RUN_IDS, number=7, from_pos=0, to_pos=9)
    writer.filter = IdFilter(len(rows))
    writer.append(b"".join(rows), len(rows))
    entry = writer.finish()
    assert entry is not None
    assert entry.path(PATHS).name == segment_name(7)
    reader = IdRunReader(disk, entry.path(PATHS), entry)
    assert (reader.rows, reader.completed) == (len(rows), 0)
    assert b"".join(reader.blocks()) == b"".join(rows)
    assert reader.place_count == 33
    known = {row[:KEY_SIZE]: row for row in rows}
    others = [row[:KEY_SIZE] for row in rows_of(random_hashes(rng, 3_000))]
    assert reader.find(sorted([*known, *others])) == known


def test_a_filter_that_lacks_ids_of_its_run_is_a_fault() -> None:
    rows = rows_of(random_hashes(random.Random(3), 500))
    disk = new_disk()
    writer = IdRunWriter(disk, PATHS, kind=RUN_IDS, number=7, from_pos=0, to_pos=9)
    writer.filter = IdFilter(len(rows))
    writer.append(b"".join(rows[:250]), 250)
    kept = writer.filter
    writer.filter = IdFilter(len(rows))
    writer.append(b"".join(rows[250:]), 250)
    writer.filter = kept
    entry = writer.finish()
    assert entry is not None
    with pytest.raises(CorruptionError, match="filter that has all ids"):
        list(IdRunReader(disk, entry.path(PATHS), entry).blocks())


def test_searches_end_at_the_ends() -> None:
    rows = rows_of([(5, 1), (5, 3), (9, 0)])
    file, place = stored_block(rows)
    others = [row[:KEY_SIZE] for row in rows_of([(0, 0), (5, 2), (10, 0)])]
    known = {row[:KEY_SIZE]: row for row in rows}
    assert find_rows(place, [*known, *others], reader_of(file), 7) == (known, -1)
    assert find_rows(b"", [*known, *others], reader_of(b""), 7) == ({}, -1)


def stored_block(rows: list[bytes]) -> tuple[bytes, bytes]:
    """A file that has a block at 99, and the place of that; the CRC of the file's head is 7."""
    size = sum(map(len, rows))
    head = BLOCK_HEAD.pack(size, len(rows)) + b"".join(rows)
    crc = crc32c(head, crc32c(POSITION.pack(99), 7))
    (high,) = ID_DIRECTORY.key.unpack_from(rows[0])
    place = ID_DIRECTORY.place.pack(high, 99, size, len(rows), crc)
    return bytes(99) + head + CRC.pack(crc), place


def reader_of(file: bytes) -> Callable[[int, int], bytes]:
    return lambda size, offset: file[offset : offset + size]


def test_nothing_is_found_in_a_block_that_is_damaged_or_another_one() -> None:
    rows = rows_of([(5, 1), (5, 3), (9, 0)])
    file, place = stored_block(rows)
    key = rows[1][:KEY_SIZE]
    assert find_rows(place, [key], reader_of(file), 7) == ({key: rows[1]}, -1)
    assert find_rows(place, [key], reader_of(file), 8) == ({}, 0)
    for at in range(99, len(file)):
        damaged = bytearray(file)
        damaged[at] ^= 1
        assert find_rows(place, [key], reader_of(bytes(damaged)), 7) == ({}, 0)
        assert find_rows(place, [key], reader_of(file[:at]), 7) == ({}, 0)
    for at in range(8, len(place)):  # the key, which is before, says where to look
        other = bytearray(place)
        other[at] ^= 1
        assert find_rows(bytes(other), [key], reader_of(file), 7) == ({}, 0)


def test_small_stores_keep_all_ids_in_memory() -> None:
    play = Play(6)
    play.go_to(play.ends[-1])
    checkpoint(play.runs, play.pos)
    assert play.projections.ids.is_whole
    assert play.runs.ids.readers == ()
