"""The counters of the delay levels. That they survive every start is part of each `Digest`."""

import pytest

from _core.state.projections import Projections


def new_projections() -> Projections:
    return Projections(id_key=bytes(16))


def test_restored_level_offsets_never_decrease() -> None:
    """Levels without timers take no room behind the last one that has some."""
    projections = new_projections()
    assert projections.level_offsets() == ()
    projections.restore_level_offsets((0, 7))
    projections.restore_level_offsets((3, 5, 0))
    assert projections.level_offsets() == (3, 7)
    assert [projections.level_offset(level) for level in (1, 2, 255)] == [3, 7, 0]


def test_levels_that_a_timer_entry_cannot_hold_are_refused() -> None:
    """A level is one byte, and 0 stands for none."""
    projections = new_projections()
    with pytest.raises(ValueError, match="got 256 levels, expected at most 255"):
        projections.restore_level_offsets((1,) * 256)
    for level in (-1, 0, 256):
        with pytest.raises(IndexError, match=f"level {level} is out of range: use 1 to 255"):
            projections.level_offset(level)
