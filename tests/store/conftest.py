"""What the tests of the store share."""

import pytest

from appliance.store import consume_queue


@pytest.fixture
def small_unit_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated file is not sparse, and few units are used: most of the time went to zeros."""
    monkeypatch.setattr(consume_queue, "FILE_SIZE_BYTES", 1 << 16)
