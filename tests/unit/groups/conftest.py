"""The coordinator that tests of groups share in kind: each has its own."""

import pytest

from appliance.store.state.group_frames import GroupFrame
from compat.kafka.groups.group import Group
from tests.unit.groups.harness import GroupHarness


@pytest.fixture
def harness() -> GroupHarness:
    return GroupHarness()


@pytest.fixture(autouse=True)
def _frames_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a group remembers of its members for the log must be what they are."""
    to_frame = Group.to_frame

    def check(group: Group) -> GroupFrame:
        frame = to_frame(group)
        for member, known in zip(group.members.values(), frame.members, strict=True):
            assert group._frame(member) == known
            member.frame = known
        return frame

    monkeypatch.setattr(Group, "to_frame", check)
