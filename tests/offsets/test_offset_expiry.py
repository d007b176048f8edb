"""Committed offsets expire when nobody came back for them, and not a moment before."""

import random

import pytest

from appliance.errors import RequestError
from appliance.store.group_frames import (
    GROUP_TOLD,
    OFFSET_COMMITTED,
    STATE_EMPTY,
    STATE_STABLE,
    GroupFrame,
    OffsetEntry,
)
from tests.offsets.members import join
from tests.support.broker_rig import BrokerRig
from tests.support.configs import small_config
from tests.support.offsets_client import Commit, OffsetsClient, fetch_request

RETENTION_MS = 3_600_000


@pytest.fixture
def rig() -> BrokerRig:
    """A broker with topics 1 (`t`, 40 partitions) and 2 (`u`), and an hour of retention."""
    rig = BrokerRig(config=small_config(offset_retention_ms=RETENTION_MS))
    rig.create_topic("t", 40)
    rig.create_topic("u")
    return rig


def commit(rig: BrokerRig, group: str, *partitions: int, expiry_ms: int = -1) -> None:
    rig.broker.commit_offsets(
        [
            OffsetEntry(
                op=OFFSET_COMMITTED,
                group=group,
                topic_id=1,
                partition=partition,
                offset=7,
                metadata="m",
                commit_ms=rig.clock.wall_ms(),
                expiry_ms=expiry_ms,
            )
            for partition in partitions
        ]
    )


def commit_for_ever(rig: BrokerRig) -> None:
    while True:
        commit(rig, "filler", *range(40))
        rig.flush()


def tell(rig: BrokerRig, group: str, state: int) -> None:
    rig.broker.tell_group(
        GroupFrame(op=GROUP_TOLD, group=group, state=state, state_ms=rig.clock.wall_ms())
    )


def pass_time(rig: BrokerRig, duration_ms: int) -> None:
    """Let time pass; the housekeeping is done at its end, as often as it needs."""
    rig.clock.advance_ms(duration_ms)
    for _ in range(2):
        rig.housekeep()
    rig.flush()


def partitions(rig: BrokerRig, group: str) -> list[int]:
    return sorted(partition for _, partition in rig.broker.committed_offsets(group))


def test_offsets_of_no_group_expire_after_their_commit(rig: BrokerRig) -> None:
    commit(rig, "g", 0)
    pass_time(rig, 20_000)
    commit(rig, "g", 1)
    pass_time(rig, RETENTION_MS - 20_001)
    assert partitions(rig, "g") == [0, 1]
    pass_time(rig, 10_000)
    assert partitions(rig, "g") == [1]
    pass_time(rig, 10_001)
    assert partitions(rig, "g") == []
    assert rig.broker.group_names() == []


def test_a_group_with_members_keeps_its_offsets(rig: BrokerRig) -> None:
    """Also those that came with an expiry: somebody is reading from there."""
    commit(rig, "g", 0)
    commit(rig, "g", 1, expiry_ms=rig.clock.wall_ms() + 1)
    tell(rig, "g", STATE_STABLE)
    pass_time(rig, 100 * RETENTION_MS)
    assert partitions(rig, "g") == [0, 1]


def test_retention_begins_when_the_last_member_has_gone(rig: BrokerRig) -> None:
    commit(rig, "g", 0)
    tell(rig, "g", STATE_STABLE)
    pass_time(rig, 100 * RETENTION_MS)
    tell(rig, "g", STATE_EMPTY)
    pass_time(rig, RETENTION_MS - 1)
    assert partitions(rig, "g") == [0]
    pass_time(rig, 10_000)
    assert partitions(rig, "g") == []


def test_what_is_set_for_an_empty_group_stays_as_long(rig: BrokerRig) -> None:
    """A tool that resets a group that nobody used for long must not lose its work at once."""
    tell(rig, "g", STATE_EMPTY)
    pass_time(rig, 10 * RETENTION_MS)
    commit(rig, "g", 0)
    pass_time(rig, RETENTION_MS - 1)
    assert partitions(rig, "g") == [0]
    pass_time(rig, 10_000)
    assert partitions(rig, "g") == []


@pytest.mark.parametrize("is_told", [True, False])
def test_an_expiry_of_its_own_counts_instead(rig: BrokerRig, is_told: bool) -> None:
    now_ms = rig.clock.wall_ms()
    if is_told:
        tell(rig, "g", STATE_EMPTY)
    commit(rig, "g", 0, expiry_ms=now_ms + 60_000)
    commit(rig, "g", 1, expiry_ms=now_ms + 10 * RETENTION_MS)
    commit(rig, "g", 2)
    pass_time(rig, 59_999)
    assert partitions(rig, "g") == [0, 1, 2]
    pass_time(rig, 10_000)
    assert partitions(rig, "g") == [1, 2]
    pass_time(rig, RETENTION_MS)
    assert partitions(rig, "g") == [1]
    pass_time(rig, 10 * RETENTION_MS)
    assert partitions(rig, "g") == []


def test_what_expired_stays_so_after_a_restart(rig: BrokerRig) -> None:
    """A replay knows no retention: it must find the deletion in the log."""
    commit(rig, "g", 0)
    commit(rig, "h", 0, expiry_ms=rig.clock.wall_ms() + 100 * RETENTION_MS)
    pass_time(rig, RETENTION_MS)
    assert rig.broker.group_names() == ["h"]
    rig.clock.step_ms(-RETENTION_MS)
    rig = rig.crash("dropped", random.Random(1))
    assert rig.broker.group_names() == ["h"]


def test_a_group_without_members_and_offsets_is_forgotten(offsets: OffsetsClient) -> None:
    """One that had members, and one that never did."""
    rig = offsets.rig
    member = join(rig, "g", ["t"])
    offsets.commit("g", {("t", 0): Commit(1)}, **member.identity)
    offsets.commit("h", {("t", 0): Commit(1)})
    member.leave()
    assert rig.broker.group_names() == ["g", "h"]
    rig.pass_ms(rig.config.offset_retention_ms)
    rig.housekeep()
    assert offsets.fetch("g") == offsets.fetch("h") == {}
    for _ in range(10):
        rig.pass_ms(600_000)
    rig.flush()
    assert [rig.groups.find(name) for name in "gh"] == [None, None]
    assert rig.broker.group_names() == []
    assert offsets.reborn("crash").rig.broker.group_names() == []


def test_nobody_is_told_of_an_expiry_that_a_power_cut_can_take_back(
    offsets: OffsetsClient,
) -> None:
    offsets.commit("g", {("t", 0): Commit(1)})
    offsets.rig.clock.advance_ms(offsets.rig.config.offset_retention_ms)
    offsets.rig.housekeep()
    client = offsets.client
    client.send(fetch_request(7, {"g": None}), 7)
    assert client.take() == b""
    offsets.rig.flush()
    assert client.take() != b""


def test_a_clock_that_was_set_back_does_not_stop_it(rig: BrokerRig) -> None:
    commit(rig, "g", 0)
    pass_time(rig, RETENTION_MS - 1)
    rig.clock.step_ms(-5 * RETENTION_MS)
    rig.housekeep()
    commit(rig, "h", 0)
    assert partitions(rig, "g") == [0]
    pass_time(rig, RETENTION_MS)
    assert partitions(rig, "h") == []
    assert partitions(rig, "g") == [0]


def test_slices_are_bounded_and_reach_everything(rig: BrokerRig) -> None:
    """What is committed or replaced between two slices is treated as it then is."""
    for number in range(5):
        commit(rig, f"g{number}", *range(40))
    rig.clock.advance_ms(RETENTION_MS)
    store = rig.broker._store
    counts = []
    for _ in range(9):
        store.offset_expiry.expire_some(rig.clock.wall_ms(), offsets_max=30)
        counts.append(sum(len(partitions(rig, name)) for name in rig.broker.group_names()))
        if len(counts) == 2:
            commit(rig, "g1", 39)  # looked up already, not looked at
            commit(rig, "g9", 0)
            counts[-1] += 1
    assert counts == [170, 141, 112, 82, 52, 22, 2, 2, 2]
    assert (partitions(rig, "g1"), partitions(rig, "g9")) == ([39], [0])


def test_on_a_full_disk_offsets_stay_and_expire_later(rig: BrokerRig) -> None:
    commit(rig, "g", 0)
    rig.flush()
    rig.disk.free = 0
    with pytest.raises(RequestError, match="disk is full"):
        commit_for_ever(rig)
    pass_time(rig, RETENTION_MS)
    assert partitions(rig, "g") == [0]
    rig.disk.free = 1 << 30
    pass_time(rig, RETENTION_MS)
    assert partitions(rig, "g") == []
