"""Freeing of segments where something is damaged, too large, gone or full."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.errors import StorageError
from appliance.store.state.group_frames import (
    GROUP_SAVED,
    STATE_STABLE,
    GroupFrame,
    GroupMember,
    encode_group,
)
from appliance.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE
from tests.support.harness import offline_scenario
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.checkpoints import (
    PATHS,
    commit,
    crashed,
    rebuild,
    take_checkpoint,
    try_checkpoint,
)
from tests.support.values.kafka_records import Producer, Record, delay
from tests.unit.retention.test_freeing import (
    KEEP_MS,
    MEMORY_MS,
    SEGMENT,
    bases_on,
    broker,
    check_restarts,
    fill,
    free,
    ready_to_free,
    run,
    start_pos,
)


def filled(segments: float = 5) -> BrokerHarness:
    """A broker with records of a topic that expire, and a saved state."""
    harness = broker()
    harness.create_topic("t")
    fill(harness, segments)
    take_checkpoint(harness)
    return harness


def test_a_start_forgets_damage_of_segments_that_are_freed() -> None:
    harness = filled()
    pos = harness.position_of(harness.partition(), 2)
    path, offset = harness.broker.log.path_of(pos)
    harness.make_cold()
    harness.disk.flip(path, offset + 300, 1)
    assert len(harness.read_cold([pos])) == 1
    free(harness)
    assert start_pos(harness) > pos
    check_restarts(harness)
    assert harness.restart().report.damage == ()


def test_offsets_of_a_topic_whose_declaration_is_freed_go_with_its_deletion() -> None:
    harness = broker()
    harness.create_topic("t")
    harness.create_topic("gone")
    fill(harness, 4)
    commit(harness, "g", 1, topic="gone")
    harness.broker.commit()
    harness.delete_topic("gone")
    free(harness)
    assert start_pos(harness) > 0
    assert not rebuild(harness, crashed(harness)).broker.groups.offsets("g")
    check_restarts(harness)


def test_a_start_keeps_no_file_open_that_it_removes() -> None:
    harness = ready_to_free()
    harness.free_head()
    harness.flush()
    # After the checkpoint, the removal fails.
    harness.disk.fail_at(harness.disk.calls + 5, OSError(errno.EIO, "Input/output error"))
    harness.free_head()
    harness.disk.heal()
    started = harness.restart()
    assert bases_on(started.disk)[0] == start_pos(started) > 0
    assert started.broker._store._freed == []


def check_carried(harness: BrokerHarness) -> None:
    """The head of the log can be freed, and what it held is still known."""
    fill(harness, 24)
    take_checkpoint(harness)
    free(harness)
    assert start_pos(harness) > 23 * SEGMENT
    check_restarts(harness)


def test_groups_that_take_more_than_a_segment_are_carried() -> None:
    harness = broker()
    harness.create_topic("t")
    for number in range(160):
        name = f"g{number}-" + "x" * 2_000
        harness.broker.groups.save_group(GroupFrame(op=GROUP_SAVED, group=name, generation=1))
        harness.broker.commit()
    check_carried(harness)


def test_a_group_of_half_a_segment_is_carried() -> None:
    harness = broker()
    harness.create_topic("t")
    empty = GroupFrame(op=GROUP_SAVED, group="", generation=1)
    for name in "abc":
        group = replace(empty, group=name * (SEGMENT // 2 - len(encode_group(empty))))
        harness.broker.groups.save_group(group)
        harness.broker.commit()
    check_carried(harness)


def test_offsets_that_take_more_than_a_segment_are_carried() -> None:
    harness = broker()
    harness.create_topic("t")
    harness.create_topic("u", 60, {"retention.ms": "-1"})
    group = "g" * 2_000
    for partition in range(60):
        commit(harness, group, partition, partition, "u")
        harness.broker.commit()
    check_carried(harness)
    assert len(harness.broker.groups.offsets(group)) == 60


def test_sequences_that_take_more_than_a_segment_are_carried() -> None:
    harness = broker()
    harness.create_topic("t")
    for number in range(2_000):
        assert harness.produce("t", 0, [Record(b"")], Producer(number, 0, 0)).error == 0
    check_carried(harness)
    assert len(harness.partition().producers) == 2_000
    again = rebuild(harness, crashed(harness))
    repeated = again.produce("t", 0, [Record(b"")], Producer(1_234, 0, 0))
    assert (repeated.error, repeated.base_offset) == (0, 1_234)


def spoil(harness: BrokerHarness, offset: int, topic: str) -> Path:
    """Make the frame of a record unreadable; return its file."""
    harness.flush()
    take_checkpoint(harness)
    pos = harness.position_of(harness.partition(topic=topic), offset)
    path, at = harness.broker.log.path_of(pos)
    harness.make_cold()
    harness.disk.spoil(path, at, 64)
    assert len(harness.read_cold([pos])) == 1
    return path


def test_a_record_that_cannot_be_read_at_present_keeps_its_segment() -> None:
    harness = broker()
    harness.create_topic("t")
    harness.create_topic("kept", 1, {"retention.ms": "-1"})
    harness.produce("kept", 0, [Record(b"mine")])
    fill(harness, 4)
    harness.produce("kept", 0, [Record(b"later")])
    path = spoil(harness, 0, "kept")
    free(harness)
    assert start_pos(harness) == 0
    harness.disk.repair(path)
    run(harness, 4 * MS_PER_MINUTE)
    assert harness.values("kept") == [b"mine", b"later"]


def test_records_that_cannot_be_read_expire_with_the_others() -> None:
    harness = broker()
    harness.create_topic("t")
    harness.create_topic("u")
    harness.produce("u", 0, [Record(b"only")])
    harness.produce("t", 0, [Record(b"first")])
    spoil(harness, 0, "u")
    spoil(harness, 0, "t")
    run(harness, KEEP_MS // 2)
    fill(harness, 4)
    run(harness, KEEP_MS // 2 + 6 * MS_PER_MINUTE)
    assert harness.partition(topic="u").start_offset == 1
    assert harness.partition(topic="t").start_offset == 1
    free(harness)
    assert start_pos(harness) >= 3 * SEGMENT


def fill_disk(harness: BrokerHarness) -> None:
    """Leave no space, and write records until the log refuses them."""
    harness.disk.free = 0
    for _ in range(2 * SEGMENT // 4_000):
        if harness.produce("t", 0, [Record(b"x" * 4_000)]).error:
            return
    raise AssertionError("the disk is not full")


def test_a_carry_leaves_the_reserve_of_a_full_disk_to_deliveries() -> None:
    harness = broker()
    harness.create_topic("t")
    for number in range(40):
        name = f"g{number}-" + "x" * 1_000
        harness.broker.groups.save_group(GroupFrame(op=GROUP_SAVED, group=name, generation=1))
        harness.broker.commit()
    fill(harness, 8)
    harness.produce("t", 0, [Record(b"due", headers=delay(5 * MS_PER_HOUR))])
    take_checkpoint(harness)
    fill_disk(harness)
    run(harness, 5 * MS_PER_HOUR + 4 * MS_PER_MINUTE)
    assert harness.broker.head_freer.carried_bytes == 0
    found = harness.fetch("t", 0, harness.partition().start_offset)
    assert [each.value for each in found] == [b"due"]
    harness.disk.free = 4 * SEGMENT
    free(harness)
    assert start_pos(harness) >= 7 * SEGMENT
    check_restarts(harness)


def test_a_verdict_on_freed_segments_spoils_no_saved_state() -> None:
    harness = filled(3)
    pos = harness.position_of(harness.partition(), 2)
    path, offset = harness.broker.log.path_of(pos)
    disk = crashed(harness)
    disk.flip(path, offset + 300, 1)
    harness = rebuild(harness, disk)
    assert len(harness.report.damage) == 1
    free(harness)
    assert start_pos(harness) > pos
    harness = rebuild(harness, crashed(harness))
    take_checkpoint(harness)
    # The head of the next segment repeats the verdict.
    fill(harness, 1)
    check_restarts(harness)


def keep_file(harness: BrokerHarness) -> None:
    """Free segments, but let the removal of the first file fail."""
    harness.free_head()
    harness.flush()
    # Two copies of the checkpoint are written and synced before.
    harness.disk.fail_at(harness.disk.calls + 5, OSError(errno.EIO, "Input/output error"))
    harness.free_head()
    harness.disk.heal()
    assert start_pos(harness) > bases_on(harness.disk)[0] == 0


def is_contiguous(harness: BrokerHarness) -> bool:
    bases = bases_on(harness.disk)
    return bases == list(range(bases[0], bases[-1] + 1, SEGMENT))


def test_a_file_that_could_not_be_removed_goes_before_later_ones() -> None:
    harness = ready_to_free()
    keep_file(harness)
    fill(harness, 3)
    gaps = []
    unlink = harness.disk.unlink

    def observe(path: Path) -> None:
        unlink(path)
        gaps.append(not is_contiguous(harness))

    harness.disk.unlink = observe  # type: ignore[method-assign]
    free(harness)
    # Of the seven files, one or two become the spare.
    assert len(gaps) >= 5
    assert not any(gaps)
    assert bases_on(harness.disk)[0] == start_pos(harness) > 3 * SEGMENT
    assert harness.broker.head_freer.freed_bytes == start_pos(harness)
    check_restarts(harness)


def test_a_file_that_could_not_be_removed_is_tried_again_without_another_free(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = ready_to_free()
    keep_file(harness)
    assert harness.broker.head_freer.freed_bytes == 0
    harness.free_head()
    assert bases_on(harness.disk)[0] == 0
    with harness.broker.head_freer.paused():
        harness.clock.advance_ms(MS_PER_MINUTE)
        harness.free_head()
    assert bases_on(harness.disk)[0] == 0
    harness.free_head()
    assert bases_on(harness.disk)[0] == start_pos(harness)
    assert harness.broker.head_freer.freed_bytes == start_pos(harness)
    assert len([line for line in caplog.messages if "cannot be removed" in line]) == 1


def test_a_file_that_a_start_could_not_remove_is_removed_while_it_serves() -> None:
    harness = ready_to_free()
    keep_file(harness)
    disk = crashed(harness)
    unlink = disk.unlink

    def fail(path: Path) -> None:
        if path.parent == PATHS.commit_log:
            raise StorageError(path, "unlink", errno.EIO, "Input/output error")
        unlink(path)

    disk.unlink = fail  # type: ignore[method-assign]
    harness = BrokerHarness(disk, harness.clock, harness.config)
    assert bases_on(disk)[0] == 0 < start_pos(harness)
    disk.unlink = unlink  # type: ignore[method-assign]
    fill(harness, 3)
    free(harness)
    assert bases_on(disk)[0] == start_pos(harness) > 3 * SEGMENT
    check_restarts(harness)


def test_damage_of_freed_segments_is_reported_no_longer() -> None:
    harness = filled()
    pos = harness.position_of(harness.partition(), 2)
    later = harness.position_of(harness.partition(), harness.partition().next_offset - 1)
    path, offset = harness.broker.log.path_of(pos)
    kept_path, kept_offset = harness.broker.log.path_of(later)
    harness.make_cold()
    harness.disk.flip(path, offset + 300, 1)
    harness.disk.flip(kept_path, kept_offset + 300, 1)
    assert len(harness.read_cold([pos, later])) == 2
    assert harness.broker.gauges(0).recovered_damage == 2
    free(harness)
    assert pos < start_pos(harness) <= later
    assert [(each.path, each.offset) for each in harness.broker.damage] == [
        (kept_path, kept_offset)
    ]
    assert harness.broker.gauges(0).recovered_damage == 1
    assert [each.pos for each in harness.broker._store.state.damage] == [later]


def test_nothing_is_freed_before_a_checkpoint_says_how_much_there_is_to_carry() -> None:
    harness = broker()
    harness.create_topic("t")
    fill(harness, 3.5)
    for _ in range((MEMORY_MS + 2 * MS_PER_HOUR) // (2 * MS_PER_MINUTE)):
        harness.clock.advance_ms(2 * MS_PER_MINUTE)
        harness.housekeep()
        harness.flush()
    assert harness.broker.checkpoints.snapshot_bytes == 0
    assert start_pos(harness) == harness.broker.head_freer.carried_bytes == 0
    take_checkpoint(harness)
    harness.clock.advance_ms(MS_PER_MINUTE)
    for _ in range(2):
        harness.free_head()
        harness.flush()
    assert start_pos(harness) >= 3 * SEGMENT


def test_a_state_from_before_the_segments_that_are_left_is_no_fault() -> None:
    """Until the next one is saved, the checkpoint still names it."""
    harness = broker()
    harness.create_topic("t")
    take_checkpoint(harness)
    fill(harness, 3.5)
    for _ in range(2 * MS_PER_HOUR // (2 * MS_PER_MINUTE)):
        harness.clock.advance_ms(2 * MS_PER_MINUTE)
        harness.expire()
        harness.flush()
    for _ in range(2):
        harness.free_head()
        harness.flush()
    assert start_pos(harness) > 0
    checked = offline_scenario.check(crashed(harness))
    assert checked.faults == []
    assert [note for note in checked.notes if "freed since" in note.text]
    check_restarts(harness.restart())


def test_a_disk_that_has_no_room_for_the_first_checkpoint_is_freed() -> None:
    harness = broker()
    harness.create_topic("t")
    fill(harness, 3.5)
    fill_disk(harness)
    for _ in range((MEMORY_MS + 2 * MS_PER_HOUR) // (2 * MS_PER_MINUTE)):
        harness.clock.advance_ms(2 * MS_PER_MINUTE)
        harness.housekeep()
        try_checkpoint(harness)
    assert start_pos(harness) >= 3 * SEGMENT
    assert harness.broker.checkpoints.snapshot_bytes > 0
    check_restarts(harness)


def test_more_ids_than_the_reserve_of_a_full_disk_holds_keep_no_older_segment() -> None:
    harness = broker()
    harness.create_topic("t")
    fill(harness, 3)
    run(harness, MEMORY_MS + KEEP_MS)
    names = [b"name-%d" % number for number in range(400)]
    for start in range(0, len(names), 50):
        later = [Record(b"", headers=delay(1_000, name)) for name in names[start : start + 50]]
        assert harness.produce("t", 0, later).error == 0
    harness.tick(1_000)
    before = start_pos(harness)
    fill(harness, 1)
    take_checkpoint(harness)
    fill_disk(harness)
    run(harness, 30 * MS_PER_MINUTE)
    assert harness.broker._store.state.projections.ids.completed_count == len(names)
    assert harness.broker.head_freer.carried_bytes < 400 * 52
    assert start_pos(harness) >= before
    harness.disk.free = 8 * SEGMENT
    free(harness)
    assert start_pos(harness) > before
    check_restarts(harness)


def test_a_full_disk_is_freed_although_a_timer_is_pending() -> None:
    harness = broker()
    harness.create_topic("t")
    harness.produce("t", 0, [Record(b"later", headers=delay(30 * MS_PER_DAY))])
    fill(harness, 4)
    take_checkpoint(harness)
    fill_disk(harness)
    run(harness, KEEP_MS + MEMORY_MS)
    assert start_pos(harness) >= 3 * SEGMENT
    check_restarts(harness)
    harness.disk.free = 4 * SEGMENT
    harness = harness.restart()
    first = harness.partition().next_offset
    assert harness.tick(30 * MS_PER_DAY) == 1
    assert [each.value for each in harness.fetch("t", 0, first)] == [b"later"]


def test_a_full_disk_keeps_its_reserve_from_many_timers() -> None:
    harness = broker()
    harness.create_topic("t")
    harness.create_topic("later", 8)
    later = Record(b"x" * 100, headers=delay(30 * MS_PER_DAY))
    for index in range(8):
        assert harness.produce("later", index, [later]).error == 0
    fill(harness, 5)
    take_checkpoint(harness)
    fill_disk(harness)
    run(harness, KEEP_MS + MEMORY_MS)
    assert start_pos(harness) == 0
    assert harness.broker._store.carriers.timers.carried_bytes == 0
    commit(harness, "g", 1)
    harness.broker.commit()
    harness.disk.free = 8 * SEGMENT
    free(harness)
    assert start_pos(harness) >= 4 * SEGMENT
    check_restarts(harness)


def test_a_disk_that_becomes_full_during_a_pass_keeps_its_reserve() -> None:
    harness = broker()
    harness.create_topic("t")
    harness.create_topic("later", 8)
    later = Record(b"x" * 100, headers=delay(30 * MS_PER_DAY))
    for index in range(8):
        assert harness.produce("later", index, [later]).error == 0
    fill(harness, 5)
    for _ in range(2 * MS_PER_HOUR // (2 * MS_PER_MINUTE)):
        harness.clock.advance_ms(2 * MS_PER_MINUTE)
        harness.expire()
        harness.flush()
    take_checkpoint(harness)
    freer = harness.broker.head_freer
    while not freer.is_carrying:
        job = freer.step(harness.broker.retention.kept_from)
        assert job is not None
        job.run()
        freer.end(job)
    fill_disk(harness)
    end = harness.broker.wrote_pos
    harness.free_head()
    assert (harness.broker.wrote_pos, freer.carried_bytes, start_pos(harness)) == (end, 0, 0)
    commit(harness, "g", 1)
    harness.broker.commit()
    harness.disk.free = 8 * SEGMENT
    free(harness)
    assert start_pos(harness) >= 4 * SEGMENT
    check_restarts(harness)


def test_changes_of_a_group_whose_whole_frame_is_freed_are_carried_as_a_whole() -> None:
    harness = broker()
    harness.create_topic("t")
    members = tuple(
        GroupMember(
            member_id=name,
            client_id="c",
            client_host="h",
            session_timeout_ms=1,
            rebalance_timeout_ms=1,
            metadata=bytes(3_000),
        )
        for name in "abc"
    )
    group = GroupFrame(op=GROUP_SAVED, group="g", state=STATE_STABLE, members=members)

    def change(generation: int) -> int:
        before = harness.broker.wrote_pos
        harness.broker.groups.save_group(replace(group, generation=generation))
        harness.broker.commit()
        return harness.broker.wrote_pos - before

    assert change(0) > 9_000
    fill(harness, 3)
    run(harness, KEEP_MS // 2)
    change_pos = harness.broker.wrote_pos
    assert change(1) < 300
    fill(harness, 3)
    for _ in range(50):
        if start_pos(harness):
            break
        run(harness, 2 * MS_PER_MINUTE)
    assert 0 < start_pos(harness) < change_pos, "the change is left, and what it changes is not"
    check_restarts(harness)
    assert change(2) < 300
    check_restarts(harness)
    free(harness)
    assert start_pos(harness) > change_pos
    check_restarts(harness)
    assert harness.broker.groups.groups["g"].members == members
