"""Partitions that stay are not searched for garbage, and deleted ones are freed."""

import subprocess
import sys

from appliance.system.collector import NEW_MIN, THRESHOLDS, PartitionFreezer


def test_new_partitions_are_frozen_once_they_are_many() -> None:
    freezer = PartitionFreezer()
    assert freezer.step(50, 0) is None
    assert freezer.step(50 + NEW_MIN - 1, 0) is None
    assert freezer.step(50 + NEW_MIN, 0) == "freeze"
    assert freezer.step(50 + NEW_MIN, 0) is None
    assert freezer.step(90_000, 0) == "freeze"
    assert freezer.step(98_999, 0) is None
    assert freezer.step(100_000, 0) == "freeze"


def test_what_is_frozen_and_deleted_is_freed_before_it_is_a_third_of_what_is_there() -> None:
    freezer = PartitionFreezer()
    freezer.step(100_000, 0)
    worst = deleted = searched = 0
    for _ in range(1_000):
        deleted += 90
        done = freezer.step(100_000 + deleted, deleted)
        worst = max(worst, deleted - searched)
        if done == "search":
            searched = deleted
    assert worst < 100_000 / 3
    assert searched > 50_000


def test_deletions_of_a_few_cost_no_search() -> None:
    freezer = PartitionFreezer()
    freezer.step(10, 0)
    assert freezer.step(10 + NEW_MIN - 1, NEW_MIN - 1) is None


CYCLES = """
import gc, time, weakref
from appliance.system.collector import freeze
class Part:
    pass
class Topic:
    def __init__(self):
        self.parts = []
        for _ in range(10):
            part = Part()
            part.topic = self
            self.parts.append(part)
topics = [Topic() for _ in range(1_000)]
freeze(searches_all=False)
searched = gc.collect(), len(gc.get_objects())
kept = weakref.ref(topics[1])
gone = weakref.ref(topics[0])
del topics[0]
gc.collect()
before = gone() is None
freeze(searches_all=True)
is_frozen = searched[1] < 9_000 < gc.get_freeze_count()
print(is_frozen, before, gone() is None, kept() is not None)
"""


def test_a_frozen_cycle_is_freed_by_a_search_of_all() -> None:
    """In a process of its own: this one's objects must not be frozen."""
    done = subprocess.run(
        [sys.executable, "-c", CYCLES], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "False", "True", "True"]


RARELY = """
import gc
from appliance.system import collector
collector.collect_rarely()
count = 0
def note(phase, info):
    global count
    count += phase == "stop" and info["generation"] == 2
gc.callbacks.append(note)
held = [[] for _ in range(700 * 10 * 60)]
whole = count
held += [[] for _ in range(700 * 10 * 60)]
print(*gc.get_threshold(), whole, count)
"""


def test_full_collections_are_rare_but_there_are_some() -> None:
    run = [sys.executable, "-c", RARELY]
    found = [int(each) for each in subprocess.check_output(run, text=True).split()]
    assert found == [*THRESHOLDS, 0, 1]
