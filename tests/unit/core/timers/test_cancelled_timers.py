"""The notes about noted timers, against a set."""

import random

import pytest

from _core.timers.cancelled_timers import CancelledTimers
from tests.support.compiled import timer_calls as calls


@pytest.mark.parametrize("seed", range(4))
def test_what_was_cancelled_is_claimed_once(seed: int) -> None:
    """Through growing and shrinking, each id is found exactly until it is claimed."""
    rng = random.Random(seed)
    noted = CancelledTimers()
    cancelled: set[tuple[int, int]] = set()
    for phase in range(6):
        # Sparse ids, and ids that lie as close together as those of one batch.
        spread = rng.choice([1, 100, 2**40])
        ids = [(rng.randrange(300) * spread, rng.randrange(40)) for _ in range(4_000)]
        for timer_id in ids:
            if rng.random() < (0.8 if phase % 2 == 0 else 0.1):
                assert calls.note_cancelled(noted, *timer_id) == (timer_id not in cancelled)
                cancelled.add(timer_id)
            else:
                assert calls.claim(noted, *timer_id, 0) == (timer_id in cancelled)
                cancelled.discard(timer_id)
            assert noted.cancelled_count == len(cancelled)
    for timer_id in rng.sample(sorted(cancelled), len(cancelled)):
        assert calls.claim(noted, *timer_id, 0)
    assert noted.cancelled_count == 0
    assert noted.allocated_bytes == 0


def test_memory_follows_the_number_of_ids() -> None:
    """16 bytes a slot at 46 to 70 % full while it grows; at least a sixth full when it shrinks."""
    noted = CancelledTimers()
    count = 100_000
    for i in range(count):
        calls.note_cancelled(noted, i * 1_000, 0)
    assert 16 / 0.7 * count <= noted.allocated_bytes <= 16 / 0.46 * count
    for i in range(count - count // 50):
        assert calls.claim(noted, i * 1_000, 0, 0)
    assert noted.allocated_bytes <= 16 * 7 * noted.cancelled_count


def test_timers_of_forgotten_partitions_are_claimed_as_often_as_announced() -> None:
    """The count says how many entries are still to come; other partitions are not touched."""
    noted = CancelledTimers()
    calls.note_forgotten(noted, 9, 2)
    calls.note_forgotten(noted, 70_000, 1)
    assert not calls.claim(noted, 100, 0, 8)
    assert not calls.claim(noted, 100, 0, 1 << 27)
    assert noted.orphan_count == 3
    assert calls.claim(noted, 100, 0, 9)
    assert calls.claim(noted, 200, 0, 70_000)
    assert calls.claim(noted, 300, 0, 9)
    assert noted.orphan_count == 0


def test_a_timer_cancelled_before_its_topic_was_deleted_is_no_orphan() -> None:
    """It is not among the partition's timers that were counted."""
    noted = CancelledTimers()
    calls.note_cancelled(noted, 100, 0)
    calls.note_forgotten(noted, 3, 1)
    assert calls.claim(noted, 100, 0, 3)
    assert (noted.cancelled_count, noted.orphan_count) == (0, 1)
    assert calls.claim(noted, 200, 0, 3)
    assert (noted.cancelled_count, noted.orphan_count) == (0, 0)
