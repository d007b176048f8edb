"""What changed of a group, in the log: found, applied, replayed, and recognized where it cannot be.

`tests/unit/groups/test_log_bytes.py` counts what requests cost in the log.
"""

import random
from dataclasses import dataclass, replace
from typing import Final

import pytest

from _core.bytes.layout import FRAME_HEADER_SIZE, KIND_GROUP, KIND_GROUP_DELTA
from appliance.errors import RequestError
from appliance.store.state.group_deltas import (
    MemberSums,
    apply_delta,
    decode_delta,
    encode_delta,
    find_delta,
)
from appliance.store.state.group_frames import (
    GROUP_CONSUMER,
    GROUP_DELETED,
    GROUP_SAVED,
    STATE_EMPTY,
    STATE_STABLE,
    GroupFrame,
    GroupMember,
    decode_group,
    encode_group,
)
from appliance.store.state.group_store import GroupStore
from appliance.store.state.log_calls import LogCalls
from appliance.units import KIB, MIB
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.checkpoints import commit, crashed, rebuild, take_checkpoint
from tests.support.values.group_changes import changed_group
from tests.support.values.kafka_records import Record

SEED: Final = 14


@dataclass
class Written:
    """A store and the frames that it wrote."""

    frames: list[tuple[int, bytes]]
    store: GroupStore


def writing(*, payload_size_max: int = MIB) -> Written:
    frames: list[tuple[int, bytes]] = []
    log = LogCalls(
        append=lambda kind, payload: frames.append((kind, payload)),
        append_topic=lambda _payload, _topic_id: 0,
        end_pos=lambda: -1,
        flushed_pos=lambda: -1,
        check_room=lambda _size, _room: None,
        begin=lambda: None,
        end=lambda: None,
    )
    store = GroupStore(
        log, payload_size_max=payload_size_max, reserve_bytes=MIB, offsets_size_max=MIB
    )
    return Written(frames, store)


def apply(store: GroupStore, frame: tuple[int, bytes]) -> None:
    kind, payload = frame
    if kind == KIND_GROUP:
        store.apply_group(decode_group(payload))
    else:
        store.apply_delta(decode_delta(payload))


def a_group(*names: str, metadata_size: int = 100) -> GroupFrame:
    """A stable group of static members."""
    return GroupFrame(
        op=GROUP_SAVED,
        group="g",
        state=STATE_STABLE,
        generation=1,
        members=tuple(
            GroupMember(
                member_id=name,
                instance_id=f"i-{name}",
                client_id="c",
                client_host="h",
                session_timeout_ms=1,
                rebalance_timeout_ms=1,
                metadata=bytes(metadata_size),
            )
            for name in names
        ),
    )


def test_a_member_that_did_not_change_keeps_its_assignment_when_another_loses_its_own() -> None:
    first, second, third = a_group("a", "b", "c").members
    first, second = replace(first, assignment=b"1"), replace(second, assignment=b"2")
    base = replace(a_group(), members=(first, second, third))
    frame = replace(base, members=(replace(first, assignment=b""), second, third))
    delta = find_delta(base, 7, frame)
    assert not delta.is_cleared
    assert apply_delta(base, delta) == frame
    frame = replace(base, members=(*frame.members[:1], replace(second, assignment=b""), third))
    delta = find_delta(base, 7, frame)
    assert delta.is_cleared
    assert not delta.changed
    assert apply_delta(base, delta) == frame


def test_a_change_that_was_found_leads_from_one_state_to_the_next() -> None:
    rng = random.Random(SEED)
    base = a_group("a", "b")
    for _ in range(600):
        frame = changed_group(rng, base)
        delta = find_delta(base, 7, frame)
        assert apply_delta(base, decode_delta(encode_delta(delta))) == frame, f"seed {SEED}"
        sums, fresh = MemberSums.of(base).after(delta, frame), MemberSums.of(frame)
        assert sums.base_crc(frame) == fresh.base_crc(frame)
        assert sums.whole_size(frame) == len(encode_group(frame))
        base = frame


def test_members_in_another_order_and_another_type_of_group_are_changes_too() -> None:
    base = a_group("a", "b", "c")
    for frame in (
        replace(base, members=base.members[::-1]),
        replace(base, members=(*base.members[1:], base.members[0])),
        replace(base, group_type=GROUP_CONSUMER),
    ):
        assert apply_delta(base, find_delta(base, 0, frame)) == frame


def test_the_checksum_of_the_base_depends_on_all_of_it() -> None:
    base = a_group("a", "b")
    others = [
        replace(base, generation=2),
        replace(base, leader="a"),
        replace(base, state_pos=9),
        replace(base, members=base.members[:1]),
        replace(base, members=base.members[::-1]),
        *(
            replace(base, members=(replace(base.members[0], **change), base.members[1]))
            for change in ({"metadata": b"x"}, {"assignment": b"x"}, {"epoch": 1})
        ),
    ]
    crcs = {MemberSums.of(each).base_crc(each) for each in (base, *others)}
    assert len(crcs) == 1 + len(others)


def play(written: Written, rng: random.Random, count: int) -> list[GroupFrame]:
    """Change a group that often; return its states."""
    states = []
    for _ in range(count):
        frame = changed_group(rng, written.store.groups.get("g"))
        written.store.save_group(frame)
        states.append(written.store.groups["g"])
    return states


def test_a_replay_finds_each_state_and_no_frame_is_larger_than_the_whole_group() -> None:
    written, replayed = writing(), writing()
    states = play(written, random.Random(SEED), 400)
    for frame, state in zip(written.frames, states, strict=True):
        apply(replayed.store, frame)
        assert replayed.store.groups["g"] == state
        assert len(frame[1]) <= len(encode_group(state))
    kinds = [kind for kind, _ in written.frames]
    assert kinds.count(KIND_GROUP_DELTA) > 150
    assert kinds.count(KIND_GROUP) > 50


@pytest.mark.parametrize("seed", range(4))
def test_a_replay_without_some_frames_finds_a_state_that_was_or_none(seed: int) -> None:
    """What a damaged or freed frame leaves: never members that were not together."""
    rng = random.Random(seed)
    written, replayed = writing(), writing()
    states = play(written, rng, 300)
    lost, kept, is_known = 0, 0, False
    for (kind, payload), state in zip(written.frames, states, strict=True):
        if rng.random() < 0.1:
            is_known = False
            continue
        apply(replayed.store, (kind, payload))
        is_known = is_known or kind == KIND_GROUP
        found = replayed.store.groups["g"]
        if is_known or found == state:
            assert found == state
            kept += 1
        else:
            lost += 1
            assert found == replace(
                state, members=(), leader=None, protocol=None, protocol_type=None
            )
    assert lost > 10
    assert kept > 150


def test_a_change_of_a_group_that_nobody_knows_keeps_its_numbers() -> None:
    written, replayed = writing(), writing()
    base = a_group("a", "b", metadata_size=1_000)
    for generation in (1, 2):
        written.store.save_group(replace(base, generation=generation))
    kind, _ = written.frames[1]
    assert kind == KIND_GROUP_DELTA
    apply(replayed.store, written.frames[1])
    found = replayed.store.groups["g"]
    assert (found.generation, found.state, found.members) == (2, STATE_STABLE, ())
    assert not replayed.store.is_empty("g"), "its offsets do not expire yet"


def test_changes_never_take_more_of_the_log_than_twice_what_changed() -> None:
    """Once they take as much as the whole group, it is written."""
    written = writing()
    group = a_group("a", "b", "c", metadata_size=3_000)
    written.store.save_group(group)
    for number in range(200):
        first = replace(group.members[0], member_id=f"a-{number}")
        group = replace(group, members=(first, *group.members[1:]))
        written.store.save_group(group)
    sizes = [(kind, FRAME_HEADER_SIZE + len(payload)) for kind, payload in written.frames[1:]]
    deltas = [size for kind, size in sizes if kind == KIND_GROUP_DELTA]
    wholes = [size for kind, size in sizes if kind == KIND_GROUP]
    assert max(deltas) < 300
    assert wholes
    # The change that is written as a whole counts too.
    assert sum(wholes) <= sum(deltas) + len(wholes) * max(deltas)


def test_a_start_writes_the_whole_group_at_its_first_change() -> None:
    harness = with_topic()
    group = a_group("a", "b", metadata_size=1_000)
    harness.broker.groups.save_group(group)
    harness.broker.groups.save_group(replace(group, generation=2))
    harness.broker.commit()
    harness = harness.restart()
    before = harness.broker.wrote_pos
    harness.broker.groups.save_group(replace(group, generation=3))
    whole = harness.broker.wrote_pos - before
    assert whole > 2_000
    harness.broker.groups.save_group(replace(group, generation=4))
    assert harness.broker.wrote_pos - before - whole < 300


def test_a_group_that_changes_beyond_a_frame_is_refused() -> None:
    """It must fit into one when it is written as a whole again."""
    written = writing(payload_size_max=10 * KIB)
    group = a_group("a", metadata_size=6 * KIB)
    written.store.save_group(group)
    larger = a_group("a", "b", metadata_size=6 * KIB)
    with pytest.raises(RequestError, match="the group's state has"):
        written.store.save_group(larger)
    assert written.store.groups["g"] == group
    written.store.save_group(replace(group, generation=2))
    replayed = writing()
    for frame in written.frames:
        apply(replayed.store, frame)
    assert replayed.store.groups["g"] == written.store.groups["g"]


def test_a_deleted_group_begins_again_as_a_whole() -> None:
    written = writing()
    group = a_group("a", metadata_size=1_000)
    for frame in (group, GroupFrame(op=GROUP_DELETED, group="g"), group):
        written.store.save_group(frame)
    assert [kind for kind, _ in written.frames] == 3 * [KIND_GROUP]


# A real log


def group_with_changes(harness: BrokerHarness) -> list[int]:
    """Save a group of two and change it twice; return where the three frames are."""
    group = a_group("a", "b", metadata_size=2_000)
    places = []
    for change in ({}, {"member_id": "a2"}, {"member_id": "a3"}):
        group = replace(
            group,
            generation=group.generation + 1,
            members=(replace(group.members[0], **change), group.members[1]),
        )
        places.append(harness.broker.wrote_pos)
        harness.broker.groups.save_group(group)
        harness.broker.commit()
    return places


def flip(harness: BrokerHarness, pos: int) -> None:
    """Damage a frame that is known to be durable."""
    harness.flush()
    harness.produce("t", 0, [Record(b"it says that the frames before are durable")])
    harness.flush()
    path, offset = harness.broker.log.path_of(pos)
    harness.disk.flip(path, offset + FRAME_HEADER_SIZE + 8, 1)


@pytest.mark.parametrize("damaged", [0, 1])
def test_after_a_damaged_frame_the_members_join_again_and_offsets_stay(
    damaged: int, caplog: pytest.LogCaptureFixture
) -> None:
    harness = with_topic()
    commit(harness, "g", 5)
    harness.flush()
    places = group_with_changes(harness)
    flip(harness, places[damaged])
    started = rebuild(harness, crashed(harness))
    assert len(started.report.damage) == 1
    saved = started.broker.groups.groups["g"]
    assert saved.members == ()
    assert saved.generation >= 4
    assert "members of 1 groups are lost" in caplog.text
    assert saved.state == STATE_EMPTY, "the coordinator has recorded that it is empty"
    assert saved.state_pos > places[2], "its offsets expire from now on"
    assert started.broker.groups.offsets("g")
    # The next broker knows it without the damaged frame.
    caplog.clear()
    started.flush()
    again = started.restart()
    assert again.broker.groups.groups["g"] == saved
    assert "lost" not in caplog.text


def test_damage_of_a_change_that_a_whole_frame_follows_costs_nothing() -> None:
    harness = with_topic()
    places = group_with_changes(harness)
    expected = harness.broker.groups.groups["g"]
    harness = harness.restart()
    whole = replace(expected, generation=9)
    harness.broker.groups.save_group(whole)
    harness.broker.commit()
    flip(harness, places[1])
    started = rebuild(harness, crashed(harness))
    saved = started.broker.groups.groups["g"]
    assert saved.members == whole.members
    assert saved.generation >= 9


def test_changes_after_a_saved_state_apply_to_it() -> None:
    harness = with_topic()
    group_with_changes(harness)
    take_checkpoint(harness)
    group = harness.broker.groups.groups["g"]
    before = harness.broker.wrote_pos
    harness.broker.groups.save_group(replace(group, generation=9))
    assert harness.broker.wrote_pos - before < 300
    expected = harness.broker.groups.groups["g"]
    harness.flush()
    for started in (harness.crash("kept", random.Random(1)), rebuild(harness, crashed(harness))):
        assert started.broker.groups.groups["g"] == expected
