"""The coordinator that tests of groups share in kind: each has its own."""

import pytest

from tests.unit.groups.harness import GroupHarness


@pytest.fixture
def harness() -> GroupHarness:
    return GroupHarness()
