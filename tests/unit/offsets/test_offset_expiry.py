"""Committed offsets expire when nobody came back for them, and not a moment before."""

import random
from dataclasses import replace

import pytest

from appliance.errors import RequestError
from appliance.store.state.group_frames import (
    GROUP_SAVED,
    OFFSET_COMMITTED,
    STATE_EMPTY,
    STATE_STABLE,
    GroupFrame,
    OffsetEntry,
)
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.offsets_client import Commit, OffsetsClient, fetch_request
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.checkpoints import take_checkpoint
from tests.support.harness.configs import small_config
from tests.unit.offsets.members import RawMember, join

RETENTION_MS = 3_600_000
CHECK_MS = 1_000


@pytest.fixture
def harness() -> BrokerHarness:
    """A broker with topics 1 (`t`, 40 partitions) and 2 (`u`), and an hour of retention."""
    config = small_config(offset_retention_ms=RETENTION_MS, retention_check_interval_ms=CHECK_MS)
    harness = with_topic(40, config=config)
    harness.create_topic("u")
    return harness


def commit(harness: BrokerHarness, group: str, *partitions: int, retention_ms: int = -1) -> None:
    harness.broker.groups.commit_offsets(
        [
            OffsetEntry(
                op=OFFSET_COMMITTED,
                group=group,
                topic_id=1,
                partition=partition,
                offset=7,
                metadata="m",
                commit_ms=harness.clock.wall_ms(),
                retention_ms=retention_ms,
            )
            for partition in partitions
        ]
    )


def commit_for_ever(harness: BrokerHarness) -> None:
    while True:
        commit(harness, "filler", *range(40))
        harness.flush()


def set_state(harness: BrokerHarness, group: str, state: int) -> None:
    harness.broker.groups.save_group(
        GroupFrame(op=GROUP_SAVED, group=group, state=state, state_ms=harness.clock.wall_ms())
    )


def pass_time(harness: BrokerHarness, duration_ms: int) -> None:
    """Let time pass, with the housekeeping that it needs."""
    harness.age(duration_ms)
    harness.flush()


def partitions(harness: BrokerHarness, group: str) -> list[int]:
    return sorted(partition for _, partition in harness.broker.groups.offsets(group))


def test_offsets_of_no_group_expire_after_their_commit(harness: BrokerHarness) -> None:
    commit(harness, "g", 0)
    pass_time(harness, 20_000)
    commit(harness, "g", 1)
    pass_time(harness, RETENTION_MS - 20_001)
    assert partitions(harness, "g") == [0, 1]
    pass_time(harness, 10_000)
    assert partitions(harness, "g") == [1]
    pass_time(harness, 10_001 + CHECK_MS)
    assert partitions(harness, "g") == []
    assert harness.broker.groups.names == []


def test_a_group_with_members_keeps_its_offsets(harness: BrokerHarness) -> None:
    """Also those that came with a retention: somebody is reading from there."""
    commit(harness, "g", 0)
    commit(harness, "g", 1, retention_ms=1)
    set_state(harness, "g", STATE_STABLE)
    pass_time(harness, 100 * RETENTION_MS)
    assert partitions(harness, "g") == [0, 1]


def test_retention_begins_when_the_last_member_is_gone(harness: BrokerHarness) -> None:
    commit(harness, "g", 0)
    set_state(harness, "g", STATE_STABLE)
    pass_time(harness, 100 * RETENTION_MS)
    set_state(harness, "g", STATE_EMPTY)
    pass_time(harness, RETENTION_MS - 1)
    assert partitions(harness, "g") == [0]
    pass_time(harness, 10_000)
    assert partitions(harness, "g") == []


def test_what_is_set_for_an_empty_group_stays_as_long(harness: BrokerHarness) -> None:
    """A tool that resets a group that nobody used for long must not lose its work at once."""
    set_state(harness, "g", STATE_EMPTY)
    pass_time(harness, 10 * RETENTION_MS)
    commit(harness, "g", 0)
    pass_time(harness, RETENTION_MS - 1)
    assert partitions(harness, "g") == [0]
    pass_time(harness, 10_000)
    assert partitions(harness, "g") == []


@pytest.mark.parametrize("has_state", [True, False])
def test_a_retention_of_its_own_counts_instead(harness: BrokerHarness, has_state: bool) -> None:
    if has_state:
        set_state(harness, "g", STATE_EMPTY)
    commit(harness, "g", 0, retention_ms=60_000)
    commit(harness, "g", 1, retention_ms=10 * RETENTION_MS)
    commit(harness, "g", 2)
    pass_time(harness, 59_999)
    assert partitions(harness, "g") == [0, 1, 2]
    pass_time(harness, 10_000)
    assert partitions(harness, "g") == [1, 2]
    pass_time(harness, RETENTION_MS)
    assert partitions(harness, "g") == [1]
    pass_time(harness, 10 * RETENTION_MS)
    assert partitions(harness, "g") == []


def test_what_expired_stays_so_after_a_restart(harness: BrokerHarness) -> None:
    """A replay knows no retention: it must find the deletion in the log."""
    commit(harness, "g", 0)
    commit(harness, "h", 0, retention_ms=100 * RETENTION_MS)
    pass_time(harness, RETENTION_MS + CHECK_MS)
    assert harness.broker.groups.names == ["h"]
    harness.clock.step_ms(-RETENTION_MS)
    harness = harness.crash("dropped", random.Random(1))
    assert harness.broker.groups.names == ["h"]


def test_a_group_without_members_and_offsets_is_forgotten(offsets: OffsetsClient) -> None:
    """One that had members, and one that never did."""
    harness = offsets.harness
    member = join(harness, "g", ["t"])
    offsets.commit("g", {("t", 0): Commit(1)}, **member.identity)
    offsets.commit("h", {("t", 0): Commit(1)})
    member.leave()
    assert harness.broker.groups.names == ["g", "h"]
    harness.age(harness.config.offset_retention_ms + harness.config.retention_check_interval_ms)
    assert offsets.fetch("g") == offsets.fetch("h") == {}
    for _ in range(10):
        harness.pass_ms(600_000)
    harness.flush()
    assert [harness.groups.find(name) for name in "gh"] == [None, None]
    assert harness.broker.groups.names == []
    assert offsets.reborn("crash").harness.broker.groups.names == []


def test_an_expiry_that_a_power_cut_can_undo_is_not_announced(offsets: OffsetsClient) -> None:
    offsets.commit("g", {("t", 0): Commit(1)})
    config = offsets.harness.config
    offsets.harness.age(config.offset_retention_ms + config.retention_check_interval_ms)
    client = offsets.client
    client.send(fetch_request(7, {"g": None}), 7)
    assert client.take() == b""
    offsets.harness.flush()
    assert client.take() != b""


@pytest.mark.parametrize("jump_ms", [-500 * RETENTION_MS, 500 * RETENTION_MS])
def test_a_wrong_clock_neither_expires_nor_keeps_offsets(
    harness: BrokerHarness, jump_ms: int
) -> None:
    commit(harness, "g", 0)
    commit(harness, "own", 0, retention_ms=RETENTION_MS // 2)
    pass_time(harness, RETENTION_MS // 4)
    harness.clock.step_ms(jump_ms)
    commit(harness, "h", 0)
    pass_time(harness, RETENTION_MS // 4 - 1)
    assert harness.broker.groups.names == ["g", "h", "own"]
    pass_time(harness, RETENTION_MS // 4)
    assert harness.broker.groups.names == ["g", "h"]
    harness.clock.step_ms(-jump_ms)
    pass_time(harness, RETENTION_MS // 4 + 2 * CHECK_MS)
    assert harness.broker.groups.names == ["h"]
    pass_time(harness, RETENTION_MS // 4 + CHECK_MS)
    assert harness.broker.groups.names == []


def test_the_age_of_offsets_goes_on_over_stops_and_crashes(harness: BrokerHarness) -> None:
    pass_time(harness, 2 * RETENTION_MS)  # a store that is young does not trust its clock
    commit(harness, "g", 0)
    pass_time(harness, RETENTION_MS // 2)
    harness = harness.restart()
    assert partitions(harness, "g") == [0]
    take_checkpoint(harness)
    pass_time(harness, RETENTION_MS // 4)
    harness = harness.crash("killed", random.Random(1))
    # What passed since the checkpoint starts again.
    pass_time(harness, RETENTION_MS // 2 - CHECK_MS)
    assert partitions(harness, "g") == [0]
    pass_time(harness, 10_000 + 3 * CHECK_MS)
    assert partitions(harness, "g") == []


def test_slices_are_bounded_and_reach_everything(harness: BrokerHarness) -> None:
    """What is committed or replaced between two slices is treated as it then is."""
    for number in range(5):
        commit(harness, f"g{number}", *range(40))
    harness.flush()
    state = harness.broker._store.state
    assert state.expiry is not None
    state.expiry.step()
    harness.clock.advance_ms(RETENTION_MS)
    state.expiry.step()
    counts = []
    for _ in range(9):
        state.offset_expiry.expire_some(harness.now_ms(), state.expiry.position_before, 30)
        counts.append(sum(len(partitions(harness, name)) for name in harness.broker.groups.names))
        if len(counts) == 2:
            commit(harness, "g1", 39)  # looked up already, not looked at
            commit(harness, "g9", 0)
            counts[-1] += 1
    assert counts == [170, 141, 112, 82, 52, 22, 2, 2, 2]
    assert (partitions(harness, "g1"), partitions(harness, "g9")) == ([39], [0])


def test_on_a_full_disk_offsets_stay_and_expire_later(harness: BrokerHarness) -> None:
    commit(harness, "g", 0)
    harness.flush()
    harness.disk.free = 0
    with pytest.raises(RequestError, match="disk is full"):
        commit_for_ever(harness)
    pass_time(harness, RETENTION_MS + CHECK_MS)
    assert partitions(harness, "g") == [0]
    harness.disk.free = 1 << 30
    pass_time(harness, RETENTION_MS)
    assert partitions(harness, "g") == []


DELAY_MS = 200_000


@pytest.fixture
def patient() -> BrokerHarness:
    """A broker whose empty groups wait three minutes for further members."""
    config = small_config(
        offset_retention_ms=RETENTION_MS,
        retention_check_interval_ms=CHECK_MS,
        initial_rebalance_delay_ms=DELAY_MS,
    )
    return with_topic(1, config=config)


def test_offsets_stay_while_a_member_waits_for_its_first_generation(
    patient: BrokerHarness,
) -> None:
    """The log says that the group is empty until its next generation begins."""
    join(patient, "g", ["t"]).leave()
    commit(patient, "g", 0)
    pass_time(patient, RETENTION_MS - 10_000)
    waiting = RawMember(patient, "g", ["t"], "consumer").ask_to_join()
    pass_time(patient, 60_000)
    assert partitions(patient, "g") == [0]
    patient.pass_ms(DELAY_MS)
    assert waiting.answer.generation == 3


def test_a_group_that_became_empty_again_keeps_its_offsets_from_then(
    patient: BrokerHarness,
) -> None:
    """Also if its member never got an assignment, and whatever the clock says."""
    join(patient, "g", ["t"]).leave()
    emptied_ms = patient.clock.wall_ms()
    commit(patient, "g", 0)
    pass_time(patient, RETENTION_MS - 10_000)
    member = RawMember(patient, "g", ["t"], "consumer")
    member.instance_id = "static"  # it needs no member id to leave
    waiting = member.ask_to_join()
    member.leave()
    assert waiting.answer.error is ErrorCode.unknown_member_id
    patient.clock.step_ms(emptied_ms - patient.clock.wall_ms() - DELAY_MS)
    patient.pass_ms(DELAY_MS)
    assert patient.broker.groups.groups["g"].state_ms == emptied_ms
    pass_time(patient, RETENTION_MS - 10_000)
    assert partitions(patient, "g") == [0]
    pass_time(patient, 20_000)
    assert partitions(patient, "g") == []


def test_an_offset_of_a_transaction_takes_no_effect(harness: BrokerHarness) -> None:
    """It counts from the commit of the transaction, which this version cannot have."""
    commit(harness, "g", 0)
    entry = OffsetEntry(
        op=OFFSET_COMMITTED, group="g", topic_id=1, partition=0, offset=99, producer_id=5
    )
    harness.broker.groups.commit_offsets([entry, replace(entry, partition=1)])
    harness.flush()
    for reader in (harness, harness.crash("dropped", random.Random(1))):
        offsets = reader.broker.groups.offsets("g")
        assert {key: each.offset for key, each in offsets.items()} == {(1, 0): 7}
