"""Groups whose frames are in segments that are freed."""

from dataclasses import replace

from appliance.store.state.group_frames import (
    GROUP_SAVED,
    STATE_STABLE,
    GroupFrame,
    GroupMember,
)
from appliance.units import MS_PER_MINUTE
from tests.unit.retention.test_freeing import (
    KEEP_MS,
    broker,
    check_restarts,
    fill,
    free,
    run,
    start_pos,
)


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
