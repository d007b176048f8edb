"""What one client can make the broker hold is bounded, and counted rightly."""

import random
from typing import Any

import pytest

from appliance.units import MS_PER_HOUR
from compat.kafka.groups.deadlines import COMPACT_SLACK, Deadline, DeadlineQueue
from compat.kafka.groups.group import GroupState
from compat.kafka.protocol.error_codes import ErrorCode
from tests.unit.groups.harness import DELAY_MS, SESSION_MS, GroupHarness


def test_a_group_takes_so_many_members_and_no_more() -> None:
    harness = GroupHarness(group_member_count_max=2)
    leader, follower = harness.stable({}, {"instance_id": "i"})
    assert harness.join_error() is ErrorCode.group_max_size_reached
    assert harness.join_error(is_member_id_required=True) is ErrorCode.group_max_size_reached
    assert harness.join_error(instance_id="j") is ErrorCode.group_max_size_reached
    assert harness.heartbeat(leader.member_id, 1) is ErrorCode.none
    assert harness.join("g", instance_id="i").answer.generation == 1
    harness.leave(leader.member_id)
    assert not harness.join().is_answered
    assert follower.generation == 1


def test_ids_that_were_given_take_places() -> None:
    harness = GroupHarness(group_member_count_max=1)
    given = harness.join(is_member_id_required=True).answer.member_id
    assert harness.join_error(is_member_id_required=True) is ErrorCode.group_max_size_reached
    assert not harness.join("g", given).is_answered


def test_after_the_limit_was_lowered_the_last_ones_to_join_go(harness: GroupHarness) -> None:
    answers = harness.stable({}, {}, {})
    harness.config = GroupHarness(group_member_count_max=2).config
    harness.restart()
    waiting = [harness.join("g", each.member_id) for each in answers]
    assert waiting[2].answer.error is ErrorCode.group_max_size_reached
    assert {each.answer.generation for each in waiting[:2]} == {2}


def commit(harness: GroupHarness, group: str, address: str) -> ErrorCode:
    """What a commit without a member is answered; it creates a group."""
    return harness.groups.check_commit(group, "", None, -1, harness.now_ms, address=address)


def test_there_are_so_many_groups_and_no_more() -> None:
    harness = GroupHarness(group_count_max=2)
    harness.stable({}, group="a")
    assert commit(harness, "b", "::1") is ErrorCode.none
    assert harness.join_error("c", client_host="::2") is ErrorCode.group_max_size_reached
    assert commit(harness, "c", "::2") is ErrorCode.group_max_size_reached
    assert not harness.join("b").is_answered


def test_one_address_creates_half_of_the_groups() -> None:
    harness = GroupHarness(group_count_max=6)
    assert commit(harness, "a", "::1") is ErrorCode.none
    for name in "bc":
        assert not harness.join(name, client_host="::1").is_answered
    assert harness.join_error("d", client_host="::1") is ErrorCode.group_max_size_reached
    assert commit(harness, "d", "::1") is ErrorCode.group_max_size_reached
    assert commit(harness, "d", "::2") is ErrorCode.none
    # A member of another group, and a group less, are no matter.
    assert not harness.join("d", client_host="::1").is_answered
    assert harness.groups.delete("a") is ErrorCode.none
    assert commit(harness, "e", "::1") is ErrorCode.none


def test_one_address_creates_half_of_what_others_leave() -> None:
    """So that there is room for somebody who has no group."""
    harness = GroupHarness(group_count_max=16)

    def create(address: str) -> int:
        names = [f"{address} {number}" for number in range(16)]
        return [commit(harness, name, address) for name in names].count(ErrorCode.none)

    assert [create(address) for address in ("::1", "::2", "::3", "::4")] == [8, 4, 2, 1]


def restarted(**settings: Any) -> GroupHarness:
    """After a start that has found six groups of `::1`: a to e have offsets, and m a member."""
    harness = GroupHarness(**settings)
    for name in "abcde":
        assert commit(harness, name, "::1") is ErrorCode.none
        harness.log.commit(name)
    harness.stable({"client_host": "::1"}, group="m")
    harness.restart()
    assert len(list(harness.groups.groups())) == 6
    assert harness.groups._usage.shares == {}
    return harness


def test_groups_that_a_start_finds_leave_less_to_everybody() -> None:
    """Nobody knows who has created them. Who fills its share before each start finds less."""
    harness = restarted(group_count_max=12)
    for number in range(3):
        assert commit(harness, f"new {number}", "::1") is ErrorCode.none
    assert commit(harness, "one more", "::1") is ErrorCode.group_max_size_reached
    assert commit(harness, "one more", "::2") is ErrorCode.none


def test_a_group_that_a_start_finds_counts_for_the_address_that_uses_it() -> None:
    """A commit, a join or a heartbeat uses it, once it is not refused."""
    harness = restarted(group_count_max=12)
    (member_id,) = harness.group("m").members
    generation = harness.group("m").generation
    assert harness.heartbeat("stranger", generation, group="m", address="::3") is not None
    harness.join_error("m", client_host="::3", protocol_type="other")
    assert commit(harness, "m", "::3") is ErrorCode.unknown_member_id
    assert harness.groups._usage.shares == {}
    assert harness.heartbeat(member_id, generation, group="m", address="::1") is ErrorCode.none
    for name in "abc":
        assert commit(harness, name, "::1") is ErrorCode.none
        assert commit(harness, name, "::2") is ErrorCode.none  # the first one counts
    assert not harness.join("d", client_host="::1").is_answered
    shares = harness.groups._usage.shares
    assert {address: share.count for address, share in shares.items()} == {"::1": 5}
    groups = [harness.group(name) for name in "abcdm"]
    assert shares["::1"].size_bytes == sum(group.size_bytes for group in groups)
    # As before the start it has 6 of 12, however often the broker starts.
    assert commit(harness, "new", "::1") is ErrorCode.none
    assert commit(harness, "one more", "::1") is ErrorCode.group_max_size_reached
    assert commit(harness, "e", "::1") is ErrorCode.none
    assert harness.groups.delete("new") is ErrorCode.none
    assert commit(harness, "one more", "::1") is ErrorCode.group_max_size_reached
    assert harness.groups.delete("e") is ErrorCode.none
    assert commit(harness, "one more", "::1") is ErrorCode.none


def test_a_member_that_does_not_grow_stays_whatever_others_take() -> None:
    harness = GroupHarness(group_total_size_max_bytes=40 << 10)
    large = {"protocols": {"range": bytes(14 << 10)}, "client_host": "::1"}
    (member,) = harness.stable(large)
    for number in range(2):
        host = {"client_host": f"::{number + 2}", "protocols": {"range": bytes(6 << 10)}}
        assert not harness.join(f"other {number}", **host).is_answered
    assert harness.join("g", member.member_id, **large).answer.error is ErrorCode.none
    more = {"protocols": {"range": bytes(15 << 10)}, "client_host": "::1"}
    assert harness.join_error("g", member.member_id, **more) is ErrorCode.group_max_size_reached


def test_one_address_takes_half_of_the_bytes() -> None:
    harness = GroupHarness(group_total_size_max_bytes=40 << 10)
    protocols = {"range": bytes(6 << 10)}
    for name in "ab":
        assert not harness.join(name, client_host="::1", protocols=protocols).is_answered
    for name in "bc":
        error = harness.join_error(name, client_host="::1", protocols=protocols)
        assert error is ErrorCode.group_max_size_reached
    assert not harness.join("c", client_host="::2", protocols=protocols).is_answered
    harness.advance(DELAY_MS)
    harness.leave(*harness.group("a").members, group="a")
    assert not harness.join("b", client_host="::1", protocols=protocols).is_answered


@pytest.mark.parametrize(
    "given",
    [
        {"protocols": {"range": bytes(16 << 10)}},
        {"protocols": {"x" * 16_000: b""}},
        {"protocols": {"range": b""} | {f"p{index}": b"" for index in range(250)}},
        {"client_id": "c" * 16_000},
        {"instance_id": "i" * 16_000},
    ],
    ids=["metadata", "protocol name", "protocols", "client id", "instance id"],
)
def test_a_member_that_is_too_large_is_refused(
    harness: GroupHarness, given: dict[str, Any]
) -> None:
    harness.stable({})
    assert harness.join_error(**given) is ErrorCode.group_max_size_reached
    assert harness.group().state is GroupState.STABLE
    assert harness.join_error("new", **given) is ErrorCode.group_max_size_reached
    assert harness.groups.find("new") is None


def test_a_member_that_grows_too_large_leaves(harness: GroupHarness) -> None:
    leader, follower = harness.stable({}, {})
    large = {"range": bytes(16 << 10)}
    error = harness.join_error("g", follower.member_id, protocols=large)
    assert error is ErrorCode.group_max_size_reached
    assert set(harness.group().members) == {leader.member_id}


def test_all_groups_together_are_bounded() -> None:
    harness = GroupHarness(group_total_size_max_bytes=40 << 10)
    protocols = {"range": bytes(8 << 10)}
    for name in "abc":
        host = {"client_host": name}
        assert not harness.join(name, protocols=protocols, **host).is_answered
    full = harness.join_error("d", protocols=protocols, client_host="d")
    assert full is ErrorCode.group_max_size_reached
    harness.advance(DELAY_MS)
    harness.leave(*harness.group("a").members, group="a")
    assert not harness.join("d", protocols=protocols, client_host="d").is_answered


def test_what_is_given_back_can_be_used_again(harness: GroupHarness) -> None:
    for _ in range(100):
        (member,) = harness.stable({"protocols": {"range": bytes(8 << 10)}})
        harness.leave(member.member_id)
        pending = harness.join(is_member_id_required=True).answer.member_id
        harness.leave(pending)
    assert harness.groups.delete("g") is ErrorCode.none
    assert harness.groups.size_bytes == 0


def test_a_static_member_that_comes_back_as_another_client_is_counted_as_that_one(
    harness: GroupHarness,
) -> None:
    empty_bytes = 0
    for _ in range(3):
        harness.stable({"instance_id": "i", "client_id": "c" * 3000})
        member = harness.join(instance_id="i", client_id="c", client_host="::1").answer
        harness.leave(member.member_id)
        harness.advance(1000)
        empty_bytes = empty_bytes or harness.groups.size_bytes
        assert harness.groups.size_bytes == empty_bytes == harness.group().size_bytes < 3000


def test_a_group_that_was_only_announced_goes_when_its_offsets_do(harness: GroupHarness) -> None:
    harness.join("g", is_member_id_required=True)
    assert harness.groups.check_commit("g", "", None, -1, harness.now_ms) is ErrorCode.none
    harness.log.commit("g")
    harness.advance(MS_PER_HOUR)
    assert harness.group().state is GroupState.EMPTY
    harness.log.expire_offsets("g")
    harness.advance(MS_PER_HOUR)
    assert harness.groups.find("g") is None
    assert harness.log.saved_count == 0


def test_leaving_clients_leave_no_deadlines_behind(harness: GroupHarness) -> None:
    harness.stable({})
    for _ in range(1000):
        pending = harness.join(is_member_id_required=True).answer.member_id
        harness.leave(pending)
    assert len(harness.groups._deadlines) < 100


@pytest.mark.parametrize("seed", range(20))
def test_a_deadline_comes_once_at_the_time_it_was_set_to_last(seed: int) -> None:
    """Unless it is cancelled; it can be set again then."""
    rng = random.Random(seed)
    queue, came = DeadlineQueue(), list[int]()
    deadlines = [Deadline(queue) for _ in range(6)]
    for number, deadline in enumerate(deadlines):
        deadline.expired = lambda _, number=number: came.append(number)  # type: ignore[misc]
    due: dict[int, int] = {}
    for now_ms in range(0, 2_000, 7):
        for number in rng.sample(range(6), 3):
            if rng.random() < 0.3:
                deadlines[number].cancel()
                due.pop(number, None)
            else:
                due[number] = now_ms + rng.randrange(40)
                deadlines[number].set(due[number])
        next_ms = queue.next_ms()
        assert next_ms is None or not due or next_ms <= min(due.values())
        assert (next_ms is None) == (not due)
        came.clear()
        queue.expire(now_ms)
        assert sorted(came) == sorted(number for number in due if due[number] <= now_ms)
        due = {number: at_ms for number, at_ms in due.items() if at_ms > now_ms}


def test_deadlines_come_in_the_order_of_their_times() -> None:
    queue, came = DeadlineQueue(), list[int]()
    for at_ms in (30, 10, 20, 10):
        deadline = Deadline(queue)
        deadline.expired = lambda now_ms, at_ms=at_ms: came.append(at_ms)  # type: ignore[misc]
        deadline.set(at_ms)
    queue.expire(25)
    assert came == [10, 10, 20]


def test_what_becomes_due_meanwhile_comes_as_well() -> None:
    queue, came = DeadlineQueue(), list[int]()
    first, second = Deadline(queue), Deadline(queue)
    first.expired = second.set
    second.expired = came.append
    first.set(10)
    queue.expire(10)
    assert came == [10]


def test_putting_a_deadline_off_costs_no_place_in_the_queue() -> None:
    queue = DeadlineQueue()
    deadlines = [Deadline(queue) for _ in range(10)]
    for at_ms in range(1000):
        for deadline in deadlines:
            deadline.set(at_ms)
        assert len(queue) == 10


def test_what_was_cancelled_or_drawn_forward_is_cleared_away() -> None:
    queue = DeadlineQueue()
    drawn = Deadline(queue)
    for at_ms in range(1000, 0, -1):
        cancelled = Deadline(queue)
        cancelled.set(at_ms)
        cancelled.cancel()
        drawn.set(at_ms)
        assert len(queue) <= COMPACT_SLACK + 3
    assert queue.next_ms() == 1


def test_a_group_of_many_members_costs_a_heartbeat_what_one_of_few_costs() -> None:
    """Nothing in a turn looks at all members: the queue is asked once and moves one entry."""
    harness = GroupHarness(group_size_max_bytes=16 << 10)
    harness.stable(*({} for _ in range(20)))
    harness.advance(SESSION_MS // 2)
    first_due_ms, count = harness.groups.next_deadline_ms(), len(harness.groups._deadlines)
    for member_id in harness.group().members:
        harness.heartbeat(member_id, 1)
    assert harness.groups.next_deadline_ms() == first_due_ms
    assert len(harness.groups._deadlines) == count
