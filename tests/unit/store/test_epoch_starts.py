"""Where each epoch of the log ends: at the start of the next one that is known."""

import pytest

from appliance.store.state.epoch_starts import EpochStarts


@pytest.fixture
def starts() -> EpochStarts:
    """Epochs 2, 3 and 7, at 100, 250 and 900."""
    starts = EpochStarts()
    for epoch, pos in ((2, 100), (3, 250), (7, 900)):
        starts.add(epoch, pos)
    return starts


@pytest.mark.parametrize(
    ("epoch", "end"),
    [
        (0, (0, 100)),
        (1, (1, 100)),
        (2, (2, 250)),
        (3, (3, 900)),
        (4, (3, 900)),
        (6, (3, 900)),
        (7, (7, None)),
        (8, None),
    ],
)
def test_an_epoch_ends_where_the_next_known_one_starts(
    starts: EpochStarts, epoch: int, end: tuple[int, int | None] | None
) -> None:
    assert starts.find_end(epoch) == end


def test_an_epoch_that_is_declared_again_starts_where_it_did(starts: EpochStarts) -> None:
    for epoch in (2, 7):
        starts.add(epoch, 5_000)
    assert starts.find_end(3) == (3, 900)
    assert starts.find_end(7) == (7, None)


def test_without_epochs_nothing_is_known() -> None:
    assert EpochStarts().find_end(0) is None
