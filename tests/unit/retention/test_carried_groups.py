"""Groups whose frames are in segments that are freed."""

from dataclasses import replace

from appliance.store.state.group_frames import (
    GROUP_SAVED,
    STATE_STABLE,
    GroupFrame,
    GroupMember,
)
from appliance.units import MS_PER_MINUTE
from tests.support.harness.checkpoints import take_checkpoint
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
    for generation in range(1, 6):
        fill(harness, 1)
        assert change(generation) < 300
    take_checkpoint(harness)
    run(harness, KEEP_MS - 10 * MS_PER_MINUTE)
    fill(harness, 2)
    free(harness)
    assert start_pos(harness) > 0
    expected = harness.broker.groups.groups["g"]
    assert (expected.generation, expected.members) == (5, members)
    check_restarts(harness)
    assert change(6) < 300
    check_restarts(harness)
