"""The counters of the delay levels. That they survive every start is part of each `Digest`."""

import pytest

from _core.state.level_queues import LevelQueues


def test_restored_level_offsets_never_decrease() -> None:
    """Levels without timers take no room behind the last one that has some."""
    levels = LevelQueues()
    assert levels.all() == ()
    levels.restore((0, 7))
    levels.restore((3, 5, 0))
    assert levels.all() == (3, 7)
    assert [levels.of(level) for level in (1, 2, 255)] == [3, 7, 0]


def test_levels_that_a_timer_entry_cannot_hold_are_refused() -> None:
    """A level is one byte, and 0 stands for none."""
    levels = LevelQueues()
    with pytest.raises(ValueError, match="got 256 levels, expected at most 255"):
        levels.restore((1,) * 256)
    for level in (-1, 0, 256):
        with pytest.raises(IndexError, match=f"level {level} is out of range: use 1 to 255"):
            levels.of(level)
